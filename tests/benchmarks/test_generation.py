"""Decoding: the bytes of states by hand, and slopes of lines that are known."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

import generation
from decoding import PROMPT, filled, held_bytes, model, prompt, typical, write
from generation import CACHED, SIDES, UNCACHED, cells, growth, written


@pytest.mark.parametrize("tokens", [70, 131])
def test_the_state_of_a_sum_by_hand(tokens: int) -> None:
    cache = DynamicCache()
    write(model("linear"), prompt(), tokens - PROMPT + 1, cache=cache)
    # Two layers of four heads, each with a sum of 16 features times 16 values and one for the denominator, in float32.
    assert held_bytes(cache) == 2 * 4 * 16 * 17 * 4


def test_the_state_of_a_window_by_hand() -> None:
    cache = DynamicCache()
    write(model(SIDES["window of 256"]), prompt(400), 3, cache=cache)
    # Room for twice what is seen and can be taken back, in two layers, keys and values, 64 wide, in float32.
    assert held_bytes(cache) == 2 * (256 + 64) * 2 * 2 * 64 * 4


def test_the_filled_cache_by_hand() -> None:
    writer, cache = filled(97)
    assert held_bytes(cache) == 97 * 2 * 2 * 64 * 4
    ids = write(writer, prompt(98), 2, cache=cache)
    assert ids.shape == (1, 100)
    # A step after 97 tokens, in a buffer with room for 256 more.
    assert held_bytes(cache) == (98 + 256) * 2 * 2 * 64 * 4


def test_a_text_has_a_row_at_every_mark() -> None:
    rows = written("linear", [80, 97])
    assert [row["tokens"] for row in rows] == [80, 97]
    assert rows[0]["bytes"] == rows[1]["bytes"] == 8704
    assert all(0 < row["model"] < row["milliseconds"] for row in rows)


def test_text_in_steps_is_compared_and_a_wrong_one_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    generation.agree("linear", 20)

    def wrong(writer: object, start: torch.Tensor, count: int) -> torch.Tensor:
        return torch.cat([start, torch.zeros(1, count, dtype=torch.int64)], dim=1)

    monkeypatch.setattr(generation, "write", wrong)
    with pytest.raises(SystemExit, match="nothing is timed"):
        generation.agree("linear", 20)


def test_the_exponent_of_growth_and_the_shape_of_a_table() -> None:
    rows = [{"side": UNCACHED, "tokens": n, "model": 3.0 * n**2, "bytes": 0} for n in (10, 100, 1000)]
    rows += [{"side": CACHED, "tokens": n, "model": 7.0, "bytes": n} for n in (10, 100, 1000, 10_000)]
    assert growth(rows, UNCACHED) == pytest.approx(2)
    assert growth(rows, CACHED) == pytest.approx(0)
    assert growth(rows, CACHED, "bytes", shortest=100) == pytest.approx(1)
    lines = cells(rows, [100, 10_000], "model", ".1f").splitlines()
    assert lines[0] == f"| tokens | {CACHED} | {UNCACHED} |"
    assert lines[2:] == ["| 100 | 7.0 | 30000.0 |", "| 10,000 | 7.0 | not run |"]
    assert UNCACHED not in cells(rows, [100], "bytes", "d")


def test_steps_in_turns_belong_to_their_lengths() -> None:
    found = generation.turns((10, 30), steps=3)
    assert list(found) == [10, 30]
    assert all(milliseconds > 0 for milliseconds in found.values())


def test_nine_in_ten_are_longer() -> None:
    assert typical([0.004, 0.002, *[0.009] * 8, 0.001]) == 2.0
