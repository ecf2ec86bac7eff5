"""Splitting a sequence by residue: a dilated window becomes a plain one over a sequence `stride` times shorter."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def moved(hidden: Tensor, shift: int) -> Tensor:
    """`(B, H, T, D)` with `shift` zero rows put in front, or, when negative, that many rows dropped."""
    return hidden[:, :, -shift:] if shift < 0 else F.pad(hidden, (0, 0, shift, 0))


def fold(hidden: Tensor, stride: int) -> Tensor:
    """`(B, H, T, D)` → `(B·stride, H, ⌈T / stride⌉, D)`: positions of equal residue become one batch row."""
    batch, heads, length, width = hidden.shape
    rows = -(-length // stride)
    padded = F.pad(hidden, (0, 0, 0, rows * stride - length))
    return padded.unflatten(2, (rows, stride)).permute(0, 3, 1, 2, 4).reshape(batch * stride, heads, rows, width)


def unfold(folded: Tensor, stride: int, length: int) -> Tensor:
    """The inverse of `fold`, for T = `length`."""
    batch, heads, rows, width = folded.shape
    split = folded.unflatten(0, (batch // stride, stride)).permute(0, 2, 3, 1, 4)
    return split.reshape(batch // stride, heads, rows * stride, width)[:, :, :length]
