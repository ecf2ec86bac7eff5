"""LDConv by Triton, in its interpreter where there is no device, against the pooling that gathers every tap."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.ops.kernels.ldconv import ldconv_pool
from longspan.ops.tiles.pooling import pool, pool_reference

pytest.importorskip("triton", reason="needs the extra 'triton'")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def example(length: int, kernel: int, width: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Keys of two documents, laid out as projections lay out heads, and a weight."""
    hidden = torch.randn(2, length, 2, width, dtype=dtype, device=DEVICE).transpose(1, 2).requires_grad_()
    return hidden, torch.randn(2, kernel, width, dtype=dtype, device=DEVICE).requires_grad_()


@pytest.mark.parametrize(
    ("length", "kernel", "stride", "width", "masked"),
    [(37, 5, 4, 8, True), (13, 3, 1, 5, False), (23, 4, 2, 24, True), (1, 5, 4, 16, False), (0, 5, 4, 4, False)],
)
def test_pools_and_gradients_are_those_of_the_reference(
    length: int, kernel: int, stride: int, width: int, masked: bool
) -> None:
    inputs = example(length, kernel, width)
    mask = torch.rand(2, length, device=DEVICE) > 0.3 if masked else None
    if mask is not None:
        mask[1, ::2] = False
    options = {"kernel": kernel, "stride": stride, "pooling": "ldconv", "mask": mask}
    found = pool(inputs[0], weight=inputs[1], **options, backend="triton")
    exact = [each.detach().double().requires_grad_() for each in inputs]
    wanted = pool_reference(exact[0], weight=exact[1], **options)
    torch.testing.assert_close(found, wanted.float(), rtol=1e-5, atol=1e-5)
    grad = torch.randn_like(wanted)
    grads = torch.autograd.grad(found, inputs, grad.float())
    for own, reference in zip(grads, torch.autograd.grad(wanted, exact, grad), strict=True):
        torch.testing.assert_close(own, reference.float(), rtol=1e-5, atol=1e-5)


def test_in_half_precision_it_errs_no_more_than_twice_the_reference() -> None:
    inputs = example(21, 5, 16, torch.bfloat16)
    exact = [each.detach().double().requires_grad_() for each in inputs]
    options = {"kernel": 5, "stride": 4, "pooling": "ldconv"}
    grad = torch.randn(2, 2, 6, 16, device=DEVICE)

    def results(pooled: Tensor, of: list[Tensor]) -> list[Tensor]:
        return [pooled, *torch.autograd.grad(pooled, of, grad.to(pooled.dtype))]

    wanted = results(pool_reference(exact[0], weight=exact[1], **options), exact)
    usual = results(pool_reference(inputs[0], weight=inputs[1], **options), list(inputs))
    found = results(pool(inputs[0], weight=inputs[1], **options, backend="triton"), list(inputs))
    for own, plain, true in zip(found, usual, wanted, strict=True):
        assert (own - true).abs().max() <= 2 * (plain - true).abs().max()


def test_it_is_an_operator_that_pytorch_can_trace() -> None:
    hidden, weight = example(6, 3, 4)
    torch.library.opcheck(ldconv_pool, (hidden, weight, None, 2))


def test_what_it_cannot_serve_is_said() -> None:
    hidden, weight = torch.randn(1, 2, 5, 4, device=DEVICE), torch.randn(2, 3, 4, device=DEVICE)
    options = {"kernel": 3, "stride": 1}
    with pytest.raises(InputError, match=r"backend='triton' pools by 'ldconv', and pooling='mean'"):
        pool(hidden, pooling="mean", backend="triton", **options)
    with pytest.raises(InputError, match=r"backend='flex' pools nothing; choose auto or triton"):
        pool(hidden, pooling="ldconv", weight=weight, backend="flex", **options)
    with pytest.raises(InputError, match=r"computes in float32, bfloat16 or float16, not in torch.float64"):
        pool(hidden.double(), pooling="ldconv", weight=weight.double(), backend="triton", **options)
