"""Causal sums of products of features: pieces against one dense product, and every derivative."""

from __future__ import annotations

import pytest
import torch

from chosen_sizes import set_sizes
from longspan.ops.kernels import linear
from longspan.ops.kernels.linear import continued, in_chunks


@pytest.fixture(autouse=True)
def _pieces_of_short_inputs(monkeypatch):
    monkeypatch.setattr(linear, "WHOLE", 0)


def inputs(length: int, features: int = 5) -> list[torch.Tensor]:
    shapes = [(2, 3, length, features), (2, 3, length, features), (2, 3, length, 7), (2, 3, features, 7)]
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def dense(query, key, value, sums):
    return (query @ key.mT).tril() @ value + query @ sums, key.mT @ value + sums


@pytest.mark.parametrize("piece", [1, 1 << 14, 1 << 19])
@pytest.mark.parametrize(("length", "features"), [(0, 5), (1, 5), (131, 5), (457, 3), (300, 130)])
def test_pieces_of_any_size_are_the_dense_product(length, features, piece, monkeypatch):
    set_sizes(monkeypatch, causal_numbers=piece)
    given = inputs(length, features)
    upstream = [torch.randn(2, 3, length, 7, dtype=torch.float64), torch.randn(2, 3, features, 7, dtype=torch.float64)]
    results = [way(*given) for way in (continued, in_chunks, dense)]
    grads = [torch.autograd.grad(result, given, upstream) for result in results]
    for ours, grad in zip(results[:2], grads[:2], strict=True):
        for one, other in zip([*ours, *grad], [*results[2], *grads[2]], strict=True):
            torch.testing.assert_close(one, other)


def test_what_no_gradient_is_asked_of_gets_none():
    query, key, value, _ = inputs(70)
    mixed, _ = continued(query, key.detach(), value, None)
    grads = torch.autograd.grad(mixed.square().sum(), [query, value])
    assert [grad.shape for grad in grads] == [query.shape, value.shape]


def test_first_and_second_derivatives_are_those_of_finite_differences(monkeypatch):
    monkeypatch.setattr(linear, "CHUNK", 3)
    set_sizes(monkeypatch, causal_numbers=1)
    tensors = [each[:1, :1, ..., :2].detach().requires_grad_() for each in inputs(7, features=2)]
    assert torch.autograd.gradcheck(continued, tensors)
    assert torch.autograd.gradgradcheck(continued, tensors)
