"""Pooling of keys and values over short strided kernels, without leakage from padding.

Slot m is centred at token `m·stride` and covers the taps `centre − κ//2 … centre + κ − 1 − κ//2` of a kernel of κ
tokens. Taps outside the sequence or on padding are skipped; a slot whose centre is padding is invalid. The reference
gathers every tap; the fast path, in `pooling_operator`, stores nothing larger than the input. Source: Poolingformer
(arXiv 2105.04371), section "pooling attention"; LDConv follows dynamic convolution (Wu et al. 2019).
"""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.ops.runtime import full_precision, needs_reference, run
from longspan.ops.tiles.pooling_operator import pool_kernel, pool_operator
from longspan.ops.tiles.pooling_taps import centres_of, ldconv_weights, mean_weights, tap_positions, tap_validity

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
    return run(pool_operator, pool_kernel, hidden, weight, mask, kernel, stride, pooling)


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
