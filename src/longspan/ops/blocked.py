"""Attention over the tiles of a pattern: any device, linear memory, with its own backward.

Each chunk gathers some query tiles with the keys they see (and the global keys beside them), and computes their whole
softmax at once, in buffers that are used again for the next chunk and stay in the cache. Backward recomputes the
softmax chunk by chunk, so nothing of size queries × keys is ever kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.chunk_masks import Problem, additive_mask, empty_rows, kept_weights, seen_by_row
from longspan.ops.relative_tiles import Relative
from longspan.ops.tiles import Chunk, Layout, best_layout
from longspan.patterns import Pattern

CHUNK_SCORES = 1 << 20
"""Most scores computed at a time: small enough for the cache, large enough to keep the matrix products busy."""
RUN_SCORES = 1 << 16
"""Fewer scores are not worth the many steps of a chunk with relative terms."""
CHUNKS = 6
"""Short inputs are still cut into so many chunks, since fresh working memory costs more than it saves there."""


@dataclass
class Tiles:
    """Query, key and value (or their gradients) cut into tiles `(B, H, tiles, size, D)`; global keys `(B, H, G, D)`."""

    query: Tensor
    key: Tensor
    value: Tensor
    global_key: Tensor | None
    global_value: Tensor | None


class Buffers:
    """Working memory by name, kept from chunk to chunk."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.kept: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """An uninitialised contiguous tensor of that shape; the last one of that name is overwritten."""
        size = 1
        for length in shape:
            size *= length
        if name not in self.kept or self.kept[name].numel() < size:
            self.kept[name] = self.like.new_empty(size)
        return self.kept[name][:size].view(shape)


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern,
    offset: int,
    problem: Problem,
    relative: Relative | None = None,
) -> Tensor:
    """`(B, H, T, D)`, `(B, H, S, D)`, `(B, H, S, Dv)` → `(B, H, T, Dv)`; the pattern is that of one head.

    With `relative`, whose layout is taken, scores start from its terms, in which the masks are.
    """
    tiling = relative.tiling if relative else best_layout(pattern, query.shape[2], key.shape[2], offset, query.device)
    tiles = _cut(query, key, value, tiling, problem)
    result = query.new_empty(*tiles.query.shape[:-1], value.shape[-1])
    buffers = Buffers(query)
    for chunk in _chunks(tiling, tiles, problem, long_runs=relative is not None):
        keys = _take(buffers, "key", tiles.key, tiles.global_key, chunk)
        values = _take(buffers, "value", tiles.value, tiles.global_value, chunk)
        weights, _ = _weights(buffers, tiles, keys, chunk, tiling, problem, relative)
        kept = kept_weights(weights, chunk, problem)
        if kept is not None:
            weights.mul_(kept)
        mixed = buffers.take("mixed", *weights.shape[:-1], value.shape[-1])
        torch.bmm(weights.flatten(0, 2), values.flatten(0, 2), out=mixed.flatten(0, 2))
        _put(result, mixed, chunk)
    return result.flatten(2, 3)[:, :, : query.shape[2]]


def backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern,
    offset: int,
    problem: Problem,
    relative: Relative | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `forward` with respect to query, key and value; those of keys are summed in at least float32.

    Those of the terms of `relative` are added to its own totals.
    """
    tiling = relative.tiling if relative else best_layout(pattern, query.shape[2], key.shape[2], offset, query.device)
    tiles = _cut(query, key, value, tiling, problem)
    wide = torch.promote_types(query.dtype, torch.float32)
    grads = Tiles(
        tiles.query.new_empty(tiles.query.shape),
        tiles.key.new_zeros(tiles.key.shape, dtype=wide),
        tiles.value.new_zeros(tiles.value.shape, dtype=wide),
        None if tiles.global_key is None else tiles.global_key.new_zeros(tiles.global_key.shape, dtype=wide),
        None if tiles.global_value is None else tiles.global_value.new_zeros(tiles.global_value.shape, dtype=wide),
    )
    grad_tiles, buffers = _tiles_of(grad, tiling.query_tiles, tiling.size), Buffers(query)
    for chunk in _chunks(tiling, tiles, problem, long_runs=relative is not None):
        _backward_chunk(chunk, buffers, tiles, grad_tiles, grads, tiling, problem, relative)
    grad_query = grads.query.flatten(2, 3)[:, :, : query.shape[2]]
    grad_key = _join(grads.key, grads.global_key, problem.slots, key.shape[2])
    grad_value = _join(grads.value, grads.global_value, problem.slots, key.shape[2])
    return grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype)


