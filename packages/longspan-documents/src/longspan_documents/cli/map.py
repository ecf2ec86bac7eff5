"""`longspan map`."""

import sys
import time
from dataclasses import MISSING, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from longspan.characters import counted, duration
from longspan.cli.options import Declared
from longspan.cli.terminal import name_of, redraw, say
from longspan_documents.cli.documents import what_is_read

epilog = what_is_read

if TYPE_CHECKING:
    from longspan.options import Field
    from longspan_documents.mapping.documents import Progress

EVERY = 30.0
"""Seconds between two progress lines in a log."""


def options_of_verbs() -> "list[tuple[Field, str]]":
    """Returns the options of all verbs, without default values; the help lists the verbs of an option, unless all have
    it."""
    from longspan.options import Field, fields_of
    from longspan.settings import Range
    from longspan_documents.mapping.work import VERBS

    of_verbs = {verb: fields_of(kind.declared, "map") for verb, kind in VERBS.items()}
    options = []
    for name in dict.fromkeys(field.name for fields in of_verbs.values() for field in fields):
        holders = {verb: field for verb, fields in of_verbs.items() for field in fields if field.name == name}
        first = next(iter(holders.values()))
        same = len({repr(field.hint) for field in holders.values()}) == 1
        helps = dict.fromkeys(field.option.help for field in holders.values())
        descriptions = [
            f"{', '.join(verb for verb, field in holders.items() if field.option.help == help)}: {help}"
            for help in helps
        ]
        option = replace(
            first.option,
            default=first.option.default or ("" if first.default in (None, False, MISSING, ()) else str(first.default)),
            flags=tuple(flag for flag in first.option.flags if flag != "--model"),  # an option of other verbs
        )
        # If verbs have different limits, the verb checks them.
        limits = first.limits if same else Range()
        flag = first.bare is bool
        field = Field(name, False if flag else None, Annotated[bool if flag else first.bare | None, limits, option])
        everywhere = len(holders) == len(VERBS) and len(helps) == 1
        options.append((field, first.option.help if everywhere else " ".join(descriptions)))
    return options


def map(
    verb: Annotated[
        str,
        typer.Argument(
            help="What to do with each: summarize, answer, embed, classify, chunks, or what a package adds (coref)."
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
    *,
    options: Annotated[dict[str, Any], Declared(options_of_verbs)],
) -> None:
    """Apply a verb to every row of tables or every document of folders, and write Parquet.

    The output folder contains parts with one row for each input row: the input columns, the result columns, and
    `error`, the reason if a document failed. After an interruption, the same command computes the missing parts; a
    finished job is left unchanged. `_job.json` describes the job. The help of an option names its verbs.

    Examples: `longspan map summarize papers.parquet --output summaries`, `longspan map embed "shards/*.jsonl.gz"
    --output vectors --workers 8`, `longspan map answer contracts/ -q "who may cancel?" --output answers`, `longspan map
    summarize s3://bucket/papers --output /shared/summaries --engine ray --workers 64`.
    """
    from longspan_documents.mapping.documents import map_documents

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
            part_rows=part_rows,
            report=lines.report,
            **options,
        )
    finally:
        lines.end()
    for note in mapped.notes:
        say(f"note: {note}", error=True)
    summary = f"{counted(mapped.rows, 'document')} in {counted(mapped.parts, 'part')}"
    wrong = f", {counted(mapped.errors, 'document')} with an error" if mapped.errors else ""
    before = "" if mapped.written else ": was finished already, nothing to do"
    say(f"[{name_of(str(output))}{before}: {summary}{wrong}]", error=True)


class Lines:
    """Prints the progress of a job: on one line of a terminal, else as a line every `EVERY` seconds."""

    def __init__(self) -> None:
        self.said = time.monotonic()
        self.width = 0

    def report(self, progress: "Progress") -> None:
        """Print the progress, unless that was done a moment ago."""
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
