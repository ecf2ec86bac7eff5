"""Compiled steps: what is written is compared before it is timed, and every token but the first has a time."""

from __future__ import annotations

import pytest
import torch

import compiled_steps
from compiled_steps import COMPILED, DEFAULT, STATIC, Row, Ticks, agree, report, sides, timed
from decoding import model, prompt, write


def test_a_row_has_a_time_for_each_side_and_their_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compiled_steps.SIZES, "small", (16, 2, 1))
    row = timed("small", "window of 256", 5, steps=4, rounds=1, backend="eager")
    assert list(row.taken) == [DEFAULT, STATIC, COMPILED]
    assert min(row.taken.values()) > 0
    text = "\n".join(report([Row("small", "full", 1234, {DEFAULT: 3.0, STATIC: 4.0, COMPILED: 1.2})]))
    assert "| small | full | 1,234 | 3.00 | 4.00 | 1.20 | 2.50 |" in text


def test_another_text_is_not_timed() -> None:
    writer, given = model("full", 16, 2, 1), sides("eager")
    wrong = write(writer, prompt(5), 4)[0, -1]
    given[STATIC] = {"suppress_tokens": [int(wrong)]}
    with pytest.raises(SystemExit, match=r"static cache: tokens: .* nothing is timed"):
        agree(writer, prompt(5), 4, given)


def test_a_time_is_from_one_token_to_the_next() -> None:
    ticks = Ticks()
    write(model("linear", 16, 2, 1), prompt(5), 4, streamer=ticks)
    assert len(ticks.times) == 5  # the prompt, and four tokens
    assert len(ticks.seconds) == 3
    assert torch.tensor(ticks.seconds).sum().item() == pytest.approx(ticks.times[4] - ticks.times[1])
