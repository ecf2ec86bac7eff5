"""Attention over the tiles of a pattern: any device, linear memory, with its own backward.

Each chunk gathers some query tiles with the keys they see (and the global keys beside them), and computes their whole
softmax at once, in buffers that are used again for the next chunk and stay in the cache. Backward recomputes the
softmax chunk by chunk, so nothing of size queries × keys is ever kept.

Scores and softmax are float32 at least, whatever the inputs: a score of 40 rounded to bfloat16 is off by up to 0.125,
which is 13 % of a weight. Weights are rounded only to be multiplied with values, as in PyTorch's kernels; in float16,
whose sums may overflow, not even then.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.chunk_masks import Problem, additive_mask, empty_rows, kept_weights, seen_by_row
from longspan.ops.reference import full_precision
from longspan.ops.relative_tiles import Relative
from longspan.ops.tile_memory import Buffers, Tiles, add, cut, join, put, rows_of, take, tiles_of
from longspan.ops.tiles import Chunk, Layout, best_layout
from longspan.patterns import Pattern

CHUNK_SCORES = 1 << 20
"""Most scores computed at a time: small enough for the cache, large enough to keep the matrix products busy."""
RUN_SCORES = 1 << 16
"""Fewer scores are not worth the steps of a chunk; with as many, one head is enough for it."""
CHUNKS = 6
"""Short inputs are still cut into so many chunks, since fresh working memory costs more than it saves there."""


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
    tiles = cut(query, key, value, tiling, problem.slots)
    result = query.new_empty(*tiles.query.shape[:-1], value.shape[-1])
    buffers = Buffers(query)
    mix = _mix_in_kernel if _kernel_serves(query, value, problem) else _mix
    for chunk in _chunks(tiling, tiles, problem):
        put(result, mix(buffers, tiles, chunk, tiling, problem, relative), chunk)
    return result.flatten(2, 3)[:, :, : query.shape[2]]


def _mix(
    buffers: Buffers, tiles: Tiles, chunk: Chunk, tiling: Layout, problem: Problem, relative: Relative | None
) -> Tensor:
    """What the queries of a chunk gather, `(b, h, n, size, Dv)`."""
    keys = take(buffers, "key", tiles.key, tiles.global_key, chunk, buffers.wide)
    values = take(buffers, "value", tiles.value, tiles.global_value, chunk, buffers.narrow)
    weights, _ = _weights(buffers, tiles, keys, chunk, tiling, problem, relative)
    kept = kept_weights(weights, chunk, problem)
    if kept is not None:
        weights.mul_(kept)
    mixed = buffers.take("mixed", *weights.shape[:-1], values.shape[-1], dtype=buffers.narrow)
    used = buffers.cast("narrow weights", weights, buffers.narrow)
    torch.bmm(used.flatten(0, 2), values.flatten(0, 2), out=mixed.flatten(0, 2))
    return mixed


def _kernel_serves(query: Tensor, value: Tensor, problem: Problem) -> bool:
    """Whether PyTorch's own kernel computes a chunk: half precision on a CPU, where it is faster than our steps."""
    half = query.dtype in (torch.bfloat16, torch.float16) and not query.is_cuda
    return half and not problem.dropout_prob and query.shape[-1] == value.shape[-1]


