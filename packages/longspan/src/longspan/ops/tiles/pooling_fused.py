"""Pooling as fused kernels, for large tensors on CUDA: a loop over the taps of a slot, or over the slots of a token.

Tokens are `(B, T, H, D)` here, pools `(B, M, H, D)`. Each result is written once, in the dtype of the tokens; numbers
of a slot's taps `(B, M, H)` are all that is stored between two kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from longspan.ops.compiled import fused

MOST_TAPS = 12
"""The largest kernel that is fused: the kernels contain the steps of every tap."""


@fused
def ldconv(tokens: Tensor, weight: Tensor, mask: Tensor | None, kernel: int, stride: int) -> Tensor:
    """Sums the taps with the weights of `_softmax`."""
    taps = _taps(tokens, mask, kernel, stride)
    weights = _softmax(taps, weight)
    total = torch.zeros_like(taps[0][0])
    for share, (tap, _) in zip(weights, taps, strict=True):
        total = total + share * tap
    return total.to(tokens.dtype)


@fused
def mean(tokens: Tensor, weight: None, mask: Tensor | None, kernel: int, stride: int) -> Tensor:
    """Averages the real taps."""
    taps = _taps(tokens, mask, kernel, stride)
    total, count = torch.zeros_like(taps[0][0]), torch.zeros_like(taps[0][0])
    for tap, real in taps:
        total, count = total + tap, count + real
    return (total / count.clamp(min=1)).to(tokens.dtype)


@fused
def maximum(tokens: Tensor, weight: None, mask: Tensor | None, kernel: int, stride: int) -> Tensor:
    """Computes maxima over the real taps; 0 if there are none."""
    taps = _taps(tokens, mask, kernel, stride)
    best, some = torch.full_like(taps[0][0], -torch.inf), torch.zeros_like(taps[0][0], dtype=torch.bool)
    for tap, real in taps:
        best, some = torch.maximum(best, torch.where(real, tap, -torch.inf)), some | real
    return torch.where(some, best, 0).to(tokens.dtype)


FORWARD: dict[str, Callable[..., Tensor]] = {"ldconv": ldconv, "mean": mean, "max": maximum}
"""By pooling; all take the same arguments."""


def gradients(
    grad: Tensor, tokens: Tensor, weight: Tensor | None, mask: Tensor | None, kernel: int, stride: int, pooling: str
) -> tuple[Tensor, Tensor | None]:
    """Returns the gradient of the tokens for that of the pools, and for LDConv the gradient of the scores
    `(B, H, M, κ)`, in float32 or wider."""
    length = tokens.shape[1]
    if pooling == "mean":
        return spread_mean(grad, mask, length, kernel, stride, like=tokens), None
    if pooling == "max":
        winner = winners(tokens, mask, kernel, stride)
        return spread_winners(grad, winner, length, kernel, stride, like=tokens), None
    assert weight is not None
    shares = torch.stack(slopes(grad, tokens, weight, mask, kernel, stride), 2)  # (B, M, 2κ, H)
    to_tokens = spread(grad, shares, weight, length, kernel, stride, like=tokens)
    return to_tokens, shares[:, :, kernel:].permute(0, 3, 1, 2)


@fused
def slopes(grad: Tensor, tokens: Tensor, weight: Tensor, mask: Tensor | None, kernel: int, stride: int) -> list[Tensor]:
    """Returns the weights of LDConv's taps and the gradients of their scores, `(B, M, H)` for each tap."""
    taps = _taps(tokens, mask, kernel, stride)
    weights = _softmax(taps, weight)
    changes = [(grad.to(tap.dtype) * tap).sum(-1, keepdim=True) for tap, _ in taps]
    mean_change = sum(share * change for share, change in zip(weights, changes, strict=True))
    of_scores = [share * (change - mean_change) for share, change in zip(weights, changes, strict=True)]
    return [number.squeeze(-1) for number in (*weights, *of_scores)]


@fused
def spread(grad: Tensor, shares: Tensor, weight: Tensor, length: int, kernel: int, stride: int) -> Tensor:
    """Returns the gradient of the tokens of LDConv: as taps, and of centres through the scores.

    Args:
        grad: of the pools.
        shares: `(B, M, 2κ, H)`, the weights of the taps and the gradients of their scores.
        weight: `(H, κ, D)`.
    """
    wide, numbers = shares.dtype, shares.flatten(1, 2)
    centre = torch.arange(length, device=grad.device)
    is_centre, first = (centre % stride == 0)[:, None, None], centre // stride * 2 * kernel + kernel
    through = sum(numbers[:, first + tap, :, None] * weight[:, tap].to(wide) for tap in range(kernel))
    total = torch.where(is_centre, through, 0)
    for slot, tap, hits in _slots(length, kernel, stride, grad):
        total = total + torch.where(hits, numbers[:, slot * 2 * kernel + tap, :, None] * grad[:, slot].to(wide), 0)
    return total.to(grad.dtype)


