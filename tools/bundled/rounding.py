"""Matrices in eight and in four bits, as the package stores them; `longspan_documents.inference.encoders.restored`
reads both."""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 64
"""Numbers of a row that share a scale in four bits."""
SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65)
"""Of the largest number of a group: what is tried as the end of its range; what lies beyond is cut."""


def in_eight_bits(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix `(R, C)` as whole numbers from −127 to 127, int8, and a scale for each row, `(R, 1)` float16.

    Symmetric and row by row, as the rows of a table of words differ in size: an entry is off by at most half a
    127th of the largest of its row, and of the scale's own rounding.
    """
    scale = (matrix.abs().amax(1, keepdim=True) / 127).half().clamp(min=6e-8)
    return (matrix / scale.float()).round().clamp(-127, 127).to(torch.int8), scale


def in_four_bits(matrix: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix `(R, C)` as bytes `(R, C / 2)` uint8 of two columns each, the first in the lower half, and its scales in
    float16: a number s·(n − 7.5) is stored as n, from 0 to 15."""
    numbers = (steps(matrix, scales) + 7.5).to(torch.uint8)
    return numbers[:, ::2] | numbers[:, 1::2] << 4, scales.half()


def best_scales(matrix: Tensor) -> Tensor:
    """The scales `(R, C / GROUP)`, exact in float16, with which a matrix `(R, C)` loses least in four bits."""
    groups = matrix.detach().unflatten(1, (-1, GROUP))
    most = groups.abs().amax(-1)
    tried = torch.stack([(most * share / 7.5).half().clamp(min=6e-8).float() for share in SHARES])
    lost = torch.stack(
        [(rounded(matrix.detach(), one) - matrix).square().unflatten(1, (-1, GROUP)).sum(-1) for one in tried]
    )
    return tried.gather(0, lost.argmin(0, keepdim=True))[0]


def rounded(matrix: Tensor, scales: Tensor) -> Tensor:
    """A matrix `(R, C)` as four bits hold it."""
    return steps(matrix, scales) * scales.repeat_interleave(GROUP, 1)


def steps(matrix: Tensor, scales: Tensor) -> Tensor:
    """A matrix in steps of its scales, as the nearest of the sixteen numbers −7.5, −6.5, …, 7.5."""
    return ((matrix / scales.repeat_interleave(GROUP, 1)).floor() + 0.5).clamp(-7.5, 7.5)
