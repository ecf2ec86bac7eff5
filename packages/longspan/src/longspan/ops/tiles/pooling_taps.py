"""The taps of pools: where they are, which are real, and their weights."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.ops.runtime import cached, full_precision, keeps_bfloat16, shared_in_pass, wide_product


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
            weights = weight.to(hidden.dtype).transpose(1, 2).expand(len(hidden), -1, -1, -1)
            scores = wide_product(centres.flatten(0, 1), weights.flatten(0, 1)).view(*centres.shape[:3], -1)
        else:
            scores = centres.to(wide) @ weight.to(wide).transpose(1, 2)
    valid = valid[:, None]
    return torch.where(valid, scores, torch.finfo(scores.dtype).min).softmax(-1) * valid
