"""All terms of one call in the tiles of the blocked backend: biases, which are added to the scores of a chunk without a
product, and content terms, from `content_tiles`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.call import Call
from longspan.ops.attend.terms import Bias, GlobalKeyBias, OffsetTerm, PositionBias, SoftSpan
from longspan.ops.runtime import Buffers
from longspan.ops.tiles.chunks import Chunk, Tiles, put
from longspan.ops.tiles.content_tiles import ContentTiles, Offsets
from longspan.ops.tiles.layout import Layout


class BiasTiles:
    """A bias `(B or 1, H or 1, T or 1, S or 1)` of near keys, read without expanding it."""

    def __init__(self, term: Bias, tiling: Layout, wanted: list[bool]) -> None:
        self.values, self.tiling = term.values, tiling
        wide = torch.promote_types(term.values.dtype, torch.float32)
        self.total = torch.zeros_like(term.values, dtype=wide) if any(wanted) else None

    def gradients(self) -> list[Tensor]:
        return [self.values.new_empty(0) if self.total is None else self.total.to(self.values.dtype)]

    def of(self, chunk: Chunk) -> Tensor:
        """Returns the bias of a chunk, `(b or 1, h or 1, n or 1, size or 1, L)`; positions beyond the end repeat the
        last one."""
        query, key = self._places(chunk)
        return self._part(self.values, chunk)[:, :, query, key]

    def add_gradient(self, grad: Tensor, chunk: Chunk) -> None:
        """Adds the gradient of the near scores `(b, h, n, size, L)` of a chunk."""
        if self.total is None:
            return
        axes = [axis for axis, size in enumerate((*self.values.shape[:2], 0, *self.values.shape[2:])) if size == 1]
        grad = (grad.sum(axes, keepdim=True) if axes else grad).to(self.total.dtype)
        query, key = self._places(chunk)
        key = key[..., :1] if self.values.shape[3] == 1 else key
        query = query.expand(chunk.count, -1, -1)
        torch.ops.aten.index_put_(self._part(self.total, chunk), [None, None, query, key], grad, True)

    def _part(self, values: Tensor, chunk: Chunk) -> Tensor:
        batch = chunk.batch if values.shape[0] > 1 else slice(None)
        return values[batch, chunk.heads if values.shape[1] > 1 else slice(None)]

    def _places(self, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """Returns queries `(n, size, 1)`, or `(1, 1, 1)` if the bias has one for all, and keys `(n, 1, L)`."""
        query, key = places(chunk, self.tiling.size)
        query = query.clamp(max=min(self.tiling.queries, self.values.shape[2]) - 1)
        query = query[:1, :1] if self.values.shape[2] == 1 else query
        return query, key.clamp(max=min(self.tiling.keys, self.values.shape[3]) - 1)


class PositionBiasTiles:
    """A number for each head and offset: the tiles of a band are all equal."""

    def __init__(self, term: PositionBias, tiling: Layout, offsets: Offsets, wanted: list[bool]) -> None:
        self.term, self.size, self.offsets = term, tiling.size, offsets
        wide = torch.promote_types(term.table.dtype, torch.float32)
        self.total = torch.zeros_like(term.table, dtype=wide) if any(wanted) else None

    def gradients(self) -> list[Tensor]:
        return [self.term.table.new_empty(0) if self.total is None else self.total.to(self.term.table.dtype)]

    def of(self, chunk: Chunk) -> Tensor:
        """Returns the bias of a chunk, `(1, h, n or 1, size, L)`."""
        return self.term.table[chunk.heads][:, self._rows(chunk)][None]

    def add_gradient(self, grad: Tensor, chunk: Chunk) -> None:
        """Adds the gradient of the near scores `(b, h, n, size, L)` of a chunk."""
        if self.total is not None:
            summed = grad.sum((0, 2) if chunk.is_band else 0, dtype=self.total.dtype)
            self.total[chunk.heads].index_add_(1, self._rows(chunk).flatten(), summed.flatten(1))

    def _rows(self, chunk: Chunk) -> Tensor:
        query, key = places(chunk, self.size, alike=chunk.is_band)
        return self.term.rows((key - query + self.offsets.start) * self.offsets.step)


class SoftSpanTiles:
    """The soft end of an adaptive attention span. If all queries have one span, the tiles of a band are all equal."""

    def __init__(self, term: SoftSpan, tiling: Layout, offsets: Offsets, wanted: list[bool]) -> None:
        self.term, self.size, self.offsets, self.queries = term, tiling.size, offsets, tiling.queries
        wide = torch.promote_types(term.span.dtype, torch.float32)
        span, self.by_query = term.span.to(wide), term.span.shape[2] > 1
        if self.by_query:
            missing = tiling.query_tiles * tiling.size - span.shape[2]
            span = F.pad(span, (0, missing)).unflatten(2, (-1, tiling.size))
        else:
            span = span[:, :, None]
        self.spans = span[..., None]
        self.total = torch.zeros_like(self.spans) if any(wanted) else None

    def gradients(self) -> list[Tensor]:
        if self.total is None:
            return [self.term.span.new_empty(0)]
        total = self.total.flatten(2, 4)
        return [(total[..., : self.queries] if self.by_query else total).to(self.term.span.dtype).contiguous()]

    def of(self, chunk: Chunk) -> Tensor:
        """Returns log m, `(b or 1, h, n or 1, size, L)`, −∞ beyond the span and its ramp."""
        shares = self._shares(chunk)
        return shares.clamp_(0, 1).log_()

    def add_gradient(self, grad: Tensor, chunk: Chunk) -> None:
        """Adds the gradient of the near scores `(b, h, n, size, L)` of a chunk: `1 / (R m)` on the ramp, otherwise
        0."""
        if self.total is None:
            return
        shares = self._shares(chunk)
        slopes = shares.mul(self.term.ramp).reciprocal_().masked_fill_((shares <= 0) | (shares > 1), 0)
        axes = [axis for axis in (0, 2) if slopes.shape[axis] == 1]
        products = (grad.sum(axes, keepdim=True, dtype=slopes.dtype) if axes else grad).to(slopes.dtype) * slopes
        total = self._part(self.total, chunk)
        summed = products.sum((2, 3, 4), keepdim=True) if not self.by_query else products.sum(4, keepdim=True)
        summed = summed.sum(0, keepdim=True) if total.shape[0] == 1 else summed
        if not self.by_query:
            total.add_(summed)
        elif chunk.first_row is None:
            total.index_add_(2, chunk.rows, summed)
        else:
            total[:, :, chunk.first_row : chunk.first_row + chunk.count].add_(summed)

    def _part(self, spans: Tensor, chunk: Chunk) -> Tensor:
        return spans[chunk.batch if spans.shape[0] > 1 else slice(None), chunk.heads]

    def _shares(self, chunk: Chunk) -> Tensor:
        """Returns m before it is clamped."""
        spans = self._part(self.spans, chunk)
        if self.by_query:
            first = chunk.first_row
            spans = spans.index_select(2, chunk.rows) if first is None else spans[:, :, first : first + chunk.count]
        query, key = places(chunk, self.size, alike=chunk.is_band and not self.by_query)
        return self.term.shares(spans, (key - query + self.offsets.start) * self.offsets.step)


class GlobalKeyTiles:
    """A bias `(B, H, T, G)` of global keys, by query tile."""

    def __init__(self, term: GlobalKeyBias, tiling: Layout, wanted: list[bool]) -> None:
        self.values, self.queries = term.values, tiling.queries
        self.tiles = Tiles(term.values, tiling.query_tiles, tiling.size)
        self.total = term.values.new_empty(self.tiles.shape) if any(wanted) else None

    def gradients(self) -> list[Tensor]:
        if self.total is None:
            return [self.values.new_empty(0)]
        return [self.total.flatten(2, 3)[:, :, : self.queries].contiguous()]

    def of(self, chunk: Chunk) -> Tensor:
        """Returns the bias of a chunk, `(b, h, n, size, G)`."""
        return self.tiles.at(chunk, chunk.rows, chunk.first_row)


def places(chunk: Chunk, size: int, *, alike: bool = False) -> tuple[Tensor, Tensor]:
    """Returns the positions of queries `(n, size, 1)` and near keys `(n, 1, L)` of a chunk, or of its first tile if
    `alike`."""
    count = 1 if alike else chunk.count
    place = torch.arange(size, device=chunk.rows.device)
    query, key = chunk.rows[:count, None] * size + place, chunk.columns[:count, :, None] * size + place
    return query[:, :, None], key.flatten(1)[:, None, :]


class TermTiles:
    """Initialises the scores of a chunk, adds the biases, and distributes the gradients of the terms.

    Args:
        wanted: for each tensor of each term, whether its gradient is needed.
    """

    def __init__(
        self, call: Call, tiling: Layout, buffers: Buffers, key_tiles: Tiles, wanted: Sequence[bool] = ()
    ) -> None:
        self.call, self.tiling, self.keys = call, tiling, key_tiles
        self.offsets = offsets_of(call, tiling)
        self.parts: list[Any] = []
        flags = list(wanted) or [False] * sum(len(term.tensors) for term in call.terms)
        for term in call.terms:
            term_wanted, flags = flags[: len(term.tensors)], flags[len(term.tensors) :]
            if isinstance(term, Bias):
                self.parts.append(BiasTiles(term, tiling, term_wanted))
            elif isinstance(term, PositionBias):
                self.parts.append(PositionBiasTiles(term, tiling, self.offsets, term_wanted))
            elif isinstance(term, SoftSpan):
                self.parts.append(SoftSpanTiles(term, tiling, self.offsets, term_wanted))
            elif isinstance(term, GlobalKeyBias):
                self.parts.append(GlobalKeyTiles(term, tiling, term_wanted))
            elif isinstance(term, OffsetTerm):
                # Only the term that is written into the scores first may hide what the pattern hides.
                hides = self.offsets.exact and not any(isinstance(part, ContentTiles) for part in self.parts)
                self.parts.append(ContentTiles(term, tiling, self.offsets, buffers, term_wanted, hides))
        self.content = [part for part in self.parts if isinstance(part, ContentTiles)]
        self.added = [part for part in self.parts if isinstance(part, BiasTiles | PositionBiasTiles | SoftSpanTiles)]
        self.columns = [part for part in self.parts if isinstance(part, GlobalKeyTiles)]
        self.starts = bool(self.content or self.columns)
        self.may_hide = any(
            isinstance(part, SoftSpanTiles) or part.values.is_cuda or bool(torch.isneginf(part.values).any())
            for part in self.parts
            if isinstance(part, BiasTiles | GlobalKeyTiles | SoftSpanTiles)
        )

    def hides_pattern(self, chunk: Chunk) -> bool:
        """Whether `start` hides all near keys that the pattern hides."""
        if not self.content or not self.offsets.exact or not self.content[0].uses_band(chunk):
            return False
        last = chunk.first_column + chunk.width + (chunk.count - 1) * (chunk.group.step or 0)
        return last * self.tiling.size <= self.tiling.keys

    def start(self, scores: Tensor, query: Tensor, keys: Tensor, chunk: Chunk) -> None:
        """Writes the content terms and those of global keys to the scores `(b, h, n, size, L + G)`, in their dtype."""
        width = chunk.width * self.tiling.size
        near = scores[..., :width].flatten(0, 1)
        run, pairs = self._keys(keys, chunk)
        for index, part in enumerate(reversed(self.content) if width else ()):
            numbers = part.scores(query, run, pairs, chunk, self.call.scale, scores.dtype)
            near.add_(numbers) if index else near.copy_(numbers)
        if not self.content:
            near.zero_()
        for index, part in enumerate(self.columns):
            scores[..., width:].add_(part.of(chunk)) if index else scores[..., width:].copy_(part.of(chunk))
        if not self.columns and scores.shape[-1] > width:
            scores[..., width:].zero_()

    def added_to(self, chunk: Chunk) -> Tensor | None:
        """Returns the sum of all biases of the near keys of a chunk, `(b or 1, h or 1, n or 1, size or 1, L)`, or
        `None`."""
        biases = [part.of(chunk) for part in self.added]
        return None if not biases else sum(biases[1:], start=biases[0])

    def add_gradients(
        self,
        grad: Tensor,
        query: Tensor,
        grad_query: Tensor,
        keys: Tensor,
        grad_keys: Tensor,
        total: Tensor,
        chunk: Chunk,
    ) -> None:
        """Adds the gradients of everything that contributed to the scores `(b, h, n, size, L + G)`.

        Args:
            grad_query: gradient of the queries of the chunk.
            grad_keys: gradient of the keys of the chunk `(b, h, n, L + G, D)`, not yet scaled.
            total: gradient of all key tiles, not yet scaled.
        """
        width, scale = chunk.width * self.tiling.size, self.call.scale
        for part in self.added if width else ():
            part.add_gradient(grad[..., :width], chunk)
        for part in self.columns:
            if part.total is not None:
                put(part.total, grad[..., width:], chunk)
        near, (run, pairs) = grad[..., :width].flatten(0, 1), self._keys(keys, chunk)
        for part in self.content if width else ():
            grad_content = part.add_gradients(near, query, run, pairs, chunk)
            if part.by_query:
                grad_query.add_(grad_content, alpha=scale)
            elif part.uses_band(chunk):
                first, last = _band(chunk)
                total[chunk.batch, chunk.heads, first:last].add_(grad_content)
            else:
                grad_keys[..., :width, :].add_(grad_content.flatten(3, 4))

    def gradients(self) -> list[Tensor]:
        """Returns the gradients of all tensors of all terms, empty if not wanted."""
        scale = self.call.scale
        return [
            grad
            for part in self.parts
            for grad in (part.gradients(scale) if isinstance(part, ContentTiles) else part.gradients())
        ]

    def _keys(self, keys: Tensor, chunk: Chunk) -> tuple[Tensor | None, Tensor]:
        """Returns the key tiles of a band, each once, and the near keys of a chunk by pair of tiles."""
        width, size = chunk.width, self.tiling.size
        run = self.keys.part(chunk, *_band(chunk)) if chunk.is_band else None
        return run, keys[..., : width * size, :].unflatten(3, (width, size))


def _band(chunk: Chunk) -> tuple[int, int]:
    """Returns the first key tile that a band sees, and the first behind them: n + m − 1 tiles."""
    first = chunk.first_column
    return first, first + chunk.count + chunk.width - 1


def offsets_of(call: Call, tiling: Layout) -> Offsets:
    """Returns the range of offsets that the pattern may show in these tiles."""
    low, high, step = call.pattern.reach()
    least = 1 - tiling.query_tiles * tiling.size - call.query_offset
    most = tiling.key_tiles * tiling.size - 1 - call.query_offset
    low, high = min(max(low, least), most), max(min(high, most), least)
    return Offsets(low, max(low, high), step == 1, -call.query_offset, call.step)
