"""Rows from readers that were registered with `longspan.register`, by name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar

from longspan.errors import InputError
from longspan.plugins import READERS, find

Row = TypeVar("Row")


def is_own(source: str | Path, known: Collection[str]) -> bool:
    """Whether a source is the name of a registered reader; a path that exists and the `known` names come first."""
    if not isinstance(source, str) or source in known or Path(source).exists():
        return False
    return find(READERS, source) is not None


def own_rows(source: str | Path, split: str, kind: type[Row]) -> Iterator[Row]:
    """The rows that a registered reader gives for a split; `InputError` for one of another kind, when it is reached."""
    rows: Iterator[Any] = iter(READERS[str(source)](split))
    for number, row in enumerate(rows, 1):
        if not isinstance(row, kind):
            raise InputError(
                f"row {number} of reader {source!r} is a {type(row).__name__}; this task reads {kind.__name__}"
            )
        yield row
