"""Inputs of a job: files, folders and patterns become a list of tables or a list of documents, with their sizes.

Tables are Parquet (`.parquet`) and JSON Lines (`.jsonl`, `.ndjson`, also with `.gz` or `.xz`); all other files are
documents for `longspan_documents.text.reading.read`. Files on other machines have addresses (`s3://`, `gs://`, and
other schemes of `pyarrow.fs`).
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from longspan.characters import counted, on_one_line
from longspan.data.jsonl import check_regular
from longspan.errors import InputError, one_sentence
from longspan.files import temporary_folder
from longspan.imports import require
from longspan_documents.mapping.job import Input
from longspan_documents.text.folders import documents_in
from longspan_documents.text.kinds.source import short_name
from longspan_documents.text.kinds.table import endings

TABLE = re.compile(r"\.(parquet|(jsonl|ndjson)(\.gz|\.xz)?)$", re.IGNORECASE)
OTHER_TABLE = re.compile(r"\.(csv|tsv|json|arrow|feather|orc|avro)(\.gz|\.xz)?$", re.IGNORECASE)
_ALSO_DOCUMENT = re.compile(r"\.(csv|tsv|json)$", re.IGNORECASE)
"""Tables that are read as documents if they are among documents, or else have a row with an error."""
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def is_address(path: str) -> bool:
    """Whether a path is a remote address, with a scheme."""
    return _ADDRESS.match(path) is not None


def is_parquet(path: str) -> bool:
    """Whether the name of a table is that of a Parquet file."""
    return path.lower().endswith(".parquet")


def arrow(module: str = "pyarrow") -> Any:
    """Import pyarrow, or a module of it; raises `InputError` that names the extra if it is missing."""
    return require(module, extra="map", purpose="longspan map")


def find_inputs(inputs: Sequence[str | Path]) -> tuple[list[Input], bool, list[str]]:
    """Returns the input files, whether they are documents, and notes on skipped files in folders.

    Args:
        inputs: files, folders, patterns such as `shards/*.parquet`, addresses.

    Raises:
        InputError: nothing is found, tables and documents are mixed, or a table has an unsupported format.
    """
    notes: list[str] = []
    files = [file for source in inputs for file in _files_of(os.fspath(source), notes)]
    if not files:
        raise InputError("there is no input; give files, folders or patterns of tables or documents")
    twice = next((file for file, count in Counter(file.path for file in files).items() if count > 1), None)
    if twice is not None:
        raise InputError(f"input {twice!r} is given twice; name it once, so that each row is one row of the output")
    unsupported = [file.path for file in files if OTHER_TABLE.search(file.path)]
    other = next(
        (path for path in unsupported if len(unsupported) == len(files) or not _ALSO_DOCUMENT.search(path)), None
    )
    if other is not None:
        raise InputError(f"input {other!r} is a table that is not read; save it as Parquet or JSON Lines (.jsonl)")
    tables = [bool(TABLE.search(file.path)) for file in files]
    if any(tables) and not all(tables):
        table, document = files[tables.index(True)].path, files[tables.index(False)].path
        raise InputError(f"input {table!r} is a table and {document!r} a document; map them into folders of their own")
    return files, not all(tables), notes


def _files_of(source: str, notes: list[str]) -> list[Input]:
    if source == "-":
        raise InputError("input '-' is standard input, which cannot be read again to go on; write it to a file first")
    if "\0" in source:
        raise InputError(f"input {source!r} holds a NUL character; give a plain path")
    try:
        source.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise InputError(f"input {source!r} holds half a character; give a plain path") from error
    if is_address(source):
        return _remote(source, notes)
    path = Path(source).expanduser()
    if not os.path.exists(path) and glob.has_magic(source):
        matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
        files = [file for match in matches for file in _local(match, notes)]
        if not files:
            raise InputError(f"input {source!r} matches no file; check the pattern")
        return files
    return _local(path, notes)


def _local(path: Path, notes: list[str]) -> list[Input]:
    """Returns a file, or the tables in a folder, or its documents if it contains no tables."""
    name = short_name(on_one_line(str(path)))
    try:
        if not path.is_dir():
            check_regular(path)
            return [_stamped(path)]
        there = [file for file in sorted(path.rglob("*")) if file.is_file() and not _is_hidden(file, path)]
        tables = [file for file in there if TABLE.search(file.name)]
        if not tables:
            documents, passed = documents_in(path)
            notes += [f"{name}: {passed}"] if passed else []
            return [_stamped(file) for file in documents]
        if len(tables) < len(there):
            notes.append(f"{name}: its tables are read, {counted(len(there) - len(tables), 'other file')} passed over")
        return [_stamped(file) for file in tables]
    except FileNotFoundError:
        raise InputError(f"input {name!r} does not exist; check the path") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"input {name!r} cannot be read ({reason}); check its permissions") from None


def _is_hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)


def _stamped(path: Path) -> Input:
    status = path.stat()
    return Input(path=str(path.resolve()), bytes=status.st_size, modified=status.st_mtime_ns)


def file_system(address: str) -> tuple[Any, str]:
    """Returns the file system of an address and the path in it; raises errors of pyarrow as `InputError`."""
    systems = arrow("pyarrow.fs")
    with one_sentence(f"input {address!r} cannot be opened; check the address and the rights to it"):
        return systems.FileSystem.from_uri(address)


def _remote(address: str, notes: list[str]) -> list[Input]:
    systems = arrow("pyarrow.fs")
    system, path = file_system(address)
    with one_sentence(f"input {address!r} cannot be listed; check the address and the rights to it"):
        status = system.get_file_info(path)
        if status.type == systems.FileType.File:
            return [_remote_input(address, status)]
        if status.type == systems.FileType.NotFound:
            raise InputError(f"input {address!r} does not exist; check the address")
        entries = system.get_file_info(systems.FileSelector(path, recursive=True))
    files = sorted((entry for entry in entries if entry.type == systems.FileType.File), key=lambda entry: entry.path)
    tables = [file for file in files if TABLE.search(file.path)]
    known = endings()
    chosen = tables or [file for file in files if Path(file.path).suffix.lower() in known]
    if not chosen:
        raise InputError(f"input {address!r} holds no table and no document; check the address")
    if len(chosen) < len(files):
        kind = "tables" if tables else "documents"
        notes.append(f"{address}: its {kind} are read, {counted(len(files) - len(chosen), 'other file')} passed over")
    base = address.rstrip("/")
    return [_remote_input(base + file.path[len(path.rstrip("/")) :], file) for file in chosen]


def _remote_input(address: str, status: Any) -> Input:
    return Input(path=address, bytes=status.size or 0, modified=status.mtime_ns or 0)


@contextmanager
def as_local(path: str) -> Iterator[Path]:
    """Context manager for a document's file; a remote file is downloaded and deleted at the end."""
    if not is_address(path):
        yield Path(path)
        return
    system, inside = file_system(path)
    with temporary_folder() as folder:
        copy = folder / f"document{Path(inside).suffix}"
        problem = f"{path} cannot be fetched; check the rights to it"
        with one_sentence(problem), system.open_input_stream(inside) as file, copy.open("wb") as written:
            shutil.copyfileobj(file, written)
        yield copy


def check_apart(output: Path, inputs: Sequence[Input], sources: Sequence[str | Path]) -> None:
    """Check that the output folder is not inside an input, since the next call would read its parts as inputs.

    Raises:
        InputError: it is; the message names both.
    """
    for source in sources:
        text = os.fspath(source)
        folder = None if is_address(text) else Path(text).expanduser()
        if folder is not None and folder.is_dir() and output.is_relative_to(folder.resolve()):
            raise InputError(f"output {str(output)!r} lies in the input {text!r}; give a folder beside it")
    inside = next((file.path for file in inputs if Path(file.path).is_relative_to(output)), None)
    if inside is not None:
        raise InputError(f"input {inside!r} lies in the output {str(output)!r}; give another output folder")


def stamp_of(folder: Path) -> str:
    """Returns a hash of the names, sizes and times of the files in a model's folder, which changes with them."""
    files = sorted(file for file in folder.iterdir() if file.is_file())
    stamps = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.blake2b(repr(stamps).encode(), digest_size=8).hexdigest()
