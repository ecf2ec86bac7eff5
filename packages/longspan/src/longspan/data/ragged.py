"""Rows of unequal length on disk: written once and atomically, then read by index through memory maps.

The folder::

    <column>.bin    the values of all rows, concatenated, little-endian
    rows.bin        int64 (rows, 1 + numbers): the end of each row, and its further numbers
    index.json      counts, types, the fingerprint of the inputs, and the sizes of the files

Neither writing nor reading loads all rows into memory, and a row may be written in pieces.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np

from longspan.errors import InputError
from longspan.files import is_empty, whole_folder

INDEX = "index.json"
FORM = 2
"""Version of the file format; part of every fingerprint, so that files of another format are not read."""


class Ragged:
    """The rows in a folder written by `Writer`; opened on first use, so that it can be sent to another process.

    Attributes:
        index: the content of `index.json`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = read_index(folder)
        self._maps: dict[str, Any] = {}

    def __len__(self) -> int:
        return self.index["rows"]

    @property
    def values(self) -> int:
        """The total number of values of each column."""
        return self.index["values"]

    @property
    def ends(self) -> np.ndarray:
        """`(rows,)` int64: end of each row, in values from the beginning of the table."""
        return self._table[:, 0]

    def read(self, column: str, start: int, end: int) -> np.ndarray:
        """Returns the values `start … end − 1` of a column as int64."""
        return self._map(column, self.index["columns"][column])[start:end].astype(np.int64)

    def __getitem__(self, row: int) -> dict[str, Any]:
        """Returns a row: its numbers by name, and the values of each column as int64."""
        row = range(len(self))[row]
        end, *numbers = self._table[row].tolist()
        start = int(self._table[row - 1, 0]) if row else 0
        values = {name: self.read(name, start, end) for name in self.index["columns"]}
        return dict(zip(self.index["numbers"], numbers, strict=True)) | values

    def __getstate__(self) -> dict[str, Any]:
        """Excludes the maps, which would be copied as a whole."""
        return {**self.__dict__, "_maps": {}}

    @property
    def _table(self) -> np.ndarray:
        return self._map("rows", "<i8").reshape(-1, 1 + len(self.index["numbers"]))

    def _map(self, name: str, dtype: str) -> np.ndarray:
        if name not in self._maps:
            self._maps[name] = np.memmap(self.folder / f"{name}.bin", dtype=dtype, mode="r")
        return self._maps[name]


class Writer:
    """Writes the files of a `Ragged` except its index, which `index` returns and `make_once` writes.

    Args:
        folder: the target folder.
        columns: name → type, such as `"<u2"`.
        numbers: names of the integers of each row.
    """

    def __init__(self, folder: Path, columns: Mapping[str, str], numbers: Sequence[str] = ()) -> None:
        self.folder, self.columns, self.numbers = folder, dict(columns), list(numbers)
        self.rows = self.values = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            names = [*self.columns, "rows"]
            self._files = {name: stack.enter_context((self.folder / f"{name}.bin").open("wb")) for name in names}
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def extend(self, **values: Sequence[int]) -> None:
        """Writes the next values of the row, equally many in each column."""
        (count,) = {len(values[name]) for name in self.columns}
        for name, dtype in self.columns.items():
            self._files[name].write(np.asarray(values[name], dtype=dtype).tobytes())
        self.values += count

    def end_row(self, **numbers: int) -> None:
        """Ends the current row."""
        line = [self.values, *(numbers[name] for name in self.numbers)]
        self._files["rows"].write(np.asarray(line, dtype="<i8").tobytes())
        self.rows += 1

    def index(self) -> dict[str, Any]:
        """Returns sizes and columns of what was written, as plain data for `Ragged`."""
        return {"rows": self.rows, "values": self.values, "columns": self.columns, "numbers": self.numbers}


def make_once(folder: Path, fingerprint: str, fill: Callable[[Path], dict[str, Any]], *, other: str) -> Ragged:
    """Opens the rows in a folder, which is created if it does not exist.

    Args:
        folder: where it is, or will be.
        fingerprint: a digest of everything that determines its content, see `fingerprint_of`.
        fill: writes files into a folder and returns the index: plain data.
        other: describes the origin of a folder with another fingerprint.

    Raises:
        InputError: the folder has another fingerprint; exceptions of `fill`.
    """
    if is_empty(folder):
        with whole_folder(folder) as partial:
            index = {**fill(partial), "fingerprint": fingerprint, "files": _sizes(partial)}
            (partial / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
    rows = Ragged(folder)
    if rows.index["fingerprint"] != fingerprint:
        raise InputError(
            f"{str(folder)!r} was made from {other}; put back what has changed since the run began, or give "
            "another --output"
        )
    return rows


def read_index(folder: Path) -> dict[str, Any]:
    """Reads the index written by `make_once`.

    Raises:
        InputError: it cannot be read, or the sizes of the files have changed.
    """
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        is_whole = index["fingerprint"] is not None and _sizes(folder)
        if index.get("files", is_whole) == is_whole:
            return index
        reason = "the files in it are not as long as they were"
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = f"{INDEX}: {' '.join(str(error).split())}"
    raise InputError(f"{str(folder)!r} is damaged ({reason}); remove this folder, and it is made again")


def _sizes(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in sorted(folder.iterdir()) if file.name != INDEX}


def fingerprint_of(tokenizer: Any, *parts: Any) -> str:
    """Returns a digest of a tokenizer and plain data."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = backend.to_str() if backend is not None else json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.blake2b(json.dumps([FORM, words, *parts], default=str).encode(), digest_size=16).hexdigest()
