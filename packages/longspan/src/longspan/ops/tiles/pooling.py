"""Pooling of keys and values over short strided kernels, without leakage from padding.

Slot m is centred at token `m·stride` and covers the taps `centre − κ//2 … centre + κ − 1 − κ//2` of a kernel of κ
tokens. Taps outside the sequence or on padding are skipped; a slot whose centre is padding is invalid. The reference
gathers every tap; the fast path is an operator that reads the sequence once per tap, in place, forward and backward,
in loops over the taps, or for large tensors on CUDA in the kernels of `pooling_fused`: nothing larger than the input is
stored. Source: Poolingformer (arXiv 2105.04371), section "pooling attention"; LDConv follows dynamic convolution (Wu et
al. 2019).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.ops.compiled import is_fused
from longspan.ops.runtime import (
    cached,
    full_precision,
    keeps_bfloat16,
    needs_reference,
    run,
    shared_in_pass,
    wide_product,
)
from longspan.ops.tiles import pooling_fused

POOLINGS = ("ldconv", "mean", "max")


def pool(
    hidden: Tensor,
    *,
    kernel: int,
    stride: int,
    pooling: str,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """Pools `(B, H, T, D)` to `(B, H, M, D)` with M = ⌈T / stride⌉ slots; slots with a padded centre are 0.

    Args:
        kernel: tokens per slot, κ.
        stride: tokens from one centre to the next, ξ.
        pooling: `"mean"` and `"max"` over the valid taps, or `"ldconv"`: a weighted sum over the valid taps with
            weights `softmax(weight · centre)` computed from the slot's centre token.
        mask: `(B, T)` bool, True where a token is real.
        weight: `(H, κ, D)`, for `"ldconv"` only.

    Raises:
        InputError: `pooling` is unknown, `kernel` or `stride` is below 1, or the shape of `weight` does not match.
    """
    _check(hidden, kernel, stride, pooling, weight)
    if needs_reference(hidden, weight):
        return pool_reference(hidden, kernel=kernel, stride=stride, pooling=pooling, mask=mask, weight=weight)
    return run(_pool, _pool_kernel, hidden, weight, mask, kernel, stride, pooling)


def pool_reference(
    hidden: Tensor, *, kernel: int, stride: int, pooling: str, mask: Tensor | None = None, weight: Tensor | None = None
) -> Tensor:
    """Computes `pool` by gathering every tap: stores `(B, H, M, κ, D)`, in float32 or wider."""
    _check(hidden, kernel, stride, pooling, weight)
    length, dtype = hidden.shape[2], hidden.dtype
    hidden = hidden.to(torch.promote_types(dtype, torch.float32))
    valid = tap_validity(mask, length, kernel, stride, hidden.device)[:, None, :, :, None]
    taps = hidden[:, :, tap_positions(length, kernel, stride, hidden.device).clamp(0, max(length - 1, 0))]
    if pooling == "max":
        pooled = taps.masked_fill(~valid, -torch.inf).amax(3)
        return torch.where(valid.any(3), pooled, 0).to(dtype)
    if pooling == "mean":
        return ((taps * valid).sum(3) / valid.sum(3).clamp(min=1)).to(dtype)
    assert weight is not None
    with full_precision(hidden):
        scores = torch.einsum("bhmd,hkd->bhmk", taps[:, :, :, kernel // 2], weight.to(hidden.dtype))[..., None]
    weights = scores.masked_fill(~valid, torch.finfo(scores.dtype).min).softmax(3) * valid
    return (taps * weights).sum(3).to(dtype)


def pool_shares(
    hidden: Tensor, *, kernel: int, stride: int, pooling: str, mask: Tensor | None = None, weight: Tensor | None = None
) -> Tensor:
    """Returns the share of each token in each pool, `(B, H, M, T)`, for pictures; quadratic, so never part of a forward
    pass.

    For `"max"`, a token's share is the fraction of channels in which it is the maximum of its pool.
    """
    _check(hidden, kernel, stride, pooling, weight)
    length = hidden.shape[2]
    valid = tap_validity(mask, length, kernel, stride, hidden.device)
    if pooling == "max":
        positions = tap_positions(length, kernel, stride, hidden.device).clamp(0, max(length - 1, 0))
        taps = hidden[:, :, positions].masked_fill(~valid[:, None, :, :, None], -torch.inf)
        won = torch.nn.functional.one_hot(taps.argmax(3), kernel).to(hidden.dtype).mean(-2)
        shares = won * valid[:, None]
    elif pooling == "mean":
        shares = mean_weights(valid, hidden)
    else:
        assert weight is not None
        shares = ldconv_weights(hidden, weight, valid, stride)
    positions = tap_positions(length, kernel, stride, hidden.device)
    spread = torch.arange(length, device=hidden.device) == positions[:, :, None]
    return torch.einsum("bhmk,mkt->bhmt", shares.expand(*hidden.shape[:2], -1, -1), spread.to(shares.dtype))


def slot_mask(mask: Tensor | None, stride: int) -> Tensor | None:
    """`(B, T)` → `(B, M)` bool: a slot is valid if its centre is real; `None` means that all are."""
    return None if mask is None else mask.index_select(1, centres_of(mask.shape[1], stride, mask.device))


def centres_of(length: int, stride: int, device: torch.device) -> Tensor:
    """Returns the centre of each slot, `(M,)` int64. Gathering by it instead of slicing keeps M one symbol for
    `torch.export`."""
    return torch.arange(0, length, stride, device=device)


def tap_positions(length: int, kernel: int, stride: int, device: torch.device) -> Tensor:
    """Returns the position of each tap of each slot, `(M, κ)` int64, which may be outside the sequence."""
    return centres_of(length, stride, device)[:, None] + torch.arange(
        -(kernel // 2), kernel - kernel // 2, device=device
    )


def tap_validity(mask: Tensor | None, length: int, kernel: int, stride: int, device: torch.device) -> Tensor:
    """Returns whether a tap and its slot's centre are real tokens, `(B or 1, M, κ)` bool."""
    inside = _taps_inside(length, kernel, stride, device)
    return inside if mask is None or length == 0 else _real_taps(inside, mask, kernel, stride)


