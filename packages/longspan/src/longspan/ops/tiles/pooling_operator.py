"""The operator of `pooling.pool`, opaque to `torch.compile` and `torch.export`, and its backward pass.

Both read the sequence once per tap, in place, in loops over the taps; or, for large tensors on CUDA, in the fused
kernels of `pooling_fused`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from longspan.ops.compiled import is_fused
from longspan.ops.runtime import full_precision, keeps_bfloat16, wide_product
from longspan.ops.tiles import pooling_fused
from longspan.ops.tiles.pooling_taps import centres_of, ldconv_weights, mean_weights, tap_validity


def pool_kernel(
    hidden: Tensor, weight: Tensor | None, mask: Tensor | None, kernel: int, stride: int, pooling: str
) -> Tensor:
    """Computes `pool` of `(B, H, T, D)`: `(B, H, M, D)`, with memory layout `(B, M, H, D)`."""
    forward = pooling_fused.FORWARD[pooling]
    tokens = hidden.transpose(1, 2)
    with full_precision(hidden):
        if kernel <= pooling_fused.MOST_TAPS and is_fused(forward, tokens):
            return forward(tokens, weight, mask, kernel, stride).transpose(1, 2)
    valid = tap_validity(mask, hidden.shape[2], kernel, stride, hidden.device)
    if pooling == "max":
        return _max(hidden, valid, stride)
    return _weighted_sum(hidden, _weights(hidden, weight, valid, stride), stride)


pool_operator = torch.library.custom_op("longspan::pool", pool_kernel, mutates_args=())


@pool_operator.register_fake
def _(hidden: Tensor, weight: Tensor | None, mask: Tensor | None, kernel: int, stride: int, pooling: str) -> Tensor:
    slots = centres_of(hidden.shape[2], stride, torch.device("meta"))  # their number, as the same symbol as in masks
    return _heads_inside(hidden, slots.shape[0], hidden.dtype)


@torch.library.custom_op("longspan::pool_backward", mutates_args=())
def _pool_backward(
    grad: Tensor,
    hidden: Tensor,
    weight: Tensor | None,
    mask: Tensor | None,
    pooled: Tensor | None,
    kernel: int,
    stride: int,
    pooling: str,
) -> list[Tensor]:
    """Returns the gradient of the tokens `(B, H, T, D)` and, for LDConv, of its weight `(H, κ, D)`. `pooled` is the
    result of the forward pass, for `"max"` only."""
    tokens, upstream = hidden.transpose(1, 2), grad.transpose(1, 2)
    with full_precision(hidden):
        if kernel <= pooling_fused.MOST_TAPS and is_fused(pooling_fused.spread, tokens, upstream):
            to_tokens, slopes = pooling_fused.gradients(upstream, tokens, weight, mask, kernel, stride, pooling)
            grads = [to_tokens.transpose(1, 2)]
        else:
            valid = tap_validity(mask, hidden.shape[2], kernel, stride, hidden.device)
            if pooled is not None:
                return [_max_gradient(grad, hidden, pooled, valid, stride)]
            weights = _weights(hidden, weight, valid, stride)
            to_hidden, slopes = _sum_gradients(grad, hidden, weights, weight, stride)
            grads = [to_hidden.to(hidden.dtype)]
        if weight is not None:
            assert slopes is not None
            grads.append(_weight_gradient(slopes, hidden, stride).to(weight.dtype))
    return grads


@_pool_backward.register_fake
def _(grad: Tensor, hidden: Tensor, weight: Tensor | None, *options: Any) -> list[Tensor]:
    grads = [_heads_inside(hidden, hidden.shape[2], hidden.dtype)]
    return grads if weight is None else [*grads, torch.empty_like(weight)]


def _context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, kernel, stride, pooling = inputs
    ctx.save_for_backward(*tensors, output if pooling == "max" else None)
    ctx.options = kernel, stride, pooling


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    grads = _pool_backward(grad, *ctx.saved_tensors, *ctx.options)
    return grads[0], grads[1] if len(grads) > 1 else None, None, None, None, None


pool_operator.register_autograd(_gradients, setup_context=_context)


def _weights(hidden: Tensor, weight: Tensor | None, valid: Tensor, stride: int) -> Tensor:
    """Returns the tap weights of a mean, or of LDConv, `(B, H or 1, M, κ)`."""
    return mean_weights(valid, hidden) if weight is None else ldconv_weights(hidden, weight, valid, stride)


def _weight_gradient(slopes: Tensor, hidden: Tensor, stride: int) -> Tensor:
    """Returns the gradient of LDConv's weight `(H, κ, D)` from that of the scores, `(B, H, M, κ)`."""
    centres = hidden[:, :, ::stride].transpose(0, 1).flatten(1, 2)
    slopes = slopes.permute(1, 3, 0, 2).flatten(2)  # (H, κ, B·M)
    if not keeps_bfloat16(hidden):
        return wide_product(slopes, centres)
    # Tensor cores read bfloat16: a number as the sum of two has 16 bits, of which a parameter in float32 profits.
    high = slopes.to(hidden.dtype)
    parts = wide_product(torch.cat((high, (slopes - high).to(hidden.dtype)), 1), centres)
    return parts.unflatten(1, (2, -1)).sum(1)


