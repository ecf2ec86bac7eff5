"""Short inputs with terms, by PyTorch's kernel, against the reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attend
from longspan.ops.attend import adding
from longspan.ops.attend.door import checked
from longspan.ops.attend.reference import attend_reference
from longspan.ops.attend.terms import Bias, ContentToPosition, GlobalKeyBias, PositionBias, PositionToContent, Term
from longspan.ops.tiles.blocked_operator import blocked_cost
from longspan.patterns import Causal, Full, Window


def call_of(inputs: Any, pattern: Any, terms: Any) -> Any:
    options: dict[str, Any] = {"key_mask": None, "globals": None, "global_rows": True, "scale": None}
    return checked(inputs[0], inputs[1], inputs[2], pattern, terms, **options, dropout_prob=0.0, query_offset=0)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_terms_that_are_added_are_the_reference(data):
    """Tables that begin and end anywhere, keys that biases or padding hide, global keys with numbers of their own."""
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    rows, queries, before = (data.draw(st.sampled_from(each)) for each in ([1, 2], [2, 3, 13], [0, 3]))
    keys = data.draw(st.sampled_from([queries + before, 4, 9]))
    inputs = [torch.randn(rows, 2, count, 5, dtype=torch.float64) for count in (queries, keys, keys)]
    slots, own = None, keys == queries and not before and data.draw(st.booleans())
    terms: list[Term] = []
    size, other, first = (
        data.draw(st.sampled_from(each)) for each in ([1, 2, 5, 40], [1, 5], [None, -30, -3, 0, 2, 30])
    )
    query_bias = torch.randn(2, 5, dtype=torch.float64) if data.draw(st.booleans()) else None
    terms += [ContentToPosition(torch.randn(2, size, 5).double(), query_bias=query_bias, first=first, globals=not own)]
    terms += [PositionBias(torch.randn(2, other).double(), first=first, globals=not own)]
    values = torch.randn(data.draw(st.sampled_from([(keys,), (rows, 1, queries, keys)]))).double()
    terms += [Bias(values.masked_fill(torch.rand_like(values) < 0.4, -torch.inf), globals=not own)]
    terms = data.draw(st.permutations(terms))[: data.draw(st.integers(1, 3))]
    if own:
        slots = torch.stack([torch.randperm(keys)[:2] for _ in range(rows)])
        slots[0, -1] = -1
        numbers = torch.randn(rows, 2, queries, 2).double()
        terms += [GlobalKeyBias(numbers.masked_fill(torch.rand(rows, 1, queries, 2) < 0.3, -torch.inf))]
    options: dict[str, Any] = {
        "pattern": data.draw(st.sampled_from([Full(), Causal(), Window(2, 1), Window(0, 0)])),
        "terms": terms,
        "key_mask": torch.rand(rows, keys) < 0.6 if data.draw(st.booleans()) else None,
        "globals": slots,
        "global_rows": False,
        "query_offset": before,
    }
    call = checked(inputs[0], inputs[1], inputs[2], **options, scale=None, dropout_prob=0.0)
    assert adding.adding_serves(call)
    learned = [each.requires_grad_() for each in call.tensors]
    ours, theirs = adding.attend_adding(call), attend_reference(call)
    upstream = torch.randn_like(theirs)
    results = [(each, *torch.autograd.grad(each, learned, upstream)) for each in (ours, theirs)]
    torch.testing.assert_close(*results, atol=1e-10, rtol=1e-10)


def test_terms_are_added_where_tiles_would_compute_nearly_all_pairs():
    """Of short inputs alone, on the processor, and with as many heads as keep their scores in the cache."""
    for length, heads, radius, cheaper in (
        (128, 4, 84, True), (256, 12, 84, True), (512, 4, 84, False), (512, 4, 256, True), (512, 12, 256, False),
    ):  # fmt: skip
        inputs = [torch.zeros(1, heads, length, 4) for _ in range(3)]
        terms = [ContentToPosition(torch.zeros(heads, 25, 4), globals=False)]
        call = call_of(inputs, Window(radius, radius), terms)
        taken = adding.adding_serves(call) and adding.adding_cost(call) <= blocked_cost(call)
        assert taken == cheaper, (length, heads, radius)
        assert not adding.adding_serves(replace(call, terms=(*terms, PositionToContent(terms[0].table, globals=False))))


def test_half_precision_keeps_scores_and_terms_in_single():
    inputs = [torch.randn(1, 2, 60, 8).bfloat16() for _ in range(3)]
    table = torch.randn(2, 9, 8).bfloat16()
    options: Any = {"pattern": Window(40, 40), "terms": [ContentToPosition(table), PositionBias(8 * torch.randn(2, 9))]}
    ours, theirs = (attend(*inputs, **options, backend=backend) for backend in ("auto", "reference"))
    exact = attend(*(each.double() for each in inputs), **options, backend="reference")
    assert ours.dtype == torch.bfloat16
    assert (ours.double() - exact).abs().max() <= 2 * (theirs.double() - exact).abs().max()
