"""Pooling of keys and values over short strided kernels, without leakage from padding.

Slot m is centred at token `m·stride` and covers the taps `centre − κ//2 … centre + κ − 1 − κ//2` of a kernel of κ
tokens. Taps outside the sequence or on padding are skipped; a slot whose centre is padding is invalid. The reference
gathers every tap; the fast path reads the sequence once per tap, in place, forward and backward, so that nothing larger
than the input is stored. Source: Poolingformer (arXiv 2105.04371), section "pooling attention"; LDConv follows dynamic
convolution (Wu et al. 2019).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.ops.runtime import (
    cached,
    full_precision,
    keeps_bfloat16,
    needs_reference,
    run,
    shared_in_pass,
    wide_product,
)

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
    valid = tap_validity(mask, hidden.shape[2], kernel, stride, hidden.device)
    if pooling == "max":
        return run(_pool_max, _pool_max_kernel, hidden, valid, stride)
    if pooling == "mean":
        taps = mean_weights(valid, hidden)
    else:
        assert weight is not None
        taps = ldconv_weights(hidden, weight, valid, stride)
    return run(_pool_sum, _pool_sum_kernel, hidden, taps, stride)


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
    return None if mask is None else mask.index_select(1, _centres(mask.shape[1], stride, mask.device))


def _centres(length: int, stride: int, device: torch.device) -> Tensor:
    """Returns the centre of each slot, `(M,)` int64. Gathering by it instead of slicing keeps M one symbol for
    `torch.export`."""
    return torch.arange(0, length, stride, device=device)


def tap_positions(length: int, kernel: int, stride: int, device: torch.device) -> Tensor:
    """Returns the position of each tap of each slot, `(M, κ)` int64, which may be outside the sequence."""
    return _centres(length, stride, device)[:, None] + torch.arange(-(kernel // 2), kernel - kernel // 2, device=device)


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
    return inside & mask[:, positions] & mask[:, _centres(length, stride, mask.device), None]


def mean_weights(valid: Tensor, hidden: Tensor) -> Tensor:
    """Returns tap weights `(B, 1, M, κ)` that average the valid taps, in float32 or wider."""
    valid = valid.to(torch.promote_types(hidden.dtype, torch.float32))
    return (valid / valid.sum(-1, keepdim=True).clamp(min=1))[:, None]


def ldconv_weights(hidden: Tensor, weight: Tensor, valid: Tensor, stride: int) -> Tensor:
    """Returns tap weights `(B, H, M, κ)` from the centre tokens: a softmax over the valid taps, 0 if there are none."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    centres = hidden.index_select(2, _centres(hidden.shape[2], stride, hidden.device))
    with full_precision(hidden):
        if keeps_bfloat16(hidden):
            weights = weight.to(hidden.dtype).transpose(1, 2).expand(len(hidden), -1, -1, -1)
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


def _pool_sum_kernel(hidden: Tensor, taps: Tensor, stride: int) -> Tensor:
    """Computes weighted sums of taps: `(B, H, T, D)` and `(B or 1, H or 1, M, κ)` → `(B, H, M, D)`."""
    if hidden.is_cuda and hidden.shape[2]:
        return _pool_sum_mixed(hidden, taps, stride)
    wide = torch.promote_types(hidden.dtype, torch.float32)
    pooled = _heads_inside(hidden, taps.shape[2], wide)
    for tap, slots, tokens in _tap_slices(hidden.shape[2], taps.shape[3], stride):
        pooled[:, :, slots].addcmul_(hidden[:, :, tokens].to(wide), taps[:, :, slots, tap, None].to(wide))
    return pooled.to(hidden.dtype)