def _backward_chunk(
    chunk: Chunk,
    buffers: Buffers,
    tiles: Tiles,
    grad_tiles: Tensor,
    grads: Tiles,
    tiling: Layout,
    problem: Problem,
    relative: Relative | None,
) -> None:
    """Add what one chunk contributes to the gradients.

    With weights P, outputs O = PV: dV = PᵀdO, dP = dO Vᵀ, dS = P∘(dP − rowsum(P∘dP)), dQ = dS K, dK = dSᵀQ.
    """
    keys = _take(buffers, "key", tiles.key, tiles.global_key, chunk)
    values = _take(buffers, "value", tiles.value, tiles.global_value, chunk)
    weights, query = _weights(buffers, tiles, keys, chunk, tiling, problem, relative)
    grad = buffers.take("grad", *weights.shape[:-1], values.shape[-1]).copy_(_rows(grad_tiles, chunk))
    grad_weights = buffers.take("grad_weights", *weights.shape)
    torch.bmm(grad.flatten(0, 2), values.flatten(0, 2).transpose(1, 2), out=grad_weights.flatten(0, 2))
    kept = kept_weights(weights, chunk, problem)
    used = weights
    if kept is not None:
        used = weights * kept
        grad_weights.mul_(kept)
    grad_values = buffers.take("grad_value", *values.shape)
    torch.bmm(used.flatten(0, 2).transpose(1, 2), grad.flatten(0, 2), out=grad_values.flatten(0, 2))
    _add(grads.value, grads.global_value, grad_values, chunk)
    scores = buffers.take("scores", *weights.shape)
    torch.ops.aten._softmax_backward_data.out(grad_weights, weights, -1, weights.dtype, grad_input=scores)
    grad_query = buffers.take("mixed", *query.shape)
    torch.bmm(scores.flatten(0, 2), keys.flatten(0, 2), out=grad_query.flatten(0, 2))
    if relative is not None:
        relative.add_gradients(scores, query, grad_query, tiles.key, grads.key, chunk)
    _put(grads.query, grad_query.mul_(problem.scale), chunk)
    grad_keys = buffers.take("grad_key", *keys.shape)
    torch.bmm(scores.flatten(0, 2).transpose(1, 2), query.flatten(0, 2), out=grad_keys.flatten(0, 2))
    _add(grads.key, grads.global_key, grad_keys, chunk)


def _weights(
    buffers: Buffers,
    tiles: Tiles,
    keys: Tensor,
    chunk: Chunk,
    tiling: Layout,
    problem: Problem,
    relative: Relative | None,
) -> tuple[Tensor, Tensor]:
    """Softmax weights `(b, h, n, size, L)` of a chunk, and its scaled queries `(b, h, n, size, D)`."""
    rows = _rows(tiles.query, chunk)
    query = torch.mul(rows, problem.scale, out=buffers.take("query", *rows.shape))
    scores = buffers.take("scores", *query.shape[:-1], keys.shape[-2])
    weights = buffers.take("weights", *scores.shape)
    left, right = query.flatten(0, 2), keys.flatten(0, 2).transpose(1, 2)
    if relative is not None:
        relative.put_scores(scores, query, tiles.key, chunk)
        scores.flatten(0, 2).baddbmm_(left, right)
        empty = relative.empty_rows(chunk)
    else:
        torch.bmm(left, right, out=scores.flatten(0, 2))
        seen = seen_by_row(chunk, tiling, problem)
        mask = additive_mask(chunk, tiling, problem, seen, scores.dtype)
        if mask is not None:
            scores.add_(mask)
        empty = empty_rows(chunk, problem, seen)
    torch.softmax(scores, dim=-1, out=weights)
    return (weights if empty is None else weights.masked_fill_(empty, 0.0)), query


