"""`longspan map`."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from longspan.characters import counted, duration
from longspan.cli.options import Device, Dtype
from longspan.cli.terminal import name_of, redraw, say
from longspan_documents.cli.documents import (
    Abbreviations,
    Encoder,
    Encoding,
    Ocr,
    PageHeaders,
    Raw,
    abbreviations_in,
    what_is_read,
)

epilog = what_is_read

if TYPE_CHECKING:
    from longspan_documents.mapping.documents import Progress

EVERY = 30.0
"""Seconds between two lines about the progress in a log."""


def map(
    verb: Annotated[
        str,
        typer.Argument(
            help="What to do with each: summarize, answer, embed, classify, or what a package adds (coref)."
        ),
    ],
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="Parquet, JSON Lines (.gz, .xz too), documents; folders and patterns of them; s3:// and gs://.",
        ),
    ],
    output: Annotated[Path, typer.Option(help="Folder for the parts, new or of the same job.", show_default=False)],
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="Processes of this machine, or a Ray cluster.")
    ] = "local",
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes; 0 works in this one.", show_default="one per processor")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each worker.")] = 1,
    part_rows: Annotated[
        int | None, typer.Option(min=1, help="Rows of a part.", show_default="a 256th of all, 8 to 512")
    ] = None,
    text_field: Annotated[
        str | None, typer.Option(help="Column of the texts in tables.", show_default="by its name")
    ] = None,
    prefix: Annotated[str, typer.Option(help="Put before the names of the columns that are added.")] = "",
    model: Annotated[
        str | None,
        typer.Option(help="Folder or name of a model, as the verb takes it.", show_default="the bundled one"),
    ] = None,
    encoder: Encoder = None,
    reranker: Annotated[
        str | None, typer.Option(help="answer: a cross-encoder that reads the 20 best again.", show_default="none")
    ] = None,
    sentences: Annotated[
        int | None, typer.Option("--sentences", "-n", help="summarize: sentences to pick.", show_default=False)
    ] = None,
    length: Annotated[str | None, typer.Option(help="summarize: short, medium or long.", show_default="medium")] = None,
    words: Annotated[int | None, typer.Option(help="summarize: words, in whole sentences.")] = None,
    query: Annotated[str | None, typer.Option(help="summarize: what it is to be about.")] = None,
    beams: Annotated[int | None, typer.Option(help="summarize: beams, for a model that writes.")] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="summarize: above 0 favours longer texts, likewise.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="summarize: longest summary, likewise.")] = None,
    max_source_tokens: Annotated[
        int | None, typer.Option(help="summarize: tokens that it reads at once.", show_default="as it was trained")
    ] = None,
    long_documents: Annotated[
        Literal["lengthen", "parts"] | None,
        typer.Option(help="summarize: what it does with longer documents.", show_default="parts"),
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    language: Annotated[
        str | None, typer.Option(help="summarize, embed: language code for finding sentences.", show_default="guessed")
    ] = None,
    question: Annotated[str | None, typer.Option("--question", "-q", help="answer: asked of every document.")] = None,
    question_field: Annotated[str | None, typer.Option(help="answer: column of each row's question.")] = None,
    top: Annotated[int | None, typer.Option(help="answer: passages to keep.", show_default="3")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="answer: probability below which there is none.", show_default=False)
    ] = None,
    encoding: Encoding = None,
    raw: Raw = False,
    abbreviations: Abbreviations = None,
    page_headers: PageHeaders = False,
    ocr: Ocr = False,
) -> None:
    """Do a verb for every row of tables, or every document of folders, and write Parquet.

    The output folder gets parts with one row for each input row: its own columns, the result's, and `error`, which says
    why a document could not be done. Ended at any moment, the same command goes on with the parts that are missing; a
    finished job is left as it is. `_job.json` says what the job was. Options belong to the verb that they name.

    Examples: `longspan map summarize papers.parquet --output summaries`, `longspan map embed "shards/*.jsonl.gz"
    --output vectors --workers 8`, `longspan map answer contracts/ -q "who may cancel?" --output answers`,
    `longspan map summarize s3://bucket/papers --output /shared/summaries --engine ray --workers 64`.
    """
    from longspan_documents.mapping.documents import map_documents

    options = {
        "model": model,
        "encoder": encoder,
        "reranker": reranker,
        "sentences": sentences,
        "length": length,
        "words": words,
        "query": query,
        "beams": beams,
        "length_penalty": length_penalty,
        "max_tokens": max_tokens,
        "max_source_tokens": max_source_tokens,
        "long_documents": long_documents,
        "device": device,
        "dtype": dtype,
        "language": language,
        "question": question,
        "question_field": question_field,
        "top": top,
        "threshold": threshold,
        "abbreviations": abbreviations_in(abbreviations) if abbreviations is not None else None,
    }
    lines = Lines()
    try:
        mapped = map_documents(
            verb,
            list(inputs),
            output,
            engine=engine,
            workers=workers,
            threads=threads,
            text_field=text_field,
            prefix=prefix,
            encoding=encoding,
            raw=raw,
            page_headers=page_headers,
            ocr=ocr,
            part_rows=part_rows,
            report=lines.report,
            **options,
        )
    finally:
        lines.end()
    for note in mapped.notes:
        say(f"note: {note}", error=True)
    told = f"{counted(mapped.rows, 'document')} in {counted(mapped.parts, 'part')}"
    wrong = f", {counted(mapped.errors, 'document')} with an error" if mapped.errors else ""
    before = "" if mapped.written else ": was finished already, nothing to do"
    say(f"[{name_of(str(output))}{before}: {told}{wrong}]", error=True)


class Lines:
    """Says how far a job is: on one line of a terminal, else in a line now and then."""

    def __init__(self) -> None:
        self.said = time.monotonic()
        self.width = 0

    def report(self, progress: "Progress") -> None:
        """Tell it, unless that was done a moment ago."""
        terminal = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None
        if time.monotonic() - self.said < (EVERY if terminal is None else 0.5):
            return
        self.said = time.monotonic()
        left = progress.seconds_left
        text = f"{progress.verb}: {progress.done:,} of {progress.rows:,} documents, {progress.per_second:.3g} a second"
        text += "" if left is None else f", {duration(left)} left"
        if terminal is None:
            say(text, error=True)
            return
        redraw(text.ljust(self.width))
        self.width = len(text)

    def end(self) -> None:
        """Clear the line."""
        if self.width:
            redraw(" " * self.width)
            redraw("")
