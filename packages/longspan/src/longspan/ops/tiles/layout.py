"""The tile layout of a pattern: the rectangles of queries and keys that a fast path computes, and those it skips.

Queries and keys are cut into tiles of equal size. A tile is absent (nothing visible), full, or partial. Query tiles
that see the same number of key tiles form a group, and are computed together. The masks of partial tiles repeat along
the diagonal, so only distinct ones are stored. A layout contains only indices and is cached.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from longspan.ops.runtime import cached
from longspan.patterns import Pattern, Span

TILE_SIZES = (32, 64, 128)
# Small tiles fit a narrow window better, large ones make faster matrix products: relative cost of a score by tile size.
ONE_TILE = 1 << 20
"""Maximum number of pairs of an input that may be one tile."""
CELLS = 1 << 20
"""Maximum number of tiles examined together."""
SCORE_COST = {32: 1.35, 64: 1.0, 128: 0.9}


@dataclass(frozen=True)
class Group:
    """Query tiles that see the same number of key tiles.

    Attributes:
        rows: `(n,)` indices of the query tiles, ascending.
        columns: `(n, m)` indices of the key tiles that each of them sees, ascending.
        masks: `(u, H or 1, size, m·size)` bool, the distinct masks; `None` if all tiles are full.
        mask_ids: `(n,)` index of each query tile's mask.
        name: the cache key of this group.
        first_row: the first query tile, if they are consecutive; otherwise `None`.
        first_column, step: a band has consecutive rows and `columns[i, j] == first_column + i·step + j`; otherwise
            `step` is `None`.
    """

    rows: Tensor
    columns: Tensor
    masks: Tensor | None
    mask_ids: Tensor
    first_row: int | None
    first_column: int
    step: int | None
    name: object = field(default_factory=object, compare=False)

    def to(self, device: torch.device) -> Group:
        """Returns the group with its tensors on a device."""
        masks = None if self.masks is None else self.masks.to(device)
        rows, columns, mask_ids = (part.to(device) for part in (self.rows, self.columns, self.mask_ids))
        return replace(self, rows=rows, columns=columns, masks=masks, mask_ids=mask_ids, name=object())

    @cached_property
    def hides_whole_rows(self) -> bool:
        """Whether some query of the group sees nothing."""
        return self.columns.shape[1] == 0 or (self.masks is not None and not bool(self.masks.any(dim=-1).all()))

    @cached_property
    def mask_bounds(self) -> list[int]:
        """Indices in the group where the mask changes from one query tile to the next."""
        return ((self.mask_ids[1:] != self.mask_ids[:-1]).nonzero()[:, 0] + 1).tolist()


@dataclass(frozen=True)
class Layout:
    """The tiles of one pattern at one length.

    Attributes:
        size: side of a tile.
        queries, keys: number of queries and keys.
        query_tiles, key_tiles: number of tiles, of which the last may be partial.
        scores: number of computed scores per head, including masked ones.
    """

    size: int
    queries: int
    keys: int
    groups: tuple[Group, ...]
    query_tiles: int
    key_tiles: int
    scores: int

    def to(self, device: torch.device) -> Layout:
        """Returns the layout with its tensors on a device."""
        return replace(self, groups=tuple(group.to(device) for group in self.groups))


@cached
def best_layout(
    pattern: Pattern, queries: int, keys: int, query_offset: int, device: torch.device, *, one_tile: bool = False
) -> Layout:
    """Returns the cheapest layout over the tile sizes, with its tensors on a device.

    With `one_tile`, a short input may be a single tile, which is dense attention.
    """
    size = min(_costs(pattern, queries, keys, query_offset, one_tile))[1]
    return layout(pattern, queries, keys, query_offset, size).to(device)


@cached
def least_cost(pattern: Pattern, queries: int, keys: int, query_offset: int = 0) -> float:
    """Returns the cost of the best layout, in scores of the middle tile size."""
    return min(_costs(pattern, queries, keys, query_offset))[0]


def _costs(
    pattern: Pattern, queries: int, keys: int, query_offset: int, one_tile: bool = False
) -> list[tuple[float, int]]:
    """Returns cost and size for each tile size, by counting tiles only: creating unused masks would cost more than the
    rest."""
    sizes = [size for size in TILE_SIZES if size <= max(queries, TILE_SIZES[0])]
    if one_tile and queries == keys and 0 < queries * keys <= ONE_TILE:
        sizes.append(queries)
    counts = [visible_tiles(pattern, queries, keys, query_offset, size).shape[1] for size in sizes]
    costs = [SCORE_COST.get(size, SCORE_COST[TILE_SIZES[-1]]) for size in sizes]
    return [(count * size**2 * score_cost, size) for count, size, score_cost in zip(counts, sizes, costs, strict=True)]


def layout(pattern: Pattern, queries: int, keys: int, query_offset: int, size: int) -> Layout:
    """Cuts `queries` × `keys` into tiles of `size`, and keeps those in which `pattern` shows something to some head."""
    tiles = visible_tiles(pattern, queries, keys, query_offset, size)
    counts = torch.bincount(tiles[0], minlength=-(-queries // size))
    offsets = counts.cumsum(0) - counts
    groups = []
    for count in counts.unique().tolist():
        rows = (counts == count).nonzero()[:, 0]
        columns = tiles[1][offsets[rows, None] + torch.arange(count)]
        masks, mask_ids = _masks(pattern, rows, columns, keys, query_offset, size)
        first_row = int(rows[0]) if int(rows[-1]) - int(rows[0]) == len(rows) - 1 else None
        first_column = int(columns[0, 0]) if columns.numel() else 0
        groups.append(Group(rows, columns, masks, mask_ids, first_row, first_column, _regular_step(rows, columns)))
    scores = sum(group.columns.numel() for group in groups) * size**2
    return Layout(size, queries, keys, tuple(groups), -(-queries // size), -(-keys // size), scores)


def visible_tiles(pattern: Pattern, queries: int, keys: int, query_offset: int, size: int) -> Tensor:
    """Returns the query tile and key tile of every tile that may show something, `(2, tiles)`, in row order."""
    key_start = torch.arange(0, keys, size)[None, :]
    key_end = torch.clamp(key_start + size, max=keys) - 1
    rows = max(1, CELLS // max(key_start.shape[1], 1))
    tiles = []
    for first in range(0, -(-queries // size), rows):
        start = torch.arange(first * size, min((first + rows) * size, queries), size)[:, None]
        end = torch.clamp(start + size, max=queries) - 1
        some = pattern.some(Span(start + query_offset, end + query_offset, key_start, key_end))
        some = (some.any(0) if pattern.heads else some).expand(start.shape[0], key_start.shape[1])
        tiles.append(some.nonzero().T + torch.tensor([[first], [0]]))
    return torch.cat(tiles, dim=1) if tiles else torch.zeros(2, 0, dtype=torch.int64)


def _masks(
    pattern: Pattern, rows: Tensor, columns: Tensor, keys: int, query_offset: int, size: int
) -> tuple[Tensor | None, Tensor]:
    """Returns the distinct masks of a group, and the index of each query tile's mask."""
    none = torch.zeros(rows.shape[0], dtype=torch.int64)
    if columns.shape[1] == 0 or rows.shape[0] == 0:
        return None, none
    query_start, key_start = (rows * size + query_offset)[:, None], columns * size
    phases = [*pattern.phase(query_start, key_start), torch.clamp(keys - key_start, max=size)]
    stacked = torch.stack([phase.expand(columns.shape) for phase in phases], dim=-1).flatten(1)
    _, mask_ids = torch.unique(stacked, dim=0, return_inverse=True)
    kinds = int(mask_ids.max()) + 1
    pick = torch.empty(kinds, dtype=torch.int64).scatter_(0, mask_ids, torch.arange(rows.shape[0]))
    query_index = query_start[pick, :, None] + torch.arange(size)[:, None]
    key_index = (key_start[pick, :, None] + torch.arange(size)).flatten(1)[:, None]
    masks = pattern.visible(query_index, key_index) & (key_index < keys)
    masks = masks.transpose(0, 1).contiguous() if pattern.heads else masks[:, None]
    return (None, none) if bool(masks.all()) else (masks, mask_ids)


