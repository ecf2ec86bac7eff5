"""Linear attention in bfloat16 on a CUDA device that is not there, against dense attention of the same type."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fake_cuda import FakeCuda
from longspan.ops import compiled
from longspan.ops.kernels import linear_bfloat16
from longspan.ops.kernels.linear import attend_linear, elu_features, linear_weights
from longspan.ops.kernels.linear_bfloat16 import _Divided, _Read, _Summed, _WithOnes
from longspan.ops.kernels.random_features import EPSILON, draw_directions, key_features, query_features

HEADS, WIDTH = 3, 8
DIRECTIONS = draw_directions(22, WIDTH, seed=1)
LENGTHS = (1, 2, 131, 300)


def features(name: str, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    if name == "linear":
        return elu_features(query), elu_features(key)
    directions = DIRECTIONS.to(query.device, query.dtype)
    return query_features(query, directions), key_features(key, directions)


def inputs(length: int) -> tuple[list[Tensor], Tensor]:
    """Queries, keys and values of two texts, token before head in memory, and which keys are real."""
    shape = 2, length, HEADS, WIDTH
    given = [torch.randn(shape).bfloat16().transpose(1, 2) for _ in range(3)]
    return given, torch.arange(length) < torch.tensor([[length], [-(-length // 2)]])


def learned(name: str, given: list[Tensor], causal: bool, key_mask: Tensor, *, dense: bool) -> list[Tensor]:
    """The outputs, and the gradients of query, key and value."""
    given = [each.detach().requires_grad_() for each in given]
    found = features(name, *given[:2])
    epsilon = EPSILON if name == "performer" else 1e-6
    if dense:
        wide = [each.to(given[2].dtype) for each in found]
        products = wide[0] @ wide[1].mT
        products = (products.tril() if causal else products).masked_fill(~key_mask[:, None, None], 0)
        output = (products / (products.sum(-1, keepdim=True) + epsilon)) @ given[2]
    else:
        output, sums = attend_linear(*found, given[2], causal=causal, key_mask=key_mask, epsilon=epsilon)
        assert sums.dtype == torch.float32
    output.mul(torch.linspace(-1, 1, WIDTH, device=output.device, dtype=output.dtype)).sum().backward()
    return [each.detach().cpu().double() for each in (output, *(each.grad for each in given))]  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.parametrize("fewest", [1, compiled.FEWEST], ids=["fused", "in steps"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["linear", "performer"])
def test_it_errs_no_more_than_twice_dense_attention_in_bfloat16(name, causal, fewest, monkeypatch) -> None:
    monkeypatch.setattr(compiled, "FEWEST", fewest)
    monkeypatch.setattr(linear_bfloat16, "CHUNK", 16)
    monkeypatch.setattr(linear_bfloat16, "CHUNKS", 5)
    monkeypatch.setattr(linear_bfloat16, "SUMMED", 64)
    for length in LENGTHS:
        given, key_mask = inputs(length)
        exact = learned(name, [each.double() for each in given], causal, key_mask, dense=True)
        dense = learned(name, given, causal, key_mask, dense=True)
        with FakeCuda() as device:
            found = learned(name, [each.to(device) for each in given], causal, key_mask.to(device), dense=False)
        for number, (one, other, truth) in enumerate(zip(found, dense, exact, strict=True)):
            floor = 2**-8 * truth.norm() + 1e-2 * exact[0].norm() * (number in (1, 2))  # where nothing but rounding is
            assert (one - truth).norm() <= 2 * (other - truth).norm() + floor, (length, number)


def test_texts_in_pieces_continue_the_sums_of_what_was_before() -> None:
    given, _ = inputs(300)
    with FakeCuda() as device, torch.no_grad():
        query, key = (each.to(device) for each in features("linear", *(each.float() for each in given[:2])))
        query, key, value = (each.bfloat16() for each in (query, key, given[2].to(device)))
        whole, last = attend_linear(query, key, value, causal=True)
        parts, sums = [], None
        for start, end in ((0, 129), (129, 130), (130, 130), (130, 300)):
            piece = [each[:, :, start:end] for each in (query, key, value)]
            part, sums = attend_linear(*piece, causal=True, sums=sums)
            parts.append(part.cpu())
        assert sums is not None
        torch.testing.assert_close(torch.cat(parts, 2), whole.cpu(), rtol=0.02, atol=0.02)
        assert (sums - last).cpu().norm() <= 2**-8 * last.cpu().norm()
        key[:, :, 200:] *= 2
        value[:, :, 200:] += 1
        again, _ = attend_linear(query, key, value, causal=True)
        assert torch.equal(again[:, :, :200].cpu(), whole[:, :, :200].cpu())


def test_features_stay_above_zero_and_are_rounded_once() -> None:
    points = torch.linspace(-30, 30, 241).bfloat16()
    with FakeCuda() as device:
        found = elu_features(points.to(device))
        assert found.dtype == torch.bfloat16
        exact = elu_features(points)
        assert exact.dtype == torch.float32
        torch.testing.assert_close(found.cpu().float(), exact, rtol=2**-8, atol=0)


@pytest.mark.parametrize("fewest", [1, compiled.FEWEST], ids=["fused", "in steps"])
def test_exponents_of_random_features_are_those_of_float32(fewest, monkeypatch) -> None:
    """For short and for long queries and keys; those of queries but for their sum."""
    monkeypatch.setattr(compiled, "FEWEST", fewest)
    for length in (0.1, 1.0, 6.0):
        vectors = (length * torch.randn(1, HEADS, 50, WIDTH)).bfloat16()
        directions = DIRECTIONS.bfloat16()
        query, key = (features_of(vectors, directions) for features_of in (query_features, key_features))
        with FakeCuda() as device:
            there = vectors.to(device), directions.to(device)
            narrow = [features_of(*there).cpu().float() for features_of in (query_features, key_features)]
        shares = query / query.sum(-1, keepdim=True)
        torch.testing.assert_close(narrow[0], shares, rtol=0.15 * max(1, length), atol=1e-4)
        assert (narrow[1] / key.clamp(min=1e-30)).log().abs().median() < 0.02 * max(1, length)


def test_dense_weights_of_such_features_are_float32() -> None:
    query = torch.rand(1, 1, 5, WIDTH).bfloat16()
    assert linear_weights(query, query, causal=True).dtype == torch.float32


@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
def test_means_and_their_gradients_are_those_of_a_division(epsilon, monkeypatch) -> None:
    """In float32, up to second derivatives, with dropout and a text without real keys: the steps do not depend on the
    type."""
    monkeypatch.setattr(compiled, "FEWEST", 1)
    query, key = (torch.rand(2, HEADS, 131, 5) for _ in range(2))
    value, kept = torch.randn(2, HEADS, 131, WIDTH), 2 * torch.rand(2, HEADS, 131, 1).round()
    real = torch.arange(131) < torch.tensor([[97], [0]])
    upstream = torch.randn(2, HEADS, 131, WIDTH)

    def dense(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        products = (query @ key.mT).masked_fill(~real[:, None, None], 0)
        total = products.sum(-1, keepdim=True) + epsilon
        return (products * kept.mT / total.masked_fill(total == 0, 1)) @ value

    def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows = _WithOnes.apply(value, real.to(query.device), kept.to(query.device))
        mixed = _Read.apply(query, _Summed.apply(key, rows))
        return _Divided.apply(mixed, WIDTH, epsilon)

    def learned(function: Any, *given: Tensor) -> list[Tensor]:
        given = tuple(tensor.detach().requires_grad_() for tensor in given)
        output = function(*given)
        grad = upstream.to(output.device, output.dtype)
        slopes = torch.autograd.grad(output, given, grad, retain_graph=True)
        again = torch.autograd.grad(output, given, grad, create_graph=True)
        twice = torch.autograd.grad(torch.stack([slope.square().sum() for slope in again]).sum(), given)
        return [tensor.detach().cpu() for tensor in (output, *slopes, *twice)]

    exact = learned(dense, query.double(), key.double(), value.double())
    with FakeCuda() as device:
        found = learned(ours, *(tensor.to(device) for tensor in (query, key, value)))
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)
