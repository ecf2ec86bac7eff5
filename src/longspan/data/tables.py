"""Records of a file by what its name ends in: CSV, TSV and Parquet tables, and JSON Lines for everything else."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from longspan.data.jsonl import UNREADABLE, check_regular, open_bytes, read_jsonl, stop, unreadable
from longspan.errors import InputError
from longspan.extras import require

LONGEST_CELL = 1 << 28
"""Characters; a document is one cell."""

_TABLE = re.compile(r"\.(csv|tsv|parquet)(\.gz|\.xz)?$", re.IGNORECASE)


def read_records(
    path: Path, damaged: Callable[[int, InputError], None] = stop, *, quoted: bool = True
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield `(line or row number, record)`; one record is in memory at a time (of Parquet, 64).

    A CSV or TSV file is UTF-8 with the names of its columns in the first line; quoted cells may hold line breaks,
    unless quotes are said to be characters like others. gzip and xz are known by the file's first bytes. Other
    arguments and errors as in `read_jsonl`.
    """
    found = _TABLE.search(path.name)
    if found is None or path.is_dir():
        yield from read_jsonl(path, damaged)
    elif found[1].lower() == "parquet":
        yield from _parquet(path, damaged)
    else:
        yield from _csv(path, "," if found[1].lower() == "csv" else "\t", damaged, quoted)


def _csv(
    path: Path, separator: str, damaged: Callable[[int, InputError], None], quoted: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(LONGEST_CELL)
    line = 1
    try:
        with io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", newline="") as file:
            quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
            rows = csv.reader(file, delimiter=separator, strict=True, quoting=quoting)
            columns = _columns(next(rows, []), path)
            line = rows.line_num + 1
            for cells in rows:
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
                yield number, _plain_row(row, path, number)
            except InputError as error:
                damaged(number, error)


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """A Parquet file of pyarrow, whose errors become one sentence."""
    parquet = require("pyarrow.parquet", extra="datasets", purpose="reading Parquet files")
    arrow = require("pyarrow", extra="datasets", purpose="reading Parquet files")
    try:
        check_regular(path)
        with parquet.ParquetFile(path) as file:
            yield file
    except (arrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} cannot be read as Parquet ({reason}); get the file again") from None


def _plain_row(row: Any, path: Path, number: int) -> dict[str, Any]:
    """The one row of a batch; texts that are not UTF-8, and times that Python has no room for, raise `InputError`."""
    try:
        return row.to_pylist()[0]
    except UnicodeDecodeError as error:
        raise InputError(f"{path}, line {number}: not UTF-8 at byte {error.start}; save its texts as UTF-8") from None
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"{path}, line {number}: a value that cannot be read ({error}); leave its column out"
        ) from None
