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
    """Turn documents of any length into vectors; near vectors mean near meanings.

    Each document is read whole and becomes one vector of length 1; with `--sentences` those of its sentences are
    written too. Without `--output`, prints how near the documents are to each other. With `--model`, a document is read
    whole by the model and its states are pooled; with `--encoder`, texts are read as sentence-transformers reads them,
    longer ones in chunks.

    Examples: `longspan embed a.pdf b.md c.txt`, `longspan embed *.txt --output vectors.safetensors --sentences`.
    """
    from longspan.files import output_file
    from longspan_documents.inference.embed import embedded, encoder_in, save_vectors
    from longspan_documents.text.reading import read_file

    if output is not None and output.suffix != ".safetensors":
        raise InputError(f"--output {output} ends in no .safetensors; give a name that does")
    # Known before anything is read.
    named = [str(one) for one in (options.model, options.encoder) if one is not None]
    target = None if output is None else output_file(output, reads=[*files, *named])
    documents = [read_file(file, options) for file in files]
    encoder = encoder_in(options)
    vectors = [embedded(document, encoder, options.language) for document in documents]
    if note := getattr(encoder, "note", None):
        say(f"note: {note}", error=True)
    if target is not None:
        save_vectors(target, files, vectors, sentences=options.sentences)
        total = sum(len(one.sentences) for one in vectors)
        say(f"{output}: {counted(len(vectors), 'document')}, {counted(total, 'sentence')}", error=True)
    if json:
        say_json([_record(file, one, options.sentences) for file, one in zip(files, vectors, strict=True)])
    elif output is None:
        cosines = [float(one.vector @ other.vector) for one in vectors for other in vectors]
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
    """A table of the cosines of each two documents."""
    from rich.console import Console
    from rich.table import Table

    from longspan.characters import shown

    count = len(names)
    table = Table("", *[str(number) for number in range(1, count + 1)], box=None)
    for row, name in enumerate(names):
        table.add_row(f"{row + 1} {shown(name)}", *[f"{cosine:.2f}" for cosine in cosines[row * count :][:count]])
    Console().print(table)