@cached
def _taps_inside(length: int, kernel: int, stride: int, device: torch.device) -> Tensor:
    """Returns whether a tap is inside the sequence, `(1, M, κ)` bool."""
    positions = tap_positions(length, kernel, stride, device)
    return ((positions >= 0) & (positions < length))[None]


@shared_in_pass
def _real_taps(inside: Tensor, mask: Tensor, kernel: int, stride: int) -> Tensor:
    """Returns the taps inside the sequence whose token and centre are real, `(B, M, κ)` bool."""
    length = mask.shape[1]
    positions = tap_positions(length, kernel, stride, mask.device).clamp(0, length - 1)
    return inside & mask[:, positions] & mask[:, centres_of(length, stride, mask.device), None]


def mean_weights(valid: Tensor, hidden: Tensor) -> Tensor:
    """Returns tap weights `(B, 1, M, κ)` that average the valid taps, in float32 or wider."""
    valid = valid.to(torch.promote_types(hidden.dtype, torch.float32))
    return (valid / valid.sum(-1, keepdim=True).clamp(min=1))[:, None]


def ldconv_weights(hidden: Tensor, weight: Tensor, valid: Tensor, stride: int) -> Tensor:
    """Returns tap weights `(B, H, M, κ)` from the centre tokens: a softmax over the valid taps, 0 if there are none."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    centres = hidden.index_select(2, centres_of(hidden.shape[2], stride, hidden.device))
    with full_precision(hidden):
        if keeps_bfloat16(hidden):
            weights = weight.to(hidden.dtype).transpose(1, 2).expand(hidden.shape[0], -1, -1, -1)
            scores = wide_product(centres.flatten(0, 1), weights.flatten(0, 1)).view(*centres.shape[:3], -1)
        else:
            scores = centres.to(wide) @ weight.to(wide).transpose(1, 2)
    valid = valid[:, None]
    return torch.where(valid, scores, torch.finfo(scores.dtype).min).softmax(-1) * valid


def _check(hidden: Tensor, kernel: int, stride: int, pooling: str, weight: Tensor | None) -> None:
    if pooling not in POOLINGS:
        raise InputError(f"pooling={pooling!r} is unknown; choose one of {', '.join(POOLINGS)}")
    if kernel < 1 or stride < 1:
        raise InputError(f"kernel={kernel} and stride={stride} must be at least 1")
    if (weight is not None) != (pooling == "ldconv"):
        raise InputError(f"pooling={pooling!r} {'needs' if weight is None else 'takes no'} weight")
    expected = (hidden.shape[1], kernel, hidden.shape[3])
    if weight is not None and weight.shape != expected:
        raise InputError(f"weight has shape {tuple(weight.shape)}; pooling='ldconv' needs (H, κ, D) = {expected}")


def _pool_kernel(
    hidden: Tensor, weight: Tensor | None, mask: Tensor | None, kernel: int, stride: int, pooling: str
) -> Tensor:
    """Computes `pool` of `(B, H, T, D)`: `(B, H, M, D)`, with memory layout `(B, M, H, D)`."""
    forward = pooling_fused.FORWARD[pooling]
    tokens = hidden.transpose(1, 2)
    with full_precision(hidden):
        if hidden.is_cuda and kernel <= pooling_fused.MOST_TAPS and is_fused(forward, tokens):
            return forward(tokens, weight, mask, kernel, stride).transpose(1, 2)
    valid = tap_validity(mask, hidden.shape[2], kernel, stride, hidden.device)
    if pooling == "max":
        return _max(hidden, valid, stride)
    return _weighted_sum(hidden, _weights(hidden, weight, valid, stride), stride)


_pool = torch.library.custom_op("longspan::pool", _pool_kernel, mutates_args=())


@_pool.register_fake
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
        if hidden.is_cuda and kernel <= pooling_fused.MOST_TAPS and is_fused(pooling_fused.spread, tokens, upstream):
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


_pool.register_autograd(_gradients, setup_context=_context)


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
