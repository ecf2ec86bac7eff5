"""Linformer's table: its shape, what is drawn out by hand, and memory that is counted."""

from __future__ import annotations

import pytest
import torch

import linformer_speed
from linformer_speed import (
    ALONE,
    FUSED,
    LENGTHS,
    PUBLISHED_MEMORY,
    PUBLISHED_TIME,
    SLOTS,
    WRITTEN,
    cells,
    sides_of,
    value,
)
from measure import peak_allocated


def test_the_published_numbers_stand_where_ours_do() -> None:
    for published in (PUBLISHED_TIME, PUBLISHED_MEMORY):
        assert tuple(published) == LENGTHS
        for length, numbers in published.items():
            assert len(numbers) == sum(str(slots) in sides_of(length) for slots in SLOTS)


def test_twice_the_tokens_take_four_times_what_mixing_took() -> None:
    rows = {(8, FUSED): {"seconds": 7.0}, (8, ALONE): {"seconds": 2.0}, (16, ALONE): {"seconds": 4.0}}
    assert value(rows, 8, FUSED, "seconds") == (7.0, True)
    assert value(rows, 16, FUSED, "seconds") == (2 * 2 + 4 * 5, False)
    assert value(rows, 32, FUSED, "seconds") == (2 * 4 + 4 * 20, False)


def test_the_table_has_what_was_published_beside_ours() -> None:
    rows = {(512, WRITTEN): {"seconds": 6.0}, (512, ALONE): {"seconds": 1.0}, (512, f"128 {WRITTEN}"): {"seconds": 2.0}}
    rows |= {(1024, f"128 {WRITTEN}"): {"seconds": 1.0}}
    lines = cells(rows, (512, 1024), WRITTEN, "seconds", PUBLISHED_TIME).splitlines()
    assert lines[2] == "| 512 | 3.0 (1.5) | – | – | – | – |"
    assert lines[3] == "| 1,024 | ~22 (1.7) | – | – | – | – |"


def test_ours_are_the_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    linformer_speed.check(61, 7)


def test_memory_is_counted() -> None:
    def run() -> None:
        first = torch.empty(1000)
        second = torch.empty(500)
        del first
        third = torch.empty(250)
        del second, third

    assert peak_allocated(run) == pytest.approx(1500 * 4, abs=256)  # the allocator may round up


def test_rows_are_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    from pathlib import Path

    file = Path(str(tmp_path)) / "rows.jsonl"
    monkeypatch.setattr(linformer_speed, "TOKENS", 256)
    rows = linformer_speed.measure((256,), file, 1)
    assert {side for _, side in rows} == set(sides_of(256))
    # One row of four heads: scores of 256 × 256 as products, scaled or as weights, two of which are there at once.
    assert rows[256, WRITTEN]["bytes"] > 2 * 4 * 256 * 256 * 4
    monkeypatch.setattr(linformer_speed, "measured", None)
    assert linformer_speed.measure((256,), file, 1) == rows
