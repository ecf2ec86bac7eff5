"""Bidirectional linear attention of long texts on a CUDA device that is not there, against the dense reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fake_cuda import FakeCuda
from longspan.attention import LinearConfig
from longspan.ops import compiled
from longspan.ops.kernels import linear_bidirectional
from longspan.ops.kernels.linear import elu_features
from longspan.ops.kernels.linear_bidirectional import _Bidirectional, attend_elu
from tracing import layer_launches

HEADS, WIDTH, VALUES = 3, 5, 7
EPSILON = 1e-6
LENGTHS = (1, 2, 131, 300)


@pytest.fixture(autouse=True)
def _short_texts_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "FEWEST", 1)
    monkeypatch.setattr(linear_bidirectional, "LONG", 1)
    monkeypatch.setattr(linear_bidirectional, "KEYS", 16)


def inputs(length: int, dtype: torch.dtype) -> tuple[list[Tensor], Tensor, Tensor]:
    """Queries, keys and values of two texts, token before head in memory; which keys are real; factors of dropout."""
    given = [torch.randn(2, length, HEADS, width).to(dtype).transpose(1, 2) for width in (WIDTH, WIDTH, VALUES)]
    real = torch.arange(length) < torch.tensor([[length], [length // 2]])  # none of the one key of a text
    return given, real, F.dropout(torch.ones(2, length, HEADS, 1), 0.25).to(dtype)


def dense(
    query: Tensor, key: Tensor, value: Tensor, real: Tensor | None, kept: Tensor | None, epsilon: float
) -> Tensor:
    """The definition: weights of all pairs, of which dropout takes some after they are normalised."""
    features = [(F.elu(tensor) + 1).to(tensor.dtype) for tensor in (query, key)]
    products = features[0] @ features[1].mT
    products = products if real is None else products.masked_fill(~real[:, None, None], 0)
    total = products.sum(-1, keepdim=True) + epsilon
    weights = products / total.masked_fill(total == 0, 1)
    return (weights if kept is None else weights * kept.permute(0, 2, 3, 1)) @ value


def learned(function: Callable[..., Tensor], given: list[Tensor], *options: Any) -> list[Tensor]:
    """The output, the gradients of query, key and value, and those of a penalty on these gradients."""
    given = [tensor.detach().requires_grad_() for tensor in given]
    output = function(*given, *options)
    upstream = torch.linspace(-1, 1, VALUES, device=output.device, dtype=output.dtype)
    once = torch.autograd.grad((output * upstream).sum(), given, retain_graph=True)
    slopes = torch.autograd.grad((output * upstream).sum(), given, create_graph=True)
    twice = torch.autograd.grad(torch.stack([slope.square().sum() for slope in slopes]).sum(), given)
    return [tensor.detach().cpu().double() for tensor in (output, *once, *twice)]


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_float32_equals_the_definition_up_to_second_derivatives(length: int, padded: bool, dropout: bool) -> None:
    """The operator itself, whose steps do not depend on the type."""
    given, real, kept = inputs(length, torch.float32)
    options = real if padded else None, kept if dropout else None
    epsilon = 0.0 if padded else EPSILON
    exact = learned(dense, [tensor.double() for tensor in given], *options, epsilon)
    with FakeCuda() as device:
        there = [option if option is None else option.to(device) for option in options]
        found = learned(_Bidirectional.apply, [tensor.to(device) for tensor in given], *there, epsilon)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", LENGTHS)
def test_it_errs_no_more_than_twice_dense_attention_in_bfloat16(length: int) -> None:
    given, real, _ = inputs(length, torch.bfloat16)
    exact = learned(dense, [tensor.double() for tensor in given], real, None, EPSILON)
    narrow = learned(dense, given, real, None, EPSILON)

    def attended(query: Tensor, key: Tensor, value: Tensor, real: Tensor) -> Tensor:
        output, sums = attend_elu(query, key, value, causal=False, key_mask=real, epsilon=EPSILON)
        assert sums is None
        assert output.transpose(1, 2).is_contiguous()
        return output

    with FakeCuda() as device:
        found = learned(attended, [tensor.to(device) for tensor in given], real.to(device))
    for number, (one, other, truth) in enumerate(zip(found, narrow, exact, strict=True)):
        floor = 2**-8 * truth.norm() + 1e-2 * exact[0].norm() * (number in (1, 2))  # where nothing but rounding is
        assert (one - truth).norm() <= 2 * (other - truth).norm() + floor, number


def test_dropout_is_that_of_whole_keys() -> None:
    value = torch.eye(41).expand(2, 3, 41, 41).bfloat16()  # so that outputs are weights
    query, key = (torch.randn(2, 3, 41, WIDTH).bfloat16() for _ in range(2))
    with FakeCuda() as device:
        there = [tensor.to(device) for tensor in (query, key, value)]
        weights, dropped = (attend_elu(*there, causal=False, dropout_prob=prob)[0].cpu() for prob in (0.0, 0.25))
    kept = (dropped != 0).any(2, keepdim=True)
    torch.testing.assert_close(dropped.float(), (weights * kept / 0.75).float(), rtol=0.02, atol=0)
    assert 150 < int(kept.sum()) < 220  # of 246; seven standard deviations


def test_states_and_other_devices_take_the_general_operator() -> None:
    given, _, _ = inputs(37, torch.bfloat16)
    sums = torch.rand(2, HEADS, WIDTH, VALUES + 1)
    expected, total = attend_elu(*(tensor.float() for tensor in given), causal=False, sums=sums)
    assert total is not None
    with FakeCuda() as device:
        output, after = attend_elu(*(tensor.to(device) for tensor in given), causal=False, sums=sums.to(device))
        assert after is not None
        assert (output.cpu() - expected).norm() <= 2**-7 * expected.norm()
        assert (after.cpu() - total).norm() <= 2**-7 * total.norm()


def test_a_layer_reads_and_writes_its_projections_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 65,536 tokens of 12 heads of 64, 100.7 MB in bfloat16: features of the keys, their sum, the product with the
    values and its sum; weights, and their product. Nothing is copied."""
    monkeypatch.undo()
    forward = layer_launches(LinearConfig(), tokens=65_536, padded=True)
    training = layer_launches(LinearConfig(), tokens=65_536, training=True)
    names = [kernel.name.partition("::")[2] for kernel in forward.kernels]
    products, own = ["addmm"] * 3, ["fused", "fused", "sum", "bmm", "sum", "_to_copy", "fused", "bmm"]
    assert names == [*products, *own, "addmm"]
    size = 2 * 65_536 * 768
    whole = [round(kernel.bytes / size, 1) for kernel in forward.kernels[3:-1]]
    assert whole == [2.0, 1.0, 0.0, 2.1, 0.1, 0.0, 2.0, 2.0]
    assert not [kernel for kernel in training.kernels if kernel.name in ("aten::clone", "aten::copy_", "aten::cat")]


def test_features_have_the_gradient_of_their_definition() -> None:
    points = torch.linspace(-4, 4, 2 * 31 * HEADS * WIDTH).view(2, 31, HEADS, WIDTH).transpose(1, 2)
    exact = points.double().requires_grad_()
    (F.elu(exact) + 1).square().sum().backward()
    assert exact.grad is not None
    with FakeCuda() as device:
        for dtype, bound in ((torch.float32, 1e-6), (torch.bfloat16, 2**-6)):
            there = points.to(dtype).to(device).requires_grad_()
            features = elu_features(there)
            (slopes,) = torch.autograd.grad(features.square().sum(), there)
            assert slopes.transpose(1, 2).is_contiguous()
            torch.testing.assert_close(slopes.cpu().double(), exact.grad, rtol=bound, atol=bound)
