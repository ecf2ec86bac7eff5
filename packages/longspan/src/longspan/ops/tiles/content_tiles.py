"""Content-position products in the tiles of the blocked backend, added to the scores without a tensor over pairs.

A row of a table belongs to an offset. In a band of tiles, `M = Q K^rᵀ` has one column per offset that a query tile can
use; the score of query row r and key column c of a tile is at offset c − r, so a tile of scores is M read with a row
stride reduced by one. For position-to-content, `N = K Q^rᵀ`, computed once per key tile, is read the same way with rows
and columns exchanged. Both are plain strided views without overlapping elements, and gradients are written back through
the same views. Tiles outside a band read 2·size − 1 rows of a table each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.ops.attend.terms import ContentToPosition, OffsetTerm
from longspan.ops.runtime import Buffers
from longspan.ops.tiles.chunks import Chunk
from longspan.ops.tiles.layout import Layout


@dataclass(frozen=True)
class Offsets:
    """The offsets j − i between the tiles of a call.

    Attributes:
        low, high: the smallest and the largest offset that the pattern can show.
        exact: whether the pattern shows exactly these, so that hiding all others implements the pattern.
        start: offset of the first key from the first query.
        step: offset between neighbouring places: the dilation where positions were sorted by residue class.
    """

    low: int
    high: int
    exact: bool
    start: int
    step: int


class ContentTiles:
    """A content term of one call: rows of its table by offset, ascending by query, descending by key."""

    def __init__(
        self, term: OffsetTerm, tiling: Layout, offsets: Offsets, buffers: Buffers, wanted: list[bool], hides: bool
    ) -> None:
        self.term, self.size, self.offsets, self.buffers, self.wanted = term, tiling.size, offsets, buffers, wanted
        self.by_query = isinstance(term, ContentToPosition)
        self.fill = -math.inf if hides else 0.0
        place = torch.arange(offsets.low, offsets.high + 1, device=term.table.device)
        self.read = term.rows((place if self.by_query else place.flip(0)) * offsets.step)
        self.rows = term.table.index_select(1, self.read)
        self.bias = term.query_bias if isinstance(term, ContentToPosition) else None
        self.total = self.rows.new_zeros(self.rows.shape, dtype=buffers.wide) if any(wanted) else None
        self.bias_total = None if self.bias is None else torch.zeros_like(self.bias, dtype=buffers.wide)

    def uses_band(self, chunk: Chunk) -> bool:
        """Whether the term is computed once per tile. N has a row for more queries than see a key, so few query tiles
        with many keys are cheaper by pair."""
        return chunk.is_band and (self.by_query or chunk.width <= 2 * chunk.count + 1)

    def gradients(self, scale: float) -> list[Tensor]:
        """Returns the gradients of the table and of the query bias, empty if not wanted."""
        if self.total is None:
            return [self.rows.new_empty(0) for _ in self.wanted]
        table = torch.zeros_like(self.term.table, dtype=self.total.dtype).index_add_(1, self.read, self.total * scale)
        grads = [table.to(self.rows.dtype)]
        return grads if self.bias_total is None else [*grads, (self.bias_total * scale).to(self.rows.dtype)]

    def scores(
        self, query: Tensor, run: Tensor | None, keys: Tensor, chunk: Chunk, scale: float, dtype: torch.dtype
    ) -> Tensor:
        """Returns the term for a chunk, `(b·h, n, size, L)`, a view of working memory.

        Args:
            query: queries of the chunk `(b, h, n, size, D)`.
            run: the key tiles of a band, each once, `(b, h, tiles, size, D)`; `None` for other chunks.
            keys: the near keys of each query tile `(b, h, n, m, size, D)`, for other chunks.
        """
        content = self._content(query, run, keys, chunk, dtype)
        if not self.uses_band(chunk):
            return self._pair_scores(content, chunk, scale)
        content = content.flatten(0, 1).flatten(1, 2)
        numbers = self._numbers("scores", content.shape[0], content.shape[1], chunk, dtype, self.fill)
        columns, rows = self._band(chunk)
        rows = self._spread(rows.to(dtype), query.shape[0])
        numbers[..., columns].baddbmm_(content, rows.transpose(1, 2), beta=0, alpha=scale)
        return self._read_band(numbers, chunk)

    def add_gradients(self, grad: Tensor, query: Tensor, run: Tensor | None, keys: Tensor, chunk: Chunk) -> Tensor:
        """Returns the gradient of the multiplied queries or keys, not yet scaled, and adds to the totals.

        `grad` is the gradient of the near scores, `(b·h, n, size, L)`; the other arguments are those of `scores`.
        """
        content = self._content(query, run, keys, chunk, grad.dtype)
        if not self.uses_band(chunk):
            return self._pair_gradients(grad, content, chunk)
        flat = content.flatten(0, 1).flatten(1, 2)
        numbers = self._numbers("grad scores", flat.shape[0], flat.shape[1], chunk, grad.dtype, 0.0)
        self._read_band(numbers, chunk).copy_(grad)
        columns, rows = self._band(chunk)
        window = numbers[..., columns]
        if self.total is not None:
            first = self._first_row(chunk)
            grads = torch.bmm(window.transpose(1, 2), flat).unflatten(0, content.shape[:2])
            self.total[chunk.heads, first : first + rows.shape[1]] += grads.sum(0, dtype=self.total.dtype)
        rows = self._spread(rows.to(grad.dtype), content.shape[0])
        result = torch.bmm(window, rows).view(content.shape)
        self._add_bias_gradient(result, chunk)
        return result

    def _content(self, query: Tensor, run: Tensor | None, keys: Tensor, chunk: Chunk, dtype: torch.dtype) -> Tensor:
        """Returns the operand that is multiplied with the rows of the table."""
        if not self.by_query:
            return (keys if run is None or not self.uses_band(chunk) else run).to(dtype)
        query = query.to(dtype)
        return query if self.bias is None else query + self.bias.to(dtype)[chunk.heads, None, None]

    def _add_bias_gradient(self, grad: Tensor, chunk: Chunk) -> None:
        if self.bias_total is not None:
            self.bias_total[chunk.heads] += grad.sum((0, 2, 3), dtype=self.bias_total.dtype)

    def _spread(self, rows: Tensor, batch: int) -> Tensor:
        return rows.expand(batch, *rows.shape).flatten(0, 1)

    def _lowest(self, chunk: Chunk) -> int:
        assert chunk.first_row is not None
        return (chunk.first_column - chunk.first_row) * self.size - (self.size - 1) + self.offsets.start

    def _band(self, chunk: Chunk) -> tuple[slice, Tensor]:
        """Returns the columns of M or N with offsets of the pattern, and their rows of the table."""
        count = chunk.width * self.size + self.size - 1
        low = self._lowest(chunk)
        high = low + count - 1
        first, last = max(low, self.offsets.low), min(high, self.offsets.high)
        start = first - low if self.by_query else high - last
        width = max(0, last - first + 1)
        row = self._first_row(chunk)
        return slice(start, start + width), self.rows[chunk.heads, row : row + width]

    def _first_row(self, chunk: Chunk) -> int:
        low = self._lowest(chunk)
        if self.by_query:
            return max(low - self.offsets.low, 0)
        return max(self.offsets.high - (low + chunk.width * self.size + self.size - 2), 0)

    def _numbers(self, name: str, count: int, rows: int, chunk: Chunk, dtype: torch.dtype, fill: float) -> Tensor:
        """Returns working memory `(count, rows, stride)`, set to `fill` outside the offsets of the pattern."""
        width = chunk.width * self.size
        # A column of scores reads every (stride − 1)-th number of N; an odd number of cache lines between them avoids
        # cache conflicts.
        stride = (width + self.size - 2 + 15) // 32 * 32 + 17
        layout = (count, rows, stride, self._lowest(chunk))
        return self.buffers.take_filled(
            f"{name} {id(self)}", count, rows, stride, dtype=dtype, fill=fill, layout=layout
        )

    def _read_band(self, numbers: Tensor, chunk: Chunk) -> Tensor:
        """Views M or N as scores `(b·h, n, size, L)`: row r, key c at column c − r + size − 1 of M's row r, or at
        column r − c + L − 1 of N's row c, counted from the tile's first key."""
        size, (batch_stride, stride, _) = self.size, numbers.stride()
        shape = (numbers.shape[0], chunk.count, size, chunk.width * size)
        inner, start = ((stride - 1, 1), size - 1) if self.by_query else ((1, stride - 1), shape[3] - 1)
        return numbers.as_strided(shape, (batch_stride, size * stride, *inner), start)

    def _pair_rows(self, chunk: Chunk) -> Tensor:
        """Returns the rows of the table for every pair of tiles, `(n, m, 2·size − 1)`."""
        low = (chunk.columns - chunk.rows[:, None]) * self.size - (self.size - 1) + self.offsets.start
        place = torch.arange(2 * self.size - 1, device=low.device)
        if self.by_query:
            row = low[..., None] + place - self.offsets.low
        else:
            row = self.offsets.high - (low[..., None] + 2 * self.size - 2 - place)
        return row.clamp(0, self.rows.shape[1] - 1)

    def _pair_scores(self, content: Tensor, chunk: Chunk, scale: float) -> Tensor:
        """Computes the term outside a band; keys then have an axis for the key tiles of each query tile."""
        table = self.rows[chunk.heads][:, self._pair_rows(chunk)].to(content.dtype)
        table = table.flatten(2, 3) if self.by_query else table
        numbers = (content * scale) @ table.transpose(-1, -2)
        return self._read_pairs(numbers, chunk).flatten(4, 5).flatten(0, 1)

    def _pair_gradients(self, grad: Tensor, content: Tensor, chunk: Chunk) -> Tensor:
        index = self._pair_rows(chunk)
        table = self.rows[chunk.heads][:, index].to(grad.dtype)
        table = table.flatten(2, 3) if self.by_query else table
        numbers = grad.new_zeros(*content.shape[:-1], table.shape[-2])
        view = self._read_pairs(numbers, chunk)
        view.copy_(grad.view(*content.shape[:2], chunk.count, self.size, chunk.width, self.size))
        if self.total is not None:
            grads = (numbers.transpose(-1, -2) @ content).sum(0, dtype=self.total.dtype)
            self.total[chunk.heads].index_add_(1, index.flatten(), grads.flatten(1, -2))
        result = numbers @ table
        self._add_bias_gradient(result, chunk)
        return result

    def _read_pairs(self, numbers: Tensor, chunk: Chunk) -> Tensor:
        """Views the products as scores `(b, h, n, size, m, size)`, strided as in a band."""
        size, columns = self.size, 2 * self.size - 1
        shape = (*numbers.shape[:2], chunk.count, size, chunk.width, size)
        if self.by_query:
            row = chunk.width * columns
            strides = (*numbers.stride()[:2], size * row, row - 1, columns, 1)
        else:
            strides = (*numbers.stride()[:3], 1, size * columns, columns - 1)
        return numbers.as_strided(shape, strides, size - 1)
