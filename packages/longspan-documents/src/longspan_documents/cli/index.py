"""`longspan index`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.characters import counted
from longspan.cli.terminal import say
from longspan.errors import InputError
from longspan_documents.cli.documents import what_is_read
from longspan_documents.inference.verbs import Index

epilog = what_is_read

if TYPE_CHECKING:
    from longspan_documents.inference.indexing.documents import DocumentIndex
    from longspan_documents.inference.indexing.search import SearchIndex


def index(
    documents: Annotated[list[str], typer.Argument(metavar="DOCUMENT…", help="Files or folders.")],
    output: Annotated[Path, typer.Option(help="Folder of the index; one that is there is added to.")],
    options: Index,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Processes, without --model; 0 works in this one.", show_default="this one alone"),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each worker.")] = 1,
) -> None:
    """Read a collection once, so that questions over it are answered quickly (`longspan answer --index`).

    Stores the words of every passage and its vector, computed by the bundled encoder or that of `--encoder`; files that
    have not changed are not read again. With `--model`, it stores the states of a decomposed model's lower layers for
    every passage. More documents can be added at any time; after an interruption, the index contains all finished
    documents. With `--workers`, several processes read the documents, and an interrupted call can be continued.

    Examples: `longspan index contracts/ --output library`, `longspan index new.pdf --output library`, `longspan index
    papers/ --output library --workers 8`, `longspan index contracts/ --model reader --output read`, `longspan index
    *.md --model deepset/roberta-base-squad2 --lower-layers 9 --output read`.
    """
    from longspan_documents.inference.indexing.documents import index_documents

    if "-" in documents:
        raise InputError("standard input has no name to point into; give files or folders")
    sources = [Path(source) for source in documents]
    if workers is None:
        library: DocumentIndex | SearchIndex = index_documents(sources, output, options)
    else:
        library = _by_workers(sources, output, options, workers, threads)
    for note in library.notes:
        say(f"note: {note}", error=True)
    added = library.added
    there = f", {added.known:,} there already" if added.known else ""
    say(
        f"{output}: {counted(added.documents, 'document')} added ({counted(added.passages, 'passage')}){there}; "
        f"{counted(len(library), 'document')} in {library.bytes / 1e6:.1f} MB"
    )


def _by_workers(sources: list[Path], output: Path, options: Index, workers: int, threads: int) -> "SearchIndex":
    """Build the index with several processes, and print their progress."""
    from longspan_documents.cli.map import Lines
    from longspan_documents.mapping.indexing import index_by_workers

    for name, value in (("--model", options.model), ("--lower-layers", options.lower_layers)):
        if value is not None:
            raise InputError(
                f"--workers {workers} makes an index without a model, and {name} is {value}; leave one out"
            )
    lines = Lines()
    try:
        return index_by_workers(sources, output, options, workers=workers, threads=threads, report=lines.report)
    finally:
        lines.end()
