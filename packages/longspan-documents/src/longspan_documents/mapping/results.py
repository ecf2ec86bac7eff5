"""Computes one part: reads its rows, applies the verb to each, and writes the result atomically.

A part is written under a temporary name, flushed to disk and then renamed, so a file with a part's name is complete
after any interruption. It contains the seal of the part (`Job.seal`) and checksums of its pages, which are verified
when the part is read back (`read_part`).
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
from longspan.data.fields import joined_text
from longspan.errors import InputError, is_out_of_memory, last_line, memory_sentence, one_sentence, write_errors
from longspan.files import flush, temporary
from longspan_documents.mapping.inputs import arrow, as_local
from longspan_documents.mapping.job import Job, Part
from longspan_documents.mapping.rows import Batch, RowReader, schema_of
from longspan_documents.mapping.work import ERROR, added_columns, step_of

if TYPE_CHECKING:
    from longspan_documents.text.blocks import Document

SEAL = b"longspan"
"""The key of a part's seal, in the metadata of its schema."""
Begin = Callable[[int], None]
"""Called before each row of a part, with its index in the part."""
HELD = 32 << 20
"""Bytes of finished rows in memory that are not written yet."""


class DamagedInputError(InputError):
    """The rows of a part cannot be read, but those of other parts can."""


@dataclass(frozen=True)
class Done:
    """A part that is on disk: its number of rows, and how many of them have an error."""

    part: Part
    rows: int
    errors: int


