"""What every mechanism launches on a GPU, how often the host waits, and the memory of both: never more than the table.

Where a change needs fewer, `python tests/shared/launches.py` writes a new one; one that needs more wants a reason.
"""

from __future__ import annotations

import pytest
import torch
from torch._dynamo import graph_break
from torch._dynamo.exc import Unsupported

from launches import LENGTHS, Counts, committed, count, table

FORWARD, TRAINING = 200, 1300
"""Most launches of a layer at 16,384 tokens with default options."""
LOOKS = "bigbird"
"""Asks how long each row is, since blocks are drawn by it."""
OWN = ("fusion", "explicit_sparse", "reformer", "sinkhorn", "blockwise", "linear")
"""Mechanisms that launch kernels of many kinds."""
SQUARE = "explicit_sparse"
"""Looks at all pairs, some at a time."""


def check(form: str, counts: Counts, length: int) -> None:
    for kind, row in counts.items():
        wanted = committed()[str(length)][form][kind]
        assert row["operations"] <= wanted["operations"], (form, kind, row, wanted)
        assert row["waits"] <= wanted["waits"], (form, kind, row, wanted)
        assert row["peak"] <= 1.02 * wanted["peak"], (form, kind, row, wanted)


@pytest.mark.parametrize(("name", "causal"), [(name, name == "linear") for name in OWN])
def test_our_own_paths_need_no_more_than_the_table_says_at_4096_tokens(name, causal) -> None:
    """With padding and global tokens; other mechanisms, and longer texts, are the slow test's."""
    form = f"{name}{', causal' * causal}, padded"
    check(form, count(name, causal, LENGTHS[0], padded=True), LENGTHS[0])


def test_counts_are_the_same_after_a_compilation_that_failed() -> None:
    """After which PyTorch leaves its evaluator of frames on, and callers hold what they pass."""
    before = count("linear", True, 512, padded=True)
    with pytest.raises(Unsupported):
        torch.compile(lambda tensor: graph_break() or tensor, backend="eager", fullgraph=True)(torch.ones(1))
    assert count("linear", True, 512, padded=True) == before


@pytest.mark.slow
def test_no_mechanism_needs_more_than_the_table_says() -> None:
    for length in LENGTHS:
        counted = table(length)
        assert counted.keys() == committed()[str(length)].keys()
        for form, counts in counted.items():
            check(form, counts, length)


def test_the_table_stays_below_the_ceilings() -> None:
    for form, counts in committed()["16384"].items():
        name = form.partition(",")[0]
        assert counts["read"]["operations"] <= FORWARD, form
        assert counts["trained"]["operations"] <= TRAINING, form
        for row in counts.values():
            assert row["waits"] <= (name == LOOKS), form


def test_longer_texts_need_no_more_launches_and_memory_in_proportion() -> None:
    short, long = (committed()[str(length)] for length in LENGTHS)
    times = LENGTHS[1] / LENGTHS[0]
    for form, counts in long.items():
        for kind, row in counts.items():
            if not form.startswith(SQUARE):
                # Two more for each doubling: sums of sums, levels of a tree, and tiles at the ends.
                assert row["operations"] <= short[form][kind]["operations"] + 30, (form, kind)
            assert row["peak"] <= times**1.1 * short[form][kind]["peak"], (form, kind)
