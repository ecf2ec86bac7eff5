"""Windows with terms on a GPU: one row of scores for each query, one column for each offset, in few launches.

Scores in this form need one pass between the products: it gathers the terms by computed index, masks, and applies the
softmax, or in the backward pass its gradient. `longspan.ops.compiled` makes one kernel of it.

**Layout.** With `left` keys before a query, key j is in column `o = j − i + left` of query i. A matrix of columns,
`(rows, stride)`, is 0 where the window has no key. Because key `κ = i + o` of query i is at `i·(stride − 1) + κ`, it is
read in four ways:

- by 64 queries and the `width` keys that some of them see, for products with keys and values;
- by 64 keys and the `width` queries that see some of them, for the gradients of keys and values;
- by query and offset, for the gradient of a content-to-position table;
- by key and offset, for that of a position-to-content table. No axis of this view has stride 1, so it is copied.

So the sums over overlapping tiles are inside the products. The heads of all rows of the batch follow each other in one
sequence of tiles, with zeros between them, so that neighbouring tiles are always the same number of positions apart.

**Why gradients by this form, and the forward pass by FlexAttention.** Milliseconds by `longspan.planning.prediction`,
for 65,536 tokens and 12 heads of 64 in bfloat16 on an H200, a window of 128 on each side, and both content terms:

- Tiles in steps, each a pass over scores in float32: 20.
- Forward pass in this form 2.2, by FlexAttention 1.2. So the latter computes it where it serves the call.
- Backward pass in this form 3.7, or 4.3 with the gradients of query, key and value by FlexAttention, which reads the
  products of tokens and positions once more.
- Backward pass with FlexAttention's gradients of the products: 3.7, if an atomic addition takes no longer than writing
  memory. But there is one for each of 300 million pairs; in ETC, where distances are clipped, 80 pairs of a query have
  one address, and with a bias by head and offset 65,536 of a head have. The sums would depend on the order, and each
  layer would save the products for its backward pass, 1.6 GB.

The gather of position-to-content products is by key, so that neighbouring columns of a row are not neighbours in
memory; the model counts bytes, and not that they are read in sectors of 32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.call import Call, gather_slots
from longspan.ops.attend.terms import (
    ContentToPosition,
    GlobalKeyBias,
    OffsetTerm,
    PositionBias,
    PositionToContent,
)
from longspan.ops.compiled import fused
from longspan.ops.runtime import SIZES, Buffers, cached, full_precision
from longspan.ops.tiles.blocked import LEAST_SCORES
from longspan.patterns.random_blocks import hash_bits

SIZE = 64
"""Queries of a tile: as many as tensor cores multiply at once; each one more widens every row of scores."""
ALIGNED = 8
"""Numbers between rows are a multiple of this, 16 bytes in half precision, which tensor cores require."""
BITS = 31
"""Of a random number of `hash_bits`."""
KINDS = (ContentToPosition, PositionToContent, PositionBias, GlobalKeyBias)


def band_serves(call: Call) -> bool:
    """Whether a call is computed by this module: on a GPU, a window over a longer text, with terms by offset and those
    of global keys, at most one of each kind."""
    kinds = [type(term) for term in call.terms]
    if not (call.query.is_cuda and kinds and call.is_square and call.step == 1 and call.pattern.heads is None):
        return False
    if len(set(kinds)) < len(kinds) or not set(kinds) <= set(KINDS):
        return False
    if any(isinstance(term, ContentToPosition) and term.query_bias is not None for term in call.terms):
        return False
    band = call.pattern.band()
    return band is not None and min(band[:2]) >= 0 and sum(band[:2]) + SIZE <= call.query.shape[2]


@dataclass(frozen=True)
class Sizes:
    """The layout of a call.

    Attributes:
        left: keys before a query, in its window.
        columns: keys of a window, R.
        width: keys of a tile, aligned.
        slots: number of global keys, G, in the columns from `width`.
        stride: columns of a row.
        front: rows before the first query of a head, all of them empty.
        rows: rows of a head, whole tiles.
    """

    left: int
    columns: int
    width: int
    slots: int
    stride: int
    front: int
    rows: int


def sizes_of(call: Call) -> Sizes:
    """Returns the layout of a call of `band_serves`."""
    band = call.pattern.band()
    assert band is not None
    left, right, slots = band[0], band[1], call.global_keys
    columns = left + 1 + right
    width = _rounded(columns + SIZE - 1, ALIGNED)
    # Keys before the first one of a tile are read from the end of the previous row, where columns must be empty.
    stride = (_rounded(width + slots + SIZE - 1, ALIGNED) if slots else width) + 1
    front = _rounded(width, SIZE)
    return Sizes(left, columns, width, slots, stride, front, front + _rounded(call.query.shape[2] + left, SIZE))


def _rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


class _Part(NamedTuple):
    """Some heads of some rows of the batch."""

    batch: slice
    heads: slice


class _Table(NamedTuple):
    """The rows of an offset term's table.

    Attributes:
        term: the term.
        by_offset: `(R,)`, the row that each column reads.
        read: `(C,)`, the rows read by any column, ascending, then the last one again up to a multiple of `ALIGNED`.
        shift: column o reads `read[o + shift]`, clamped to its ends.
    """

    term: OffsetTerm
    by_offset: Tensor
    read: Tensor
    shift: int


class Band:
    """A call computed by this module, as returned by `longspan.ops.tiles.split`."""

    def __init__(self, call: Call) -> None:
        self.call, self.sizes = call, sizes_of(call)
        batch, heads, length, _ = call.query.shape
        buffers = Buffers(call.query)
        self.wide, self.narrow = buffers.wide, buffers.narrow
        if batch * heads * length * self.sizes.columns <= LEAST_SCORES:
            self.narrow = self.wide
        self.content = self.position = self.bias = None
        self.column_bias: Tensor | None = None
        for term in call.terms:
            if isinstance(term, GlobalKeyBias):
                self.column_bias = term.values
            elif isinstance(term, ContentToPosition):
                self.content = self._table(term)
            elif isinstance(term, PositionToContent):
                self.position = self._table(term)
            elif isinstance(term, PositionBias):
                self.bias = self._table(term)
        self.real = self._real_keys()
        self.used = None if call.slots is None else call.slots >= 0

    def output(self) -> Tensor:
        """Computes attention `(B, H, T, Dv)`."""
        call, value = self.call, self.call.value
        result = call.query.new_empty(*call.query.shape[:3], value.shape[3])
        with full_precision(call.query):
            for part in self._parts():
                run = _Run(self, part)
                (weights,) = run.weights()
                mixed = run.by_tile(weights) @ run.keys_of_tiles(run.value)
                mixed = mixed.view(run.heads, self.sizes.rows, -1)
                if run.global_value is not None:
                    mixed = torch.baddbmm(mixed, run.by_slot(weights), run.global_value)
                result[part] = run.of_queries(mixed)
        return result

    def gradients(
        self, grad: Tensor, wanted: Sequence[bool], saved: tuple[Tensor, Tensor] | None = None
    ) -> list[Tensor]:
        """Returns the gradients of query, key, value and the `wanted` tensors of the terms, empty for the others;
        `saved` is not used."""
        call = self.call
        inputs = [torch.empty_like(each, memory_format=torch.contiguous_format) for each in call.tensors[:3]]
        terms = [
            torch.zeros_like(tensor, dtype=self.wide) if need else tensor.new_empty(0)
            for tensor, need in zip(call.tensors[3:], wanted, strict=True)
        ]
        with full_precision(call.query):
            for part in self._parts():
                _Run(self, part).add_gradients(grad[part], inputs, terms)
        return [*inputs, *(total.to(tensor.dtype) for total, tensor in zip(terms, call.tensors[3:], strict=True))]

    def _parts(self) -> Iterator[_Part]:
        """Yields parts of about as many scores as the sizes of the device define."""
        batch, heads = self.call.query.shape[:2]
        count = max(1, SIZES[self.call.query.is_cuda].tile_scores // (self.sizes.rows * self.sizes.stride))
        rows, step = max(1, min(batch, count // heads)), min(heads, count)
        for row in range(0, batch, rows):
            for head in range(0, heads, step):
                yield _Part(slice(row, min(row + rows, batch)), slice(head, min(head + step, heads)))

    def _table(self, term: OffsetTerm) -> _Table:
        sizes, table = self.sizes, term.table
        return _Table(term, *_rows_of_columns(sizes.left, sizes.columns, term.start, table.shape[1], table.device))

    def _real_keys(self) -> Tensor:
        """Returns which keys exist, by row: `(B or 1, rows + R)` bool."""
        call, sizes = self.call, self.sizes
        length, before, rows = call.key.shape[2], sizes.front + sizes.left, sizes.rows + sizes.columns
        if call.key_mask is None:
            return _all_real(before, length, rows, call.key.device)
        return F.pad(call.key_mask, (before, rows - before - length))


class _Run:
    """One part of a call, with its tensors as rows `(heads·rows, D)`, where `heads` are those of all rows of the
    batch."""

    def __init__(self, band: Band, part: _Part) -> None:
        self.band, self.part, self.sizes = band, part, band.sizes
        call, sizes = band.call, band.sizes
        query, key, value = (each[part] for each in (call.query, call.key, call.value))
        self.batch, self.own_heads, self.length = query.shape[:3]
        self.heads = self.batch * self.own_heads
        self.query = self._rows_of(query, sizes.front)
        self.key, self.value = (self._rows_of(each, sizes.front + sizes.left) for each in (key, value))
        self.global_key = self.global_value = None
        if call.slots is not None:
            slots = call.slots[part.batch]
            gathered = (gather_slots(each, slots).flatten(0, 1).to(band.narrow) for each in (key, value))
            self.global_key, self.global_value = gathered

    def weights(self, grad: Tensor | None = None) -> tuple[Tensor, ...]:
        """Returns the weights after dropout as columns, `(heads·rows, stride)`, and with the rows of the output's
        gradient, `grad`, the gradient of the scores."""
        band, call, part, sizes = self.band, self.band.call, self.part, self.sizes
        scores = self._by_offset(self._wide(self._tiles(self.query), self.keys_of_tiles(self.key).mT))
        query, key = self._heads(self.query), self._heads(self.key)
        content, position = self._products(query, band.content), self._products(key, band.position)
        bias = None if band.bias is None else band.bias.term.table[part.heads][:, band.bias.read].to(band.wide)
        columns = None if self.global_key is None else self._by_head(self._wide(query, self.global_key.mT))
        columns_bias = None
        if band.column_bias is not None:
            after = sizes.rows - sizes.front - self.length
            columns_bias = F.pad(band.column_bias[part].to(band.wide), (0, 0, sizes.front, after))
        shifts = tuple(0 if table is None else table.shift for table in (band.content, band.position, band.bias))
        draws = self._draws() if call.dropout_prob else (None, None)
        real = band.real[part.batch if len(band.real) > 1 else slice(None)]
        used = None if band.used is None else band.used[part.batch]
        slopes = column_slopes = None
        if grad is not None:
            slopes = self._by_offset(torch.bmm(self._tiles(grad), self.keys_of_tiles(self.value).mT))
            if self.global_value is not None:
                column_slopes = self._by_head(torch.bmm(self._heads(grad), self.global_value.mT))
        inputs = (slopes, column_slopes, scores, content, position, bias, columns, columns_bias, real, used, *draws)
        numbers = (sizes.width, sizes.stride, shifts, call.scale, call.dropout_prob, band.narrow)
        made = window_pass(*inputs, *numbers)
        return tuple(each.view(-1, sizes.stride) for each in made)

    def add_gradients(self, grad: Tensor, inputs: list[Tensor], terms: list[Tensor]) -> None:
        """Writes the gradients of query, key and value of this part, and adds those of the terms' tensors.

        With weights P, outputs O = PV: dV = PᵀdO, dP = dO Vᵀ, dS = P∘(dP − rowsum(P∘dP)), dQ = dS K, dK = dSᵀQ.
        """
        band, call, part, sizes = self.band, self.band.call, self.part, self.sizes
        scale, rows = call.scale, (self.heads, sizes.rows, -1)
        grad = self._rows_of(grad, sizes.front)
        weights, slopes = self.weights(grad)
        query = self._heads(self.query)
        to_value = self._of_keys(self._by_key(weights) @ self._queries_of_tiles(grad))
        to_key = self._of_keys(self._by_key(slopes) @ self._queries_of_tiles(self.query))
        to_query = (self.by_tile(slopes) @ self.keys_of_tiles(self.key)).view(rows)
        wanted = {id(term): total for term, total in zip(call.terms, terms, strict=True) if total.numel()}
        by_offset = slopes.view(*rows[:2], sizes.stride)[..., : sizes.columns]
        if (table := band.content) is not None:
            to_query = torch.baddbmm(to_query, by_offset, self._by_column(table))
            self._add(wanted, table, lambda: self._wide(by_offset.mT, query))
        if (table := band.position) is not None:
            flipped, count = self._slopes_of_keys(slopes), sizes.columns
            more = flipped.shape[2] - count
            to_key = torch.baddbmm(to_key, flipped, F.pad(self._by_column(table).flip(1), (0, 0, more, 0)))
            key = call.key[part].reshape(self.heads, self.length, -1).to(band.narrow)
            self._add(wanted, table, lambda: self._wide(flipped.mT, key)[:, more:].flip(1))
        if (table := band.bias) is not None:
            self._add(wanted, table, lambda: by_offset.sum(1, dtype=band.wide), 1.0)
        if self.global_key is not None and self.global_value is not None:
            columns = self.by_slot(slopes)
            to_query = torch.baddbmm(to_query, columns, self.global_key)
            self._add_columns(wanted, columns)
        torch.mul(self.of_queries(to_query), scale, out=inputs[0][part])
        torch.mul(to_key.unflatten(0, (self.batch, -1)), scale, out=inputs[1][part])
        inputs[2][part] = to_value.unflatten(0, (self.batch, -1))
        if self.global_key is not None:
            self._add_global(inputs[1], self.by_slot(slopes), query, scale)
            self._add_global(inputs[2], self.by_slot(weights), self._heads(grad), 1.0)

    # Rows of tensors, and the ways of reading a matrix of columns.

    def _rows_of(self, tensor: Tensor, before: int) -> Tensor:
        """`(b, h, T, D)` → `(heads·rows + before, D)`, with zeros before and after each head: the last tiles read those
        at the end."""
        rows, (batch, heads, length, depth) = self.sizes.rows, tensor.shape
        flat = tensor.new_empty(batch * heads * rows + before, depth, dtype=self.band.narrow)
        flat[:before].zero_()
        between = (batch * heads, rows - length, depth)
        flat.as_strided(between, (rows * depth, depth, 1), (before + length) * depth).zero_()
        flat[: batch * heads * rows].view(batch, heads, rows, depth)[:, :, before : before + length] = tensor
        return flat

    def _heads(self, rows: Tensor) -> Tensor:
        """Returns the rows of each head, `(heads, rows, D)`."""
        return rows[: self.heads * self.sizes.rows].view(self.heads, self.sizes.rows, rows.shape[1])

    def of_queries(self, rows: Tensor) -> Tensor:
        """`(heads, rows, D)` → `(b, h, T, D)`."""
        front = self.sizes.front
        return rows.unflatten(0, (self.batch, -1))[:, :, front : front + self.length]

    def _of_keys(self, tiles: Tensor) -> Tensor:
        """Tiles of 64 keys, without those of the first head's front → `(heads, T, D)`."""
        depth = tiles.shape[2]
        shape, strides = (self.heads, self.length, depth), (self.sizes.rows * depth, depth, 1)
        return tiles.as_strided(shape, strides, self.sizes.left * depth)

    def _by_head(self, rows: Tensor) -> Tensor:
        """`(heads, rows, G)` → `(b, h, tiles, 64, G)`."""
        return rows.view(self.batch, self.own_heads, -1, SIZE, rows.shape[2])

    def _tiles(self, rows: Tensor) -> Tensor:
        """Returns the queries of each tile, `(tiles, 64, D)`."""
        return rows[: self.heads * self.sizes.rows].view(-1, SIZE, rows.shape[1])

    def keys_of_tiles(self, rows: Tensor) -> Tensor:
        """Returns the keys of each tile, `(tiles, width, D)`, which overlap."""
        tiles, depth = self.heads * self.sizes.rows // SIZE, rows.shape[1]
        return rows.as_strided((tiles, self.sizes.width, depth), (SIZE * depth, depth, 1), 0)

    def _queries_of_tiles(self, rows: Tensor) -> Tensor:
        """Returns the queries that see some of 64 keys, `(tiles, width, D)`, which overlap."""
        (tiles, first), depth = self._key_tiles(), rows.shape[1]
        return rows.as_strided((tiles, self.sizes.width, depth), (SIZE * depth, depth, 1), first * depth)

    def _key_tiles(self) -> tuple[int, int]:
        """Returns the number of tiles of 64 keys, and the first query of the first one, in the front of a head."""
        sizes = self.sizes
        return (self.heads * sizes.rows - sizes.front) // SIZE, sizes.front - sizes.width + SIZE

    def _by_offset(self, tiles: Tensor) -> Tensor:
        """Tiles `(tiles, 64, width)` → `(b, h, tiles, 64, R)`, a view."""
        strides = tiles.stride()[0], tiles.stride()[1] + 1, 1
        by_offset = tiles.as_strided((len(tiles), SIZE, self.sizes.columns), strides, 0)
        return by_offset.unflatten(0, (self.batch, self.own_heads, -1))

    def by_tile(self, columns: Tensor) -> Tensor:
        """Columns → `(tiles, 64, width)`."""
        stride = self.sizes.stride
        return columns.as_strided((len(columns) // SIZE, SIZE, self.sizes.width), (SIZE * stride, stride - 1, 1), 0)

    def _by_key(self, columns: Tensor) -> Tensor:
        """Columns → `(tiles, 64, width)`, by key and query."""
        (tiles, first), stride, front = self._key_tiles(), self.sizes.stride, self.sizes.front
        start = first * (stride - 1) + front
        return columns.as_strided((tiles, SIZE, self.sizes.width), (SIZE * stride, 1, stride - 1), start)

    def by_slot(self, columns: Tensor) -> Tensor:
        """Columns → those of global keys, `(heads, rows, G)`."""
        first = self.sizes.width
        return columns.view(self.heads, self.sizes.rows, -1)[..., first : first + self.sizes.slots]

    def _slopes_of_keys(self, columns: Tensor) -> Tensor:
        """Columns → a copy by key and descending offset, `(heads, T, R)`, after columns of zeros up to a multiple of
        `ALIGNED`."""
        sizes, count = self.sizes, _rounded(self.sizes.columns, ALIGNED)
        stride = sizes.stride
        start = (sizes.front + sizes.left) * stride - (count - 1) * (stride - 1)
        shape, strides = (self.heads, self.length, count), (sizes.rows * stride, stride, stride - 1)
        return columns.as_strided(shape, strides, start).contiguous()

    # Products and sums.

    def _wide(self, left: Tensor, right: Tensor) -> Tensor:
        """Multiplies without rounding the result: tensor cores accumulate in float32."""
        if left.dtype != self.band.wide and left.is_cuda:
            return torch.bmm(left, right, out_dtype=self.band.wide)
        return left.to(self.band.wide) @ right.to(self.band.wide)

    def _products(self, rows: Tensor, table: _Table | None) -> Tensor | None:
        """Returns the products of tokens `(heads, rows, D)` with the rows of a table, `(b, h, rows, C)`."""
        if table is None:
            return None
        return self._wide(rows, self._spread(table, table.read).mT).unflatten(0, (self.batch, -1))

    def _by_column(self, table: _Table) -> Tensor:
        """Returns the row of a table for each column, `(heads, R, D)`."""
        return self._spread(table, table.by_offset)

    def _spread(self, table: _Table, index: Tensor) -> Tensor:
        rows = table.term.table[self.part.heads].index_select(1, index).to(self.band.narrow)
        return rows.expand(self.batch, *rows.shape).flatten(0, 1)

    def _add(self, wanted: dict[int, Tensor], table: _Table, summed: Any, scale: float | None = None) -> None:
        """Adds the gradient of each column's row, `(heads, R, …)`, to that of the table if it is wanted."""
        total = wanted.get(id(table.term))
        if total is None:
            return
        rows = summed().unflatten(0, (self.batch, -1)).sum(0) * (self.band.call.scale if scale is None else scale)
        total[self.part.heads].index_add_(1, table.by_offset, rows)

    def _add_columns(self, wanted: dict[int, Tensor], slopes: Tensor) -> None:
        """Writes the gradient of the bias of global keys."""
        for term in self.band.call.terms:
            if isinstance(term, GlobalKeyBias) and id(term) in wanted:
                wanted[id(term)][self.part] = self.of_queries(slopes).to(self.band.wide)

    def _add_global(self, total: Tensor, columns: Tensor, rows: Tensor, scale: float) -> None:
        """Adds the gradient of global keys or values, sums over all queries, at their positions."""
        assert self.band.call.slots is not None
        slots = self.band.call.slots[self.part.batch]
        grad = self._wide(columns.mT, rows).unflatten(0, (self.batch, -1)) * scale
        grad = grad * (slots >= 0)[:, None, :, None]
        index = slots.clamp(min=0)[:, None, :, None].expand_as(grad)
        total[self.part].scatter_add_(2, index, grad.to(total.dtype))

    def _draws(self) -> tuple[Tensor, Tensor]:
        """Returns what dropout is drawn from: a random number of each query, `(b, h, tiles, 64, 1)`, and of each
        column, `(stride,)`, int64. They depend on the seed and on the place alone."""
        device, (_, heads, *_) = self.band.call.query.device, self.band.call.query.shape
        batch, own, sizes = self.part.batch, self.part.heads, self.sizes
        numbers = torch.arange(batch.start, batch.stop, device=device)[:, None] * heads
        numbers = (numbers + torch.arange(own.start, own.stop, device=device)).view(-1, own.stop - own.start, 1, 1, 1)
        query = torch.arange(sizes.rows, device=device).view(-1, SIZE, 1)
        queries = hash_bits(hash_bits(numbers + self.band.call.seed % 2**BITS, 1) + query, 2)
        return queries, hash_bits(torch.arange(sizes.stride, device=device), 3)


@cached
def _all_real(before: int, length: int, rows: int, device: torch.device) -> Tensor:
    """Returns `length` keys after `before` rows without any, `(1, rows)` bool."""
    return F.pad(torch.ones(1, length, dtype=torch.bool, device=device), (before, rows - before - length))


@cached
def _rows_of_columns(
    left: int, columns: int, start: int, count: int, device: torch.device
) -> tuple[Tensor, Tensor, int]:
    """Returns `by_offset`, `read` and `shift` of a `_Table` of `count` rows, the first one for offset `start`."""
    low, high = (min(max(offset - start, 0), count - 1) for offset in (-left, columns - 1 - left))
    place = torch.arange(max(columns, _rounded(high - low + 1, ALIGNED)), device=device)
    by_offset = (place[:columns] - left - start).clamp(0, count - 1)
    return by_offset, (place[: _rounded(high - low + 1, ALIGNED)] + low).clamp(max=high), -left - start - low


# The pass between the products. Its tensors are: scores of near keys, not yet scaled, `(b, h, tiles, 64, R)`; products
# of queries and of keys with a table, `(b, h, rows, C)`; a bias, `(h, C)`; scores of global keys, `(b, h, tiles, 64,
# G)`, and their bias, `(b, h, rows, G)`; real near keys, `(b or 1, rows + R)`, and used slots, `(b, G)`, bool; and both
# tensors of `_Run._draws`.


@fused
def window_pass(
    slopes: Tensor | None,
    column_slopes: Tensor | None,
    scores: Tensor,
    content: Tensor | None,
    position: Tensor | None,
    bias: Tensor | None,
    columns: Tensor | None,
    column_bias: Tensor | None,
    real: Tensor,
    used: Tensor | None,
    query_draws: Tensor | None,
    column_draws: Tensor | None,
    width: int,
    stride: int,
    shifts: tuple[int, int, int],
    scale: float,
    prob: float,
    dtype: torch.dtype,
) -> tuple[Tensor, ...]:
    """Returns the weights after dropout, `(b, h, tiles, 64, stride)` in `dtype`, and with `slopes` the gradient of the
    scores.

    Args:
        slopes: the gradient of the weights after dropout for near keys, like `scores`; `None` in the forward pass.
        column_slopes: for global keys, like `columns`.
        shifts: those of the tables of `content`, `position` and `bias`.
    """
    weights = _softmax(scores, content, position, bias, columns, column_bias, real, used, width, stride, shifts, scale)
    factors = None
    if query_draws is not None and column_draws is not None:
        factors = _factors(query_draws, column_draws, prob, weights.dtype)
    kept = (weights if factors is None else weights * factors).to(dtype)
    if slopes is None:
        return (kept,)
    place = torch.arange(stride, device=scores.device)
    grad = slopes[..., place.clamp(max=slopes.shape[-1] - 1)]
    if column_slopes is not None:
        slot = (place - width).clamp(0, column_slopes.shape[-1] - 1)
        grad = torch.where(place < width, grad, column_slopes[..., slot])
    grad = grad.to(weights.dtype) if factors is None else grad * factors
    return kept, (weights * (grad - (grad * weights).sum(-1, keepdim=True))).to(dtype)


def _softmax(
    scores: Tensor,
    content: Tensor | None,
    position: Tensor | None,
    bias: Tensor | None,
    columns: Tensor | None,
    column_bias: Tensor | None,
    real: Tensor,
    used: Tensor | None,
    width: int,
    stride: int,
    shifts: tuple[int, int, int],
    scale: float,
) -> Tensor:
    """Returns the softmax weights, `(b, h, tiles, 64, stride)`, 0 in columns without a key."""
    tiles, count = scores.shape[2], scores.shape[4]
    rows = tiles * SIZE
    place = torch.arange(stride, device=scores.device)
    offset = place.clamp(max=count - 1)
    query = torch.arange(rows, device=scores.device).view(tiles, SIZE, 1)
    key = query + offset
    near = scores[..., offset]
    if content is not None:
        near = near + content[:, :, query, (offset + shifts[0]).clamp(0, content.shape[3] - 1)]
    if position is not None:
        near = near + position[:, :, key.clamp(max=rows - 1), (offset + shifts[1]).clamp(0, position.shape[3] - 1)]
    near = near * scale
    if bias is not None:
        near = near + bias[:, (offset + shifts[2]).clamp(0, bias.shape[1] - 1)][:, None, None]
    shown = ((place < count) & real[:, key])[:, None]
    near = torch.where(shown, near, -math.inf)
    if columns is not None and used is not None:
        slot = (place - width).clamp(0, columns.shape[4] - 1)
        far = columns[..., slot] * scale
        if column_bias is not None:
            far = far + column_bias[:, :, query, slot]
        in_use = ((place >= width) & (place < width + columns.shape[4])) & used[:, slot]
        near = torch.where(in_use[:, None, None, None], far, near)
    highest = near.amax(-1, keepdim=True)
    powers = torch.exp(near - torch.where(highest == -math.inf, 0.0, highest))
    total = powers.sum(-1, keepdim=True)
    return powers / torch.where(total == 0, 1.0, total)


def _factors(query_draws: Tensor, column_draws: Tensor, prob: float, dtype: torch.dtype) -> Tensor:
    """Returns dropout factors, 1/(1 − p) or 0, determined by the seed, the head, and the pair's row and column."""
    kept = hash_bits(query_draws ^ column_draws, 4) >= int(prob * (1 << BITS))
    return kept.to(dtype) * (1 / (1 - prob) if prob < 1 else 0.0)
