"""Rows of tables: first their number and columns, then the rows of one part in small batches.

Files are never read as a whole: a Parquet file is read page by page, JSON Lines line by line. A reader keeps its
position, so that parts in increasing order are read once, even in a file with one long row group or one compressed
stream.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import lzma
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from longspan.characters import mend
from longspan.data.jsonl import UNREADABLE, lines_of, open_bytes, unreadable
from longspan.errors import InputError, last_line
from longspan_documents.mapping.inputs import arrow, file_system, is_address, is_parquet
from longspan_documents.mapping.job import STRIDE, Input, Job, Part

AT_ONCE = 16
"""Number of rows that are read together."""
PIECE = 1 << 20
"""Bytes that are read at once from a Parquet file."""
DEEPEST = 24
"""Maximum nesting of lists and objects in a column of JSON Lines; deeper ones are stored as JSON."""
LOOKED_AT = 8 << 20
"""Bytes of JSON Lines whose column types are determined together."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Batch:
    """A batch of rows of a part: their input columns as an Arrow table, and for each row an error or None."""

    columns: Any
    broken: list[str | None]


# Planning ------------------------------------------------------------------------------------------------------------


def plan_tables(inputs: Sequence[Input]) -> tuple[tuple[Input, ...], Any, tuple[str, ...]]:
    """Returns the inputs with their numbers of rows, the schema of all their columns, and the columns that are stored
    as JSON.

    Raises:
        InputError: a file is damaged, or a column has incompatible types in two files.
    """
    pyarrow = arrow()
    counted, types = [], _Types()
    for source in inputs:
        counted.append(_count_parquet(source, types) if is_parquet(source.path) else _count_lines(source, types))
    names = sorted(types.as_json & set(types.known))
    fields = [(name, pyarrow.string() if name in names else kind) for name, kind in types.known.items()]
    if not fields:
        raise InputError(f"input {inputs[0].path!r} has no columns; give tables with a column of texts")
    return tuple(counted), pyarrow.schema(fields), tuple(names)


class _Types:
    """Collects the types of columns while rows are read."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}
        self.as_json: set[str] = set()

    def add_schema(self, schema: Any, path: str) -> None:
        """Add the columns of a Parquet file."""
        if len(set(schema.names)) < len(schema.names):
            twice = next(name for name in schema.names if schema.names.count(name) > 1)
            raise InputError(f"input {path!r} has the column {twice!r} twice; name each differently")
        for column in schema:
            merged = self._merged(column.name, column.type)
            if merged is None or column.name in self.as_json:
                before = self.known[column.name]
                raise InputError(
                    f"input {path!r} has the column {column.name!r} as {column.type}, and an input before it has "
                    f"{before}; map them into folders of their own, or save both alike"
                )
            self.known[column.name] = merged

    def add_records(self, records: Sequence[Record]) -> None:
        """Add objects of JSON Lines; a column with values of several types becomes JSON."""
        pyarrow = arrow()
        for name in dict.fromkeys(name for record in records for name in record):
            values = [record.get(name) for record in records]
            kind = None
            if name not in self.as_json:
                try:
                    kind = self._merged(name, pyarrow.array(values).type)
                except (pyarrow.ArrowException, ValueError, TypeError, OverflowError):
                    kind = None
            if kind is None or not _is_storable(kind):
                self.as_json.add(name)
                kind = pyarrow.string()
            self.known[name] = kind

    def _merged(self, name: str, kind: Any) -> Any:
        """Returns a common type of a column's known type and another one; None if there is none."""
        pyarrow = arrow()
        if name not in self.known:
            return kind
        both = [pyarrow.schema([(name, column_type)]) for column_type in (self.known[name], kind)]
        try:
            return pyarrow.unify_schemas(both, promote_options="permissive").field(name).type
        except pyarrow.ArrowException:
            return None


def _is_storable(kind: Any, levels: int = DEEPEST) -> bool:
    """Whether a file can store a type: each object in it has a key, and the nesting is not deeper than Arrow
    supports."""
    types = arrow("pyarrow.types")
    if types.is_struct(kind):
        return levels > 0 and kind.num_fields > 0 and all(_is_storable(child.type, levels - 1) for child in kind)
    return not types.is_list(kind) or (levels > 0 and _is_storable(kind.value_type, levels - 1))


def _count_parquet(source: Input, types: _Types) -> Input:
    with _parquet(source.path) as file:
        types.add_schema(file.schema_arrow, source.path)
        return replace(source, rows=file.metadata.num_rows)


