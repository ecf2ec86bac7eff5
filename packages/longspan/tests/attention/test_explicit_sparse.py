"""Explicit sparse attention against numbers worked out by hand, and what its paper says of it."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks

from chosen_sizes import set_sizes
from longspan.attention import ExplicitSparseConfig, FullConfig, Tokens
from longspan.errors import InputError
from longspan.ops.runtime import PROCESSOR
from longspan.ops.sorted.top_scores import Budget, attend_top, top_weights


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)[None, None, :, None]


def scored(*scores):
    """One query whose scores are these numbers, and values that show its weights."""
    size = len(scores)
    query, key = (F.pad(each, (0, size - 1)) for each in (rows(math.sqrt(size)), rows(*scores)))
    return query, key, torch.eye(size, dtype=torch.float64)[None, None]


@pytest.mark.parametrize(
    ("budget", "kept"),
    [
        (Budget(1), [0, 4, 0, 0, 0]),
        (Budget(2), [0, 4, 3, 3, 0]),  # two tie for the second place
        (Budget(3), [0, 4, 3, 3, 0]),
        (Budget(4), [2, 4, 3, 3, 0]),
        (Budget(5), [2, 4, 3, 3, 1]),
        (Budget(9), [2, 4, 3, 3, 1]),
        (Budget(1, 0.5), [0, 4, 3, 3, 0]),  # ⌈0.5 · 5⌉ = 3
        (Budget(2, 0.0, local=True), [0, 4, 0, 0, 1]),  # itself, and the highest of the others
        (Budget(4, 0.0, local=True), [0, 4, 3, 3, 1]),  # the last two, and the two highest of the others
    ],
)
def test_weights_worked_out_by_hand(budget, kept):
    """Scores are logarithms of 2, 4, 3, 3, 1; the query is the last of five tokens."""
    query, key, value = scored(*(math.log(weight) for weight in (2, 4, 3, 3, 1)))
    expected = torch.tensor(kept, dtype=torch.float64) / sum(kept)
    torch.testing.assert_close(attend_top(query, key, value, budget, causal=True).flatten(), expected)
    torch.testing.assert_close(top_weights(query, key, budget, causal=True).flatten(), expected)


def test_padding_goes_first():
    query, key, value = scored(*(math.log(weight) for weight in (2, 9, 3, 4, 1)))
    mask = torch.tensor([[True, False, True, True, True]])
    expected = torch.tensor([0, 0, 3, 4, 0], dtype=torch.float64) / 7
    torch.testing.assert_close(attend_top(query, key, value, Budget(2), causal=True, key_mask=mask).flatten(), expected)
    none = attend_top(query, key, value, Budget(2), causal=True, key_mask=torch.zeros_like(mask))
    assert not none.any()


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_as_many_are_kept_as_asked_for(causal, local):
    module = ExplicitSparseConfig(top_k=5, local_budget=local).build(width=6, heads=2, causal=causal).double()
    weights = module.weights(torch.randn(2, 31, 6, dtype=torch.float64))
    wanted = torch.arange(1, 32).clamp(max=5) if causal else torch.full((31,), 5)
    assert torch.equal((weights > 0).sum(-1), wanted.expand(2, 2, 31))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 31, dtype=torch.float64))
    if local:  # two of five, itself among them
        near = weights.diagonal(dim1=-2, dim2=-1), weights.diagonal(-1, -2, -1)
        assert all(bool((each > 0).all()) for each in near)


@pytest.mark.parametrize("causal", [False, True])
def test_with_room_for_all_it_is_full_attention(causal):
    module = ExplicitSparseConfig(top_k=40).build(width=6, heads=2, causal=causal).double()
    full = FullConfig().build(width=6, heads=2, causal=causal).double()
    full.load_state_dict(module.state_dict())
    hidden = torch.randn(2, 40, 6, dtype=torch.float64)
    tokens = Tokens(mask=torch.rand(2, 40) < 0.8)
    for given in (Tokens(), tokens):
        torch.testing.assert_close(module(hidden, given), full(hidden, given))


def test_reordered_tokens_give_reordered_outputs():
    module = ExplicitSparseConfig(top_k=4).build(width=6, heads=2).double()
    hidden, order = torch.randn(1, 37, 6, dtype=torch.float64), torch.randperm(37)
    torch.testing.assert_close(module(hidden)[:, order], module(hidden[:, order]))


@pytest.mark.parametrize("budget", [Budget(5), Budget(3, 0.3), Budget(6, 0.0, local=True)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scores", [1, 300, 1 << 20])
def test_chunks_of_any_size_are_the_dense_way(scores, causal, budget, monkeypatch):
    set_sizes(monkeypatch, top_scores=scores)
    query = torch.randn(2, 3, 17, 5, dtype=torch.float64, requires_grad=True)
    key, value = (torch.randn(2, 3, 41, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    mask, upstream = torch.rand(2, 41) < 0.8, torch.randn_like(query)
    ours = attend_top(query, key, value, budget, causal=causal, key_mask=mask)
    theirs = top_weights(query, key, budget, causal=causal, key_mask=mask) @ value
    inputs = (query, key, value)
    results = [(each, *torch.autograd.grad(each, inputs, upstream)) for each in (ours, theirs)]
    torch.testing.assert_close(*results)


@pytest.mark.slow
def test_dropout_has_the_gradient_of_what_it_kept():
    inputs = [torch.randn(1, 2, 13, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]

    def dropped(query, key, value, prob=0.4):
        torch.manual_seed(3)
        return attend_top(query, key, value, Budget(4), causal=False, dropout_prob=prob)

    assert torch.autograd.gradcheck(dropped, inputs)
    assert not torch.allclose(dropped(inputs[0], inputs[1], inputs[2]), dropped(inputs[0], inputs[1], inputs[2], 0.0))


def test_scores_are_not_kept_and_never_made_all_at_once(memory):
    kept = []

    def keep(tensor):
        kept.append(tensor.numel())
        return tensor

    query, key, value = (torch.randn(1, 1, 4096, 8, requires_grad=True) for _ in range(3))
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        attend_top(query, key, value, Budget(8), causal=False)
    assert sum(kept) <= 4 * 4096 * 8
    with torch.no_grad(), memory() as made:
        attend_top(query, key, value, Budget(8), causal=False)
    assert made.largest <= PROCESSOR.top_scores < 4096**2 / 8


@pytest.mark.parametrize(
    ("options", "says"), [({"top_k": 0}, "top_k is 0"), ({"top_fraction": 1.5}, "top_fraction is 1.5")]
)
def test_options_out_of_range_are_named(options, says):
    with pytest.raises(InputError, match=says):
        ExplicitSparseConfig(**options)


def repeated(tokens: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """`(1, T, E)`: a document of five words, so that most scores tie."""
    return (3 * torch.randn(5, width, dtype=dtype))[torch.randint(5, (1, tokens))]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "options", [{"top_k": 3}, {"top_k": 2, "top_fraction": 0.3}, {"top_k": 6, "local_budget": True}]
)
@torch.no_grad()
def test_equal_keys_stay_or_go_together_step_by_step_and_behind_padding(options, dtype):
    """Matrix products of other shapes round otherwise, by which equal keys came apart."""
    for width, length in ((64, 61), (48, 150), (96, 77), (20, 37)):
        for _ in range(4):
            module = ExplicitSparseConfig(**options).build(width=width, heads=2, causal=True).to(dtype)
            hidden, state = repeated(length, width, dtype), module.new_state()
            whole = module(hidden)
            steps = [module(hidden[:, place : place + 1], Tokens(), state=state) for place in range(length)]
            torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-5, atol=1e-5)
            padded = torch.cat([torch.randn(1, 7, width, dtype=dtype), hidden], 1)
            mask = torch.arange(length + 7)[None] >= 7
            torch.testing.assert_close(module(padded, Tokens(mask=mask))[:, 7:], whole, rtol=1e-5, atol=1e-5)
            dense = module.weights(hidden) @ module.split_heads(module.value(hidden))
            torch.testing.assert_close(module.output(module.merge_heads(dense)), whole, rtol=1e-5, atol=1e-5)


def test_ties_are_differences_of_rounding_and_no_more():
    """A query and keys of about length 1 in one dimension: up to 32 units of 2⁻⁵² tie, more do not."""
    unit = 2.0**-52
    key = rows(1, 1 - 31 * unit, 1 - 34 * unit, 0.5)
    query, value = rows(1), rows(1, 3, 50, 50)
    for causal in (False, True):
        weights = top_weights(query, key, Budget(1), causal=causal).flatten()
        assert (weights > 0).tolist() == [True, True, False, False]
        assert abs(attend_top(query, key, value, Budget(1), causal=causal).item() - 2) < 1e-9


@pytest.mark.parametrize(
    ("share", "visible", "wanted"),
    [
        (0.6, 25, 15),
        (0.07, 100, 7),
        (0.1, 30, 3),
        (0.3, 10, 3),
        (0.55, 20, 11),
        (1 / 3, 9, 3),
        (0.6, 26, 16),
        (1, 7, 7),
    ],
)
def test_a_share_is_rounded_up_from_what_it_is_and_not_from_its_rounding(share, visible, wanted):
    assert Budget(1, share).of(torch.tensor([visible])).tolist() == [wanted]
    query, key = (torch.randn(1, 1, visible, 4, dtype=torch.float64) for _ in range(2))
    assert (top_weights(query, key, Budget(1, share), causal=False) > 0).sum(-1).unique().tolist() == [wanted]
    places = torch.eye(visible, dtype=torch.float64)[None, None]
    query, key = (F.pad(each, (0, visible - 4)) for each in (query, key))
    found = attend_top(query, key, places, Budget(1, share), causal=False)
    assert (found > 0).sum(-1).unique().tolist() == [wanted]
