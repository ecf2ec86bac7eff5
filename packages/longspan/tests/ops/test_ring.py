"""Full attention over rows divided between processes. That it equals attention of whole rows, with padding, relative
positions and a memory, is in `tests/contract/test_divided_rows.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forked import forked

FORMS = (0, 1)
"""Bidirectional and causal, in the lists of results."""


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    """What each of three processes found."""
    done = forked(3, Path(__file__).with_name("ring_processes.py"))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_no_process_makes_more_than_a_block(found: list[dict[str, Any]]) -> None:
    """With few channels nothing near the scores of a part's pairs; with many, a block of keys and values, of which
    whole rows have three. Memory grows with the part, not with the number of processes: with more than two, there is a
    block on its way while another is used, and a byte of the mask for each token."""
    for process in found:
        for form in FORMS:
            short, long = process["made"][form], process["doubled"][form]
            assert short["largest"] < 1100**2 / 2
            assert long["largest"] <= 2.1 * short["largest"]
            assert long["peak"] <= 2.4 * short["peak"]
            assert process["wide"][form]["largest"] == 2 * 512 * 256
        # The projected distances between 512 queries and 1,536 keys, and as many as a tile has at the ends.
        assert process["relative"]["largest"] <= (512 + 1536 + 2 * 64) * 256
    for process in found[:2]:
        assert process["wide"][0]["peak"] - process["wide in two"]["peak"] <= 2 * 512 * 256 * 4 + 1024


@pytest.mark.slow
def test_what_is_sent(found: list[dict[str, Any]]) -> None:
    """Keys and values of a part in float32, to all others or to those after it."""
    for rank, process in enumerate(found):
        assert process["wide"][0]["sent"] == 2 * 2 * 512 * 256 * 4
        assert process["wide"][1]["sent"] == (2 - rank) * 2 * 512 * 256 * 4
        assert process["wide in two"] is None or process["wide in two"]["sent"] == 2 * 512 * 256 * 4


@pytest.mark.slow
def test_dropout_is_that_of_a_dense_softmax(found: list[dict[str, Any]]) -> None:
    """In float64: two of five weights are dropped, others in each process, and gradients are those of what is left."""
    for process in found:
        for form in process["dropped"]:
            assert form["share"] == pytest.approx(0.4, abs=0.04)
            assert max(form["weights"], form["gradients"]) < 1e-13
            assert not form["alike"]


@pytest.mark.slow
def test_half_precision(found: list[dict[str, Any]]) -> None:
    """Errors of outputs and gradients in bfloat16 are at most twice those of PyTorch's attention of whole rows."""
    for process in found:
        for form in process["rounded"]:
            assert len(form) == 4
            assert all(error <= 2 * dense for error, dense in form)