def _count_lines(source: Input, types: _Types) -> Input:
    """Returns the input with its number of rows and their positions. Every line is parsed, so that types fit all of
    them."""
    starts: list[int] = []
    place = rows = buffered = 0
    records: list[Record] = []
    try:
        with _open(source.path) as file:
            for line in lines_of(file, Path(source.path)):
                if line.strip():
                    if rows % STRIDE == 0:
                        starts.append(place)
                    rows += 1
                    record, _ = _parsed(line, first=place == 0)
                    records += [record] if record else []
                    buffered += len(line)
                place += len(line)
                if buffered > LOOKED_AT or len(records) >= 512:
                    types.add_records(records)
                    records, buffered = [], 0
    except UNREADABLE as error:
        raise unreadable(Path(source.path), error, f" after row {rows}") from None
    types.add_records(records)
    return replace(source, rows=rows, starts=tuple(starts))


def _parsed(line: bytes, *, first: bool) -> tuple[Record | None, str | None]:
    """Returns the object on a line, or an error; lone surrogates, which Arrow cannot store, become U+FFFD."""
    try:
        value = json.loads((line.removeprefix(b"\xef\xbb\xbf") if first else line).decode())
        if b"\\u" in line:  # UTF-8 can contain a lone surrogate only as an escape
            value = _mended(value)
    except UnicodeDecodeError as error:
        return None, f"not UTF-8 at byte {error.start}; save the file as UTF-8"
    except (ValueError, RecursionError) as error:  # ValueError: also for a number of thousands of digits
        return None, f"not JSON ({last_line(error)}); write one JSON object per line"
    return (value, None) if isinstance(value, dict) else (None, "no JSON object; write one object per line")


# Opening files -------------------------------------------------------------------------------------------------------


@contextmanager
def _parquet(path: str) -> Iterator[Any]:
    """Context manager for an open Parquet file; its errors are raised as `InputError`."""
    pyarrow, parquet = arrow(), arrow("pyarrow.parquet")
    try:
        source: Any = path
        if is_address(path):
            system, inside = file_system(path)
            source = system.open_input_file(inside)
        # Page by page; otherwise a column of a row group, which may be a whole file, is read at once.
        with parquet.ParquetFile(source, buffer_size=PIECE, pre_buffer=False) as file:
            yield file
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as Parquet ({last_line(error)}); get the file again") from None


def _open(path: str) -> Any:
    if not is_address(path):
        return open_bytes(Path(path))
    system, inside = file_system(path)
    raw = io.BufferedReader(_Remote(system.open_input_file(inside)), PIECE)
    head = raw.peek(6)
    if head.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=raw)
    return lzma.LZMAFile(raw) if head.startswith(b"\xfd7zXZ\0") else raw


