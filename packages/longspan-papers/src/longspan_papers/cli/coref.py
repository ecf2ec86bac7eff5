"""`longspan coref`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from longspan.characters import counted
from longspan.cli.terminal import COLOURS, name_of, say, say_coloured, say_json
from longspan.errors import InputError
from longspan_documents.cli.documents import say_heading, what_is_read
from longspan_papers.verbs import Coref

epilog = what_is_read

if TYPE_CHECKING:
    from longspan_documents.text.blocks import Document
    from longspan_papers.coreference.rows import CoreferenceRow


def coref(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Documents; - is standard input.")],
    options: Coref,
    output: Annotated[
        Path | None, typer.Option(help="Write the documents to a file instead of showing them.", show_default=False)
    ] = None,
    format: Annotated[
        Literal["text", "conll", "json"] | None,
        typer.Option(help="What to write.", show_default="by the name of --output, else text"),
    ] = None,
) -> None:
    """Find the words that refer to the same person, place or thing, in documents of any length.

    Shows the text with its mentions in brackets, `[the old man]3`; mentions with equal numbers (and colours, on a
    terminal) refer to the same thing. Files of CoNLL, JSON or JSON Lines are read as lists of words, unless --raw. The
    model is trained with `longspan train` for the task coreference.

    Examples: `longspan coref story.txt --model runs/coref-small`, `longspan coref book.epub --model DIR --output
    book.conll`, `longspan coref a.txt b.txt --model DIR --format json`.
    """
    from longspan.files import output_file, write_whole
    from longspan_papers.coreference.conll import conll_text
    from longspan_papers.coreference.resolving import as_records, load_resolver

    kind = _format(output, format)
    target = None if output is None else output_file(output, reads=[*files, str(options.model)])
    # Every document is read before the first is resolved, so that an error in the last one is found first.
    documents = [document for file in files for document in _read(file, options)]
    resolver = load_resolver(options.model, options.device, options.dtype)
    resolved = [resolver.resolve(document) for document in documents]
    if kind == "json" and target is None:
        say_json(as_records(resolved))
    elif kind == "text" and target is None:
        for index, document in enumerate(resolved):
            if len(resolved) > 1:
                say_heading(name_of(document.row.id), first=index == 0)
            say_coloured(
                (piece, "" if of is None else f"bold {COLOURS[of % len(COLOURS)]}") for piece, of in document.pieces()
            )
    elif target is None:
        say(conll_text(document.row for document in resolved), end="")
    else:
        import json

        texts = {
            "json": lambda: json.dumps(as_records(resolved), ensure_ascii=False, indent=1) + "\n",
            "conll": lambda: conll_text(document.row for document in resolved),
            "text": lambda: "\n".join("".join(text for text, _ in document.pieces()) for document in resolved),
        }
        write_whole({target: texts[kind]()})
    mentions = sum(len(cluster) for document in resolved for cluster in document.clusters)
    clusters = sum(len(document.clusters) for document in resolved)
    words = sum(len(document.places) for document in resolved)
    summary = f"{counted(words, 'word')}, {counted(mentions, 'mention')} in {counted(clusters, 'coreference cluster')}"
    say(f"[{summary}]", error=True)


def _format(output: Path | None, asked: str | None) -> str:
    ending = "" if output is None else output.suffix.lower().lstrip(".")
    by_name = {"conll": "conll", "json": "json", "txt": "text", "": "text"}.get(ending)
    if asked is None and by_name is None:
        raise InputError(f"--output {output} does not name a format; end it in .conll, .json or .txt, or give --format")
    return asked or by_name or "text"


def _read(file: str, options: Coref) -> "Iterator[Document | CoreferenceRow]":
    from longspan.data.fields import without_remedy
    from longspan_papers.coreference.reading import FILES, read_coreference

    if FILES.search(file) and not options.raw:
        with without_remedy():
            rows = list(read_coreference(Path(file), labelled=False))
        if not rows:
            raise InputError(f"{file} holds no documents; give a CoNLL file with '#begin document' lines, or another")
        yield from rows
    else:
        from longspan_documents.text.reading import read_file

        yield read_file(file, options)
