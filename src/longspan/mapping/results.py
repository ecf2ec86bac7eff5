"""One part done: its rows read, the verb applied to each, and the result written whole, or not at all.

A part is written under a temporary name, brought to the disk and then renamed: what has its name is complete, whatever
was ended and when.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longspan.characters import on_one_line
from longspan.errors import InputError, is_out_of_memory, last_line, memory_sentence, write_errors
from longspan.files import flush, temporary
from longspan.mapping.inputs import arrow, as_local
from longspan.mapping.job import Job, Part
from longspan.mapping.rows import Batch, RowReader, schema_of
from longspan.mapping.work import ERROR, added_columns, step_of

if TYPE_CHECKING:
    from longspan.data.text.blocks import Document

Begin = Callable[[int], None]
"""Told before each row of a part, with its number in the part."""
HELD = 32 << 20
"""Bytes of rows that are done and not written yet."""


class DamagedInputError(InputError):
    """A part whose rows cannot be read, while others can."""


@dataclass(frozen=True)
class Done:
    """A part that is on the disk: how many rows it has, and how many of them have an error."""

    part: Part
    rows: int
    errors: int


class Desk:
    """Where parts are done: the models of a verb, loaded once, and an open input; a context, which closes it.

    Args:
        job: planned.
        folder: of the output.

    Raises:
        InputError: an option is wrong or a model cannot be loaded.
    """

    def __init__(self, job: Job, folder: Path) -> None:
        self.job = job
        self.folder = folder
        self.verb = step_of(job.verb, job.options)
        self.added = added_columns(self.verb, job.prefix)
        self._apply = self.verb.ready(raw=job.raw)
        self._reader = None if job.documents else RowReader(job)
        self.schema = output_schema(job, self.added)

    def __enter__(self) -> Desk:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()

    def do(self, part: Part, begin: Begin = lambda _: None, deadly: Mapping[int, str] | None = None) -> Done:
        """Do a part and write it.

        Args:
            part: of the job.
            begin: is told before each row.
            deadly: rows that are not tried, since they ended the process that did; with the reason.

        Raises:
            DamagedInputError: the rows cannot be read.
            InputError: the part cannot be written.
        """
        try:
            return self._do_rows(part, begin, deadly or {})
        except DamagedInputError:
            raise
        except InputError as error:
            raise InputError(f"{error}; what is written stays, and the same call goes on with the rest") from error

    def _do_rows(self, part: Part, begin: Begin, deadly: Mapping[int, str]) -> Done:
        errors = number = 0
        with _written(self.folder, part.name, self.schema) as write:
            for batch in self._batches(part):
                values = []
                for index in range(batch.columns.num_rows):
                    begin(number)
                    said = deadly.get(number) or batch.broken[index]
                    values.append({ERROR: said} if said else self._row(part, number, batch, index))
                    errors += values[-1].get(ERROR) is not None
                    number += 1
                write(self._with_results(batch, values))
        return Done(part, number, errors)

    def _batches(self, part: Part) -> Iterator[Batch]:
        if self._reader is not None:
            try:
                yield from self._reader.read(part)
            except InputError as error:
                raise DamagedInputError(str(error)) from error
            return
        for one in self.job.inputs[part.source : part.source + part.rows]:
            yield Batch(arrow().table({"file": [_storable(one.path)]}, schema=document_schema()), [None])

    def _row(self, part: Part, number: int, batch: Batch, index: int) -> dict[str, Any]:
        """The values of the columns that are added, for one row; what goes wrong is its error."""
        try:
            if self.job.documents:
                return self._apply(self._document(self.job.inputs[part.source + number].path), {})
            text = _text(batch, self.job.text, index)
            return self._apply(text, {name: batch.columns[name][index].as_py() for name in self.verb.reads})
        except InputError as error:
            return {ERROR: on_one_line(str(error))}
        except Exception as error:  # noqa: BLE001 one document is no reason to end a job of a million
            memory = memory_sentence(error) if is_out_of_memory(error) else None
            return {ERROR: memory or f"it could not be done ({type(error).__name__}: {last_line(error)})"}

    def _document(self, path: str) -> Document:
        from longspan.data.text.reading import read

        with as_local(path) as file:
            try:
                return replace(read(file, self.job.encoding, raw=self.job.raw), name=path)
            except InputError as error:  # what a fetched file is called here is nobody's business
                raise InputError(str(error).replace(str(file), path)) from error

    def _with_results(self, batch: Batch, values: list[dict[str, Any]]) -> Any:
        pyarrow = arrow()
        columns = list(batch.columns.columns)
        for name, kind in self.added.items():
            plain = name.removeprefix(self.job.prefix)
            columns.append(pyarrow.array([one.get(plain) for one in values], kind))
        return pyarrow.table(columns, schema=self.schema)


def document_schema() -> Any:
    """The input columns of documents: the path of each."""
    return arrow().schema([("file", arrow().string())])


def output_schema(job: Job, added: Mapping[str, Any]) -> Any:
    """The schema of every part: the input columns, then those that are added."""
    pyarrow = arrow()
    columns = document_schema() if job.documents else schema_of(job)
    return pyarrow.schema([*columns, *(pyarrow.field(name, kind) for name, kind in added.items())])


def _storable(path: str) -> str:
    """A path as Parquet can hold it: names that are no UTF-8 with U+FFFD for what is not."""
    return os.fsencode(path).decode("utf-8", "replace")


def _text(batch: Batch, column: str, index: int) -> str:
    try:
        text = batch.columns[column][index].as_py()
    except UnicodeDecodeError as error:
        raise InputError(f"its {column} is not UTF-8 at byte {error.start}; save the texts as UTF-8") from None
    if text is None or not text.strip():
        raise InputError(f"its {column} is {'missing' if text is None else 'blank'}; give a text with words in it")
    return text


# Whole or not at all --------------------------------------------------------------------------------------------------


@contextmanager
def _written(folder: Path, name: str, schema: Any) -> Iterator[Callable[[Any], None]]:
    """A function that takes the tables of a part one after another; at the end of the block the part is there.

    Raises:
        InputError: the disk is full or read-only; nothing of the part is left.
    """
    # Another process may be writing the same part: one whose driver was ended a moment ago.
    partial = folder / temporary(f"{name} {os.getpid()} {secrets.token_hex(8)}", "part")
    held: list[Any] = []

    def write(table: Any) -> None:
        held.append(table)
        if sum(one.nbytes for one in held) >= HELD:
            empty()

    def empty() -> None:
        if held:
            writer.write_table(arrow().concat_tables(held))
            held.clear()

    try:
        with write_errors(folder / name):
            with arrow("pyarrow.parquet").ParquetWriter(partial, schema, compression="zstd") as writer:
                yield write
                empty()
            flush(partial)
            partial.replace(folder / name)
            _flush_folder(folder)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    """Return once the names in a folder are on the disk; a system that cannot open folders does so by itself."""
    with suppress(OSError, AttributeError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def missing_parts(job: Job, folder: Path) -> list[Part]:
    """The parts of a job that are not there yet, in order."""
    there = set(os.listdir(folder)) if folder.is_dir() else set()
    return [part for part in job.parts() if part.name not in there]


@dataclass(frozen=True, kw_only=True)
class Tally:
    """What lies in an output folder: parts, rows, and rows with an error."""

    parts: int
    rows: int
    errors: int


def tally(job: Job, folder: Path) -> Tally:
    """Count the rows of the parts that are there, by what their files say of themselves."""
    parquet = arrow("pyarrow.parquet")
    missing = {part.number for part in missing_parts(job, folder)}
    there = [part for part in job.parts() if part.number not in missing]
    rows = errors = 0
    for part in there:
        data = parquet.read_metadata(folder / part.name)
        rows += data.num_rows
        for number in range(data.num_row_groups):
            group = data.row_group(number)
            errors += group.num_rows - group.column(group.num_columns - 1).statistics.null_count
    return Tally(parts=len(there), rows=rows, errors=errors)