class _Remote(io.RawIOBase):
    """A file of `pyarrow.fs` with the interface of Python's files."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, place: int, whence: int = 0) -> int:
        return self.file.seek(place, whence)

    def tell(self) -> int:
        return self.file.tell()

    def close(self) -> None:
        self.file.close()
        super().close()


# The rows of a part --------------------------------------------------------------------------------------------------


class RowReader:
    """Reads the parts of a job.

    Args:
        job: planned, with tables as inputs.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.schema = schema_of(job)
        self._open: tuple[int, int, Generator[Any]] | None = None
        """For Parquet: the open input, the current row, and the batches from there on."""
        self._file: tuple[int, Any] | None = None
        """For JSON Lines: the open input and its file."""

    def close(self) -> None:
        """Close the open files."""
        if self._open is not None:
            self._open[2].close()
        if self._file is not None:
            self._file[1].close()
        self._open = self._file = None

    def read(self, part: Part) -> Iterator[Batch]:
        """Yield the rows of a part, in order.

        Raises:
            InputError: the file is damaged, or has fewer rows than before.
        """
        path = self.job.inputs[part.source].path
        rows = 0
        for batch in (self._parquet_rows if is_parquet(path) else self._json_rows)(part):
            rows += batch.columns.num_rows
            yield batch
        if rows != part.rows:
            raise InputError(f"{path} has changed while it was read; map it into another folder")

    def _parquet_rows(self, part: Part) -> Iterator[Batch]:
        pyarrow = arrow()
        path = self.job.inputs[part.source].path
        source, place, batches = self._open or (-1, 0, None)
        if batches is None or source != part.source or place > part.first:
            self.close()
            place, groups = 0, []
            with _parquet(path) as file:
                for group in range(file.num_row_groups):
                    size = file.metadata.row_group(group).num_rows
                    if groups or place + size > part.first:
                        groups.append(group)
                    else:
                        place += size
            batches = self._batches(path, groups)
        self._open = None
        end = part.first + part.rows
        for batch in batches:
            first, place = place, place + batch.num_rows
            inside = batch.slice(max(0, part.first - first), max(0, min(place, end) - max(first, part.first)))
            if inside.num_rows:
                table = pyarrow.Table.from_batches([inside])
                yield Batch(self._whole(table), [None] * inside.num_rows)
            if place >= end:
                rest = [batch.slice(end - first)] if place > end else []
                self._open = (part.source, end, _chained(rest, batches))
                return

    def _batches(self, path: str, groups: list[int]) -> Generator[Any]:
        with _parquet(path) as file:
            yield from file.iter_batches(batch_size=AT_ONCE, row_groups=groups, use_threads=False)

    def _whole(self, table: Any) -> Any:
        """Returns all input columns with their types; columns that this file lacks are null."""
        pyarrow = arrow()
        there = set(table.column_names)
        columns = [
            table[column.name].cast(column.type) if column.name in there else pyarrow.nulls(table.num_rows, column.type)
            for column in self.schema
        ]
        return pyarrow.table(columns, schema=self.schema)

    def _json_rows(self, part: Part) -> Iterator[Batch]:
        source = self.job.inputs[part.source]
        start = part.first // STRIDE
        try:
            file = self._file_of(part.source)
            file.seek(source.starts[start])  # a compressed file is read on from its current position
            numbered = enumerate((line for line in lines_of(file, Path(source.path)) if line.strip()), start * STRIDE)
            inside = islice(numbered, part.first - start * STRIDE, part.first - start * STRIDE + part.rows)
            while some := list(islice(inside, AT_ONCE)):
                parsed = [_parsed(line, first=number == 0) for number, line in some]
                errors = [
                    wrong and f"row {number + 1} of {source.path}: {wrong}"
                    for (number, _), (_, wrong) in zip(some, parsed, strict=True)
                ]
                yield Batch(self._table([record or {} for record, _ in parsed]), errors)
        except UNREADABLE as error:
            raise unreadable(Path(source.path), error) from None

    def _file_of(self, source: int) -> Any:
        """Returns the JSON Lines file, which is opened once for consecutive parts."""
        if self._file is None or self._file[0] != source:
            self.close()
            self._file = (source, _open(self.job.inputs[source].path))
        return self._file[1]

    def _table(self, records: list[Record]) -> Any:
        columns = []
        for column in self.schema:
            values = [record.get(column.name) for record in records]
            if column.name in self.job.as_json:
                values = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
            columns.append(arrow().array(values, column.type))
        return arrow().table(columns, schema=self.schema)


def _chained(first: list[Any], rest: Generator[Any]) -> Generator[Any]:
    yield from first
    yield from rest


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return mend(value)[0]
    if isinstance(value, list):
        return [_mended(item) for item in value]
    return {mend(key)[0]: _mended(item) for key, item in value.items()} if isinstance(value, dict) else value


def text_column(schema: Any, asked: str | None, usual: Sequence[str]) -> str:
    """Returns the column of the texts, or lists of texts.

    Raises:
        InputError: there is none, or it contains no texts.
    """
    names = [name for name in ([asked] if asked else usual) if name in schema.names]
    name = next((name for name in names if _holds_texts(schema.field(name).type)), next(iter(names), None))
    there = ", ".join(schema.names)
    if name is None:
        wanted = repr(asked) if asked else f"{', '.join(usual[:-1])} or {usual[-1]}"
        raise InputError(f"no column {wanted} in the inputs; there is {there}; name the one of the texts: text_field")
    kind = schema.field(name).type
    if not _holds_texts(kind):
        raise InputError(f"text_field {name!r} holds {kind} and no texts; there is {there}; name another column")
    return name


def _holds_texts(kind: Any) -> bool:
    """Whether a type is that of texts, or of lists of texts."""
    types = arrow("pyarrow.types")
    while types.is_list(kind) or types.is_large_list(kind):
        kind = kind.value_type
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def schema_text(schema: Any) -> str:
    """Serialise an Arrow schema to text."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_of(job: Job) -> Any:
    """Returns the schema of a job's input columns."""
    pyarrow = arrow()
    return arrow("pyarrow.ipc").read_schema(pyarrow.py_buffer(base64.b64decode(job.schema)))
