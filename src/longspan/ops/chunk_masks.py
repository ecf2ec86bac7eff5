"""What the tiles of the blocked backend compute, and what the queries of a chunk may see and keep."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.terms import Term
from longspan.ops.tiles import Chunk, Layout
from longspan.patterns import Pattern


@dataclass(frozen=True, eq=False)
class Problem:
    """What the tiles compute: one pattern for all heads, the rows of global queries apart.

    Attributes:
        query, key, value: `(B, H, T, D)`, `(B, H, S, D)`, `(B, H, S, Dv)`.
        pattern: that of every head.
        terms: what is added to the scores of near keys, and `GlobalKeyBias` for those of global keys.
        key_mask: `(B, S)` bool, real keys that are not global (global keys stand in columns of their own).
        slots: `(B, G)` int64 positions of global keys, −1 where unused or padded.
        query_offset: position of the first query.
        step: how many positions one place counts for in offsets.
        seed: start of the random numbers of dropout.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    pattern: Pattern
    scale: float
    terms: tuple[Term, ...] = ()
    key_mask: Tensor | None = None
    slots: Tensor | None = None
    query_offset: int = 0
    step: int = 1
    dropout_prob: float = 0.0
    seed: int = 0

    @property
    def beside(self) -> int:
        """Number of columns for global keys, G."""
        return 0 if self.slots is None else self.slots.shape[1]


def hiding_mask(
    chunk: Chunk, problem: Problem, seen: Tensor | None, dtype: torch.dtype, *, pattern: bool
) -> Tensor | None:
    """What to add to the scores of a chunk: −∞ where a key may not be seen, else 0; `None` for nothing.

    `pattern=False` leaves out what the pattern hides; `seen` is what `seen_by_row` gives.
    """
    mask = None
    if pattern and chunk.group.masks is not None:
        mask = chunk.group.additive(dtype, problem.beside)[_mask_ids(chunk)][None, None]
    if seen is not None:
        hidden = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -math.inf)
        mask = hidden if mask is None else mask + hidden
    return mask


def empty_rows(chunk: Chunk, problem: Problem, row: Tensor | None) -> Tensor | None:
    """`(b, 1, n, size, 1)` bool, True for queries to which pattern and padding show nothing; `None` for no query.

    `row` is what `seen_by_row` gives.
    """
    if row is None and not chunk.group.hides_whole_rows:
        return None
    masks = chunk.group.masks
    near = None if masks is None else masks[_mask_ids(chunk)][None, None]
    if near is None and row is None:
        return None if problem.beside else torch.ones((), dtype=torch.bool, device=chunk.columns.device)
    if near is not None and problem.slots is not None:
        near = F.pad(near, (0, problem.beside), value=True)
    seen = near if row is None else row if near is None else near & row
    assert seen is not None
    empty = ~seen.any(dim=-1, keepdim=True)
    return empty if bool(empty.any()) else None


def _mask_ids(chunk: Chunk) -> Tensor:
    """Which masks the tiles of a chunk have: one for all where they agree."""
    ids = chunk.group.mask_ids[chunk.first : chunk.last]
    return ids[:1] if chunk.group.one_mask(chunk.first, chunk.last) else ids


def seen_by_row(chunk: Chunk, tiling: Layout, problem: Problem) -> Tensor | None:
    """`(b, 1, n, 1, L)` bool: keys that each row of the batch has, real and not doubled; `None` if all."""
    if problem.key_mask is None and problem.slots is None:
        return None
    columns, size = chunk.columns, tiling.size
    batch = len(range(*chunk.batch.indices(problem.query.shape[0])))
    real = torch.ones(batch, chunk.count, chunk.width * size, dtype=torch.bool, device=columns.device)
    if problem.key_mask is not None:
        missing = tiling.key_tiles * size - problem.key_mask.shape[1]
        tiles = F.pad(problem.key_mask[chunk.batch], (0, missing), value=True).unflatten(1, (tiling.key_tiles, size))
        real = tiles[:, columns].flatten(2)
    if problem.slots is not None:
        used = (problem.slots[chunk.batch] >= 0)[:, None].expand(-1, chunk.count, -1)
        real = torch.cat([real, used], dim=-1)
    return None if bool(real.all()) else real[:, None, :, None, :]


def kept_weights(weights: Tensor, chunk: Chunk, problem: Problem) -> Tensor | None:
    """Dropout of a chunk: 1/(1 − p) where a weight is kept, else 0; the same again for the same seed and chunk."""
    if problem.dropout_prob == 0.0:
        return None
    generator = torch.Generator(device=weights.device).manual_seed((problem.seed + chunk.number * 0x9E3779B1) % 2**63)
    kept = torch.empty_like(weights).bernoulli_(1 - problem.dropout_prob, generator=generator)
    return kept.div_(1 - problem.dropout_prob) if problem.dropout_prob < 1 else kept
