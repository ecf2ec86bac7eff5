"""The unit of work of the blocked backend: some query tiles of some heads, their keys, and the masks of these.

Data is gathered from tiles of the inputs, `(B, H, tiles, size, D)`, and scattered back. Global keys have separate
columns after the near keys; the `key_mask` of a call excludes global keys.
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

FEW = 8
"""Up to so many tiles are read one by one, if they are far from each other."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """The unit of computation: query tiles `group.rows[first:last]` of some batch rows and heads.

    Attributes:
        number: index of the chunk.
        count: number of query tiles, n.
        width: number of key tiles that each of them sees, m.
        rows: `(n,)` indices of the query tiles.
        columns: `(n, m)` indices of the key tiles.
        first_row: index of the first query tile if they are consecutive, otherwise `None`.
        first_column: index of the first key tile, in a band.
        is_band: whether the key tiles move by one from each query tile to the next.
        one_mask: whether all query tiles have the same mask.
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


def chunks_of(
    tiling: Layout, batch: int, heads: int, global_count: int, *, content: bool, sizes: Sizes
) -> Iterator[Chunk]:
    """Splits the work into chunks of about as many scores as `sizes` define, for any batch, heads and pattern.

    A chunk prefers many query tiles of one head, which share their keys, over few tiles of all heads. Content terms
    require bands: where the keys of query tiles do not move along with them, a chunk has one query tile. The heads of
    the same tiles are consecutive.

    Args:
        global_count: number of global keys.
        content: whether there are content terms.
        sizes: the sizes of the device.
    """
    size, number = tiling.size, 0
    least = sizes.least_tile_scores
    budget = min(sizes.tile_scores, max(batch * heads * tiling.scores // sizes.short_pieces, least))
    for group in tiling.groups:
        step, (count, width) = group.step, group.columns.shape
        single = content and step not in (None, 1)
        units = max(1, budget // (size * max(1, width * size + global_count)))
        head_step = min(heads, max(1, units if single else units // count))
        if count * budget >= units * least * 3 and not single:
            head_step = 1
        row_step = 1 if single else min(count, max(1, units // head_step))
        row_step = -(-count // -(-count // row_step))  # in equal parts, because the tiles at their ends share no keys
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
                    "first_row": None if group.first_row is None else group.first_row + first,
                    "first_column": group.first_column + first * (step or 0),
                    "is_band": step == 1 or (step is not None and last - first == 1),
                    "one_mask": bisect_right(bounds, first) == bisect_right(bounds, last - 1),
                }
                for h in range(0, heads, head_step):
                    yield Chunk(group, slice(b, b + batch_step), slice(h, h + head_step), first, last, number, **tiles)
                    number += 1


# Gathering from tiles, and scattering back.


@dataclass(frozen=True, eq=False)
class Tiles:
    """A tensor `(B, H, T, D)` cut into `count` tiles of `size` positions, of which the last is padded with zeros: only
    in the chunks that read it, because a padded copy of the whole tensor would take as long as a projection."""

    tensor: Tensor
    count: int
    size: int

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """`(B, H, count, size, D)`."""
        batch, heads, _, depth = self.tensor.shape
        return batch, heads, self.count, self.size, depth

    def part(self, chunk: Chunk, first: int, last: int) -> Tensor:
        """Returns the tiles from `first` to `last` of the rows and heads of a chunk, `(b, h, last − first, size, D)`, a
        view where they are whole."""
        tensor = self.tensor[chunk.batch, chunk.heads, first * self.size : last * self.size]
        missing = (last - first) * self.size - tensor.shape[2]
        return (F.pad(tensor, (0, 0, 0, missing)) if missing else tensor).unflatten(2, (last - first, self.size))

    def at(self, chunk: Chunk, index: Tensor, start: int | None = None) -> Tensor:
        """Returns the tiles at `index` `(n,)` of the rows and heads of a chunk, `(b, h, n, size, D)`; `start` is the
        first one if they are consecutive."""
        if start is not None:
            return self.part(chunk, start, start + len(index))
        if index.is_cuda or not index.numel():
            return self.part(chunk, 0, self.count).index_select(2, index)
        first, last = int(index.min()), int(index.max()) + 1
        if index.numel() <= FEW < last - first:  # those at both ends of a text
            return torch.cat([self.part(chunk, tile, tile + 1) for tile in index.tolist()], 2)
        # Contiguous first, since each is read several times.
        return self.part(chunk, first, last).contiguous().index_select(2, index - first)


def put(tiles: Tensor, part: Tensor, chunk: Chunk) -> None:
    """Writes the query tiles of a chunk, `(b, h, n, size, D)`, to their places in `(B, H, tiles, size, D)`."""
    start = chunk.first_row
    if start is not None:
        tiles[chunk.batch, chunk.heads, start : start + chunk.count] = part
    else:
        tiles[chunk.batch, chunk.heads].index_copy_(2, chunk.rows, part.to(tiles.dtype))


def take(
    buffers: Buffers, name: str, tiles: Tiles, global_part: Tensor | None, chunk: Chunk, dtype: torch.dtype
) -> Tensor:
    """Gathers the keys (or values) of a chunk, `(b, h, n, L, D)`: those of its tiles, then the global ones."""
    width, step, first, size = chunk.width, chunk.group.step, chunk.first_column, tiles.size
    batch, heads, _, depth = tiles.tensor[chunk.batch, chunk.heads].shape
    if global_part is None and batch * heads == 1 and step is not None and 0 < step <= width:
        # A band of one head, where neighbours share most keys: they are read in place.
        run = tiles.part(chunk, first, first + (chunk.count - 1) * step + width)
        if run.dtype != dtype:
            run = buffers.take(name, *run.shape, dtype=dtype).copy_(run)
        row, column = run.stride()[3:]
        strides = (0, 0, step * size * row, row, column)
        return run.as_strided((1, 1, chunk.count, width * size, depth), strides, run.storage_offset())
    global_count = 0 if global_part is None else global_part.shape[2]
    near_tiles = tiles.at(chunk, chunk.columns.flatten()) if step is None and width else None
    if near_tiles is not None and not global_count and near_tiles.dtype == dtype:
        return near_tiles.view(batch, heads, chunk.count, width * size, depth)
    taken = buffers.take(name, batch, heads, chunk.count, width * size + global_count, depth, dtype=dtype)
    if width:
        near = taken[..., : width * size, :].unflatten(3, (width, size))
        if near_tiles is not None:
            near.copy_(near_tiles.unflatten(2, (chunk.count, width)))
        elif step:
            runs = tiles.part(chunk, first, first + (chunk.count - 1) * step + width).unfold(2, width, step)
            near.copy_(runs.permute(0, 1, 2, 5, 3, 4))
        else:
            near.copy_(tiles.part(chunk, first, first + width)[:, :, None])
    if global_part is not None:
        taken[..., width * size :, :] = global_part[chunk.batch, chunk.heads, None]
    return taken


def add(total: Tensor, total_global: Tensor | None, part: Tensor, chunk: Chunk) -> None:
    """Adds gradients `(b, h, n, L, D)` of a chunk's keys to their tiles, and to the global keys."""
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
    """Merges gradient tiles into `(B, H, S, D)`, and adds the gradients of the global keys at their positions."""
    grad = grad_tiles.flatten(2, 3)[:, :, :length]
    if grad_global is None or slots is None:
        return grad
    index = torch.clamp(slots, min=0)[:, None, :, None].expand_as(grad_global)
    return grad.scatter_add(2, index, grad_global * (slots >= 0)[:, None, :, None])


# Masks.


def pattern_mask(chunk: Chunk, call: Call, global_count: int, dtype: torch.dtype) -> Tensor | None:
    """Returns the additive mask of the pattern for a chunk, `(b or 1, 1, n or 1, size, L + G)`: −∞ where it hides a
    key, otherwise 0; `None` for none."""
    group = chunk.group
    if group.masks is None:
        return None

    def additive() -> Tensor:
        assert group.masks is not None
        mask = torch.zeros(group.masks.shape, dtype=dtype, device=group.masks.device)
        return F.pad(mask.masked_fill_(~group.masks, -math.inf), (0, global_count))

    return _of_tiles(LAYOUT_CACHE.get((group.name, dtype, global_count), additive), chunk, call)


def _of_tiles(masks: Tensor, chunk: Chunk, call: Call) -> Tensor:
    """Returns the masks of a chunk's tiles, `(b or 1, 1, n or 1, size, L)`, one for all if they are equal.

    With several patterns, each has the same number of batch rows.
    """
    ids = chunk.group.mask_ids[chunk.first : chunk.first + 1 if chunk.one_mask else chunk.last]
    batch = call.query.shape[0]
    rows = [row * masks.shape[1] // batch for row in range(*chunk.batch.indices(batch))]
    if rows[0] == rows[-1]:
        return masks[ids, rows[0]][None, None]
    return masks[ids][:, rows].transpose(0, 1)[:, None]


def present_keys(chunk: Chunk, tiling: Layout, call: Call) -> Tensor | None:
    """Returns the keys that exist in each batch row, neither padding nor global, `(b, 1, n, 1, L)` bool; `None` if all
    are known to exist, which is not checked on a GPU to avoid a synchronisation."""
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
    """Returns which queries see nothing under pattern and padding, `(b, 1, n, size, 1)` bool; `None` if none.

    `present` is the result of `present_keys`, `lacking` the query tiles from which it hides a key.
    """
    hides, masks = chunk.group.hides_whole_rows, chunk.group.masks
    if present is None and not hides:
        return None
    near = None if masks is None else _of_tiles(masks, chunk, call)
    if near is None and present is None:
        global_count = call.slots is not None and call.slots.shape[1] > 0
        return None if global_count else torch.ones((), dtype=torch.bool, device=chunk.columns.device)
    # If the pattern hides no whole row, only tiles with hidden keys can have empty rows.
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
    """Returns dropout factors, 1/(1 − p) or 0, reproducible from the seed and `number`."""
    return dropout_factors(weights, call.dropout_prob, seeded(call.seed, number, weights.device))
