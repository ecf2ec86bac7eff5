"""What a job reads: files, folders and patterns become a list of tables or a list of documents, with their sizes.

Tables are Parquet (`.parquet`) and JSON Lines (`.jsonl`, `.ndjson`, also with `.gz` or `.xz`); all else is a document
for `longspan_documents.text.reading.read`. What is on another machine is named by its address (`s3://`, `gs://`, and
what else `pyarrow.fs` opens).
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
"""Such tables that stand among documents are read as documents, or have a row that says why not."""
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def is_address(path: str) -> bool:
    """Whether a path is that of another machine, with a scheme."""
    return _ADDRESS.match(path) is not None


def is_parquet(path: str) -> bool:
    """Whether a table is Parquet, by its name."""
    return path.lower().endswith(".parquet")


def arrow(module: str = "pyarrow") -> Any:
    """pyarrow, or a module of it; `InputError` names the extra where it is missing."""
    return require(module, extra="map", purpose="longspan map")


def find_inputs(given: Sequence[str | Path]) -> tuple[list[Input], bool, list[str]]:
    """The files that are meant, whether they are documents, and what of folders was passed over, in words.

    Args:
        given: files, folders, patterns such as `shards/*.parquet`, addresses.

    Raises:
        InputError: nothing is found; tables and documents are mixed; a table of a kind that is not read.
    """
    notes: list[str] = []
    files = [file for one in given for file in _files_of(os.fspath(one), notes)]
    if not files:
        raise InputError("there is no input; give files, folders or patterns of tables or documents")
    twice = next((file for file, count in Counter(one.path for one in files).items() if count > 1), None)
    if twice is not None:
        raise InputError(f"input {twice!r} is given twice; name it once, so that each row is one row of the output")
    others = [one.path for one in files if OTHER_TABLE.search(one.path)]
    other = next((path for path in others if len(others) == len(files) or not _ALSO_DOCUMENT.search(path)), None)
    if other is not None:
        raise InputError(f"input {other!r} is a table that is not read; save it as Parquet or JSON Lines (.jsonl)")
    tables = [bool(TABLE.search(one.path)) for one in files]
    if any(tables) and not all(tables):
        table, document = files[tables.index(True)].path, files[tables.index(False)].path
        raise InputError(f"input {table!r} is a table and {document!r} a document; map them into folders of their own")
    return files, not all(tables), notes


def _files_of(given: str, notes: list[str]) -> list[Input]:
    if given == "-":
        raise InputError("input '-' is standard input, which cannot be read again to go on; write it to a file first")
    if "\0" in given:
        raise InputError(f"input {given!r} holds a NUL character; give a plain path")
    try:
        given.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise InputError(f"input {given!r} holds half a character; give a plain path") from error
    if is_address(given):
        return _remote(given, notes)
    path = Path(given).expanduser()
    if not os.path.exists(path) and glob.has_magic(given):
        matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
        files = [file for match in matches for file in _local(match, notes)]
        if not files:
            raise InputError(f"input {given!r} matches no file; check the pattern")
        return files
    return _local(path, notes)


def _local(path: Path, notes: list[str]) -> list[Input]:
    """A file, or what a folder holds: its tables, where it has any, else its documents."""
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
    told = path.stat()
    return Input(path=str(path.resolve()), bytes=told.st_size, modified=told.st_mtime_ns)


def file_system(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it; what pyarrow raises becomes one sentence."""
    systems = arrow("pyarrow.fs")
    with one_sentence(f"input {address!r} cannot be opened; check the address and the rights to it"):
        return systems.FileSystem.from_uri(address)


def _remote(address: str, notes: list[str]) -> list[Input]:
    systems = arrow("pyarrow.fs")
    system, path = file_system(address)
    with one_sentence(f"input {address!r} cannot be listed; check the address and the rights to it"):
        told = system.get_file_info(path)
        if told.type == systems.FileType.File:
            return [_remote_input(address, told)]
        if told.type == systems.FileType.NotFound:
            raise InputError(f"input {address!r} does not exist; check the address")
        every = system.get_file_info(systems.FileSelector(path, recursive=True))
    files = sorted((one for one in every if one.type == systems.FileType.File), key=lambda one: one.path)
    tables = [one for one in files if TABLE.search(one.path)]
    known = endings()
    chosen = tables or [one for one in files if Path(one.path).suffix.lower() in known]
    if not chosen:
        raise InputError(f"input {address!r} holds no table and no document; check the address")
    if len(chosen) < len(files):
        kind = "tables" if tables else "documents"
        notes.append(f"{address}: its {kind} are read, {counted(len(files) - len(chosen), 'other file')} passed over")
    base = address.rstrip("/")
    return [_remote_input(base + one.path[len(path.rstrip("/")) :], one) for one in chosen]


def _remote_input(address: str, told: Any) -> Input:
    return Input(path=address, bytes=told.size or 0, modified=told.mtime_ns or 0)


@contextmanager
def as_local(path: str) -> Iterator[Path]:
    """The file of a document; that of an address is fetched, and gone at the end of the block."""
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


def check_apart(output: Path, inputs: Sequence[Input], given: Sequence[str | Path]) -> None:
    """Refuse an output folder within what is read, since the next call would read its parts as inputs.

    Raises:
        InputError: it names both.
    """
    for one in given:
        text = os.fspath(one)
        folder = None if is_address(text) else Path(text).expanduser()
        if folder is not None and folder.is_dir() and output.is_relative_to(folder.resolve()):
            raise InputError(f"output {str(output)!r} lies in the input {text!r}; give a folder beside it")
    inside = next((file.path for file in inputs if Path(file.path).is_relative_to(output)), None)
    if inside is not None:
        raise InputError(f"input {inside!r} lies in the output {str(output)!r}; give another output folder")


def stamp_of(folder: Path) -> str:
    """What tells whether the files of a model's folder have changed: their names, sizes and times, as one number."""
    files = sorted(file for file in folder.iterdir() if file.is_file())
    told = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.blake2b(repr(told).encode(), digest_size=8).hexdigest()
