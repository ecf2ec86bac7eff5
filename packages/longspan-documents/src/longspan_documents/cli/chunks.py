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
    """Split documents into passages with their positions, for other tools.

    A passage is a run of whole sentences within one section, with paragraphs, turns and tables kept together where they
    fit. `longspan answer` ranks these passages and `longspan index` stores them. `--json` prints for each its file,
    words, characters, bytes, lines and page, the headings above it, its speakers, the indices of its sentences and its
    number of tokens. With `--max-tokens`, every passage fits a model with this input length. Files of a folder that
    cannot be read are named and skipped.

    Examples: `longspan chunks paper.pdf`, `longspan chunks docs/ --json > passages.json`, `longspan chunks book.epub
    --max-words 300 --overlap 2 --json`, `longspan chunks notes.md --max-tokens 510 --model bert-base-uncased --json`.
    """
    from longspan_documents.inference.answer import read_documents
    from longspan_documents.inference.chunks import cut

    documents, skipped = read_documents([Path(path) for path in inputs], options)
    several = [cut(document, options) for document in documents]
    if json:
        say_json([passage.record() for passages in several for passage in passages])
    else:
        for passages in several:
            for passage in passages:
                _print(passage, named=len(documents) > 1)
    for note in skipped:
        say(f"note: {note}", error=True)
    all_passages = [passage for passages in several for passage in passages]
    tokens = sum(passage.tokens for passage in all_passages)
    say(
        f"[{counted(len(documents), 'document')}, {counted(len(all_passages), 'passage')}, {tokens:,} tokens]",
        error=True,
    )


def _print(passage: "PlacedPassage", *, named: bool) -> None:
    """Print the passage below a line with its position."""
    quote = passage.quote
    parts = [name_of(passage.file)] if named else []
    parts.append(f"{quote.place}, characters {quote.start:,}–{quote.end:,}")
    parts += [" › ".join(passage.headings)] if passage.headings else []
    parts.append(counted(passage.tokens, "token"))
    say(f"[{' · '.join(parts)}]")
    for line in passage.text.splitlines():
        say(line)
    say()
