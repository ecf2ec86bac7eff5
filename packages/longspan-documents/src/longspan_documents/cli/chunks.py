"""`longspan chunks`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.characters import counted
from longspan.cli.terminal import name_of, say, say_json
from longspan_documents.cli.documents import what_is_read
from longspan_documents.inference.verbs import Chunks

epilog = what_is_read

if TYPE_CHECKING:
    from longspan_documents.inference.chunks import PlacedPassage


def chunks(
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT...", help="Files or folders; - is standard input.")],
    options: Chunks,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list with places and counts.")] = False,
) -> None:
    """Cut documents into passages with their places, for other tools.

    A passage is a run of whole sentences that stays inside one section, with paragraphs, turns and tables kept together
    where they fit: what `longspan answer` ranks and `longspan index` keeps. `--json` gives for each its file, words,
    characters, bytes, lines and page, the headings above it, who speaks, the numbers of its sentences and how many
    tokens it has. With `--max-tokens` every passage fits a model that reads so many. Files of a folder that cannot be
    read are named and passed over.

    Examples: `longspan chunks paper.pdf`, `longspan chunks docs/ --json > passages.json`, `longspan chunks book.epub
    --max-words 300 --overlap 2 --json`, `longspan chunks notes.md --max-tokens 510 --model bert-base-uncased --json`.
    """
    from longspan_documents.inference.answer import read_documents
    from longspan_documents.inference.chunks import cut

    documents, skipped = read_documents([Path(one) for one in inputs], options)
    several = [cut(one, options) for one in documents]
    if json:
        say_json([passage.record() for passages in several for passage in passages])
    else:
        for passages in several:
            for passage in passages:
                _print(passage, named=len(documents) > 1)
    for note in skipped:
        say(f"note: {note}", error=True)
    every = [passage for passages in several for passage in passages]
    tokens = sum(passage.tokens for passage in every)
    say(f"[{counted(len(documents), 'document')}, {counted(len(every), 'passage')}, {tokens:,} tokens]", error=True)


def _print(passage: "PlacedPassage", *, named: bool) -> None:
    """The passage below a line that says where it stands."""
    quote = passage.quote
    parts = [name_of(passage.file)] if named else []
    parts.append(f"{quote.place}, characters {quote.start:,}–{quote.end:,}")
    parts += [" › ".join(passage.headings)] if passage.headings else []
    parts.append(counted(passage.tokens, "token"))
    say(f"[{' · '.join(parts)}]")
    for line in passage.text.splitlines():
        say(line)
    say()