def _regular_step(rows: Tensor, columns: Tensor) -> int | None:
    """Returns the constant step of a band of tiles, or `None`; a band never runs backwards, though two tiles may."""
    if rows.numel() == 0 or columns.numel() == 0:
        return None
    step = int(columns[1, 0] - columns[0, 0]) if rows.numel() > 1 else 0
    if step < 0:
        return None
    expected = columns[0, 0] + step * torch.arange(rows.numel())[:, None] + torch.arange(columns.shape[1])
    consecutive = rows == rows[0] + torch.arange(rows.numel())
    return step if bool(consecutive.all()) and bool((columns == expected).all()) else None


class Traits(NamedTuple):
    """The properties of a pattern by which a call is dispatched.

    Attributes:
        is_rearranged: whether tiles may be computed by head, by residue class, or in a near and a far part.
    """

    heads: int | None
    is_full: bool
    is_causal: bool
    reads_length: bool
    is_rearranged: bool


def traits_of(pattern: Pattern) -> Traits:
    """Returns the properties of a pattern, stored on it outside of compiled graphs: a cache lookup by value would take
    a microsecond, several times per call of `attend`."""
    if torch.compiler.is_compiling():
        return _traits_of(pattern)
    known = pattern.__dict__.get("_traits")
    if known is None:
        known = pattern.__dict__["_traits"] = _traits_of(pattern)
    return known


def _traits_of(pattern: Pattern) -> Traits:
    splits = pattern.heads is not None or pattern.residues() is not None or pattern.near_far() is not None
    return Traits(pattern.heads, pattern.is_full, pattern.is_causal, pattern.reads_length, splits)
