"""The dense kernel under the mask of a pattern, in runs of queries, with globals and by head, against the reference."""

from __future__ import annotations

import pytest
import torch

from longspan import attend
from longspan.ops.attend import dense
from longspan.ops.attend.backends import dense_serves
from longspan.ops.attend.door import checked
from longspan.ops.runtime import LAYOUT_CACHE
from longspan.ops.tiles.blocked_operator import blocked_cost
from longspan.patterns import Blocks, Causal, First, Fixed, PerHead, RandomBlocks, Strided, Window

LENGTH = 97
PATTERNS = [
    Window(9, 0),
    Window(200, 200),
    Fixed(16, 3) & Causal(),
    Blocks(11),
    Causal() & Window(40, 40),
    PerHead([Window(5, 5), Blocks(8) | RandomBlocks(8, 2, 1), Window(50, 0)]),
]
GLOBALS = {"none": None, "alike": torch.tensor([[0, 40], [0, 40]]), "apart": torch.tensor([[3, -1], [0, 96]])}


@pytest.fixture(autouse=True)
def _small_runs(monkeypatch):
    monkeypatch.setattr(dense, "STRIP", 16)
    LAYOUT_CACHE.clear()
    yield
    LAYOUT_CACHE.clear()


def call_of(inputs, pattern, **options):
    defaults = {"key_mask": None, "globals": None, "global_rows": True, "scale": None, "dropout_prob": 0.0}
    query, key, value = inputs
    return checked(query, key, value, pattern, (), **(defaults | {"query_offset": 0} | options))


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("globals_", GLOBALS)
@pytest.mark.parametrize("rows", [True, False])
def test_masks_of_patterns_and_globals_are_the_reference(pattern, globals_, rows):
    inputs = [torch.randn(2, 3, LENGTH, 5, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    mask, upstream = torch.rand(2, LENGTH) < 0.8, torch.randn_like(inputs[0])
    mask[1, :20] = False  # queries that see nothing
    for key_mask in (None, mask):
        options = {"key_mask": key_mask, "globals": GLOBALS[globals_], "global_rows": rows}
        ours = dense.attend_dense(call_of(inputs, pattern, **options))
        theirs = attend(*inputs, pattern=pattern, backend="reference", **options)
        results = [(each, *torch.autograd.grad(each, inputs, upstream)) for each in (ours, theirs)]
        torch.testing.assert_close(*results)


def test_queries_behind_others_see_the_keys_before_them():
    query = torch.randn(1, 2, 40, 5, dtype=torch.float64)
    key, value = (torch.randn(1, 2, LENGTH, 5, dtype=torch.float64) for _ in range(2))
    for pattern in (Window(9, 0), Fixed(16, 3) & Causal()):
        ours = dense.attend_dense(call_of([query, key, value], pattern, query_offset=57))
        options = {"pattern": pattern, "query_offset": 57, "backend": "reference"}
        torch.testing.assert_close(ours, attend(query, key, value, **options))


def test_runs_of_queries_leave_out_what_none_of_them_sees():
    strips = dense._strips_of(Window(9, 0), LENGTH, LENGTH, 0)
    assert [(rows.start, rows.stop, keys.start, keys.stop) for rows, keys in strips[:2]] == [
        (0, 16, 0, 16),
        (16, 32, 7, 32),
    ]
    assert dense._strips_of(Window(200, 200), LENGTH, LENGTH, 0) == [(slice(None), slice(None))]


def test_a_pattern_that_hides_nothing_needs_no_mask():
    found = dense.mask_of_pattern(Window(200, 200), (), False, LENGTH, LENGTH, 0, torch.float32, torch.device("cpu"))
    assert found[0] is None
    some = dense.mask_of_pattern(Blocks(50), tuple(range(50)), True, 60, 60, 0, torch.float32, torch.device("cpu"))
    assert some[0] is None  # the first fifty are global, the others one block


@pytest.mark.parametrize(("length", "cheaper"), [(200, True), (1000, True), (1100, False)])
def test_it_is_taken_for_short_inputs_with_globals_and_draws_by_head(length, cheaper):
    inputs = [torch.zeros(1, 3, length, 4) for _ in range(3)]
    pattern = PerHead([Blocks(64, 1, 1) | RandomBlocks(64, 3, seed) for seed in range(3)])
    call = call_of(inputs, pattern, globals=torch.arange(64)[None])
    assert (dense_serves(call) and dense.dense_cost(call) <= blocked_cost(call)) == cheaper


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_single_query_sees_what_its_pattern_shows(dtype):
    """As in decoding: one query at any place of 37 keys, some of them padding."""
    masks = [None, torch.arange(37)[None] >= torch.tensor([[0], [30]])]
    patterns = [Window(5, 0), Window(3, 2, 4), Causal(), Blocks(7), Strided(5) & Causal(), First(2)]
    patterns.append(PerHead([Window(5, 0), Strided(3)]))
    query, key, value = torch.randn(2, 2, 1, 8, dtype=dtype), *torch.randn(2, 2, 2, 37, 8, dtype=dtype)
    for pattern in patterns:
        for key_mask in masks:
            for place in (0, 6, 36, 60):
                options = {"pattern": pattern, "key_mask": key_mask, "query_offset": place}
                expected, found = (
                    attend(query, key, value, **options, backend=backend) for backend in ("reference", "auto")
                )
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
