"""The relative terms of the scores in the tiles of the blocked backend, without a gather of table rows.

Content-to-position: `M = Q K^rᵀ` has one column per offset; the score of query row r and key column c of a tile stands
at offset c − r, so a tile of scores is M read with a row stride that is one short. Position-to-content: `N = K Q^rᵀ`,
computed once per key tile, has one column per offset too, and is read the same way with rows and columns exchanged.
Both reads are plain strided views. Rows of M and N have room for all offsets that a tile can ask for, so that every
pair of a query and a key has a place of its own, and gradients are written back through the same views. Masks cost
nothing extra: offsets outside of the window are −∞ in M, keys that may not be seen are rows of −∞ in N.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor

from longspan.ops.tiles import Chunk, Layout


@dataclass(frozen=True)
class Relative:
    """The relative terms of one call, over a band of tiles whose first key tile has the index of the query tile.

    Attributes:
        tiling: a layout of one group, in which every query tile sees as many key tiles.
        position_key: `(H, W, D)` by offset key − query, ascending, W = left + 1 + right.
        position_query: `(H, W, D)` by offset key − query, descending.
        left: tokens to the left in the window.
        before: places from the start of a query tile's keys to the first of its own tokens.
        global_bias: `(B, H, tiles, size, G)`, scores to start from in the columns of global keys, −∞ in unused slots.
        hidden: `(B, key tiles, size)` bool, True at keys that may not be seen; `None` if all may.
        empty: `(B, tiles, size)` bool, True at queries that see nothing; `None` if there are none.
        grads: totals of the gradients of `position_key` and `position_query`, which still lack the scale, and of
            `global_bias`, in this order.
    """

    tiling: Layout
    position_key: Tensor
    position_query: Tensor
    left: int
    before: int
    global_bias: Tensor | None = None
    hidden: Tensor | None = None
    empty: Tensor | None = None
    grads: list[Tensor] = field(default_factory=list)
    kept: dict[tuple[str, int, int, torch.dtype], Tensor] = field(default_factory=dict, compare=False)

    @property
    def offsets(self) -> int:
        """Number of offsets in the window, W."""
        return self.position_key.shape[1]

    @cached_property
    def hiding(self) -> list[bool]:
        """For each key tile, whether some key in it is hidden in some row of the batch."""
        return _tiles_with(self.hidden, self.tiling.key_tiles)

    @cached_property
    def emptying(self) -> list[bool]:
        """For each query tile, whether some query in it sees nothing in some row of the batch."""
        return _tiles_with(self.empty, self.tiling.query_tiles)

    @property
    def keys(self) -> int:
        """Number of near keys of a query tile, L."""
        return self.tiling.groups[0].columns.shape[1] * self.tiling.size

    @property
    def stride(self) -> int:
        """Columns in a row of M and of N: at least one per offset between a query and a key of its tiles.

        A column of scores reads every (stride − 1)-th number of N; an odd number of cache lines between them keeps
        these apart in the cache.
        """
        return (self.keys + self.tiling.size - 2 + 15) // 32 * 32 + 17

    def put_scores(self, scores: Tensor, query: Tensor, keys: Tensor, chunk: Chunk, scale: float) -> None:
        """Write the relative terms to the scores `(b, h, n, size, L + G)` of a chunk, and compute in their type.

        Args:
            query: queries of the chunk `(b, h, n, size, D)`.
            keys: all key tiles `(B, H, tiles, size, D)`.
        """
        wide = scores.dtype
        size, near = self.tiling.size, scores[..., : self.keys].flatten(0, 1)
        position_key, position_query = self._tables(chunk, near.shape[0], wide)
        by_query = self._kept("query", near.shape[0], chunk.count * size, wide, fill=-math.inf)
        rows = query.flatten(0, 1).flatten(1, 2).to(wide)
        self._by_query_window(by_query).baddbmm_(rows, position_key.transpose(1, 2), beta=0, alpha=scale)
        run = self._run(keys, chunk).flatten(2, 3).flatten(0, 1).to(wide)
        by_key = self._by_key(run, position_query, chunk, scale)
        near.copy_(self._read_by_key(by_key, chunk))
        for hidden, _ in self._hidden_runs(by_key, chunk):
            hidden.zero_()
        near.add_(self._read_by_query(by_query, chunk))
        if self.global_bias is not None:
            scores[..., self.keys :].copy_(self.global_bias[chunk.batch, chunk.heads, self._rows(chunk)])

    def empty_rows(self, chunk: Chunk) -> Tensor | None:
        """`(b, 1, n, size, 1)` bool, True for queries that see nothing; `None` where there are none."""
        rows = self._rows(chunk)
        if self.empty is None or not any(self.emptying[rows]):
            return None
        return self.empty[chunk.batch, None, rows, :, None]

    def _by_key(self, run: Tensor, position_query: Tensor, chunk: Chunk, scale: float) -> Tensor:
        """N of the keys `(b·h, rows, D)` of a run; rows of hidden keys are −∞ throughout, and must be 0 afterwards."""
        by_key = self._kept("key", run.shape[0], run.shape[1], run.dtype)
        self._by_key_window(by_key).baddbmm_(run, position_query.transpose(1, 2), beta=0, alpha=scale)
        for rows, hidden in self._hidden_runs(by_key, chunk):
            rows.masked_fill_(hidden[:, None, :, :, None], -math.inf)
        return by_key

    def _hidden_runs(self, by_key: Tensor, chunk: Chunk) -> Iterator[tuple[Tensor, Tensor]]:
        """Neighbouring key tiles of a chunk with hidden keys: their rows of N `(b, h, tiles, size, stride)`, and which
        are hidden, `(b, tiles, size)`. Mostly these are few: the ends of a text."""
        tiles = self._run_tiles(chunk)
        if self.hidden is None:
            return
        hidden = self.hidden[chunk.batch, tiles]
        rows = by_key.unflatten(1, hidden.shape[1:]).unflatten(0, (hidden.shape[0], -1))
        place = 0
        for hides, run in groupby(self.hiding[tiles]):
            first, place = place, place + len(list(run))
            if hides:
                yield rows[:, :, first:place], hidden[:, first:place]

    def add_gradients(
        self,
        grad: Tensor,
        query: Tensor,
        grad_query: Tensor,
        keys: Tensor,
        grad_keys: Tensor,
        chunk: Chunk,
        scale: float,
    ) -> None:
        """From the gradient of the scores `(b, h, n, size, L + G)`, add to those of all that they were made of.

        `grad_query` is that of the queries of the chunk, `grad_keys` that of all key tiles, still without the scale.
        """
        (batch, heads), size, dtype = grad.shape[:2], self.tiling.size, grad.dtype
        near = grad[..., : self.keys].flatten(0, 1)
        position_key, position_query = self._tables(chunk, near.shape[0], dtype)
        rows = query.flatten(0, 1).flatten(1, 2)
        by_query = self._kept("grad_query", near.shape[0], chunk.count * size, dtype)
        self._read_by_query(by_query, chunk).copy_(near)
        window = self._by_query_window(by_query)
        grad_query.flatten(0, 1).flatten(1, 2).baddbmm_(window, position_key, alpha=scale)
        self._total(0, chunk, torch.bmm(window.transpose(1, 2), rows), batch)
        run = self._run(keys, chunk)
        by_key = self._kept("grad_key", near.shape[0], run.shape[2] * size, dtype)
        self._read_by_key(by_key, chunk).copy_(near)
        window = self._by_key_window(by_key)
        found = torch.bmm(window, position_query).unflatten(0, (batch, heads)).unflatten(2, (-1, size))
        self._run(grad_keys, chunk).add_(found)
        run = run.flatten(2, 3).flatten(0, 1).to(dtype)
        self._total(1, chunk, torch.bmm(window.transpose(1, 2), run), batch)
        if self.global_bias is not None:
            self.grads[2][chunk.batch, chunk.heads, self._rows(chunk)] = grad[..., self.keys :]

    def _total(self, which: int, chunk: Chunk, found: Tensor, batch: int) -> None:
        total = self.grads[which]
        total[chunk.heads] += found.unflatten(0, (batch, -1)).sum(0, dtype=total.dtype)

    def _tables(self, chunk: Chunk, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Both tables for the heads of a chunk, once per batch row: `(b·h, W, D)`."""
        keys, queries = self.position_key[chunk.heads], self.position_query[chunk.heads]
        batch = count // keys.shape[0]
        return tuple(table.to(dtype).expand(batch, -1, -1, -1).flatten(0, 1) for table in (keys, queries))  # type: ignore[return-value]

    def _rows(self, chunk: Chunk) -> slice:
        """The query tiles of a chunk."""
        return slice(chunk.group.first_row + chunk.first, chunk.group.first_row + chunk.last)

    def _run_tiles(self, chunk: Chunk) -> slice:
        """The key tiles that a chunk sees."""
        return slice(chunk.first_column, chunk.first_column + chunk.count + chunk.width - 1)

    def _run(self, tiles: Tensor, chunk: Chunk) -> Tensor:
        """The key tiles that a chunk sees, each once: `(b, h, n + m − 1, size, D)`."""
        return tiles[chunk.batch, chunk.heads, self._run_tiles(chunk)]

    def _kept(self, name: str, count: int, rows: int, dtype: torch.dtype, fill: float = 0.0) -> Tensor:
        """Working memory `(count, rows, stride)` that was `fill` at first, and is where nothing of its shape is put."""
        place = (name, count, rows, dtype)
        if place not in self.kept:
            self.kept[place] = self.position_key.new_full((count, rows, self.stride), fill, dtype=dtype)
        return self.kept[place]

    def _by_query_window(self, by_query: Tensor) -> Tensor:
        """The columns of M that are offsets of the window: column y holds offset y − (size − 1) − before."""
        first = self.tiling.size - 1 + self.before - self.left
        return by_query[..., first : first + self.offsets]

    def _by_key_window(self, by_key: Tensor) -> Tensor:
        """The columns of N that are offsets of the window: column z holds offset (L − 1) − before − z."""
        first = self.keys - self.offsets - self.before + self.left
        return by_key[..., first : first + self.offsets]

    def _read_by_query(self, by_query: Tensor, chunk: Chunk) -> Tensor:
        """M as scores `(b·h, n, size, L)`: row r, key c at column c − r + size − 1 of row r."""
        size, stride = self.tiling.size, self.stride
        shape = (by_query.shape[0], chunk.count, size, self.keys)
        return by_query.as_strided(shape, (by_query.stride(0), size * stride, stride - 1, 1), size - 1)

    def _read_by_key(self, by_key: Tensor, chunk: Chunk) -> Tensor:
        """N as scores `(b·h, n, size, L)`: row r, key c at column r − c + L − 1 of row c, counted from the tile's first
        key. No two scores share a place."""
        size, stride = self.tiling.size, self.stride
        shape = (by_key.shape[0], chunk.count, size, self.keys)
        return by_key.as_strided(shape, (by_key.stride(0), size * stride, 1, stride - 1), self.keys - 1)


def _tiles_with(flags: Tensor | None, count: int) -> list[bool]:
    """Which of the tiles `(B, tiles, size)` have a flag set."""
    return [False] * count if flags is None else flags.any(-1).any(0).tolist()