def _pool_sum_mixed(hidden: Tensor, taps: Tensor, stride: int) -> Tensor:
    """As `_pool_sum_kernel` on a GPU, whose kernels accept mixed dtypes: tokens are read as they are, and sums are
    written once in the dtype of the tokens. The first tap is the centre, which every slot has."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    weights, centre = taps.to(wide), taps.shape[3] // 2
    slices = sorted(_tap_slices(hidden.shape[2], taps.shape[3], stride), key=lambda each: each[0] != centre)
    pooled = _heads_inside(hidden, taps.shape[2], wide, torch.empty)
    for number, (tap, slots, tokens) in enumerate(slices):
        operands = hidden[:, :, tokens], weights[:, :, slots, tap, None]
        if number == 0:
            torch.mul(*operands, out=pooled)
        elif number < len(slices) - 1 or hidden.dtype == wide:
            pooled[:, :, slots].addcmul_(*operands)
        else:
            result = _heads_inside(hidden, taps.shape[2], hidden.dtype, torch.empty)
            torch.addcmul(pooled[:, :, slots], *operands, out=result[:, :, slots])
            for rest in (slice(0, slots.start), slice(slots.stop, None)):
                if pooled[:, :, rest].numel():
                    result[:, :, rest].copy_(pooled[:, :, rest])
            return result
    return pooled.to(hidden.dtype)


_pool_sum = torch.library.custom_op("longspan::pool_sum", _pool_sum_kernel, mutates_args=())


@_pool_sum.register_fake
def _(hidden: Tensor, taps: Tensor, stride: int) -> Tensor:
    return _heads_inside(hidden, taps.shape[2], hidden.dtype)


@torch.library.custom_op("longspan::pool_sum_backward", mutates_args=())
def _pool_sum_backward(grad: Tensor, hidden: Tensor, taps: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """Returns the gradients of `pool_sum`: for the hidden states, and for the tap weights as `(B, H, M, κ)`."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    hidden_grad = _heads_inside(hidden, hidden.shape[2], wide)
    taps_grad = hidden.new_zeros((*grad.shape[:3], taps.shape[3]), dtype=taps.dtype)
    for tap, slots, tokens in _tap_slices(hidden.shape[2], taps.shape[3], stride):
        slot_grad = grad[:, :, slots].to(wide)
        hidden_grad[:, :, tokens].addcmul_(slot_grad, taps[:, :, slots, tap, None].to(wide))
        taps_grad[:, :, slots, tap] = (slot_grad * hidden[:, :, tokens]).sum(-1).to(taps.dtype)
    return hidden_grad.to(hidden.dtype), taps_grad


@_pool_sum_backward.register_fake
def _(grad: Tensor, hidden: Tensor, taps: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    taps_grad = hidden.new_empty((*grad.shape[:3], taps.shape[3]), dtype=taps.dtype)
    return _heads_inside(hidden, hidden.shape[2], hidden.dtype), taps_grad


def _pool_sum_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    hidden, taps, ctx.stride = inputs
    ctx.save_for_backward(hidden, taps)


def _pool_sum_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
    hidden, taps = ctx.saved_tensors
    hidden_grad, taps_grad = _pool_sum_backward(grad, hidden, taps, ctx.stride)
    return hidden_grad, taps_grad.sum_to_size(taps.shape) if ctx.needs_input_grad[1] else None, None


_pool_sum.register_autograd(_pool_sum_gradients, setup_context=_pool_sum_context)


def _pool_max_kernel(hidden: Tensor, valid: Tensor, stride: int) -> Tensor:
    """Computes maxima over the valid taps: `(B, H, T, D)` → `(B, H, M, D)`; 0 if there are none."""
    pooled = _heads_inside(hidden, valid.shape[1], hidden.dtype).fill_(-torch.inf)
    for tap, slots, tokens in _tap_slices(hidden.shape[2], valid.shape[2], stride):
        candidate, real = hidden[:, :, tokens], valid[:, None, slots, tap, None]
        candidate = candidate if bool(real.all()) else candidate.masked_fill(~real, -torch.inf)
        torch.maximum(pooled[:, :, slots], candidate, out=pooled[:, :, slots])
    return pooled.masked_fill_(~valid.any(-1)[:, None, :, None], 0)


_pool_max = torch.library.custom_op("longspan::pool_max", _pool_max_kernel, mutates_args=())


@_pool_max.register_fake
def _(hidden: Tensor, valid: Tensor, stride: int) -> Tensor:
    return _heads_inside(hidden, valid.shape[1], hidden.dtype)


@torch.library.custom_op("longspan::pool_max_backward", mutates_args=())
def _pool_max_backward(grad: Tensor, hidden: Tensor, pooled: Tensor, valid: Tensor, stride: int) -> Tensor:
    """Passes each slot's gradient `(B, H, M, D)` to the first tap that attains its maximum: `(B, H, T, D)`."""
    hidden_grad = _heads_inside(hidden, hidden.shape[2], torch.promote_types(grad.dtype, torch.float32))
    left = grad.to(hidden_grad.dtype).masked_fill(~valid.any(-1)[:, None, :, None], 0)
    for tap, slots, tokens in _tap_slices(hidden.shape[2], valid.shape[2], stride):
        won = (hidden[:, :, tokens] == pooled[:, :, slots]) & valid[:, None, slots, tap, None]
        hidden_grad[:, :, tokens] += left[:, :, slots].masked_fill(~won, 0)
        left[:, :, slots].masked_fill_(won, 0)
    return hidden_grad.to(grad.dtype)


@_pool_max_backward.register_fake
def _(grad: Tensor, hidden: Tensor, pooled: Tensor, valid: Tensor, stride: int) -> Tensor:
    return _heads_inside(hidden, hidden.shape[2], grad.dtype)


def _pool_max_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    hidden, valid, ctx.stride = inputs
    ctx.save_for_backward(hidden, output, valid)


def _pool_max_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return _pool_max_backward(grad, *ctx.saved_tensors, ctx.stride), None, None


_pool_max.register_autograd(_pool_max_gradients, setup_context=_pool_max_context)
