"""Records of a file by its suffix: CSV, TSV and Parquet tables, JSON arrays, and JSON Lines for all others."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from longspan.data.jsonl import (
    LONGEST,
    UNREADABLE,
    check_regular,
    is_array,
    lines_of,
    open_bytes,
    read_array,
    read_jsonl,
    stop,
    unreadable,
)
from longspan.errors import InputError, last_line
from longspan.imports import require

RECORDS = ("jsonl", "ndjson", "json", "csv", "tsv", "parquet")
"""Suffixes of the files that `read_records` reads, also with `.gz` and `.xz`."""
_RECORDS = re.compile(rf"\.({'|'.join(RECORDS)})(\.gz|\.xz)?$", re.IGNORECASE)
_KIND = re.compile(r"\.(csv|tsv|parquet|json)(\.gz|\.xz)?$", re.IGNORECASE)


def holds_records(name: str) -> bool:
    """Whether a file contains records, by its name."""
    return _RECORDS.search(name) is not None


def read_records(
    path: Path, damaged: Callable[[int, InputError], None] = stop, *, quoted: bool = True
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields `(number, record)`; one record is in memory at a time (64 for Parquet). `unit_of` names the unit of the
    numbers.

    A CSV or TSV file is UTF-8 with column names in the first line; quoted cells may contain line breaks, unless
    `quoted=False` makes quotes ordinary characters. gzip and xz are detected by the file's first bytes. Other arguments
    and errors as in `read_jsonl`.
    """
    kind = _kind_of(path)
    if kind == "array":
        yield from read_array(path, damaged)
    elif kind == "lines":
        yield from read_jsonl(path, damaged)
    elif kind == "parquet":
        yield from _parquet(path, damaged)
    else:
        yield from _csv(path, "," if kind == "csv" else "\t", damaged, quoted)


def unit_of(path: Path) -> str:
    """Returns the unit of a file's record numbers: line, row (Parquet) or element (array)."""
    return {"parquet": "row", "array": "element"}.get(_kind_of(path), "line")


def _kind_of(path: Path) -> str:
    """Returns "csv", "tsv", "parquet", "array" or "lines"; a `.json` file may be either of the last two."""
    match = _KIND.search(path.name)
    if match is None or path.is_dir():
        return "lines"
    if match[1].lower() == "json":
        return "array" if is_array(path) else "lines"
    return match[1].lower()


def _csv(
    path: Path, separator: str, damaged: Callable[[int, InputError], None], quoted: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(LONGEST)
    line, held = 1, 0

    def given(file: io.TextIOWrapper) -> Iterator[str]:
        """Yields the lines; raises if a record does not end within a limit."""
        nonlocal held
        for text in lines_of(file, path):
            held += len(text)
            if held > LONGEST:
                raise InputError(
                    f"{path}, line {line}: a row of more than {LONGEST >> 20} MiB; close its quotes, or cut its texts"
                )
            yield text

    try:
        with io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", newline="") as file:
            quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
            rows = csv.reader(given(file), delimiter=separator, strict=True, quoting=quoting)
            columns = _columns(next(rows, []), path)
            line = rows.line_num + 1
            for cells in rows:
                held = 0
                try:
                    if cells:
                        yield line, _record(cells, columns, path, line)
                except InputError as error:
                    damaged(line, error)
                line = rows.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}, line {line}: not CSV ({error}); put texts with separators in quotes") from None
    except UNREADABLE as error:
        raise unreadable(path, error, f" after line {line}") from None


def _columns(names: list[str], path: Path) -> list[str]:
    if not names:
        raise InputError(f"{path} is empty; its first line must name the columns, such as source,target")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path} has the column {twice!r} twice; name each differently")
    return names


def _record(cells: list[str], columns: list[str], path: Path, line: int) -> dict[str, Any]:
    if len(cells) != len(columns):
        raise InputError(
            f"{path}, line {line}: {len(cells)} cells for the {len(columns)} columns {', '.join(columns[:8])}; put "
            "texts with separators in quotes"
        )
    return dict(zip(columns, cells, strict=True))


def _parquet(path: Path, damaged: Callable[[int, InputError], None]) -> Iterator[tuple[int, dict[str, Any]]]:
    with open_parquet(path) as file:
        rows = (batch.slice(row, 1) for batch in file.iter_batches(batch_size=64) for row in range(batch.num_rows))
        for number, row in enumerate(rows, 1):
            try:
                yield number, row.to_pylist()[0]
            except UnicodeDecodeError as error:
                reason = f"not UTF-8 at byte {error.start}; save its texts as UTF-8"
                damaged(number, InputError(f"{path}, line {number}: {reason}"))
            except (ValueError, OverflowError) as error:  # such as a time outside of Python's range
                reason = f"a value that cannot be read ({error}); leave its column out"
                damaged(number, InputError(f"{path}, line {number}: {reason}"))


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """Opens a Parquet file with pyarrow, converting its errors to `InputError`."""
    parquet = require("pyarrow.parquet", extra="datasets", purpose="reading Parquet files")
    arrow = require("pyarrow", extra="datasets", purpose="reading Parquet files")
    try:
        check_regular(path)
        with parquet.ParquetFile(path) as file:
            yield file
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:  # a damaged column name
        raise InputError(f"{path} cannot be read as Parquet ({last_line(error)}); get the file again") from None
