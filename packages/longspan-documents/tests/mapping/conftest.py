"""What the tests of mapping share: a small table of documents and its results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="tables are read and written with pyarrow, of the 'map' extra")


def texts(count: int) -> list[str]:
    """Short documents that differ."""
    places = ("hives", "hollow trees", "the ground", "walls")
    return [
        f"Bees of kind {number} live in {places[number % 4]}. They dance to tell where flowers are. "
        f"Frisch described the dance in chapter {number}. It took him {number + 2} years."
        for number in range(count)
    ]


@pytest.fixture
def write_lines(tmp_path: Path) -> Callable[..., Path]:
    """Write rows as JSON Lines."""

    def write(rows: list[dict[str, Any]], name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    """Twenty rows."""
    return [{"id": number, "text": text} for number, text in enumerate(texts(20))]


@pytest.fixture
def read_parts() -> Callable[[Path], list[dict[str, Any]]]:
    """The rows of an output folder, in order."""
    from pyarrow import parquet

    def read(folder: Path) -> list[dict[str, Any]]:
        return [row for file in sorted(folder.glob("part-*.parquet")) for row in parquet.read_table(file).to_pylist()]

    return read
