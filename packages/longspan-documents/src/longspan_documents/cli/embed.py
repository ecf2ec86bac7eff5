"""`longspan embed`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.characters import counted
from longspan.cli.options import Device, Dtype
from longspan.cli.terminal import name_of, say, say_json
from longspan.errors import InputError
from longspan_documents.cli.documents import (
    Abbreviations,
    Encoder,
    Encoding,
    Json,
    Ocr,
    PageHeaders,
    abbreviations_in,
    what_is_read,
)

epilog = what_is_read

if TYPE_CHECKING:
    import numpy as np

    from longspan_documents.inference.embed import EmbeddedDocument


def embed(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Documents; - is standard input.")],
    output: Annotated[
        Path | None, typer.Option(help="Write a .safetensors file with the vectors, and their places.")
    ] = None,
    sentences: Annotated[bool, typer.Option("--sentences", help="A vector for each sentence too.")] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="An encoder, as a folder or a Hub name: any, lengthened or not.", show_default="the bundled one"
        ),
    ] = None,
    encoder: Encoder = None,
    device: Device = None,
    dtype: Dtype = None,
    json: Json = False,
    encoding: Encoding = None,
    abbreviations: Abbreviations = None,
    page_headers: PageHeaders = False,
    ocr: Ocr = False,
    raw: Annotated[bool, typer.Option("--raw", help="Read documents as they are, boilerplate and all.")] = False,
) -> None:
    """Turn documents of any length into vectors; near vectors mean near meanings.

    Each document is read whole and becomes one vector of length 1; with `--sentences` those of its sentences are
    written too. Without `--output`, prints how near the documents are to each other. With `--model`, a document is read
    whole by the model and its states are pooled; with `--encoder`, texts are read as sentence-transformers reads them,
    longer ones in chunks.

    Examples: `longspan embed a.pdf b.md c.txt`, `longspan embed *.txt --output vectors.safetensors --sentences`.
    """
    from longspan.files import output_file
    from longspan_documents.inference.embed import embed_document, save_vectors, the_encoder
    from longspan_documents.text.reading import read

    if output is not None and output.suffix != ".safetensors":
        raise InputError(f"--output {output} ends in no .safetensors; give a name that does")
    # Known before anything is read.
    target = None if output is None else output_file(output, reads=[*files, model, encoder])
    further = abbreviations_in(abbreviations)
    documents = [
        read(file, encoding, raw=raw, abbreviations=further, page_headers=page_headers, ocr=ocr) for file in files
    ]
    chosen = the_encoder(model, encoder, device, dtype)
    embedded = [embed_document(document, chosen) for document in documents]
    if note := getattr(chosen, "note", None):
        say(f"note: {note}", error=True)
    if target is not None:
        save_vectors(target, files, embedded, sentences=sentences)
        total = sum(len(one.sentences) for one in embedded)
        say(f"{output}: {counted(len(embedded), 'document')}, {counted(total, 'sentence')}", error=True)
    if json:
        say_json([_record(file, one, sentences) for file, one in zip(files, embedded, strict=True)])
    elif output is None:
        cosines = [float(one.vector @ other.vector) for one in embedded for other in embedded]
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
