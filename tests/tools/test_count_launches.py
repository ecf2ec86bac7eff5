"""The table of launches is what the simulated GPU counts now, and predicts blocks that are not in it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from longspan.planning.launches import BLOCK, TABLE
from longspan.planning.prediction import Kernel, Launches

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").is_file(), reason="runs in a checkout, not from an installed package"
)

SAMPLE = (BLOCK, "full", "longformer", "linear", "bigbird", "cluster")
"""Rows that are counted anew in every run of the tests."""
DEFAULT, OTHER = 0.1, 0.25
"""Greatest error of predicted seconds of a block, with default options and with options that have no row."""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools")
        import count_launches

        yield count_launches  # type: ignore[misc]
    del sys.modules["count_launches"]


def rows() -> list[dict[str, Any]]:
    return json.loads(TABLE.read_text(encoding="utf-8"))


def shortest(row: dict[str, Any], runs: tuple[str, ...]) -> list[list[Any]]:
    """The cell of the shortest text for each of these runs."""
    cells = [[cell for cell in row["counts"] if cell[0] == run] for run in runs]
    return [min(some, key=lambda cell: cell[1]) for some in cells if some]


def check(tool: ModuleType, row: dict[str, Any], runs: tuple[str, ...]) -> None:
    for run, tokens, waits, groups in shortest(row, runs):
        what = (row["mechanism"], row["options"], run, tokens)
        counts = tool.counted(row["mechanism"], tokens, row["options"], run)
        assert sum(count for _, count, _, _ in groups) == len(counts.kernels), what
        assert waits == counts.synchronisations, what
        moved = sum(each.bytes for each in counts.kernels) / 1e6
        flops = sum(each.flops for each in counts.kernels) / 1e9
        assert sum(group[2] for group in groups) == pytest.approx(moved, rel=2e-3), what
        assert sum(group[3] for group in groups) == pytest.approx(flops, rel=2e-3), what


def test_a_sample_of_the_table_is_counted_anew(tool: ModuleType) -> None:
    for row in rows():
        if row["mechanism"] in SAMPLE and not row["options"]:
            check(tool, row, ("forward bfloat16", "training autocast"))


@pytest.mark.slow
def test_every_row_of_the_table_is_counted_anew(tool: ModuleType) -> None:
    for row in rows():
        check(tool, row, ("forward float32", "training float32"))


@pytest.mark.parametrize(
    ("name", "options", "tokens", "batch", "heads", "run", "most"),
    [
        ("full", {}, 2048, 2, 8, "forward bfloat16", DEFAULT),
        ("longformer", {}, 8192, 1, 16, "training autocast", DEFAULT),
        ("longformer", {"left_tokens": 512, "right_tokens": 512}, 5003, 1, 12, "forward bfloat16", OTHER),
        ("linear", {}, 3001, 4, 4, "forward float32", DEFAULT),
        ("poolingformer", {}, 32_768, 1, 12, "forward bfloat16", DEFAULT),
        ("reformer", {"rounds": 4}, 2048, 1, 8, "training float32", OTHER),
    ],
)
def test_blocks_that_are_not_in_the_table_are_predicted(
    tool: ModuleType, name: str, options: dict[str, Any], tokens: int, batch: int, heads: int, run: str, most: float
) -> None:
    for device in ("h100", "l4"):
        table, simulated = tool.compared((name, options, tokens, batch, heads, run), device)
        assert abs(table / simulated - 1) < most, device


def test_launches_are_grouped_by_kind_and_size(tool: ModuleType) -> None:
    """Four digits, megabytes and GFLOP; what moves as much at another length belongs to the weights."""
    kernels = (
        Kernel(name="aten::mm", bytes=8e6, flops=3e9, dtype="bfloat16"),
        Kernel(name="aten::bmm", bytes=2e6, flops=1e9, dtype="float32"),
        Kernel(name="flash", bytes=4e6, flops=5.00049e9, dtype="bfloat16", kind="attention"),
        Kernel(name="aten::add", bytes=9e6),
        Kernel(name="aten::mul", bytes=3e6),
        Kernel(name="aten::mul", bytes=1e6),
        Kernel(name="aten::copy", bytes=7e6),
        Kernel(name="aten::copy", bytes=70.0),
    )
    longer = (*(Kernel(name=each.name, bytes=2 * each.bytes) for each in kernels[:6]), *kernels[6:])
    found = tool.groups(Launches(kernels=kernels), Launches(kernels=longer))
    assert sorted(found) == [
        ["attention bfloat16", 1, 4, 5],
        ["elements", 1, 1, 0],
        ["elements", 2, 12, 0],
        ["products float32", 1, 2, 1],
        ["projection bfloat16", 1, 8, 3],
        ["weights", 1, 0.00007, 0],
        ["weights", 1, 7, 0],
    ]
    alone = tool.groups(Launches(kernels=kernels[6:]), None)
    assert [group[0] for group in alone] == ["elements", "elements"]


def test_lengths_that_others_predict_are_left_out(tool: ModuleType) -> None:
    """One kernel for each token follows from any length; a launch that waits at one length alone does not."""

    def cell(tokens: int, waits: int = 0) -> list[Any]:
        return ["forward float32", tokens, waits, [["elements", 1, tokens, 0]]]

    lengths = (256, 1024, 4096, 16_384)
    assert len(tool.needed("linear", {tokens: cell(tokens) for tokens in lengths})) == 1
    kept = tool.needed("linear", {tokens: cell(tokens, 10_000 * (tokens == 1024)) for tokens in lengths})
    assert 1024 in kept
    assert set(kept) >= {256, 1024, 4096}
