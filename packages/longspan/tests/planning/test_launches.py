"""Seconds from counted launches: numbers worked by hand, and which row of a table is read."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from longspan import register
from longspan.attention import MECHANISMS, LongformerConfig, attention_config
from longspan.errors import InputError
from longspan.hardware import DEVICES
from longspan.models import LongspanConfig, LongspanForSequenceClassification
from longspan.models.work import Choice
from longspan.planning.launches import (
    BLOCK,
    RUNS,
    TABLE,
    Cell,
    Group,
    Scale,
    attention_seconds,
    between,
    read_table,
    rest_of_block_seconds,
    rows_of_plain,
    table_of,
)
from longspan.planning.plan import make_plan
from longspan.planning.source import Planned

H100, L4 = DEVICES["h100"], DEVICES["l4"]
MILLION, WIDTH = 1 << 20, 768
ONE = Scale(states=1.0, weights=1.0, projections=1.0, scores=1.0)


def seconds_of(spec: object, run: str = "forward bfloat16", device=H100, **sizes: int) -> float:
    found = attention_seconds(spec, device, run, **{"width": WIDTH, "heads": 12, **sizes})  # type: ignore[arg-type]
    assert found is not None
    return found


def test_full_attention_over_a_million_tokens_by_hand() -> None:
    """Four projections of 2·T·E² operations, and one kernel of 4·T²·E that moves four tensors of T·E numbers."""
    projections = 4 * 2 * MILLION * WIDTH**2 / (0.6 * 989.4e12)
    attention = 4 * MILLION**2 * WIDTH / (0.475 * 989.4e12) + 4 * MILLION * WIDTH * 2 / (0.8 * 3.35e12)
    assert seconds_of(attention_config("full"), tokens=MILLION) == pytest.approx(projections + attention, rel=0.01)
    # Rows, and a wider layer with as many heads as wide ones have: twice E is four times the projections.
    wide = 4 * 4 * projections + 2 * 4 * attention
    assert seconds_of(attention_config("full"), tokens=MILLION, batch=4, width=2 * WIDTH, heads=24) == pytest.approx(
        wide, rel=0.01
    )


def test_a_feed_forward_layer_by_hand() -> None:
    """Two products of 2·T·E·I operations, in float32, where what moves is little beside them on an H100."""
    tokens, width, inner = 1 << 18, 1024, 8192
    products = 2 * 2 * tokens * width * inner / (0.6 * 66.9e12)
    seconds = rest_of_block_seconds(H100, "forward float32", tokens=tokens, width=width, inner=inner)
    assert products < seconds < 1.1 * products
    training = rest_of_block_seconds(H100, "training float32", tokens=tokens, width=width, inner=inner)
    dropped = rest_of_block_seconds(H100, "training float32", tokens=tokens, width=width, inner=inner, dropout=True)
    assert 2.9 * seconds < training < dropped < 3.5 * seconds


def test_launches_by_hand() -> None:
    """Three launches that move 1 MB each take their launch; one that moves 1 GB, that divided by the bandwidth; eight
    times as long within a window."""
    groups = (
        Group(kind="elements", dtype="float32", count=3, bytes=3e6, flops=0.0),
        Group(kind="elements", dtype="float32", count=1, bytes=1e9, flops=0.0),
        Group(kind="weights", dtype="float32", count=1, bytes=1e9, flops=0.0),
        Group(kind="projection", dtype="bfloat16", count=2, bytes=2e6, flops=2e12),
        Group(kind="attention", dtype="bfloat16", count=1, bytes=1e9, flops=1e12),
        Group(kind="window", dtype="bfloat16", count=1, bytes=1e9, flops=1e12),
    )
    gigabyte, operations, scores = 1e9 / (0.8 * 3.35e12), 1e12 / (0.6 * 989.4e12), 1e12 / (0.475 * 989.4e12)
    cell = Cell(tokens=10, synchronisations=2, groups=groups)
    expected = 3 * 6e-6 + 2 * gigabyte + 2 * operations + (9 * gigabyte + 2 * scores) + 2 * 20e-6
    assert math.isclose(cell.seconds(H100, ONE), expected)
    # Twice the states, three times the weights of a projection, and so on.
    other = Scale(states=2.0, weights=3.0, projections=5.0, scores=7.0)
    expected = 3 * 6e-6 + 2 * gigabyte + 3 * gigabyte + 10 * operations + (18 * gigabyte + 14 * scores) + 2 * 20e-6
    assert math.isclose(cell.seconds(H100, other), expected)


def test_lengths_between_two_by_hand() -> None:
    cells = [Cell(tokens=tokens, synchronisations=0, groups=()) for tokens in (100, 400, 1600)]
    for tokens, expected in ((50, 100), (100, 100), (200, 250), (400, 400), (800, 1000), (1600, 1600), (9999, 1600)):
        assert math.isclose(between(cells, tokens, lambda cell: float(cell.tokens)), expected), tokens


def test_the_row_with_most_of_the_options_is_read() -> None:
    """Each row waits another number of times, 20 µs each, and launches nothing."""

    def row(options: dict[str, object], run: str, waits: int) -> dict[str, object]:
        return {"mechanism": "full", "options": options, "counts": [[run, 64, waits, []]]}

    relative = {"positions": "relative"}
    rows = rows_of_plain(
        [
            row({}, "training float32", 1),
            row({}, "forward float32", 2),
            row({"dropout": 0.1}, "training float32", 3),
            row(relative, "training float32", 4),
            row(relative | {"dropout": 0.1}, "training float32", 5),
        ]
    )["full"]
    for options, run, waits in (
        ({}, "training float32", 1),
        ({"dropout": 0.3}, "training float32", 3),
        ({"dropout": 0.3}, "forward float32", 2),
        (relative, "training float32", 4),
        (relative | {"dropout": 0.3, "bias": False}, "training float32", 5),
        (relative, "forward float32", 2),
    ):
        spec = attention_config({"mechanism": "full", **options})
        seconds = attention_seconds(spec, H100, run, tokens=64, width=64, heads=1, rows=rows)  # type: ignore[arg-type]
        assert seconds == pytest.approx(waits * 20e-6), (options, run)
    assert attention_seconds(spec, H100, "forward bfloat16", tokens=64, width=64, heads=1, rows=rows) is None


def test_lengths_that_need_padding_have_cells_of_their_own() -> None:
    counts = [["forward float32", tokens, tokens, []] for tokens in (64, 100, 640, 1000)]
    rows = rows_of_plain([{"mechanism": "linear", "options": {}, "counts": counts}])["linear"]
    for tokens, waits in ((64, 64), (99, 100), (640, 640), (1001, 1000)):
        sizes = {"tokens": tokens, "width": 64, "heads": 1}
        seconds = attention_seconds(attention_config("linear"), H100, "forward float32", rows=rows, **sizes)
        assert seconds == pytest.approx(waits * 20e-6), tokens


def test_the_table_counts_every_mechanism_and_everything_that_is_run() -> None:
    table = read_table(TABLE)
    assert set(table) == {BLOCK, "binary_partition", *MECHANISMS}
    for name, (first, *others) in table.items():
        assert first.options == {}, name
        assert set(first.cells) == set(RUNS), name
        assert all(row.options for row in others), name


def test_linear_means_linear_on_a_device() -> None:
    """From 64 thousand tokens on, where launches no longer count."""
    for name, low, high in (("longformer", 0.95, 1.05), ("linear", 0.95, 1.05), ("full", 1.8, 2.0)):
        short, long = (seconds_of(attention_config(name), tokens=tokens) for tokens in (1 << 16, 1 << 18))
        assert low < math.log(long / short, 4) < high, name


def test_wider_windows_and_slower_devices_take_longer() -> None:
    window = {"mechanism": "longformer", "left_tokens": 512, "right_tokens": 512}
    narrow, wide = attention_config("longformer"), attention_config(window)
    assert seconds_of(narrow, tokens=65_536) < seconds_of(wide, tokens=65_536) < 2 * seconds_of(narrow, tokens=65_536)
    assert seconds_of(narrow, tokens=65_536) < seconds_of(narrow, tokens=65_536, device=L4) / 5
    assert seconds_of(narrow, tokens=65_536) < seconds_of(narrow, "forward float32", tokens=65_536) / 2


MODULE = """
from dataclasses import dataclass
from typing import ClassVar

