"""What the blocked backend computes at once: some query tiles of some heads, their keys, and what hides these.

The numbers of a chunk come from tiles of the inputs, `(B, H, tiles, size, D)`, and go back there. Global keys stand in
columns of their own, beside the near keys: the `key_mask` of a call holds real keys that are not global.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.call import Call
from longspan.ops.runtime import LAYOUT_CACHE, Buffers, Sizes, dropout_factors, seeded
from longspan.ops.tiles.layout import Group, Layout


@dataclass(frozen=True, eq=False)
class Chunk:
    """What is computed at once: query tiles `group.rows[first:last]` of some batch rows and heads.

    Attributes:
        number: how many chunks come before.
        count: number of query tiles, n.
        width: number of key tiles that each of them sees, m.
        rows: `(n,)` indices of the query tiles.
        columns: `(n, m)` indices of the key tiles.
        first_row: index of the first query tile where they follow each other, else `None`.
        first_column: index of the first key tile, in a band.
        is_band: whether the keys of each query tile are those of the one before it, moved by one tile.
        one_mask: whether the pattern shows the same to all query tiles.
    """

    group: Group
    batch: slice
    heads: slice
    first: int
    last: int
    number: int
    count: int
    width: int
    rows: Tensor
    columns: Tensor
    first_row: int | None
    first_column: int
    is_band: bool
    one_mask: bool


def chunks_of(tiling: Layout, batch: int, heads: int, beside: int, *, content: bool, sizes: Sizes) -> Iterator[Chunk]:
    """Split the work so that a chunk has about as many scores as `sizes` say, whatever batch, heads and pattern.

    A chunk has rather many query tiles of one head, which share their keys, than few of all. Content terms want bands:
    where query tiles see keys that do not move along with them, one such tile at a time. The heads of the same tiles
    follow each other.

    Args:
        beside: global keys, beside the near ones.
        content: whether there are content terms.
        sizes: of the device.
    """
    size, number = tiling.size, 0
    least = sizes.least_tile_scores
    budget = min(sizes.tile_scores, max(batch * heads * tiling.scores // sizes.short_pieces, least))
    for group in tiling.groups:
        step, (count, width) = group.step, group.columns.shape
        single = content and step not in (None, 1)
        units = max(1, budget // (size * max(1, width * size + beside)))
        head_step = min(heads, max(1, units if single else units // count))
        if count * budget >= units * least * 3 and not single:
            head_step = 1
        row_step = 1 if single else min(count, max(1, units // head_step))
        row_step = -(-count // -(-count // row_step))  # in equal parts, since the tiles at their ends share no keys
        batch_step = max(1, min(batch, units // max(1, heads * row_step)))
        bounds = [] if group.masks is None else group.mask_bounds
        for b in range(0, batch, batch_step):
            for first in range(0, count, row_step):
                last = min(first + row_step, count)
                tiles = {
                    "count": last - first,
                    "width": width,
                    "rows": group.rows[first:last],
                    "columns": group.columns[first:last],
                    "first_row": None if step is None else group.first_row + first,
                    "first_column": group.first_column + first * (step or 0),
                    "is_band": step == 1 or (step is not None and last - first == 1),
                    "one_mask": bisect_right(bounds, first) == bisect_right(bounds, last - 1),
                }
                for h in range(0, heads, head_step):
                    yield Chunk(group, slice(b, b + batch_step), slice(h, h + head_step), first, last, number, **tiles)
                    number += 1


# Numbers: from tiles, and back.


def tiles_of(tensor: Tensor, count: int, size: int) -> Tensor:
    """`(B, H, T, D)` → `(B, H, count, size, D)`, a view unless the last tile has to be filled up."""
    missing = count * size - tensor.shape[2]
    padded = F.pad(tensor, (0, 0, 0, missing)) if missing else tensor
    return padded.unflatten(2, (count, size))


def rows_of(tiles: Tensor, chunk: Chunk) -> Tensor:
    """The query tiles of a chunk, `(b, h, n, size, D)`."""
    tiles, start = tiles[chunk.batch, chunk.heads], chunk.first_row
    if start is not None:
        return tiles[:, :, start : start + chunk.count]
    return tiles.index_select(2, chunk.rows)


def put(tiles: Tensor, part: Tensor, chunk: Chunk) -> None:
    """Write the query tiles of a chunk, `(b, h, n, size, D)`, to their places in `(B, H, tiles, size, D)`."""
    start = chunk.first_row
    if start is not None:
        tiles[chunk.batch, chunk.heads, start : start + chunk.count] = part
    else:
        tiles[chunk.batch, chunk.heads].index_copy_(2, chunk.rows, part.to(tiles.dtype))


def take(
    buffers: Buffers, name: str, tiles: Tensor, global_part: Tensor | None, chunk: Chunk, dtype: torch.dtype
) -> Tensor:
    """The keys (or values) of a chunk, `(b, h, n, L, D)`: those of its tiles, then the global ones."""
    tiles = tiles[chunk.batch, chunk.heads]
    (batch, heads, _, size, depth), width = tiles.shape, chunk.width
    step, first = chunk.group.step, chunk.first_column
    if global_part is None and batch * heads == 1 and step is not None and 0 < step <= width:
        # A band of one head, where neighbours share most keys: each is copied once, and read in place.
        run = tiles[0, 0, first : first + (chunk.count - 1) * step + width]
        copied = buffers.take(name, *run.shape, dtype=dtype).copy_(run)
        strides = (0, 0, step * size * depth, depth, 1)
        return copied.as_strided((1, 1, chunk.count, width * size, depth), strides)
    beside = 0 if global_part is None else global_part.shape[2]
    taken = buffers.take(name, batch, heads, chunk.count, width * size + beside, depth, dtype=dtype)
    if width:
        near = taken[..., : width * size, :].unflatten(3, (width, size))
        if step is None:
            near.copy_(tiles.index_select(2, chunk.columns.flatten()).unflatten(2, (chunk.count, width)))
        elif step:
            runs = tiles[:, :, first:].unfold(2, width, step)[:, :, : chunk.count]
            near.copy_(runs.permute(0, 1, 2, 5, 3, 4))
        else:
            near.copy_(tiles[:, :, None, first : first + width])
    if global_part is not None:
        taken[..., width * size :, :] = global_part[chunk.batch, chunk.heads, None]
    return taken


def add(total: Tensor, total_global: Tensor | None, part: Tensor, chunk: Chunk) -> None:
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


def join(grad_tiles: Tensor, grad_global: Tensor | None, slots: Tensor | None, length: int) -> Tensor:
    """Gradient tiles back to `(B, H, S, D)`, with the gradients of the global keys added at their places."""
    grad = grad_tiles.flatten(2, 3)[:, :, :length]
    if grad_global is None or slots is None:
        return grad
    index = torch.clamp(slots, min=0)[:, None, :, None].expand_as(grad_global)
    return grad.scatter_add(2, index, grad_global * (slots >= 0)[:, None, :, None])


# What hides keys.


def pattern_mask(chunk: Chunk, call: Call, beside: int, dtype: torch.dtype) -> Tensor | None:
    """What the pattern adds to the scores of a chunk, `(b or 1, 1, n or 1, size, L + G)`: −∞ where it hides a key, else
    0, as beside the near keys; `None` for nothing."""
    group = chunk.group
    if group.masks is None:
        return None

    def additive() -> Tensor:
        assert group.masks is not None
        mask = torch.zeros(group.masks.shape, dtype=dtype, device=group.masks.device)
        return F.pad(mask.masked_fill_(~group.masks, -math.inf), (0, beside))

    return _of_tiles(LAYOUT_CACHE.get((group.name, dtype, beside), additive), chunk, call)


def _of_tiles(masks: Tensor, chunk: Chunk, call: Call) -> Tensor:
    """`(b or 1, 1, n or 1, size, L)`: the masks of a chunk's tiles, one for all where they agree.

    Where there are several patterns, each has equally many rows of the batch.
    """
    ids = chunk.group.mask_ids[chunk.first : chunk.first + 1 if chunk.one_mask else chunk.last]
    batch = call.query.shape[0]
    rows = [row * masks.shape[1] // batch for row in range(*chunk.batch.indices(batch))]
    if rows[0] == rows[-1]:
        return masks[ids, rows[0]][None, None]
    return masks[ids][:, rows].transpose(0, 1)[:, None]


def present_keys(chunk: Chunk, tiling: Layout, call: Call) -> Tensor | None:
    """`(b, 1, n, 1, L)` bool: keys that each row of the batch has, real and not doubled; `None` if all are known to be,
    which a GPU is not asked: it would be waited for."""
    if call.key_mask is None and call.slots is None:
        return None
    columns, size = chunk.columns, tiling.size
    batch = len(range(*chunk.batch.indices(call.query.shape[0])))
    real = torch.ones(batch, chunk.count, chunk.width * size, dtype=torch.bool, device=columns.device)
    if call.key_mask is not None:
        missing = tiling.key_tiles * size - call.key_mask.shape[1]
        tiles = F.pad(call.key_mask[chunk.batch], (0, missing), value=True).unflatten(1, (tiling.key_tiles, size))
        real = tiles[:, columns].flatten(2)
    if call.slots is not None:
        used = (call.slots[chunk.batch] >= 0)[:, None].expand(-1, chunk.count, -1)
        real = torch.cat([real, used], dim=-1)
    return None if not real.is_cuda and bool(real.all()) else real[:, None, :, None, :]


def empty_rows(chunk: Chunk, call: Call, present: Tensor | None, lacking: list[int] | None) -> Tensor | None:
    """`(b, 1, n, size, 1)` bool, True for queries to which pattern and padding show nothing; `None` for no query.

    `present` is what `present_keys` gives, `lacking` the query tiles from which it hides a key.
    """
    hides, masks = chunk.group.hides_whole_rows, chunk.group.masks
    if present is None and not hides:
        return None
    near = None if masks is None else _of_tiles(masks, chunk, call)
    if near is None and present is None:
        beside = call.slots is not None and call.slots.shape[1] > 0
        return None if beside else torch.ones((), dtype=torch.bool, device=chunk.columns.device)
    # Where the pattern hides no whole row, only tiles that lack keys can.
    tiles = slice(None) if lacking is None or hides else lacking
    if near is not None:
        near = near.expand(-1, -1, chunk.count, -1, -1)[:, :, tiles]
        near = near if call.slots is None else F.pad(near, (0, call.slots.shape[1]), value=True)
        visible = near if present is None else near & present[:, :, tiles]
    else:
        assert present is not None
        visible = present[:, :, tiles]
    blind = ~visible.any(dim=-1, keepdim=True)
    if not blind.is_cuda and not bool(blind.any()):
        return None
    if blind.shape[2] == chunk.count:
        return blind
    empty = blind.new_zeros(*blind.shape[:2], chunk.count, *blind.shape[3:])
    empty[:, :, tiles] = blind
    return empty


def drawn_weights(weights: Tensor, number: int, call: Call) -> Tensor:
    """Dropout: 1/(1 − p) where a weight stays, else 0, the same again for the same seed and number."""
    return dropout_factors(weights, call.dropout_prob, seeded(call.seed, number, weights.device))
