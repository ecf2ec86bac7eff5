"""What is added to the scores of a chunk without a product: a bias of any shape, by offset, or of the global keys."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.ops.attend.terms import Bias, GlobalKeyBias, PositionBias
from longspan.ops.tiles.content_tiles import Offsets
from longspan.ops.tiles.tile_memory import rows_of, tiles_of
from longspan.ops.tiles.tiles import Chunk, Layout


class BiasTiles:
    """A bias `(B or 1, H or 1, T or 1, S or 1)` of near keys: only what it holds is read, and never spread."""

    def __init__(self, term: Bias, tiling: Layout, wanted: list[bool]) -> None:
        self.values, self.tiling = term.values, tiling
        wide = torch.promote_types(term.values.dtype, torch.float32)
        self.total = torch.zeros_like(term.values, dtype=wide) if any(wanted) else None

    def gradients(self) -> list[Tensor]:
        return [self.values.new_empty(0) if self.total is None else self.total.to(self.values.dtype)]

    def of(self, chunk: Chunk) -> Tensor:
        """`(b or 1, h or 1, n or 1, size or 1, L)`; beyond the end the last one is read."""
        query, key = self._places(chunk)
        return self._part(self.values, chunk)[:, :, query, key]

    def add_gradient(self, grad: Tensor, chunk: Chunk) -> None:
        """Add that of the near scores `(b, h, n, size, L)` of a chunk."""
        if self.total is None:
            return
        axes = [axis for axis, size in enumerate((*self.values.shape[:2], 0, *self.values.shape[2:])) if size == 1]
        grad = (grad.sum(axes, keepdim=True) if axes else grad).to(self.total.dtype)
        query, key = self._places(chunk)
        key = key[..., :1] if self.values.shape[3] == 1 else key
        query = query.expand(chunk.count, -1, -1)
        torch.ops.aten.index_put_(self._part(self.total, chunk), [None, None, query, key], grad, True)

    def _part(self, values: Tensor, chunk: Chunk) -> Tensor:
        """The batch rows and heads of a chunk."""
        batch = chunk.batch if values.shape[0] > 1 else slice(None)
        return values[batch, chunk.heads if values.shape[1] > 1 else slice(None)]

    def _places(self, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """Queries `(n, size, 1)`, or `(1, 1, 1)` where all are alike, and keys `(n, 1, L)`."""
        query, key = places(chunk, self.tiling.size)
        query = query.clamp(max=min(self.tiling.queries, self.values.shape[2]) - 1)
        query = query[:1, :1] if self.values.shape[2] == 1 else query
        return query, key.clamp(max=min(self.tiling.keys, self.values.shape[3]) - 1)


class PositionBiasTiles:
    """A number for each head and offset: the tiles of a band are all alike."""

    def __init__(self, term: PositionBias, tiling: Layout, offsets: Offsets, wanted: list[bool]) -> None:
        self.term, self.size, self.offsets = term, tiling.size, offsets
        wide = torch.promote_types(term.table.dtype, torch.float32)
        self.total = torch.zeros_like(term.table, dtype=wide) if any(wanted) else None

    def gradients(self) -> list[Tensor]:
        return [self.term.table.new_empty(0) if self.total is None else self.total.to(self.term.table.dtype)]

    def of(self, chunk: Chunk) -> Tensor:
        """`(1, h, n or 1, size, L)`."""
        return self.term.table[chunk.heads][:, self._rows(chunk)][None]

    def add_gradient(self, grad: Tensor, chunk: Chunk) -> None:
        """Add that of the near scores `(b, h, n, size, L)` of a chunk."""
        if self.total is not None:
            found = grad.sum((0, 2) if chunk.is_band else 0, dtype=self.total.dtype)
            self.total[chunk.heads].index_add_(1, self._rows(chunk).flatten(), found.flatten(1))

    def _rows(self, chunk: Chunk) -> Tensor:
        query, key = places(chunk, self.size, alike=chunk.is_band)
        return self.term.rows((key - query + self.offsets.start) * self.offsets.step)


class GlobalKeyTiles:
    """A bias `(B, H, T, G)` of global keys, by query tile."""

    def __init__(self, term: GlobalKeyBias, tiling: Layout, wanted: list[bool]) -> None:
        self.values, self.queries = term.values, tiling.queries
        self.tiles = tiles_of(term.values, tiling.query_tiles, tiling.size)
        self.total = torch.empty_like(self.tiles) if any(wanted) else None

    def gradients(self) -> list[Tensor]:
        if self.total is None:
            return [self.values.new_empty(0)]
        return [self.total.flatten(2, 3)[:, :, : self.queries].contiguous()]

    def of(self, chunk: Chunk) -> Tensor:
        """`(b, h, n, size, G)`."""
        return rows_of(self.tiles, chunk)


def places(chunk: Chunk, size: int, *, alike: bool = False) -> tuple[Tensor, Tensor]:
    """Positions of queries `(n, size, 1)` and near keys `(n, 1, L)` of a chunk, or of its first tile if alike."""
    count = 1 if alike else chunk.count
    place = torch.arange(size, device=chunk.rows.device)
    query, key = chunk.rows[:count, None] * size + place, chunk.columns[:count, :, None] * size + place
    return query[:, :, None], key.flatten(1)[:, None, :]