@fused
def spread_mean(grad: Tensor, mask: Tensor | None, length: int, kernel: int, stride: int) -> Tensor:
    """Returns the gradient of the tokens of a mean."""
    wide = torch.promote_types(grad.dtype, torch.float32)
    total, is_real = 0, _real(mask, torch.arange(length, device=grad.device), length)[:, :, None, None]
    for slot, _, hits in _slots(length, kernel, stride, grad):
        upstream = grad[:, slot].to(wide)
        count = torch.zeros_like(upstream)
        for tap in range(kernel):
            count = count + _real(mask, slot * stride + tap - kernel // 2, length)[:, :, None, None]
        has_centre = _real(mask, slot * stride, length)[:, :, None, None]
        total = total + torch.where(hits, torch.where(has_centre, upstream / count.clamp(min=1), 0), 0)
    return torch.where(is_real, total, 0).to(grad.dtype)


@fused
def winners(tokens: Tensor, mask: Tensor | None, kernel: int, stride: int) -> Tensor:
    """Returns the first tap that attains each maximum, `(B, M, H, D)` uint8; κ if no tap is real."""
    taps = _taps(tokens, mask, kernel, stride)
    best, winner = torch.full_like(taps[0][0], -torch.inf), torch.full_like(taps[0][0], kernel, dtype=torch.int32)
    for number, (tap, real) in enumerate(taps):
        better = real & ((tap > best) | (winner == kernel))
        best, winner = torch.where(better, tap, best), torch.where(better, number, winner)
    return winner.to(torch.uint8)


@fused
def spread_winners(grad: Tensor, winner: Tensor, length: int, kernel: int, stride: int) -> Tensor:
    """Returns the gradient of the tokens of maxima, each of which belongs to the tap `winner` `(B, M, H, D)`."""
    total = grad.new_zeros((), dtype=torch.promote_types(grad.dtype, torch.float32))
    for slot, tap, hits in _slots(length, kernel, stride, grad):
        won = hits & (winner[:, slot] == tap[:, None, None])
        total = total + torch.where(won, grad[:, slot].to(total.dtype), 0)
    return total.to(grad.dtype)


def _real(mask: Tensor | None, place: Tensor, length: int) -> Tensor:
    """Returns whether places `(N,)` are real tokens of the sequence, `(B or 1, N)` bool."""
    inside = (place >= 0) & (place < length)
    return inside[None] if mask is None else inside & mask[:, place.clamp(0, length - 1)]


def _taps(tokens: Tensor, mask: Tensor | None, kernel: int, stride: int) -> list[tuple[Tensor, Tensor]]:
    """Returns for each tap its tokens `(B, M, H, D)` in float32 or wider, 0 where the tap or the slot's centre is not
    real, and whether they are, `(B or 1, M, 1, 1)` bool."""
    length, taps = tokens.shape[1], []
    wide = torch.promote_types(tokens.dtype, torch.float32)
    centre = torch.arange(0, length, stride, device=tokens.device)
    for place in (centre + offset for offset in range(-(kernel // 2), kernel - kernel // 2)):
        real = (_real(mask, centre, length) & _real(mask, place, length))[:, :, None, None]
        taps.append((torch.where(real, tokens[:, place.clamp(0, length - 1)].to(wide), 0), real))
    return taps


def _softmax(taps: list[tuple[Tensor, Tensor]], weight: Tensor) -> list[Tensor]:
    """Returns the weights of LDConv's taps, `softmax(weight · centre)`, `(B, M, H, 1)` each; 0 if it is not real."""
    centre = taps[len(taps) // 2][0]
    dots = [(centre * weight[:, tap].to(centre.dtype)).sum(-1, keepdim=True) for tap in range(len(taps))]
    least = torch.finfo(centre.dtype).min
    scores = [torch.where(real, dot, least) for dot, (_, real) in zip(dots, taps, strict=True)]
    top = scores[0]
    for score in scores[1:]:
        top = torch.maximum(top, score)
    powers = [torch.exp(score - top) for score in scores]
    total = sum(powers)
    return [torch.where(real, power / total, 0) for power, (_, real) in zip(powers, taps, strict=True)]


def _slots(length: int, kernel: int, stride: int, pools: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Returns the slots that have each token as a tap, one after the other: the slot, the index of the tap, both
    `(T,)`, and whether there is one, `(T, 1, 1)` bool."""
    slots = pools.shape[1]
    place = torch.arange(length, device=pools.device) + kernel // 2
    for back in range(-(-kernel // stride)):
        slot = place // stride - back
        tap = place - slot * stride
        hits = (slot >= 0) & (slot < slots) & (tap < kernel)
        yield slot.clamp(0, slots - 1), tap.clamp(max=kernel - 1), hits[:, None, None]
