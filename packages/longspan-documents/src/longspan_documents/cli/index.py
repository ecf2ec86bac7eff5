"""`longspan index`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longspan.characters import counted
from longspan.cli.options import Device
from longspan.cli.terminal import say
from longspan.errors import InputError
from longspan_documents.cli.documents import Abbreviations, Encoder, Encoding, Raw, abbreviations_in, what_is_read

epilog = what_is_read

if TYPE_CHECKING:
    from longspan_documents.inference.indexing.documents import DocumentIndex
    from longspan_documents.inference.indexing.search import SearchIndex


def index(
    documents: Annotated[list[str], typer.Argument(metavar="DOCUMENT…", help="Files or folders.")],
    output: Annotated[Path, typer.Option(help="Folder of the index; one that is there is added to.")],
    model: Annotated[
        str | None,
        typer.Option(help="Folder of a model of questions, to store its states.", show_default="none"),
    ] = None,
    lower_layers: Annotated[
        int | None,
        typer.Option(min=1, help="Decompose the model: so many layers read passages alone.", show_default="as it is"),
    ] = None,
    dtype: Annotated[str, typer.Option(help="How states are stored: float16, bfloat16 or float32.")] = "float16",
    encoder: Encoder = None,
    device: Device = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Processes, without --model; 0 works in this one.", show_default="this one alone"),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each worker.")] = 1,
    raw: Raw = False,
    encoding: Encoding = None,
    abbreviations: Abbreviations = None,
) -> None:
    """Read a collection once, so that questions over it are answered quickly (`longspan answer --index`).

    Keeps the words of every passage and its vector, by the bundled encoder or that of `--encoder`; files that have not
    changed are not read again. With `--model` it keeps what the lower layers of a decomposed model make of every
    passage. More documents can be added at any time; an interruption leaves an index with all that was finished. With
    `--workers` several processes read the documents, and a call that was killed at any moment is gone on with.

    Examples: `longspan index contracts/ --output library`, `longspan index new.pdf --output library`,
    `longspan index papers/ --output library --workers 8`,
    `longspan index contracts/ --model reader --output read`,
    `longspan index *.md --model deepset/roberta-base-squad2 --lower-layers 9 --output read`.
    """
    from longspan_documents.inference.indexing.documents import index as make

    if "-" in documents:
        raise InputError("standard input has no name to point into; give files or folders")
    sources = [Path(source) for source in documents]
    further = abbreviations_in(abbreviations)
    if workers is None:
        library: DocumentIndex | SearchIndex = make(
            sources,
            output,
            model,
            lower_layers=lower_layers,
            dtype=dtype,  # pyright: ignore[reportArgumentType] (one of those, or refused there)
            encoding=encoding,
            raw=raw,
            encoder=encoder,
            device=device,
            abbreviations=further,
        )
    else:
        options = {"encoding": encoding, "raw": raw, "encoder": encoder, "device": device, "abbreviations": further}
        library = _by_workers(sources, output, model, lower_layers, workers=workers, threads=threads, **options)
    for note in library.notes:
        say(f"note: {note}", error=True)
    added = library.added
    there = f", {added.known:,} there already" if added.known else ""
    say(
        f"{output}: {counted(added.documents, 'document')} added ({counted(added.passages, 'passage')}){there}; "
        f"{counted(len(library), 'document')} in {library.bytes / 1e6:.1f} MB"
    )


def _by_workers(
    sources: list[Path], output: Path, model: str | None, lower_layers: int | None, *, workers: int, **options: Any
) -> "SearchIndex":
    """The index, made by several processes, with lines that say how far they are."""
    from longspan_documents.cli.map import Lines
    from longspan_documents.mapping.indexing import index_by_workers

    for name, given in (("--model", model), ("--lower-layers", lower_layers)):
        if given is not None:
            raise InputError(
                f"--workers {workers} makes an index without a model, and {name} is {given}; leave one out"
            )
    lines = Lines()
    try:
        return index_by_workers(sources, output, workers=workers, report=lines.report, **options)
    finally:
        lines.end()