def _mix_in_kernel(
    buffers: Buffers, tiles: Tiles, chunk: Chunk, tiling: Layout, problem: Problem, relative: Relative | None
) -> Tensor:
    """The same as `_mix` without dropout, in one call for each row of the batch that has a mask of its own."""
    keys = take(buffers, "key", tiles.key, tiles.global_key, chunk, tiles.key.dtype)
    values = take(buffers, "value", tiles.value, tiles.global_value, chunk, tiles.value.dtype)
    query = rows_of(tiles.query, chunk)
    if relative is not None:
        mask = buffers.take("scores", *query.shape[:-1], keys.shape[-2], dtype=buffers.wide)
        relative.put_scores(mask, query, tiles.key, chunk, problem.scale)
        empty = relative.empty_rows(chunk)
    else:
        mask, empty = _mask_and_empty(chunk, tiling, problem, buffers.wide)
    mixed = buffers.take("mixed", *query.shape[:-1], values.shape[-1], dtype=query.dtype)
    batch, heads = query.shape[:2]
    one_for_all = mask is None or mask.shape[:2] == (1, 1)
    for row in range(1 if one_for_all else batch):
        rows = slice(None) if one_for_all else slice(row, row + 1)
        seen = None if mask is None else mask[min(row, mask.shape[0] - 1)]
        each = (part[rows].flatten(0, 1) for part in (query, keys, values))
        with full_precision(query):  # autocast would narrow the mask, in which the bias and the relative terms are
            found = F.scaled_dot_product_attention(*each, attn_mask=seen, scale=problem.scale)
        mixed[rows] = found.unflatten(0, (-1, heads))
    return mixed if empty is None else mixed.masked_fill_(empty, 0.0)


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
    tiles = cut(query, key, value, tiling, problem.slots)
    buffers = Buffers(query)
    if query.shape[0] * query.shape[1] * tiling.scores <= RUN_SCORES:
        buffers.narrow = buffers.wide  # so little work need not be fast, and few terms do not average their errors out
    grads = Tiles(
        tiles.query.new_empty(tiles.query.shape),
        tiles.key.new_zeros(tiles.key.shape, dtype=buffers.wide),
        tiles.value.new_zeros(tiles.value.shape, dtype=buffers.wide),
        None if tiles.global_key is None else tiles.global_key.new_zeros(tiles.global_key.shape, dtype=buffers.wide),
        None
        if tiles.global_value is None
        else tiles.global_value.new_zeros(tiles.global_value.shape, dtype=buffers.wide),
    )
    grad_tiles = tiles_of(grad, tiling.query_tiles, tiling.size)
    for chunk in _chunks(tiling, tiles, problem):
        _backward_chunk(chunk, buffers, tiles, grad_tiles, grads, tiling, problem, relative)
    grad_query = grads.query.flatten(2, 3)[:, :, : query.shape[2]]
    grad_key = join(grads.key, grads.global_key, problem.slots, key.shape[2]).mul_(problem.scale)
    grad_value = join(grads.value, grads.global_value, problem.slots, key.shape[2])
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
    """Add what one chunk contributes to the gradients; that of the keys still lacks the scale.

    With weights P, outputs O = PV: dV = PᵀdO, dP = dO Vᵀ, dS = P∘(dP − rowsum(P∘dP)), dQ = dS K, dK = dSᵀQ.
    """
    narrow = buffers.narrow
    keys = take(buffers, "key", tiles.key, tiles.global_key, chunk, narrow)
    values = take(buffers, "value", tiles.value, tiles.global_value, chunk, narrow)
    weights, query = _weights(buffers, tiles, keys, chunk, tiling, problem, relative)
    grad = buffers.take("grad", *weights.shape[:-1], values.shape[-1], dtype=narrow).copy_(rows_of(grad_tiles, chunk))
    grad_weights = buffers.take("grad weights", *weights.shape, dtype=narrow)
    torch.bmm(grad.flatten(0, 2), values.flatten(0, 2).transpose(1, 2), out=grad_weights.flatten(0, 2))
    # The gradient of a global key is a sum over all queries, in which one rounding less keeps the error near SDPA's.
    precise = narrow if tiles.global_key is None else buffers.wide
    grad_weights = buffers.cast("grad weights", grad_weights, precise)
    kept = kept_weights(weights, chunk, problem)
    if kept is not None:
        grad_weights.mul_(kept)
    used = buffers.cast("narrow weights", weights if kept is None else kept.mul_(weights), narrow)
    grad_values = buffers.take("grad value", *values.shape, dtype=narrow)
    torch.bmm(used.flatten(0, 2).transpose(1, 2), grad.flatten(0, 2), out=grad_values.flatten(0, 2))
    add(grads.value, grads.global_value, grad_values, chunk)
    weights = used if kept is None and precise == narrow else buffers.cast("precise weights", weights, precise)
    scores = buffers.take("grad scores", *weights.shape, dtype=precise)
    torch.ops.aten._softmax_backward_data.out(grad_weights, weights, -1, precise, grad_input=scores)
    scores = buffers.cast("grad scores", scores, narrow)
    grad_query = buffers.take("mixed", *query.shape, dtype=narrow)
    grad_query.flatten(0, 2).baddbmm_(scores.flatten(0, 2), keys.flatten(0, 2), beta=0, alpha=problem.scale)
    if relative is not None:
        relative.add_gradients(scores, query, grad_query, tiles.key, grads.key, chunk, problem.scale)
    put(grads.query, grad_query, chunk)
    grad_keys = buffers.take("grad key", *keys.shape, dtype=narrow)
    torch.bmm(scores.flatten(0, 2).transpose(1, 2), query.flatten(0, 2), out=grad_keys.flatten(0, 2))
    add(grads.key, grads.global_key, grad_keys, chunk)


