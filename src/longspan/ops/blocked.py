"""Attention over the tiles of a pattern: any device, linear memory, with its own backward.

Each chunk gathers some query tiles with the keys they see (and the global keys beside them), and computes their whole
softmax at once in memory that stays in the cache. Backward recomputes the softmax chunk by chunk, so nothing of size
queries × keys is ever kept. The chunk is the unit of everything: masks, dropout, gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.tiles import Group, Layout, best_layout
from longspan.patterns import Pattern

CHUNK_SCORES = 1 << 19
"""Scores computed at a time: small enough for the cache, large enough to keep the matrix products busy."""


@dataclass(frozen=True)
class Problem:
    """The inputs of one call that are the same in every chunk.

    Attributes:
        key_mask: `(B, S)` bool, real keys that are not global (global keys stand in columns of their own).
        slots: `(B, G)` int64 positions of global keys, −1 where unused or padded.
        bias: `(B, H, T, S)` view, added to the scaled scores.
        seed: start of the random numbers of dropout.
    """

    scale: float
    key_mask: Tensor | None = None
    slots: Tensor | None = None
    bias: Tensor | None = None
    dropout_prob: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Chunk:
    """Query tiles `group.rows[first:last]` of batch rows `batch` and heads `heads`."""

    group: Group
    batch: slice
    heads: slice
    first: int
    last: int
    number: int


@dataclass
class Tiles:
    """Query, key and value (and their gradients) cut into tiles: `(B, H, tiles, size, D)`."""

    query: Tensor
    key: Tensor
    value: Tensor
    global_key: Tensor | None
    global_value: Tensor | None


def forward(query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, offset: int, problem: Problem) -> Tensor:
    """`(B, H, T, D)`, `(B, H, S, D)` ×2 → `(B, H, T, D)`; the pattern is that of one head."""
    tiling = best_layout(pattern, query.shape[2], key.shape[2], offset, query.device)
    tiles = _cut(query, key, value, tiling, problem)
    result = query.new_empty(*tiles.query.shape[:-1], value.shape[-1])
    for chunk in _chunks(tiling, tiles, problem):
        keys = _take(tiles.key, tiles.global_key, chunk)
        values = _take(tiles.value, tiles.global_value, chunk)
        weights, _, kept = _weights(tiles, keys, chunk, tiling, problem)
        if kept is not None:
            weights.mul_(kept)
        shape = (*weights.shape[:-1], value.shape[-1])
        mixed = torch.bmm(weights.flatten(0, 2), values.flatten(0, 2)).view(shape)
        result[chunk.batch, chunk.heads, chunk.group.rows[chunk.first : chunk.last]] = mixed
    return result.flatten(2, 3)[:, :, : query.shape[2]]


def backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, offset: int, problem: Problem
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `forward` with respect to query, key and value."""
    tiling = best_layout(pattern, query.shape[2], key.shape[2], offset, query.device)
    tiles = _cut(query, key, value, tiling, problem)
    grad_tiles = _tiles_of(grad, tiling.query_tiles, tiling.size)
    wide = torch.promote_types(query.dtype, torch.float32)
    grads = Tiles(
        torch.empty_like(tiles.query, memory_format=torch.contiguous_format),
        tiles.key.new_zeros(tiles.key.shape, dtype=wide),
        tiles.value.new_zeros(tiles.value.shape, dtype=wide),
        None if tiles.global_key is None else torch.zeros_like(tiles.global_key, dtype=wide),
        None if tiles.global_value is None else torch.zeros_like(tiles.global_value, dtype=wide),
    )
    for chunk in _chunks(tiling, tiles, problem):
        _backward_chunk(chunk, tiles, grad_tiles, grads, tiling, problem)
    grad_query = grads.query.flatten(2, 3)[:, :, : query.shape[2]]
    grad_key = _join(grads.key, grads.global_key, problem.slots, key.shape[2])
    grad_value = _join(grads.value, grads.global_value, problem.slots, key.shape[2])
    return grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype)


def _backward_chunk(
    chunk: Chunk, tiles: Tiles, grad_tiles: Tensor, grads: Tiles, tiling: Layout, problem: Problem
) -> None:
    """Add what one chunk contributes to the gradients."""
    group, rows = chunk.group, chunk.group.rows[chunk.first : chunk.last]
    keys = _take(tiles.key, tiles.global_key, chunk)
    values = _take(tiles.value, tiles.global_value, chunk)
    weights, query, kept = _weights(tiles, keys, chunk, tiling, problem)
    flat = weights.flatten(0, 2)
    grad = grad_tiles[chunk.batch, chunk.heads].index_select(2, rows).flatten(0, 2)
    grad_weights = torch.bmm(grad, values.flatten(0, 2).transpose(1, 2))
    used = flat
    if kept is not None:
        used = flat * kept.flatten(0, 2)
        grad_weights.mul_(kept.flatten(0, 2))
    grad_values = torch.bmm(used.transpose(1, 2), grad)
    grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, flat, -1, flat.dtype)
    grad_query = torch.bmm(grad_scores, keys.flatten(0, 2)).mul_(problem.scale)
    grad_keys = torch.bmm(grad_scores.transpose(1, 2), query)
    lead = weights.shape[:3]
    grads.query[chunk.batch, chunk.heads, rows] = grad_query.unflatten(0, lead)
    for total, part, total_global in (
        (grads.key, grad_keys, grads.global_key),
        (grads.value, grad_values, grads.global_value),
    ):
        part = part.unflatten(0, lead)
        width = group.columns.shape[1] * tiling.size
        _scatter(total[chunk.batch, chunk.heads], part[..., :width, :], chunk, tiling.size)
        if total_global is not None:
            total_global[chunk.batch, chunk.heads] += part[..., width:, :].sum(dim=2, dtype=total.dtype)


