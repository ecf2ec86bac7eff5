"""One round of hashing as units: a range of queries, and the range of keys that all of them see, both sorted by bucket.

A bucket whose chunks all see each other is one unit; otherwise each chunk is one. Units of similar length form a piece,
which is computed as one batch with little filling. In the causal form a unit is a part of a chunk, filled to its full
size, and the number of units in a piece is fixed, so that a later token changes no shape and earlier outputs stay
bit-identical.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from longspan.ops.runtime import SIZES
from longspan.ops.sorted.hashing import NOWHERE

LIKE = 0.9
"""A unit shorter than this fraction of the longest begins the next piece, if the piece has a quarter of these units."""
EXACT = 1 << 24
"""Above this, float32 does not represent all integers."""


@dataclass(frozen=True, kw_only=True)
class Chunks:
    """What a query sees of its bucket, and how scores are weighted.

    Attributes:
        size: chunk size m, in tokens.
        before: number of visible chunks before the query's own.
        after: number of visible chunks after it; 0 in the causal form.
        causal: only earlier tokens are visible.
        scale: factor on the products of queries and normalised keys.
        once: a key that is visible in several rounds counts once; otherwise once per round.
        shared: the keys are the normalised queries, and a query sees itself only if it sees no other; otherwise keys
            are passed separately, and a query sees its own.
    """

    size: int
    before: int
    after: int
    causal: bool
    scale: float
    once: bool
    shared: bool = True

    def allow(self, query_places: Tensor, key_places: Tensor) -> Tensor:
        """Returns which tokens a query may see, from broadcastable positions in the text."""
        visible = key_places <= query_places if self.causal else torch.ones_like(key_places == query_places)
        return visible & (key_places != query_places) if self.shared else visible


class Units(NamedTuple):
    """Ranges of the sorted tokens, all with the same number of keys before their first query.

    Attributes:
        first: `(U,)` the position of the first query.
        queries: `(U,)` number of queries.
        keys: `(U,)` number of keys; the same tensor as `queries` if units are whole buckets.
        shift: number of keys before the first query.
    """

    first: Tensor
    queries: Tensor
    keys: Tensor
    shift: int

    @property
    def whole(self) -> bool:
        return self.keys is self.queries

    def part(self, which: slice | Tensor) -> Units:
        """Returns the units of these indices, `(U',)`."""
        queries = self.queries[which]
        return Units(self.first[which], queries, queries if self.whole else self.keys[which], self.shift)


class Piece(NamedTuple):
    """G units that are computed together, filled to n queries and S keys by repeating the last.

    Attributes:
        queries: `(G·n,)` their rows.
        keys: `(G·S,)`; the same tensor as `queries` if units are whole buckets.
        sizes: G, n and S.
        shift: the index of the first query among the keys.
        no_query: `(G·n,)` bool, True for filler queries; `None` if there are none.
        no_key: `(G, 1, S)` bool, True for filler keys; `None` if there are none, or if the causal mask hides them.
    """

    queries: Tensor
    keys: Tensor
    sizes: tuple[int, int, int]
    shift: int
    no_query: Tensor | None
    no_key: Tensor | None


def step_of(size: int, filled: int) -> int:
    """Returns the queries per unit in the causal form, for buckets of `filled` tokens on average: part of a chunk if
    most of the chunk would be empty."""
    parts = [count for count in (4, 2) if size % count == 0 and count * filled <= size // 2]
    return size // (parts[0] if parts else 1)


class Round:
    """The token order of one round.

    Args:
        ids: `(B, H, T)` int64, the bucket of each token, −1 for padding.
        rows: `(B·H·T,)` the row of each token among the vectors `(B·T·H, D)`.
        chunks: chunk size and visibility.
        most: an upper bound on the number of buckets.
    """

    def __init__(self, ids: Tensor, rows: Tensor, chunks: Chunks, most: int) -> None:
        self.chunks, self.length, groups = chunks, ids.shape[2], ids.shape[:2].numel()
        self.most_scores = SIZES[ids.is_cuda].sorted_scores
        first = torch.arange(groups, device=ids.device)[:, None] * (most + 1)
        where = (torch.where(ids == NOWHERE, most, ids).flatten(0, 1) + first).flatten()
        # Short integers sort several times faster.
        short = torch.int16 if groups * (most + 1) < 1 << 15 else torch.int32
        ordered, order = where.to(short).sort(stable=True)
        self.buckets, self.rows = ordered.long(), rows.index_select(0, order)
        if where.is_cuda:  # `bincount` would synchronise
            counts = where.new_zeros(groups * (most + 1)).scatter_add_(0, where, torch.ones_like(where))
        else:
            counts = torch.bincount(where, minlength=groups * (most + 1))
        self.starts, self.counts = counts.cumsum(0) - counts, counts.view(groups, most + 1)

    def codes(self, reach: int, dtype: torch.dtype) -> Tensor:
        """Returns codes of bucket and chunk for each row, `(B·T·H,)`: consecutive for the chunks of a bucket, more than
        `reach` apart for two buckets of a head."""
        size, place = self.chunks.size, torch.arange(len(self.rows), device=self.rows.device)
        chunks = torch.div(self.counts + size - 1, size, rounding_mode="floor")
        first = chunks.cumsum(1) - chunks + torch.arange(chunks.shape[1], device=chunks.device) * reach
        inside = torch.div(place - self.starts[self.buckets], size, rounding_mode="floor")
        codes = first.flatten()[self.buckets] + inside
        dtype = torch.float64 if self.length + chunks.shape[1] * (reach + 1) >= EXACT else dtype
        return torch.empty(len(codes), dtype=dtype, device=codes.device).scatter_(0, self.rows, codes.to(dtype))

    def pieces(self) -> Iterator[Piece]:
        """Yields all units of all buckets in pieces; padding has none."""
        if self.rows.is_cuda:
            yield from self._pieces_unseen()
            return
        counts = self.counts[:, :-1].flatten()  # without padding
        taken = counts.nonzero().flatten()
        starts, counts = self.starts.view(self.counts.shape)[:, :-1].flatten()[taken], counts[taken]
        if self.chunks.causal:
            step = step_of(self.chunks.size, self.length // max(1, self.counts.shape[1] - 1))
            for units in self._runs_of(starts, counts, step):
                yield from self._causal_pieces(units, step)
            return
        many = counts > self.chunks.size * (1 + min(self.chunks.before, self.chunks.after))
        buckets = Units(starts, counts, counts, 0)
        if not bool(many.any()):
            yield from self._alike(buckets)
            return
        yield from self._alike(buckets.part(~many))
        for units in self._runs_of(starts[many], counts[many], self.chunks.size):
            yield from self._alike(units)

    def _pieces_unseen(self) -> Iterator[Piece]:
        """As `pieces`, without reading bucket sizes, which would synchronise a GPU: every possible chunk of every
        bucket is a unit, with all the keys that a chunk may see."""
        size, chunks, (groups, buckets) = self.chunks.size, self.chunks, self.counts.shape
        before, after = (min(number, self.length // size + 1) for number in (chunks.before, chunks.after))
        shift, widest, most = before * size, (before + 1 + after) * size, self.length // size + buckets - 1
        counts, starts = self.counts[:, :-1].flatten(), self.starts.view(self.counts.shape)[:, :-1].flatten()
        chunk_counts = torch.div(counts + size - 1, size, rounding_mode="floor")
        ends, unit = chunk_counts.cumsum(0), torch.arange(groups * min(most, self.length), device=counts.device)
        bucket = torch.searchsorted(ends, unit, right=True).clamp_(max=len(ends) - 1)
        first = (unit - (ends - chunk_counts)[bucket]) * size  # within its bucket
        query = first[:, None] + torch.arange(size, device=first.device)
        key = first[:, None] + torch.arange(-shift, widest - shift, device=first.device)
        held, start, last = counts[bucket][:, None], starts[bucket][:, None], len(self.rows) - 1
        together = max(1, self.most_scores // (size * widest))
        for begin in range(0, len(unit), together):
            part = slice(begin, begin + together)
            queries, keys = (self.rows[(start[part] + side[part]).clamp(0, last).flatten()] for side in (query, key))
            no_query, no_key = query[part] >= held[part], (key[part] < 0) | (key[part] >= held[part])
            yield Piece(queries, keys, (len(no_key), size, widest), shift, no_query.flatten(), no_key[:, None])

    def _runs_of(self, starts: Tensor, counts: Tensor, step: int) -> Iterator[Units]:
        """Yields the queries of buckets in runs of `step`, which divides a chunk, grouped by the number of keys before
        them."""
        size, chunks = self.chunks.size, self.chunks
        run_counts = torch.div(counts + step - 1, step, rounding_mode="floor")
        starts, counts = starts.repeat_interleave(run_counts), counts.repeat_interleave(run_counts)
        number = torch.arange(len(starts), device=starts.device) - (
            run_counts.cumsum(0) - run_counts
        ).repeat_interleave(run_counts)
        first = number * step
        chunk = torch.div(first, size, rounding_mode="floor")
        shifts = first - (chunk - chunks.before).clamp(min=0) * size
        end = first + step if chunks.causal else (chunk + chunks.after + 1) * size
        keys, queries = torch.minimum(counts, end) - first + shifts, (counts - first).clamp(max=step)
        for shift in shifts.unique().tolist():
            runs = (shifts == shift).nonzero().flatten()
            yield Units((starts + first)[runs], queries[runs], keys[runs], shift)

    def _alike(self, units: Units) -> Iterator[Piece]:
        """Yields pieces of units of similar length."""
        order = units.keys.argsort(descending=True)
        units, start = units.part(order), 0
        queries, keys = units.queries.tolist(), units.keys.tolist()
        while start < len(keys):
            widest = keys[start]
            deepest = widest if units.whole else min(widest, self.chunks.size)
            most = min(len(keys), start + max(1, self.most_scores // (widest * deepest)))
            end = start + max(1, self.most_scores // (4 * widest * deepest))
            while end < most and keys[end] >= LIKE * widest:
                end += 1
            yield self._piece(units.part(slice(start, end)), max(queries[start:end]), widest)
            start = end

    def _causal_pieces(self, units: Units, step: int) -> Iterator[Piece]:
        """Yields pieces of a fixed number of runs, independent of the data."""
        keys, (groups, buckets), size = units.shift + step, self.counts.shape, self.chunks.size
        # An upper bound on the number of runs, from the tokens of their bucket that precede them.
        most = groups * min(buckets - 1 if keys <= size else self.length, self.length // max(1, min(units.shift, size)))
        together = max(1, min(self.most_scores // (step * keys), most))
        missing = -len(units.first) % together
        # Empty runs fill the last piece.
        filled = Units(
            torch.cat([units.first, units.first[-1:].expand(missing)]),
            torch.cat([units.queries, units.queries.new_zeros(missing)]),
            torch.cat([units.keys, units.keys[-1:].expand(missing)]),
            units.shift,
        )
        for start in range(0, len(filled.first), together):
            yield self._piece(filled.part(slice(start, start + together)), step, keys)

    def _piece(self, units: Units, deepest: int, widest: int) -> Piece:
        """Returns a piece of these units, filled to `deepest` queries and `widest` keys."""
        sizes, causal = (len(units.first), deepest, widest), self.chunks.causal
        if units.whole or (causal and not units.shift):
            queries, no_query = self._filled(units.first, units.queries, widest)
            if units.whole and not bool(no_query[-1, -1]):
                return Piece(queries, queries, sizes, 0, None, None)
            return Piece(queries, queries, sizes, 0, no_query.flatten(), None if causal else no_query[:, None])
        keys, no_key = self._filled(units.first - units.shift, units.keys, widest)
        queries, no_query = self._filled(units.first, units.queries, deepest)
        return Piece(queries, keys, sizes, units.shift, no_query.flatten(), None if causal else no_key[:, None])

    def _filled(self, first: Tensor, count: Tensor, most: int) -> tuple[Tensor, Tensor]:
        """Returns the rows of runs of tokens, `(G·n,)`, filled to `most` by repeating the last, and which are fillers,
        `(G, n)`."""
        place = torch.arange(most, device=first.device)
        taken = first[:, None] + torch.minimum(place, (count[:, None] - 1).clamp(min=0))
        return self.rows[taken.flatten()], place >= count[:, None]