class PartRunner:
    """A context manager that computes parts, with the verb's models loaded once and an open input.

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
        self._apply = self.verb.ready()
        self._reader = None if job.documents else RowReader(job)
        self.schema = output_schema(job, self.added)

    def __enter__(self) -> PartRunner:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()

    def do(self, part: Part, begin: Begin = lambda _: None, deadly: Mapping[int, str] | None = None) -> Done:
        """Compute a part and write it.

        Args:
            part: of the job.
            begin: called before each row.
            deadly: rows that are skipped because they ended their process, with the error.

        Raises:
            DamagedInputError: the rows cannot be read.
            InputError: the part cannot be written.
        """
        try:
            return self._do_rows(part, begin, deadly or {})
        except DamagedInputError:
            raise
        except InputError as error:
            raise InputError(f"{error}; what is written stays, and the same call continues with the rest") from error

    def _do_rows(self, part: Part, begin: Begin, deadly: Mapping[int, str]) -> Done:
        errors = number = 0
        with _written(self.folder, part.name, sealed_schema(self.job, part, self.schema)) as write:
            for batch in self._batches(part):
                values = []
                for index in range(batch.columns.num_rows):
                    begin(number)
                    reason = deadly.get(number) or batch.broken[index]
                    values.append({ERROR: reason} if reason else self._row(part, number, batch, index))
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
        for source in self.job.inputs_of(part):
            yield Batch(arrow().table({"file": [_storable(source.path)]}, schema=document_schema()), [None])

    def _row(self, part: Part, number: int, batch: Batch, index: int) -> dict[str, Any]:
        """Returns the values of the added columns for one row; an exception becomes its error."""
        try:
            if self.job.documents:
                return self._apply(self._document(self.job.inputs[part.source + number].path), {})
            text = _text(batch, self.job.text, index)
            return self._apply(text, {name: batch.columns[name][index].as_py() for name in self.verb.reads})
        except InputError as error:
            return {ERROR: on_one_line(str(error))}
        except Exception as error:  # noqa: BLE001 one document must not end a job of a million
            memory = memory_sentence(error) if is_out_of_memory(error) else None
            return {ERROR: memory or f"it could not be done ({type(error).__name__}: {last_line(error)})"}

    def _document(self, path: str) -> Document:
        from longspan_documents.text.reading import read_file

        with as_local(path) as file:
            try:
                return replace(read_file(file, self.verb.options), name=path)
            except InputError as error:  # the name of the temporary copy must not appear in the error
                raise InputError(str(error).replace(str(file), path)) from error

    def _with_results(self, batch: Batch, values: list[dict[str, Any]]) -> Any:
        pyarrow = arrow()
        columns = list(batch.columns.columns)
        for name, kind in self.added.items():
            plain = name.removeprefix(self.job.prefix)
            columns.append(pyarrow.array([value.get(plain) for value in values], kind))
        return pyarrow.table(columns, schema=self.schema)


def document_schema() -> Any:
    """The input columns of documents: the path of each."""
    return arrow().schema([("file", arrow().string())])


def output_schema(job: Job, added: Mapping[str, Any]) -> Any:
    """The schema of every part: the input columns, then the added columns."""
    pyarrow = arrow()
    columns = document_schema() if job.documents else schema_of(job)
    return pyarrow.schema([*columns, *(pyarrow.field(name, kind) for name, kind in added.items())])


def sealed_schema(job: Job, part: Part, schema: Any) -> Any:
    """The schema of a part with its seal."""
    return schema.with_metadata({SEAL: job.seal(part)})


def _storable(path: str) -> str:
    """Returns a path that Parquet can store: bytes of its name that are not UTF-8 become U+FFFD."""
    return os.fsencode(path).decode("utf-8", "replace")


def _text(batch: Batch, column: str, index: int) -> str:
    try:
        value = batch.columns[column][index].as_py()
    except UnicodeDecodeError as error:
        raise InputError(f"its {column} is not UTF-8 at byte {error.start}; save the texts as UTF-8") from None
    text = joined_text(value)
    if not text.strip():
        raise InputError(f"its {column} is {'missing' if value is None else 'blank'}; give a text with words in it")
    return text


# Atomic writing -------------------------------------------------------------------------------------------------------


@contextmanager
def _written(folder: Path, name: str, schema: Any) -> Iterator[Callable[[Any], None]]:
    """Yields a function that writes the tables of a part one after another; the part is complete at the end of the
    block.

    Raises:
        InputError: the disk is full or read-only; nothing of the part remains.
    """
    # Another process may be writing the same part, if its parent has just been killed.
    partial = folder / temporary(f"{name} {os.getpid()} {secrets.token_hex(8)}", "part")
    waiting: list[Any] = []

    def write(table: Any) -> None:
        waiting.append(table)
        if sum(table.nbytes for table in waiting) >= HELD:
            empty()

    def empty() -> None:
        if waiting:
            writer.write_table(arrow().concat_tables(waiting))
            waiting.clear()

    try:
        with write_errors(folder / name):
            options = {"compression": "zstd", "write_page_checksum": True}
            with arrow("pyarrow.parquet").ParquetWriter(partial, schema, **options) as writer:
                yield write
                empty()
            flush(partial)
            partial.replace(folder / name)
            _flush_folder(folder)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    """Flush the names in a folder to disk; systems that cannot open folders do this automatically."""
    with suppress(OSError, AttributeError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# Finished parts -------------------------------------------------------------------------------------------------------


def finished_parts(job: Job, folder: Path) -> list[Done]:
    """Returns the existing parts of a job, in order, as their files describe them.

    Raises:
        InputError: one is damaged or belongs to another job, or the job does not have it.
    """
    parts, schema = {part.name: part for part in job.parts()}, _schema_of(job)
    there = {file.name for file in folder.glob("part-*.parquet")} if folder.is_dir() else set()
    if strange := sorted(there - set(parts)):
        raise InputError(f"{on_one_line(str(folder / strange[0]))} is no part of this job; move it elsewhere")
    return [read_part(job, folder, part, schema) for name, part in parts.items() if name in there]


def read_part(job: Job, folder: Path, part: Part, schema: Any = None) -> Done:
    """Returns an existing part, after checking that its file agrees with the job.

    Args:
        job: planned.
        folder: of the output.
        part: whose file exists.
        schema: of all parts, if it has been computed already.

    Raises:
        InputError: the file is damaged, or belongs to another part, job or version of an input.
    """
    file = folder / part.name
    problem = f"{on_one_line(str(file))} is damaged or no part of this job; delete it, and this call writes it again"
    schema = _schema_of(job) if schema is None else schema
    with one_sentence(problem):
        with arrow("pyarrow.parquet").ParquetFile(file) as opened:
            data, stored = opened.metadata, opened.schema_arrow
        if not stored.equals(sealed_schema(job, part, schema), check_metadata=False) or (
            (stored.metadata or {}).get(SEAL) != job.seal(part).encode()
        ):
            raise InputError(f"{problem}: it has other columns, or other rows are meant")
        groups = [data.row_group(number) for number in range(data.num_row_groups)]
        if data.num_rows != part.rows or sum(group.num_rows for group in groups) != part.rows:
            raise InputError(f"{problem}: it has {data.num_rows:,} rows instead of {part.rows:,}")
        errors = sum(group.num_rows - group.column(group.num_columns - 1).statistics.null_count for group in groups)
        if not 0 <= errors <= part.rows:
            raise InputError(f"{problem}: it counts {errors:,} errors")
    return Done(part, part.rows, errors)


def _schema_of(job: Job) -> Any:
    return output_schema(job, added_columns(step_of(job.verb, job.options), job.prefix))
