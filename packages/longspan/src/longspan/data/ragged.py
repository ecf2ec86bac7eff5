"""Rows of unequal length on disk: written once, whole or not at all, then read by index through memory maps.

The folder::

    <column>.bin    the values of all rows, one after the other, little-endian
    rows.bin        int64 (rows, 1 + numbers): where each row ends, and what else is known of it
    index.json      counts, types, the fingerprint of what they were made from, and how long the files are

Neither writing nor reading ever has all rows in memory, and a row may be written in pieces.
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
"""Of the files; a part of every fingerprint, so that files of another form are not read."""


class Ragged:
    """The rows in a folder that `Writer` wrote; opened when first used, so that it can be sent to another process.

    Attributes:
        index: what `index.json` says.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = read_index(folder)
        self._maps: dict[str, Any] = {}

    def __len__(self) -> int:
        return self.index["rows"]

    @property
    def values(self) -> int:
        """How many values the rows have together, in each column."""
        return self.index["values"]

    @property
    def ends(self) -> np.ndarray:
        """`(rows,)` int64: where each row ends, counted in values from the beginning of the table."""
        return self._table[:, 0]

    def read(self, column: str, start: int, end: int) -> np.ndarray:
        """Values `start … end − 1` of a column as int64."""
        return self._map(column, self.index["columns"][column])[start:end].astype(np.int64)

    def __getitem__(self, row: int) -> dict[str, Any]:
        """A row: its numbers by name, and of each column its values as int64."""
        row = range(len(self))[row]
        end, *numbers = self._table[row].tolist()
        start = int(self._table[row - 1, 0]) if row else 0
        values = {name: self.read(name, start, end) for name in self.index["columns"]}
        return dict(zip(self.index["numbers"], numbers, strict=True)) | values

    def __getstate__(self) -> dict[str, Any]:
        """Without the maps, which would be copied whole."""
        return {**self.__dict__, "_maps": {}}

    @property
    def _table(self) -> np.ndarray:
        return self._map("rows", "<i8").reshape(-1, 1 + len(self.index["numbers"]))

    def _map(self, name: str, dtype: str) -> np.ndarray:
        if name not in self._maps:
            self._maps[name] = np.memmap(self.folder / f"{name}.bin", dtype=dtype, mode="r")
        return self._maps[name]


class Writer:
    """Writes the files of a `Ragged` but its index, which `index` gives and `make_once` writes.

    Args:
        folder: where to.
        columns: name → type, such as `"<u2"`.
        numbers: names of whole numbers that each row has.
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
        """Write the next values of the row, as many in each column."""
        (count,) = {len(values[name]) for name in self.columns}
        for name, dtype in self.columns.items():
            self._files[name].write(np.asarray(values[name], dtype=dtype).tobytes())
        self.values += count

    def end_row(self, **numbers: int) -> None:
        """End the row that `write` has put values into."""
        line = [self.values, *(numbers[name] for name in self.numbers)]
        self._files["rows"].write(np.asarray(line, dtype="<i8").tobytes())
        self.rows += 1

    def index(self) -> dict[str, Any]:
        """Sizes and columns of what was written, as plain data, by which `Ragged` opens it."""
        return {"rows": self.rows, "values": self.values, "columns": self.columns, "numbers": self.numbers}


def make_once(folder: Path, fingerprint: str, fill: Callable[[Path], dict[str, Any]], *, other: str) -> Ragged:
    """The rows in a folder that is there already, or is made now.

    Args:
        folder: where it is, or will be.
        fingerprint: of all that decides what is in it, see `fingerprint_of`.
        fill: writes files into a folder and returns the index: plain data.
        other: what a folder with another fingerprint was made from, in words.

    Raises:
        InputError: the folder has another fingerprint; what `fill` raises.
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
    """What `make_once` wrote beside the files.

    Raises:
        InputError: it cannot be read, or the files are not as long as they were.
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
    """A digest of a tokenizer and of plain data, equal only where both are."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = backend.to_str() if backend is not None else json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.blake2b(json.dumps([FORM, words, *parts], default=str).encode(), digest_size=16).hexdigest()
