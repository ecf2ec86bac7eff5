"""Summarisation data sets, by name, file or directory: a stream of `SummaryRow`.

- `read_rows("pubmed", "validation")`: one of `DATA_SETS`, or any folder of LONGSPAN_DATA
- `read_rows("papers.jsonl.gz")`: fields are recognised, see `longspan.data.summaries.layouts`
- `read_rows("corpus/", "validation")`: `corpus/validation*.jsonl`, or valid, val, dev
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from longspan.characters import counted
from longspan.data.documents import DATA_SETS, Choice
from longspan.data.fields import Skipped, check_on_error
from longspan.data.sources import Kind, read
from longspan.data.summaries.layouts import LAYOUTS, detect_layout, parse_record
from longspan.data.summaries.rows import SummaryRow, synthetic_rows
from longspan.data.tables import read_records
from longspan.errors import InputError

logger = logging.getLogger(__name__)


SUMMARIES = Kind(
    row=SummaryRow,
    named=DATA_SETS,
    made_up=lambda count, seed: synthetic_rows(8 if count is None else count, seed=seed),
    suffixes=("jsonl", "json", "txt", "csv", "tsv", "parquet"),
)
"""Where summaries come from."""


def read_rows(
    data: str | Path | Sequence[str | Path],
    split: str = "train",
    *,
    layout: str | None = None,
    questions: str | None = None,
    target: str | None = None,
    source_field: str | None = None,
    target_field: str | None = None,
    limit: int | None = None,
    on_error: str = "raise",
) -> Iterator[SummaryRow]:
    """Stream the rows of a data set; one record is in memory at a time.

    Rows without a document, or whose summary is empty, are left out; a warning in the log counts them for each file.

    Args:
        data: a JSON Lines, CSV or TSV file (plain, gzip or xz), a Parquet file, a directory with one or more files
            per split, the name of one of `DATA_SETS` under the folder that the environment variable LONGSPAN_DATA
            names, of a registered reader, or several of these.
        split: which split of a directory or a named data set; a single file is read whatever the split.
        layout: one of `longspan.data.summaries.layouts.LAYOUTS`; None recognises it from the fields of a file's first
            record.
        questions: "plain" takes summaries of the whole document (`question` is None); "all" takes every question of
            data sets that have them. None is "plain", or what the named data set says.
        target: which of several summaries: "abstract" or "human_summary", "blurb" or "synopsis".
        source_field: the field that holds the document, in the plain layout.
        target_field: the field that holds the summary, in the plain layout.
        limit: stop after so many rows.
        on_error: "raise" stops at a malformed line; "skip" passes over it, and the log says how many there were.

    Raises:
        InputError: nothing is found, LONGSPAN_DATA is not set, an option is wrong (at once); a line is malformed
            (when it is reached; the message names file and line).
    """
    if layout is not None and layout not in LAYOUTS:
        raise InputError(f"layout={layout!r} is unknown; choose one of {', '.join(LAYOUTS)}")
    check_on_error(on_error)
    if questions not in {None, "plain", "all"}:
        raise InputError(f"questions={questions!r} is unknown; choose 'plain' or 'all'")
    options = {"questions": questions, "target": target, "source_field": source_field, "target_field": target_field}
    given = {name: value for name, value in options.items() if value is not None}

    def read_file(path: Path, choice: Choice | None) -> Iterator[SummaryRow]:
        skipped = Skipped(str(path), on_error)
        return _rows(read_records(path, skipped.add), layout, replace(choice or Choice(), **given), skipped)

    return read(data, split, SUMMARIES, read_file, limit)


def rows_from_records(records: Iterable[dict[str, Any]], choice: Choice | None = None) -> Iterator[SummaryRow]:
    """Rows from objects already in memory, such as a `datasets.Dataset`; the layout is recognised from the first."""
    return _rows(enumerate(records, 1), None, choice or Choice(), Skipped("records"))


def _rows(
    records: Iterable[tuple[int, dict[str, Any]]], layout: str | None, choice: Choice, skipped: Skipped
) -> Iterator[SummaryRow]:
    """Rows of one file; errors get the place, and rows without text are counted."""
    empty: list[int] = []
    place = skipped.place
    stem = Path(place).name.split(".")[0]
    for number, record in records:
        try:
            layout = layout or detect_layout(record, choice)
            rows = list(parse_record(layout, record, choice, f"{stem}:{number}"))
        except (InputError, KeyError, TypeError, AttributeError, ValueError) as error:
            reason = error if isinstance(error, InputError) else f"not a record of layout {layout!r} ({error})"
            wrong = InputError(f"{place}, line {number}: {reason}")
            wrong.__cause__ = error
            skipped.add(number, wrong)
            continue
        complete = [row for row in rows if _is_complete(row)]
        yield from complete
        if not rows or len(complete) < len(rows):
            empty.append(number)
    skipped.report()
    if empty:
        logger.warning(
            "%s: %s no text, or no summary that was asked for (questions=%s); the first is in line %d",
            *(place, counted(len(empty), "record has", "records have"), choice.questions, empty[0]),
        )


def _is_complete(row: SummaryRow) -> bool:
    """Whether there is text in the document and in every reference; a row may have no reference at all."""
    return any(piece.strip() for piece in row.pieces) and all(text.strip() for text in row.references)
