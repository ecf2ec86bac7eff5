"""Pictures of curves: the points that they draw, against counts and numbers worked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from curve_pictures import draw_costs, draw_reach, draw_seconds

from longspan.errors import InputError
from longspan.patterns import Window
from longspan.pictures.patterns import save_picture

NARROW = {"mechanism": "longformer", "left_tokens": 3, "right_tokens": 2}


def points(axes) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]


def test_reach_draws_the_farther_side_of_each_layer() -> None:
    figure = draw_reach({"one": {"narrow": [NARROW] * 3}, "two": {"narrow": [NARROW]}}, length=41)
    first, second = figure.axes
    assert points(first) == [([0, 1, 2, 3], [0, 3, 6, 9])]
    assert points(second) == [([0, 1], [0, 3])]
    legend = first.get_legend()
    assert legend is not None
    assert legend.get_texts()[0].get_text() == "narrow: 9"


def test_a_text_that_is_too_short_for_the_reach_is_refused() -> None:
    with pytest.raises(InputError, match="length=11 is too short for the reach of 'narrow'"):
        draw_reach({"one": {"narrow": [NARROW] * 3}}, length=11)


def test_costs_draw_what_is_counted() -> None:
    figure = draw_costs({"full": "full", "narrow": NARROW}, width=6, heads=2, lengths=(8, 32))
    per_token, multiply_adds, in_all = (points(axes) for axes in figure.axes)
    seen = [int(Window(3, 2).dense(length).sum()) for length in (8, 32)]
    assert per_token == [([8, 32], [8, 32]), ([8, 32], [seen[0] / 8, seen[1] / 32])]
    # Full attention: four projections of 6 × 6, and 6 for the score and 6 for the sum over each of T keys.
    assert multiply_adds[0][1] == [(4 * 36 + 12 * 8) / 1e6, (4 * 36 + 12 * 32) / 1e6]
    assert in_all[1][1] == [count / 1e6 for count in seen]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["full", "narrow"]


def test_seconds_name_the_machine(tmp_path: Path) -> None:
    sides = {"ours": {1024: 0.5, 2048: 1.0}, "theirs": {1024: 1.5}}
    figure = draw_seconds({"forward": sides}, "a toaster")
    assert points(figure.axes[0]) == [([1024, 2048], [0.5, 1.0]), ([1024], [1.5])]
    assert figure.texts[0].get_text() == "measured on a toaster"
    for name in ("one.png", "two.png"):
        save_picture(draw_seconds({"forward": sides}, "a toaster"), tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
