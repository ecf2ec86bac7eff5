"""Sinusoidal embeddings of positions and distances, and the table row of each pair of tokens."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

ROUND = 512
"""Tables are this many offsets longer than requested, so that a text that grows by a token can reuse them."""


def distance_sinusoids(first: int, last: int, width: int, like: Tensor) -> Tensor:
    """Returns the sines, then the cosines, of distance `-(first + o)` in row o, up to that of offset `last`:
    `(last + 1 - first, width)` in the dtype and on the device of `like`.

    `[sin(r·ω_0) … sin(r·ω_{E/2-1}) cos(r·ω_0) …]` with ω_i = 10000^(-2i/E) (Vaswani et al. 2017, section 3.5, in the
    order of Dai et al. 2019, arXiv 1901.02860, released code); letters: r = distance i - j, E = `width`. Distances may
    have either sign. Tables are cached between calls, except in compiled graphs, which serve every length.
    """
    if torch.compiler.is_compiling():
        return _table(first, last, width, like.dtype, like.device)
    low, high = -_rounded(-first), _rounded(last)
    return _cached_table(low, high, width, like.dtype, like.device)[first - low : last + 1 - low]


BASE = 10000.0
"""The base of the frequencies of Vaswani et al. 2017."""


def sinusoid_angles(numbers: Tensor, width: int, dtype: torch.dtype, base: float = BASE) -> Tensor:
    """Returns the angles `n·base^(-2i/E)` of integers n: `(…)` → `(…, ⌈E/2⌉)`, E = `width`, in the wider of `dtype` and
    float32."""
    wide = torch.promote_types(dtype, torch.float32)
    even = torch.arange(0, width, 2, device=numbers.device, dtype=wide)
    return numbers[..., None].to(wide) * base ** (-even / width)


def interleaved_sinusoids(numbers: Tensor, width: int, dtype: torch.dtype, base: float = BASE) -> Tensor:
    """Returns `sin(n·base^(-2i/E))` in channel 2i and the cosine in channel 2i + 1: `(…)` integers n → `(…, E)`, as in
    Vaswani et al. 2017, section 3.5; dtype as in `sinusoid_angles`. An odd width lacks the last cosine."""
    angle = sinusoid_angles(numbers, width, dtype, base)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[..., :width]


def halved_sinusoids(numbers: Tensor, width: int, base: float = BASE) -> Tensor:
    """Returns `sin(n·base^(-2i/E))` in channel i and the cosines after all sines: `(…)` integers n → `(…, E)` float32,
    as in Marian and Pegasus, computed in double precision like their tables. An odd width lacks the last cosine."""
    angle = sinusoid_angles(numbers, width, torch.float64, base)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)[..., :width].float()


def _rounded(offset: int) -> int:
    """Rounds up to a multiple of `ROUND`; 0 if not positive."""
    return max(0, -(-offset // ROUND) * ROUND)


def _table(first: int, last: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    angle = sinusoid_angles(-torch.arange(first, last + 1, device=device), width, dtype)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)[:, :width].to(dtype)


@lru_cache(maxsize=4)
def _cached_table(first: int, last: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # training could not use a tensor created in inference mode
        return _table(first, last, width, dtype, device)


def rows_of_pairs(queries: int, keys: int, first: int, rows: int, device: torch.device) -> Tensor:
    """Returns the table row of each pair, `(T, S)`, for a table of `rows` offsets starting at `first`; the T queries
    are the last of S keys, and offsets outside the table are clamped."""
    query = torch.arange(keys - queries, keys, device=device)
    offset = torch.arange(keys, device=device)[None, :] - query[:, None]
    return (offset - first).clamp(0, rows - 1)
