"""`longspan embed`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.characters import counted
from longspan.cli.terminal import name_of, say, say_json
from longspan.errors import InputError
from longspan_documents.cli.documents import Json, what_is_read
from longspan_documents.inference.verbs import Embed

epilog = what_is_read

if TYPE_CHECKING:
    import numpy as np

    from longspan_documents.inference.embed import EmbeddedDocument


def embed(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Documents; - is standard input.")],
    options: Embed,
    output: Annotated[
        Path | None, typer.Option(help="Write a .safetensors file with the vectors, and their places.")
    ] = None,
    json: Json = False,
) -> None:
    """Embed documents of any length; documents with similar meanings have similar vectors.

    Each document is read as a whole and becomes one unit vector; with `--sentences`, the vectors of its sentences are
    written too. Without `--output`, prints the cosine similarities of the documents. With `--model`, the model reads a
    document as a whole and its states are pooled; with `--encoder`, texts are encoded as sentence-transformers does,
    longer ones in chunks.

    Examples: `longspan embed a.pdf b.md c.txt`, `longspan embed *.txt --output vectors.safetensors --sentences`.
    """
    from longspan.files import output_file
    from longspan_documents.inference.embed import embedded, encoder_in, save_vectors
    from longspan_documents.text.reading import read_file

    if output is not None and output.suffix != ".safetensors":
        raise InputError(f"--output {output} ends in no .safetensors; give a name that does")
    # Checked before anything is read.
    named = [str(source) for source in (options.model, options.encoder) if source is not None]
    target = None if output is None else output_file(output, reads=[*files, *named])
    documents = [read_file(file, options) for file in files]
    encoder = encoder_in(options)
    vectors = [embedded(document, encoder, options.language) for document in documents]
    if note := getattr(encoder, "note", None):
        say(f"note: {note}", error=True)
    if target is not None:
        save_vectors(target, files, vectors, sentences=options.sentences)
        total = sum(len(document.sentences) for document in vectors)
        say(f"{output}: {counted(len(vectors), 'document')}, {counted(total, 'sentence')}", error=True)
    if json:
        say_json([_record(file, document, options.sentences) for file, document in zip(files, vectors, strict=True)])
    elif output is None:
        cosines = [float(document.vector @ other_document.vector) for document in vectors for other_document in vectors]
        _print([name_of(file) for file in files], cosines)


def _record(file: str, embedded: "EmbeddedDocument", sentences: bool) -> dict[str, object]:
    record: dict[str, object] = {"file": file, "tokens": embedded.tokens, "vector": _rounded(embedded.vector)}
    if sentences:
        record["sentences"] = [
            {"text": sentence.text, "start": sentence.start, "end": sentence.end, "vector": _rounded(vector)}
            for sentence, vector in zip(embedded.sentences, embedded.vectors, strict=True)
        ]
    return record


def _rounded(vector: "np.ndarray") -> list[float]:
    return [round(float(number), 6) for number in vector]


def _print(names: list[str], cosines: list[float]) -> None:
    """Print a table of the cosines of all pairs of documents."""
    from rich.console import Console
    from rich.table import Table

    from longspan.characters import shown

    count = len(names)
    table = Table("", *[str(number) for number in range(1, count + 1)], box=None)
    for row, name in enumerate(names):
        table.add_row(f"{row + 1} {shown(name)}", *[f"{cosine:.2f}" for cosine in cosines[row * count :][:count]])
    Console().print(table)