def _cut(query: Tensor, key: Tensor, value: Tensor, tiling: Layout, problem: Problem) -> Tiles:
    """Cut all inputs into tiles; gather the global keys and values."""
    global_key = global_value = None
    if problem.slots is not None:
        global_key, global_value = gather_slots(key, problem.slots), gather_slots(value, problem.slots)
    return Tiles(
        _tiles_of(query, tiling.query_tiles, tiling.size),
        _tiles_of(key, tiling.key_tiles, tiling.size),
        _tiles_of(value, tiling.key_tiles, tiling.size),
        global_key,
        global_value,
    )


def _tiles_of(tensor: Tensor, count: int, size: int) -> Tensor:
    """`(B, H, T, D)` → `(B, H, count, size, D)`, a view unless the last tile has to be filled up."""
    missing = count * size - tensor.shape[2]
    padded = F.pad(tensor, (0, 0, 0, missing)) if missing else tensor
    return padded.unflatten(2, (count, size))


def gather_slots(tensor: Tensor, slots: Tensor) -> Tensor:
    """`(B, H, S, D)`, `(B, G)` → `(B, H, G, D)`; unused slots read position 0."""
    index = torch.clamp(slots, min=0)[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[3])
    return torch.gather(tensor, 2, index)


def _join(grad_tiles: Tensor, grad_global: Tensor | None, slots: Tensor | None, length: int) -> Tensor:
    """Gradient tiles back to `(B, H, S, D)`, with the gradients of the global keys added at their places."""
    grad = grad_tiles.flatten(2, 3)[:, :, :length]
    if grad_global is None or slots is None:
        return grad
    index = torch.clamp(slots, min=0)[:, None, :, None].expand_as(grad_global)
    return grad.scatter_add(2, index, grad_global * (slots >= 0)[:, None, :, None])


