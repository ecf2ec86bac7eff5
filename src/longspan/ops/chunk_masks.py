"""What the queries of a chunk may see: pattern, padding, global columns, bias and dropout, for the blocked backend."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.tiles import Chunk, Layout


@dataclass(frozen=True)
class Problem:
    """The inputs of one call that are the same in every chunk.

    Attributes:
        key_mask: `(B, S)` bool, real keys that are not global (global keys stand in columns of their own).
        slots: `(B, G)` int64 positions of global keys, −1 where unused or padded.
        bias: `(B or 1, H or 1, T or 1, S or 1)`, added to the scaled scores; −∞ hides a key.
        seed: start of the random numbers of dropout.
    """

    scale: float
    key_mask: Tensor | None = None
    slots: Tensor | None = None
    bias: Tensor | None = None
    dropout_prob: float = 0.0
    seed: int = 0


def additive_mask(
    chunk: Chunk, tiling: Layout, problem: Problem, seen: Tensor | None, dtype: torch.dtype
) -> Tensor | None:
    """What to add to the scores of a chunk: −∞ where a key may not be seen, else the bias; `None` for nothing."""
    mask = _pattern_mask(chunk, tiling, problem, dtype)
    if seen is not None:
        hidden = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -math.inf)
        mask = hidden if mask is None else mask + hidden
    if problem.bias is not None:
        bias = _bias_of(chunk, tiling, problem).to(dtype)
        mask = bias if mask is None else mask + bias
    return mask


def empty_rows(chunk: Chunk, problem: Problem, row: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """`(b, h, n, size, 1)` bool, True for queries that see nothing; `None` where there are none.

    `row` is what `seen_by_row` gives, `mask` what `additive_mask` gives.
    """
    if problem.bias is not None and mask is not None:
        hidden = (mask == -math.inf).all(dim=-1, keepdim=True)  # a bias may hide keys too
        return hidden if bool(hidden.any()) else None
    if row is None and not chunk.group.hides_whole_rows:
        return None
    masks = chunk.group.masks
    near = None if masks is None else masks[_mask_ids(chunk)][None, None]
    if near is None and row is None:
        beside = 0 if problem.slots is None else problem.slots.shape[1]
        return None if beside else torch.ones((), dtype=torch.bool, device=chunk.columns.device)
    if near is not None and problem.slots is not None:
        near = F.pad(near, (0, problem.slots.shape[1]), value=True)
    seen = near if row is None else row if near is None else near & row
    assert seen is not None
    empty = ~seen.any(dim=-1, keepdim=True)
    return empty if bool(empty.any()) else None


def _mask_ids(chunk: Chunk) -> Tensor:
    """Which masks the tiles of a chunk have: one for all where they agree."""
    ids = chunk.group.mask_ids[chunk.first : chunk.last]
    return ids[:1] if chunk.group.one_mask(chunk.first, chunk.last) else ids


def _pattern_mask(chunk: Chunk, tiling: Layout, problem: Problem, dtype: torch.dtype) -> Tensor | None:
    """`(1, 1, 1 or n, size, L)`: 0 where the pattern shows the key, −∞ elsewhere; the global columns are 0."""
    if chunk.group.masks is None:
        return None
    beside = 0 if problem.slots is None else problem.slots.shape[1]
    mask = chunk.group.additive(dtype, beside)[_mask_ids(chunk)]
    return mask[None, None]


def seen_by_row(chunk: Chunk, tiling: Layout, problem: Problem) -> Tensor | None:
    """`(b, 1, n, 1, L)` bool: keys that each row of the batch has, real and not doubled; `None` if all."""
    if problem.key_mask is None and problem.slots is None:
        return None
    columns, size = chunk.columns, tiling.size
    shape = (problem.key_mask if problem.key_mask is not None else problem.slots).shape  # type: ignore[union-attr]
    batch = len(range(*chunk.batch.indices(shape[0])))
    real = torch.ones(batch, chunk.count, chunk.width * size, dtype=torch.bool, device=columns.device)
    if problem.key_mask is not None:
        missing = tiling.key_tiles * size - problem.key_mask.shape[1]
        tiles = F.pad(problem.key_mask[chunk.batch], (0, missing), value=True).unflatten(1, (tiling.key_tiles, size))
        real = tiles[:, columns].flatten(2)
    if problem.slots is not None:
        used = (problem.slots[chunk.batch] >= 0)[:, None].expand(-1, chunk.count, -1)
        real = torch.cat([real, used], dim=-1)
    return None if bool(real.all()) else real[:, None, :, None, :]


def _bias_of(chunk: Chunk, tiling: Layout, problem: Problem) -> Tensor:
    """The bias of a chunk's scores, `(b or 1, h or 1, n or 1, size or 1, L)`; what is beyond the end reads the last one.

    Only what the bias holds is read: one line for all queries stays one line.
    """
    assert problem.bias is not None
    bias = problem.bias
    bias = bias[chunk.batch if bias.shape[0] > 1 else slice(None), chunk.heads if bias.shape[1] > 1 else slice(None)]
    place = torch.arange(tiling.size, device=bias.device)
    query_index = (chunk.rows[:, None] * tiling.size + place).clamp(max=min(tiling.queries, bias.shape[2]) - 1)
    if bias.shape[2] == 1:
        query_index = query_index[:1, :1]
    key_index = (chunk.columns[:, :, None] * tiling.size + place).flatten(1).clamp(max=min(tiling.keys, bias.shape[3]) - 1)
    near = bias[:, :, query_index[:, :, None], key_index[:, None, :]]
    if problem.slots is None:
        return near
    slots = problem.slots[chunk.batch].clamp(min=0, max=bias.shape[3] - 1)[:, None, None, None, :]
    row = torch.arange(bias.shape[0], device=bias.device)[:, None, None, None, None]
    head = torch.arange(bias.shape[1], device=bias.device)[:, None, None, None]
    far = bias[row, head, query_index[:, :, None], slots]
    shape = torch.broadcast_shapes(near.shape[:-1], far.shape[:-1])
    return torch.cat([near.expand(*shape, -1), far.expand(*shape, -1)], dim=-1)


def kept_weights(weights: Tensor, chunk: Chunk, problem: Problem) -> Tensor | None:
    """Dropout of a chunk: 1/(1 − p) where a weight is kept, else 0; the same again for the same seed and chunk."""
    if problem.dropout_prob == 0.0:
        return None
    generator = torch.Generator(device=weights.device).manual_seed((problem.seed + chunk.number * 0x9E3779B1) % 2**63)
    kept = torch.empty_like(weights).bernoulli_(1 - problem.dropout_prob, generator=generator)
    return kept.div_(1 - problem.dropout_prob) if problem.dropout_prob < 1 else kept