def _weights(
    buffers: Buffers,
    tiles: Tiles,
    keys: Tensor,
    chunk: Chunk,
    tiling: Layout,
    problem: Problem,
    relative: Relative | None,
) -> tuple[Tensor, Tensor]:
    """Softmax weights `(b, h, n, size, L)` of a chunk, wide, and its queries `(b, h, n, size, D)`, narrow."""
    rows = rows_of(tiles.query, chunk)
    query = buffers.take("query", *rows.shape, dtype=buffers.narrow).copy_(rows)
    wide_query = buffers.cast("query", query, buffers.wide)
    if keys.dtype != buffers.wide:
        keys = take(buffers, "key", tiles.key, tiles.global_key, chunk, buffers.wide)
    left, right = wide_query.flatten(0, 2), keys.flatten(0, 2).transpose(1, 2)
    scores = buffers.take("scores", *query.shape[:-1], keys.shape[-2], dtype=buffers.wide)
    if relative is not None:
        relative.put_scores(scores, wide_query, tiles.key, chunk, problem.scale)
        scores.flatten(0, 2).baddbmm_(left, right, alpha=problem.scale)
        empty = relative.empty_rows(chunk)
    else:
        scores.flatten(0, 2).baddbmm_(left, right, beta=0, alpha=problem.scale)
        mask, empty = _mask_and_empty(chunk, tiling, problem, buffers.wide)
        if mask is not None:
            scores.add_(mask)
    weights = torch.softmax(scores, dim=-1, out=scores)  # row by row, so in place
    return (weights if empty is None else weights.masked_fill_(empty, 0.0)), query


def _mask_and_empty(
    chunk: Chunk, tiling: Layout, problem: Problem, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    """What to add to the scores of a chunk, and which of its queries see nothing; `None` for nothing and for none."""
    seen = seen_by_row(chunk, tiling, problem)
    mask = additive_mask(chunk, tiling, problem, seen, dtype)
    return mask, empty_rows(chunk, problem, seen, mask)


def _chunks(tiling: Layout, tiles: Tiles, problem: Problem) -> Iterator[Chunk]:
    """Split the work so that a chunk has about `CHUNK_SCORES` scores, whatever the batch, the heads and the pattern.

    A chunk has rather many query tiles of one head, which share their keys, than few of all.
    """
    batch, heads = tiles.query.shape[:2]
    extra = 0 if problem.slots is None else problem.slots.shape[1]
    budget = min(CHUNK_SCORES, max(batch * heads * tiling.scores // CHUNKS, RUN_SCORES))
    number = 0
    for group in tiling.groups:
        count = group.rows.shape[0]
        units = max(1, budget // (tiling.size * max(1, group.columns.shape[1] * tiling.size + extra)))
        head_step = min(heads, max(1, units // count))
        if count * budget >= units * RUN_SCORES * 3:
            head_step = 1
        row_step = min(count, max(1, units // head_step))
        row_step = -(-count // -(-count // row_step))  # in equal parts, since the tiles at their ends share no keys
        batch_step = max(1, min(batch, units // max(1, heads * row_step)))
        for b in range(0, batch, batch_step):
            for h in range(0, heads, head_step):
                for r in range(0, count, row_step):
                    last = min(r + row_step, count)
                    yield Chunk(group, slice(b, b + batch_step), slice(h, h + head_step), r, last, number)
                    number += 1
