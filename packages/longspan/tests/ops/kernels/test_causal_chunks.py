"""Causal linear attention by Triton, in its interpreter where there is no device, against products of all pairs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.ops.kernels.causal_chunks import causal_chunks
from longspan.ops.kernels.linear import attend_linear, linear_weights

pytest.importorskip("triton", reason="needs the extra 'triton'")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def example(length: int, features: int, width: int) -> list[Tensor]:
    """Features of queries and keys, values, and sums of what came before."""
    shapes = [(1, 2, length, features)] * 2 + [(1, 2, length, width), (1, 2, features, width + 1)]
    made = [torch.rand(shape, device=DEVICE).requires_grad_() for shape in shapes]
    made[2] = torch.randn(shapes[2], device=DEVICE).requires_grad_()
    return made


@pytest.mark.parametrize(("length", "features", "width"), [(67, 5, 3), (20, 35, 33), (1, 16, 8), (0, 4, 4)])
def test_sums_and_gradients_are_those_of_all_pairs(length: int, features: int, width: int) -> None:
    inputs = example(length, features, width)
    exact = [each.detach().double().requires_grad_() for each in inputs]
    query, key, value, sums = exact
    beside = torch.cat([value, torch.ones_like(value[..., :1])], -1)
    mixed = (query @ key.mT).tril() @ beside + query @ sums
    wanted = mixed[..., :-1], mixed[..., -1], sums + key.mT @ beside
    found = causal_chunks(*inputs)
    slopes = [torch.randn_like(each) for each in wanted]
    grads = torch.autograd.grad(found, inputs, [slope.float() for slope in slopes])
    true = torch.autograd.grad(wanted, exact, slopes)
    for own, reference in zip((*found, *grads), (*wanted, *true), strict=True):
        torch.testing.assert_close(own, reference.float(), rtol=1e-5, atol=2e-5)


def test_attention_of_padded_tokens_continues_an_earlier_call() -> None:
    query, key, value, _ = example(66, 8, 4)
    mask = torch.rand(1, 66, device=DEVICE) > 0.3
    weights = linear_weights(query, key, causal=True, key_mask=mask, epsilon=1e-6)
    state, parts = None, []
    for places in (slice(0, 40), slice(40, 66)):
        inputs = (each[:, :, places] for each in (query, key, value))
        options = {"causal": True, "key_mask": mask[:, places], "sums": state, "epsilon": 1e-6, "backend": "triton"}
        mixed, state = attend_linear(*inputs, **options)
        parts.append(mixed)
    torch.testing.assert_close(torch.cat(parts, 2), weights @ value, rtol=1e-5, atol=1e-5)


def test_it_is_an_operator_that_pytorch_can_trace() -> None:
    torch.library.opcheck(causal_chunks, tuple(example(3, 4, 2)))


def test_what_it_cannot_serve_is_said() -> None:
    query, key, value, _ = example(3, 4, 2)
    with pytest.raises(InputError, match="backend='triton' serves the causal form, and causal=False"):
        attend_linear(query, key, value, causal=False, backend="triton")
    with pytest.raises(InputError, match="backend='blocked' computes no linear attention; choose auto or triton"):
        attend_linear(query, key, value, causal=True, backend="blocked")