def _chunks(tiling: Layout, tiles: Tiles, problem: Problem) -> Iterator[Chunk]:
    """Split the work so that a chunk has about `CHUNK_SCORES` scores, whatever the batch, the heads and the pattern."""
    batch, heads = tiles.query.shape[:2]
    extra = 0 if problem.slots is None else problem.slots.shape[1]
    number = 0
    for group in tiling.groups:
        units = max(1, CHUNK_SCORES // (tiling.size * max(1, group.columns.shape[1] * tiling.size + extra)))
        head_step = min(heads, units)
        row_step = min(group.rows.shape[0], max(1, units // heads))
        batch_step = max(1, min(batch, units // max(1, heads * row_step)))
        for b in range(0, batch, batch_step):
            for h in range(0, heads, head_step):
                for r in range(0, group.rows.shape[0], row_step):
                    last = min(r + row_step, group.rows.shape[0])
                    yield Chunk(group, slice(b, b + batch_step), slice(h, h + head_step), r, last, number)
                    number += 1


def _take(tiles: Tensor, global_part: Tensor | None, chunk: Chunk) -> Tensor:
    """The keys (or values) of a chunk, `(b, h, n, L, D)`: those of its tiles, then the global ones."""
    columns = chunk.group.columns[chunk.first : chunk.last]
    count, width = columns.shape
    taken = tiles[chunk.batch, chunk.heads].index_select(2, columns.flatten())
    taken = taken.reshape(*taken.shape[:2], count, width * tiles.shape[3], tiles.shape[4])
    if global_part is None:
        return taken
    beside = global_part[chunk.batch, chunk.heads, None].expand(-1, -1, count, -1, -1)
    return torch.cat([taken, beside], dim=3)


def _scatter(total: Tensor, part: Tensor, chunk: Chunk, size: int) -> None:
    """Add `(b, h, n, m·size, D)` into tiles `(b, h, tiles, size, D)` at the chunk's columns."""
    group = chunk.group
    count, width = chunk.last - chunk.first, group.columns.shape[1]
    if width == 0:
        return
    part = part.unflatten(3, (width, size))
    if group.step is None or (group.step == 0 and count > 1):
        index = group.columns[chunk.first : chunk.last].flatten()
        total.index_add_(2, index, part.flatten(2, 3).to(total.dtype))
        return
    start, step = group.start + chunk.first * group.step, max(group.step, 1)
    for column in range(width):
        total[:, :, start + column : start + column + (count - 1) * step + 1 : step] += part[:, :, :, column]


def _weights(
    tiles: Tiles, keys: Tensor, chunk: Chunk, tiling: Layout, problem: Problem
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Softmax weights `(b, h, n, size, L)` of a chunk, its scaled queries (flat), and the scaled dropout mask."""
    rows = chunk.group.rows[chunk.first : chunk.last]
    query = tiles.query[chunk.batch, chunk.heads].index_select(2, rows).mul_(problem.scale)
    lead = query.shape[:3]
    query = query.flatten(0, 2)
    scores = torch.bmm(query, keys.flatten(0, 2).transpose(1, 2)).unflatten(0, lead)
    if problem.bias is not None:
        scores += _bias_of(chunk, tiling, problem)
    seen = _seen(chunk, tiling, problem)
    if seen is not None:
        scores.masked_fill_(~seen, -math.inf)
    weights = torch.softmax(scores, dim=-1)
    if scores.shape[-1] and seen is not None:
        empty = ~seen.any(dim=-1, keepdim=True)
        if bool(empty.any()):
            weights.masked_fill_(empty, 0.0)
    return weights, query, _kept(weights, chunk, problem)


def _seen(chunk: Chunk, tiling: Layout, problem: Problem) -> Tensor | None:
    """What the queries of a chunk may see, broadcastable to its scores; `None` when that is everything."""
    group = chunk.group
    seen = None
    if group.masks is not None:
        ids = group.mask_ids[chunk.first : chunk.last]
        same = bool((ids == ids[0]).all())
        seen = group.masks[ids[:1] if same else ids][None, None]
    real = None if problem.key_mask is None else _real_keys(chunk, tiling, problem.key_mask)
    if real is not None and not bool(real.all()):
        seen = real if seen is None else seen & real
    if problem.slots is None:
        return seen
    return _seen_beside(seen, problem.slots[chunk.batch] >= 0, chunk, tiling)


def _real_keys(chunk: Chunk, tiling: Layout, key_mask: Tensor) -> Tensor:
    """`(b, 1, n, 1, L)` bool: which keys of each tile of the chunk are real and not global."""
    columns = chunk.group.columns[chunk.first : chunk.last]
    missing = tiling.key_tiles * tiling.size - key_mask.shape[1]
    real = F.pad(key_mask[chunk.batch], (0, missing), value=True).unflatten(1, (tiling.key_tiles, tiling.size))
    return real[:, columns].flatten(2)[:, None, :, None, :]


def _seen_beside(seen: Tensor | None, used: Tensor, chunk: Chunk, tiling: Layout) -> Tensor | None:
    """Add the columns of the global keys to what is seen."""
    if seen is None and bool(used.all()):
        return None
    width = chunk.group.columns.shape[1] * tiling.size
    beside = used[:, None, None, None, :]
    if seen is None:
        seen = torch.ones(1, 1, 1, 1, width, dtype=torch.bool, device=used.device)
    shape = torch.broadcast_shapes(seen.shape[:-1], beside.shape[:-1])
    return torch.cat([seen.expand(*shape, -1), beside.expand(*shape, -1)], dim=-1)


def _bias_of(chunk: Chunk, tiling: Layout, problem: Problem) -> Tensor:
    """The bias of a chunk's scores, `(b, h, n, size, L)`; positions beyond the end read the last one."""
    assert problem.bias is not None
    bias = problem.bias[chunk.batch, chunk.heads]
    place = torch.arange(tiling.size, device=bias.device)
    rows = chunk.group.rows[chunk.first : chunk.last]
    columns = chunk.group.columns[chunk.first : chunk.last]
    query_index = (rows[:, None] * tiling.size + place).clamp(max=tiling.queries - 1)
    key_index = (columns[:, :, None] * tiling.size + place).flatten(1).clamp(max=tiling.keys - 1)
    near = bias[:, :, query_index[:, :, None], key_index[:, None, :]]
    if problem.slots is None:
        return near
    slots = problem.slots[chunk.batch].clamp(min=0)[:, None, None, None, :]
    lines = bias[:, :, query_index]
    far = torch.gather(lines, -1, slots.expand(*lines.shape[:-1], -1))
    return torch.cat([near, far], dim=-1)


def _kept(weights: Tensor, chunk: Chunk, problem: Problem) -> Tensor | None:
    """Dropout of a chunk: 1/(1 − p) where a weight is kept, else 0; the same again for the same seed and chunk."""
    if problem.dropout_prob == 0.0:
        return None
    generator = torch.Generator(device=weights.device).manual_seed((problem.seed + chunk.number * 0x9E3779B1) % 2**63)
    kept = torch.empty_like(weights).bernoulli_(1 - problem.dropout_prob, generator=generator)
    return kept.div_(1 - problem.dropout_prob) if problem.dropout_prob < 1 else kept