def _tap_slices(length: int, kernel: int, stride: int) -> list[tuple[int, slice, slice]]:
    """Returns for each tap its index, the slots for which it is inside the sequence, and the tokens at its
    positions."""
    slices = []
    for tap in range(kernel):
        offset = tap - kernel // 2
        first = max(0, -(offset // stride))
        last = (length - 1 - offset) // stride + 1  # one past the last slot whose tap is inside
        last = min(last, -(-length // stride))
        if last > first:
            start = first * stride + offset
            slices.append((tap, slice(first, last), slice(start, start + (last - first - 1) * stride + 1, stride)))
    return slices


def _heads_inside(hidden: Tensor, slots: int, dtype: torch.dtype, make: Callable[..., Tensor] = torch.zeros) -> Tensor:
    """Creates `(B, H, M, D)` with memory layout `(B, M, H, D)`, as projections lay out their heads."""
    batch, heads, _, width = hidden.shape
    return make((batch, slots, heads, width), dtype=dtype, device=hidden.device).transpose(1, 2)


def _weighted_sum(hidden: Tensor, weights: Tensor, stride: int) -> Tensor:
    """Computes weighted sums of taps: `(B, H, T, D)` and `(B or 1, H or 1, M, κ)` → `(B, H, M, D)`."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    pooled, weights = _heads_inside(hidden, weights.shape[2], wide), weights.to(wide)
    for tap, slots, tokens in _tap_slices(hidden.shape[2], weights.shape[3], stride):
        taps = hidden[:, :, tokens] if hidden.is_cuda else hidden[:, :, tokens].to(wide)  # CUDA mixes dtypes
        pooled[:, :, slots].addcmul_(taps, weights[:, :, slots, tap, None])
    return pooled.to(hidden.dtype)


def _sum_gradients(
    grad: Tensor, hidden: Tensor, weights: Tensor, weight: Tensor | None, stride: int
) -> tuple[Tensor, Tensor | None]:
    """Returns the gradient of the tokens, in float32 or wider, and that of LDConv's scores `(B, H, M, κ)`."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    grad, weights = grad.to(wide), weights.to(wide)
    to_hidden = _heads_inside(hidden, hidden.shape[2], wide)
    to_weights = None if weight is None else torch.zeros_like(weights)
    for tap, slots, tokens in _tap_slices(hidden.shape[2], weights.shape[3], stride):
        to_hidden[:, :, tokens].addcmul_(grad[:, :, slots], weights[:, :, slots, tap, None])
        if to_weights is not None:
            to_weights[:, :, slots, tap] = (grad[:, :, slots] * hidden[:, :, tokens]).sum(-1)
    if weight is None or to_weights is None:
        return to_hidden, None
    slopes = weights * (to_weights - (to_weights * weights).sum(-1, keepdim=True))
    to_hidden[:, :, ::stride] += slopes @ weight.to(wide)
    return to_hidden, slopes


def _max(hidden: Tensor, valid: Tensor, stride: int) -> Tensor:
    """Computes maxima over the valid taps: `(B, H, T, D)` → `(B, H, M, D)`; 0 if there are none."""
    pooled = _heads_inside(hidden, valid.shape[1], hidden.dtype).fill_(-torch.inf)
    for tap, slots, tokens in _tap_slices(hidden.shape[2], valid.shape[2], stride):
        candidate, real = hidden[:, :, tokens], valid[:, None, slots, tap, None]
        if hidden.is_cuda or not bool(real.all()):  # asking a GPU would wait for it
            candidate = candidate.masked_fill(~real, -torch.inf)
        torch.maximum(pooled[:, :, slots], candidate, out=pooled[:, :, slots])
    return pooled.masked_fill_(~valid.any(-1)[:, None, :, None], 0)


def _max_gradient(grad: Tensor, hidden: Tensor, pooled: Tensor, valid: Tensor, stride: int) -> Tensor:
    """Passes each slot's gradient `(B, H, M, D)` to the first tap that attains its maximum: `(B, H, T, D)`."""
    hidden_grad = _heads_inside(hidden, hidden.shape[2], torch.promote_types(grad.dtype, torch.float32))
    left = grad.to(hidden_grad.dtype).masked_fill(~valid.any(-1)[:, None, :, None], 0)
    for tap, slots, tokens in _tap_slices(hidden.shape[2], valid.shape[2], stride):
        won = (hidden[:, :, tokens] == pooled[:, :, slots]) & valid[:, None, slots, tap, None]
        hidden_grad[:, :, tokens] += left[:, :, slots].masked_fill(~won, 0)
        left[:, :, slots].masked_fill_(won, 0)
    return hidden_grad.to(grad.dtype)
