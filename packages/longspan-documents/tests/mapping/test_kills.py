"""A job whose processes are killed at random moments has one row for each input row in the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psutil", reason="the processes of a job are found with psutil, which comes with accelerate")

from longspan import map_documents
from mapping import compare, survive


@pytest.mark.slow
def test_a_dozen_kills(rows: list[dict[str, Any]], write_lines: Callable[..., Path], tmp_path: Path) -> None:
    """Documents are longer here, so that a part takes a while."""
    for row in rows:
        row["text"] = " ".join([row["text"].replace("kind", f"kind {number} or") for number in range(60)])
    path = write_lines(rows)
    map_documents("summarize", path, tmp_path / "undisturbed", workers=0, part_rows=2)
    counts = survive(path, tmp_path / "out", 12, seed=0, options=("--part-rows", "2"))
    assert counts.total() == 12
    assert set(counts) == {"driver", "worker"}
    said = compare(tmp_path / "out", tmp_path / "undisturbed", len(rows))
    assert said.startswith(f"{len(rows)} rows were equal") or "0 were left out" not in said, said
