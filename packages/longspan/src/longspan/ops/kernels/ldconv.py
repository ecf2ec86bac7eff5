"""LDConv pooling by Triton, as an operator of PyTorch with all its gradients.

What `longspan.ops.tiles.pooling.pool` computes for `"ldconv"` (Poolingformer, arXiv 2105.04371; Wu et al. 2019), in one
launch forward and two backward, whatever the kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longspan.ops.kernels.triton_backend import block_of, bytes_of, heads_inside, kernels, launch, with_dense_rows
from longspan.ops.runtime import full_precision


def ldconv_block(width: int) -> int:
    """Slots, or tokens, of one program: as many as keep its rows in registers."""
    return max(8, min(64, 2048 // block_of(width)))


@torch.library.custom_op("longspan::ldconv_pool", mutates_args=())
def ldconv_pool(hidden: Tensor, weight: Tensor, mask: Tensor | None, stride: int) -> tuple[Tensor, Tensor]:
    """Pools `(B, H, M, D)` of `(B, H, T, D)` by a weight `(H, κ, D)`, M = ⌈T / stride⌉, and the logarithms of the sums
    of each softmax `(B, H, M)`; `mask` is `(B, T)` bool, True where a token is real."""
    (batch, heads, length, width), slots = hidden.shape, -(-hidden.shape[2] // stride)
    pooled = heads_inside(hidden, slots, width, hidden.dtype)
    logs = hidden.new_empty((batch, heads, slots), dtype=torch.float32)
    if not pooled.numel():
        return pooled, logs
    hidden, weight, size = with_dense_rows(hidden), weight.contiguous(), ldconv_block(width)
    launch(
        kernels("ldconv").ldconv_forward, (-(-slots // size), batch * heads),
        hidden, weight, bytes_of(mask, hidden), pooled, logs,
        heads, length, slots, width, *hidden.stride()[:3], *pooled.stride()[:3],
        KERNEL=weight.shape[1], STRIDE=stride, HAS_MASK=mask is not None, SLOTS=size, WIDTH=block_of(width),
    )  # fmt: skip
    return pooled, logs


@ldconv_pool.register_fake
def _(hidden: Tensor, weight: Tensor, mask: Tensor | None, stride: int) -> tuple[Tensor, Tensor]:
    slots = (hidden.shape[2] + stride - 1) // stride
    logs = hidden.new_empty((*hidden.shape[:2], slots), dtype=torch.float32)
    return heads_inside(hidden, slots, hidden.shape[3], hidden.dtype), logs


@torch.library.custom_op("longspan::ldconv_pool_backward", mutates_args=())
def ldconv_pool_backward(
    grad: Tensor, hidden: Tensor, weight: Tensor, mask: Tensor | None, logs: Tensor, stride: int
) -> tuple[Tensor, Tensor]:
    """The gradients of the tokens and of the weight."""
    (batch, heads, length, width), slots, kernel = hidden.shape, logs.shape[2], weight.shape[1]
    hidden_grad = heads_inside(hidden, length, width, hidden.dtype)
    if not hidden.numel():
        return hidden_grad, torch.zeros_like(weight)
    grad, hidden, own = with_dense_rows(grad), with_dense_rows(hidden), weight.contiguous()
    shares = hidden.new_empty((batch, heads, slots, kernel), dtype=torch.float32)
    slopes, size, options = torch.empty_like(shares), ldconv_block(width), {"KERNEL": kernel, "STRIDE": stride}
    sizes, means = (heads, length, slots, width), torch.empty_like(logs)
    launch(
        kernels("ldconv").ldconv_slopes, (-(-slots // size), batch * heads),
        grad, hidden, own, bytes_of(mask, hidden), logs, shares, slopes, means, *sizes,
        *grad.stride()[:3], *hidden.stride()[:3],
        **options, HAS_MASK=mask is not None, SLOTS=size, WIDTH=block_of(width),
    )  # fmt: skip
    slopes = shares * slopes.sub_(means[..., None])
    launch(
        kernels("ldconv").ldconv_backward, (-(-length // size), batch * heads),
        grad, own, shares, slopes, hidden_grad, *sizes, *grad.stride()[:3], *hidden_grad.stride()[:3],
        **options, TOKENS=size, WIDTH=block_of(width),
    )  # fmt: skip
    with full_precision(hidden):
        centres = hidden[:, :, ::stride].to(torch.float32)
        weight_grad = (slopes.transpose(2, 3) @ centres).sum(0)
    return hidden_grad, weight_grad.to(weight.dtype)


@ldconv_pool_backward.register_fake
def _(
    grad: Tensor, hidden: Tensor, weight: Tensor, mask: Tensor | None, logs: Tensor, stride: int
) -> tuple[Tensor, Tensor]:
    return heads_inside(hidden, hidden.shape[2], hidden.shape[3], hidden.dtype), weight.new_empty(weight.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    hidden, weight, mask, ctx.stride = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(hidden, weight, mask, output[1])


def _gradients(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return *ldconv_pool_backward(grad, *ctx.saved_tensors, ctx.stride), None, None


ldconv_pool.register_autograd(_gradients, setup_context=_setup)
