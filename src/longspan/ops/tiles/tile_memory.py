"""Where the numbers of a chunk come from and go to: tiles of the inputs, and working memory that is used again."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.slots import gather_slots
from longspan.ops.tiles.tiles import Chunk, Layout


@dataclass
class Tiles:
    """Query, key and value (or their gradients) cut into tiles `(B, H, tiles, size, D)`; global keys `(B, H, G, D)`."""

    query: Tensor
    key: Tensor
    value: Tensor
    global_key: Tensor | None
    global_value: Tensor | None

    def of(self, name: str) -> tuple[Tensor, Tensor | None]:
        """The tiles and the global part of `"key"` or `"value"`."""
        return (self.key, self.global_key) if name == "key" else (self.value, self.global_value)

    def zeros(self, dtype: torch.dtype) -> Tiles:
        """Totals for gradients, those of keys and values in that type; each query is written once."""
        query = self.query.new_empty(self.query.shape)
        key, value = (part.new_zeros(part.shape, dtype=dtype) for part in (self.key, self.value))
        if self.global_key is None or self.global_value is None:
            return Tiles(query, key, value, None, None)
        beside = (part.new_zeros(part.shape, dtype=dtype) for part in (self.global_key, self.global_value))
        return Tiles(query, key, value, *beside)


class Buffers:
    """Working memory by name, kept from chunk to chunk.

    Attributes:
        wide: the type of scores and sums, float32 at least.
        narrow: the type of matrix products in which no precision is at stake.
    """

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.wide = torch.promote_types(like.dtype, torch.float32)
        self.narrow = torch.bfloat16 if like.dtype == torch.bfloat16 else self.wide
        self.kept: dict[tuple[str, torch.dtype], Tensor] = {}
        self.layouts: dict[tuple[str, torch.dtype], tuple[int, ...]] = {}

    def take(self, name: str, *shape: int, dtype: torch.dtype) -> Tensor:
        """An uninitialised contiguous tensor of that shape; the last one of that name and type is overwritten."""
        size, place = math.prod(shape), (name, dtype)
        if place not in self.kept or self.kept[place].numel() < size:
            self.kept[place] = self.like.new_empty(size, dtype=dtype)
        return self.kept[place][:size].view(shape)

    def take_filled(self, name: str, *shape: int, dtype: torch.dtype, fill: float, layout: tuple[int, ...]) -> Tensor:
        """The same, with `fill` in places that are never written under one `layout`."""
        found, place = self.take(name, *shape, dtype=dtype), (name, dtype)
        if self.layouts.get(place) != layout:
            found.fill_(fill)
            self.layouts[place] = layout
        return found

    def cast(self, name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """The tensor in that type: itself, or a contiguous copy."""
        return tensor if tensor.dtype == dtype else self.take(name, *tensor.shape, dtype=dtype).copy_(tensor)


def cut(query: Tensor, key: Tensor, value: Tensor, tiling: Layout, slots: Tensor | None) -> Tiles:
    """Cut all inputs into tiles; gather the global keys and values."""
    global_key = global_value = None
    if slots is not None:
        global_key, global_value = gather_slots(key, slots), gather_slots(value, slots)
    return Tiles(
        tiles_of(query, tiling.query_tiles, tiling.size),
        tiles_of(key, tiling.key_tiles, tiling.size),
        tiles_of(value, tiling.key_tiles, tiling.size),
        global_key,
        global_value,
    )


def tiles_of(tensor: Tensor, count: int, size: int) -> Tensor:
    """`(B, H, T, D)` → `(B, H, count, size, D)`, a view unless the last tile has to be filled up."""
    missing = count * size - tensor.shape[2]
    padded = F.pad(tensor, (0, 0, 0, missing)) if missing else tensor
    return padded.unflatten(2, (count, size))


def rows_of(tiles: Tensor, chunk: Chunk) -> Tensor:
    """The query tiles of a chunk, `(b, h, n, size, D)`."""
    tiles = tiles[chunk.batch, chunk.heads]
    start = chunk.first_row
    if start is not None:
        return tiles[:, :, start : start + chunk.count]
    return tiles.index_select(2, chunk.rows)


def put(tiles: Tensor, part: Tensor, chunk: Chunk) -> None:
    """Write query tiles of a chunk to their places."""
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
    if global_part is None and batch * heads == 1 and 0 < (chunk.group.step or 0) <= width:
        return _take_run(buffers, name, tiles[0, 0], chunk, dtype)
    beside = 0 if global_part is None else global_part.shape[2]
    taken = buffers.take(name, batch, heads, chunk.count, width * size + beside, depth, dtype=dtype)
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


def _take_run(buffers: Buffers, name: str, tiles: Tensor, chunk: Chunk, dtype: torch.dtype) -> Tensor:
    """The keys of a band of one head, where neighbours share most of them: each is copied once and read in place."""
    step, (_, size, depth) = chunk.group.step or 0, tiles.shape
    run = tiles[chunk.first_column : chunk.first_column + (chunk.count - 1) * step + chunk.width]
    kept = buffers.take(name, *run.shape, dtype=dtype).copy_(run)
    tile = size * depth
    shape, strides = (1, 1, chunk.count, chunk.width * size, depth), (0, 0, step * tile, depth, 1)
    return kept.as_strided(shape, strides)


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
