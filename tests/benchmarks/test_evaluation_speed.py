"""Evaluation speed: both sides predict, see as many tokens, and a line's slope is known."""

from __future__ import annotations

import pytest
import torch

from evaluation_speed import PUBLISHED, agree, measure, report, segment_step, slope, window_step

TINY = {"width": 16, "layers": 1}


def test_both_sides_give_logits_of_what_they_predict() -> None:
    with torch.no_grad():
        assert window_step(40, **TINY)().shape == (1, 1, 256)
        run = segment_step(40, 8, **TINY)
        assert run().shape == run().shape == (1, 8, 256)
        assert agree(40, 8, **TINY) < 1e-4


def test_rows_and_the_page_made_of_them() -> None:
    (row,) = measure([40], 8, 1, **TINY)
    assert row["ratio"] == pytest.approx(row["window"] / row["segments"])
    rows = [{"length": length, "window": 2.0 * length, "segments": 4.0, "ratio": length / 2} for length in PUBLISHED]
    page = "\n".join(report(rows))
    assert "grows by 0.50 with each token of attention length, the published one by 0.52" in page
    assert slope([(1, 2), (3, 8)]) == 3