from longspan.attention import LongformerConfig


@dataclass(frozen=True, kw_only=True)
class Elsewhere(LongformerConfig):
    mechanism: ClassVar[str] = "elsewhere"
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[LongformerConfig]]:
    """A mechanism of another package, in the folder of the test."""
    (tmp_path / "attention_elsewhere.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield register(import_module("attention_elsewhere").Elsewhere)
    del sys.modules["attention_elsewhere"]
    read_table.cache_clear()


def test_a_mechanism_without_a_row_has_memory_and_a_sentence(elsewhere: type[LongformerConfig]) -> None:
    sizes = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LongspanConfig(**sizes, intermediate_size=256, position_embedding="none", attention="elsewhere")
    model = Planned(name="elsewhere", config=config, model_class=LongspanForSequenceClassification)
    plan = make_plan(model, Choice(tokens=4096, train=True), device=H100, mechanisms=["full"])
    assert [row.seconds is None for row in plan.rows] == [True] * 4 + [False] * 4
    assert all(row.memory.peak > 0 for row in plan.rows)
    assert "None are predicted of attention 'elsewhere'" in plan.advice[-1]
    assert "tools/count_launches.py elsewhere`" in plan.advice[-1]
    assert sum("elsewhere" in line for line in plan.advice) == 1


def test_another_package_puts_its_table_beside_its_module(elsewhere: type[LongformerConfig], tmp_path: Path) -> None:
    assert table_of(LongformerConfig()) == TABLE
    assert table_of(elsewhere()) == tmp_path / "launches.json"
    table = '[{"mechanism": "elsewhere", "options": {}, "counts": [["forward float32", 64, 3, []]]}]'
    (tmp_path / "launches.json").write_text(table, encoding="utf-8")
    assert seconds_of(elsewhere(), "forward float32", tokens=64) == pytest.approx(3 * 20e-6)
    read_table.cache_clear()
    (tmp_path / "launches.json").write_text('{"rockets": 3}', encoding="utf-8")
    with pytest.raises(InputError, match=r"launches.json is no table of launches .*count_launches.py"):
        seconds_of(elsewhere(), "forward float32", tokens=64)
