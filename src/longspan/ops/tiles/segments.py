"""Overlapping segments of a text, each a weighted mean of its tokens: tensors in, tensors out, padding never leaks.

Segment j covers the tokens `j·stride … j·stride + kernel − 1`. A text of n tokens has ⌈(n − kernel) / stride⌉ + 1 of
them, at least one: the last may reach beyond its end, and one that would begin inside the last is not there. So a text
has the same segments alone, padded or in a batch. Linear in the text: each token is read kernel / stride times.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def segment_count(tokens: int, kernel: int, stride: int) -> int:
    """How many segments a text of so many tokens has; of none it has none."""
    return 0 if tokens == 0 else max(-(-(tokens - kernel) // stride), 0) + 1


def starts_of(tokens: int, stride: int, device: torch.device) -> Tensor:
    """`(M,)` int64, M = ⌊T / stride⌋ + 2: where segments begin, there or not. Two at least, since `torch.export` takes
    one for a case of its own."""
    return torch.arange(0, tokens + stride + 1, stride, device=device)


def windows_of(values: Tensor, kernel: int, stride: int) -> Tensor:
    """`(B, T)` or `(B, T, E)` → `(B, M, κ)` or `(B, M, κ, E)`, with zeros behind the end."""
    length = values.shape[1]
    places = starts_of(length, stride, values.device)[:, None] + torch.arange(kernel, device=values.device)
    behind = (0, 1) if values.dim() == 2 else (0, 0, 0, 1)
    return functional.pad(values, behind)[:, places.clamp(max=length)]


def segment_weights(
    real: Tensor, kernel: int, stride: int, importance: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """The weights of the tokens of each segment, `(B, M, κ)`, and which segments there are, `(B, M)` bool.

    Args:
        real: `(B, T)` bool.
        kernel: tokens of a segment.
        stride: tokens from the beginning of one to that of the next.
        importance: `(B, T)`, 0 or more: weights are in proportion to it, and uniform where all of a segment are 0.
            `None` means uniform. They add up to 1 over the real tokens of a segment, and others have 0.
        dtype: of the tokens; weights are float32 at least.
    """
    inside = windows_of(real, kernel, stride)
    places = torch.arange(1, real.shape[1] + 1, device=real.device)
    length = functional.pad(real * places, (0, 1)).amax(1, keepdim=True)
    starts = starts_of(real.shape[1], stride, real.device)
    present = inside.any(2) & ((starts == 0) | (starts + kernel - stride < length))
    exact = torch.promote_types(dtype, torch.float32)
    if importance is None:
        weights = inside.to(exact)
    else:
        weights = windows_of(importance.to(exact) * real, kernel, stride)
        weights = torch.where(weights.sum(2, keepdim=True) > 0, weights, inside.to(weights.dtype))
    # Written so that a weight that is the greatest of its segment can be as small as it likes.
    weights = weights / weights.amax(2, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    return weights / weights.sum(2, keepdim=True).clamp(min=1.0), present


def pool_segments(hidden: Tensor, weights: Tensor, stride: int) -> Tensor:
    """Tokens `(B, T, E)` → segments `(B, M, E)`, by `segment_weights`."""
    windows = windows_of(hidden, weights.shape[2], stride)
    return (weights[:, :, None].to(hidden.dtype) @ windows)[:, :, 0]


def covering(segments: Tensor, present: Tensor, tokens: int, kernel: int, stride: int) -> Tensor:
    """For each of so many tokens the mean of the segments that cover it, `(B, T, E)`; 0 where none does."""
    places = torch.arange(tokens, device=segments.device)
    total, count = segments.new_zeros(len(segments), tokens, segments.shape[2]), 0
    for back in range(-(-kernel // stride)):
        number = torch.div(places, stride, rounding_mode="floor") - back
        reached = (number >= 0) & (places < number * stride + kernel)
        number = number.clamp(min=0)
        covers = (present.index_select(1, number) & reached)[..., None]
        total = total + segments.index_select(1, number) * covers
        count = covers.to(segments.dtype) + count
    return total / torch.as_tensor(count).clamp(min=1)