def _chunks(tiling: Layout, tiles: Tiles, problem: Problem, *, long_runs: bool) -> Iterator[Chunk]:
    """Split the work so that a chunk has about `CHUNK_SCORES` scores, whatever the batch, the heads and the pattern.

    With `long_runs` a chunk has rather many query tiles of one head than few of all.
    """
    batch, heads = tiles.query.shape[:2]
    extra = 0 if problem.slots is None else problem.slots.shape[1]
    parts = batch * heads * tiling.scores // CHUNKS
    budget = min(CHUNK_SCORES, max(parts, RUN_SCORES) if long_runs else parts)
    number = 0
    for group in tiling.groups:
        units = max(1, budget // (tiling.size * max(1, group.columns.shape[1] * tiling.size + extra)))
        head_step = min(heads, max(1, units // group.rows.shape[0]) if long_runs else units)
        row_step = min(group.rows.shape[0], max(1, units // head_step))
        if long_runs:  # in equal parts, since the few tiles at the end of a run share no keys with the next
            row_step = -(-group.rows.shape[0] // -(-group.rows.shape[0] // row_step))
        batch_step = max(1, min(batch, units // max(1, heads * row_step)))
        for b in range(0, batch, batch_step):
            for h in range(0, heads, head_step):
                for r in range(0, group.rows.shape[0], row_step):
                    last = min(r + row_step, group.rows.shape[0])
                    yield Chunk(group, slice(b, b + batch_step), slice(h, h + head_step), r, last, number)
                    number += 1


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


def _rows(tiles: Tensor, chunk: Chunk) -> Tensor:
    """The query tiles of a chunk, `(b, h, n, size, D)`."""
    tiles = tiles[chunk.batch, chunk.heads]
    start = chunk.first_row
    if start is not None:
        return tiles[:, :, start : start + chunk.count]
    return tiles.index_select(2, chunk.rows)


def _put(tiles: Tensor, part: Tensor, chunk: Chunk) -> None:
    """Write query tiles of a chunk to their places."""
    start = chunk.first_row
    if start is not None:
        tiles[chunk.batch, chunk.heads, start : start + chunk.count] = part
    else:
        tiles[chunk.batch, chunk.heads].index_copy_(2, chunk.rows, part)


def _take(buffers: Buffers, name: str, tiles: Tensor, global_part: Tensor | None, chunk: Chunk) -> Tensor:
    """The keys (or values) of a chunk, `(b, h, n, L, D)`: those of its tiles, then the global ones."""
    tiles = tiles[chunk.batch, chunk.heads]
    (batch, heads, _, size, depth), width = tiles.shape, chunk.width
    beside = 0 if global_part is None else global_part.shape[2]
    taken = buffers.take(name, batch, heads, chunk.count, width * size + beside, depth)
    near = taken[..., : width * size, :].unflatten(3, (width, size)) if width else None
    if near is not None and chunk.group.step is None:
        near.copy_(tiles.index_select(2, chunk.columns.flatten()).unflatten(2, (chunk.count, width)))
    elif near is not None:
        band = tiles[:, :, chunk.first_column :]
        step = chunk.group.step or 1
        runs = band.unfold(2, width, step)[:, :, : chunk.count] if chunk.group.step else band[:, :, None, :width]
        near.copy_(runs.permute(0, 1, 2, 5, 3, 4) if chunk.group.step else runs)
    if global_part is not None:
        taken[..., width * size :, :] = global_part[chunk.batch, chunk.heads, None]
    return taken


def _add(total: Tensor, total_global: Tensor | None, part: Tensor, chunk: Chunk) -> None:
    """Add gradients `(b, h, n, L, D)` of a chunk's keys to the tiles they came from, and to the global keys."""
    tiles = total[chunk.batch, chunk.heads]
    size, width = tiles.shape[3], chunk.width
    if total_global is not None:
        total_global[chunk.batch, chunk.heads] += part[..., width * size :, :].sum(dim=2, dtype=total.dtype)
    if width == 0:
        return
    near = part[..., : width * size, :].unflatten(3, (width, size))
    if chunk.group.step is None:
        tiles.index_add_(2, chunk.columns.flatten(), near.flatten(2, 3).to(total.dtype))
    elif chunk.group.step == 0:
        tiles[:, :, chunk.first_column : chunk.first_column + width] += near.sum(dim=2, dtype=total.dtype)
    else:
        step = chunk.group.step
        for column in range(width):
            start = chunk.first_column + column
            tiles[:, :, start : start + (chunk.count - 1) * step + 1 : step] += near[:, :, :, column]


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
