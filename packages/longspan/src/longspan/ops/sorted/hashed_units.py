"""One round of hashing as units: runs of queries, and the run of keys that all of them see, both in the order of
buckets.

A bucket all of whose chunks see each other is one unit, as long as the bucket; of others every chunk is one. Units of
like length make a piece, and are computed together, so that little is filled up. In the causal form a unit is a part of
a chunk, filled up to its full size, and a piece has always as many, so that a later token changes no shape, and no
earlier output by as much as a bit.
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
"""Where a piece has a quarter of these, a unit that is shorter than so much of the longest begins the next."""
EXACT = 1 << 24
"""From here on float32 does not tell whole numbers apart."""


@dataclass(frozen=True, kw_only=True)
class Chunks:
    """What a query sees of its bucket, and how it is weighed.

    Attributes:
        size: tokens of a chunk, m.
        before: chunks that are seen before a query's own.
        after: chunks that are seen after it; 0 in the causal form.
        causal: only earlier tokens are seen.
        scale: factor on the products of queries and unit keys.
        once: a key that is seen in several rounds counts once, and else so many times.
        shared: a query is also its token's key, at length 1, and sees itself only where it sees no other; else keys are
            given beside the queries, and a query sees its own.
    """

    size: int
    before: int
    after: int
    causal: bool
    scale: float
    once: bool
    shared: bool = True

    def allow(self, query_places: Tensor, key_places: Tensor) -> Tensor:
        """Which tokens a query may see, by their places in the text, which broadcast."""
        visible = key_places <= query_places if self.causal else torch.ones_like(key_places == query_places)
        return visible & (key_places != query_places) if self.shared else visible


class Units(NamedTuple):
    """Runs of the sorted tokens, all with as many keys before their first query.

    Attributes:
        first: `(U,)` the place of the first query.
        queries: `(U,)` how many there are.
        keys: `(U,)` how many keys; the same tensor as `queries` where units are whole buckets.
        shift: how many of the keys stand before the first query.
    """

    first: Tensor
    queries: Tensor
    keys: Tensor
    shift: int

    @property
    def whole(self) -> bool:
        return self.keys is self.queries

    def part(self, which: slice | Tensor) -> Units:
        """The units of these indices, `(U',)`."""
        queries = self.queries[which]
        return Units(self.first[which], queries, queries if self.whole else self.keys[which], self.shift)


class Piece(NamedTuple):
    """G units that are computed together, filled up to n queries and S keys by repeating the last.

    Attributes:
        queries: `(G·n,)` their rows.
        keys: `(G·S,)`; the same tensor as `queries` where units are whole buckets.
        sizes: G, n and S.
        shift: the place among the keys where the first query stands.
        no_query: `(G·n,)` bool, True where no query is; `None` for nowhere.
        no_key: `(G, 1, S)` bool, True where no key is; `None` for nowhere, and where the causal form hides what comes
            later.
    """

    queries: Tensor
    keys: Tensor
    sizes: tuple[int, int, int]
    shift: int
    no_query: Tensor | None
    no_key: Tensor | None


def step_of(size: int, filled: int) -> int:
    """Queries of a unit of the causal form, whose buckets hold so many tokens on average: a part of a chunk where that
    would stand empty."""
    parts = [count for count in (4, 2) if size % count == 0 and count * filled <= size // 2]
    return size // (parts[0] if parts else 1)


class Round:
    """The order of one round.

    Args:
        ids: `(B, H, T)` int64, the bucket of each token, −1 for padding.
        rows: `(B·H·T,)` the row of each of these tokens among the vectors `(B·T·H, D)`.
        chunks: what a query sees.
        most: a bound on the number of buckets.
    """

    def __init__(self, ids: Tensor, rows: Tensor, chunks: Chunks, most: int) -> None:
        self.chunks, self.length, groups = chunks, ids.shape[2], ids.shape[:2].numel()
        self.most_scores = SIZES[ids.is_cuda].sorted_scores
        first = torch.arange(groups, device=ids.device)[:, None] * (most + 1)
        where = (torch.where(ids == NOWHERE, most, ids).flatten(0, 1) + first).flatten()
        # Short integers are sorted several times faster.
        short = torch.int16 if groups * (most + 1) < 1 << 15 else torch.int32
        ordered, order = where.to(short).sort(stable=True)
        self.buckets, self.rows = ordered.long(), rows.index_select(0, order)
        if where.is_cuda:  # where counting into bins would be waited for
            counts = where.new_zeros(groups * (most + 1)).scatter_add_(0, where, torch.ones_like(where))
        else:
            counts = torch.bincount(where, minlength=groups * (most + 1))
        self.starts, self.counts = counts.cumsum(0) - counts, counts.view(groups, most + 1)

    def codes(self, reach: int, dtype: torch.dtype) -> Tensor:
        """A number for bucket and chunk of each row, `(B·T·H,)`: chunks of a bucket follow each other, and those of two
        buckets of a head are more than `reach` apart."""
        size, place = self.chunks.size, torch.arange(len(self.rows), device=self.rows.device)
        chunks = torch.div(self.counts + size - 1, size, rounding_mode="floor")
        first = chunks.cumsum(1) - chunks + torch.arange(chunks.shape[1], device=chunks.device) * reach
        inside = torch.div(place - self.starts[self.buckets], size, rounding_mode="floor")
        codes = first.flatten()[self.buckets] + inside
        dtype = torch.float64 if self.length + chunks.shape[1] * (reach + 1) >= EXACT else dtype
        return torch.empty(len(codes), dtype=dtype, device=codes.device).scatter_(0, self.rows, codes.to(dtype))

    def pieces(self) -> Iterator[Piece]:
        """All units of all buckets, in pieces that are computed together; padding has none."""
        if self.rows.is_cuda:
            yield from self._pieces_unseen()
            return
        counts = self.counts[:, :-1].flatten()  # without those of padding
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
        """The same without looking at the buckets, which a GPU would be waited for: every chunk of every bucket that
        there may be is a unit, with all the keys that a chunk may see."""
        size, chunks, (groups, buckets) = self.chunks.size, self.chunks, self.counts.shape
        before, after = (min(each, self.length // size + 1) for each in (chunks.before, chunks.after))
        shift, widest, most = before * size, (before + 1 + after) * size, self.length // size + buckets - 1
        counts, starts = self.counts[:, :-1].flatten(), self.starts.view(self.counts.shape)[:, :-1].flatten()
        each = torch.div(counts + size - 1, size, rounding_mode="floor")
        ends, unit = each.cumsum(0), torch.arange(groups * min(most, self.length), device=counts.device)
        bucket = torch.searchsorted(ends, unit, right=True).clamp_(max=len(ends) - 1)
        first = (unit - (ends - each)[bucket]) * size  # in its bucket
        query = first[:, None] + torch.arange(size, device=first.device)
        key = first[:, None] + torch.arange(-shift, widest - shift, device=first.device)
        held, start, last = counts[bucket][:, None], starts[bucket][:, None], len(self.rows) - 1
        together = max(1, self.most_scores // (size * widest))
        for begin in range(0, len(unit), together):
            part = slice(begin, begin + together)
            queries, keys = (self.rows[(start[part] + each[part]).clamp(0, last).flatten()] for each in (query, key))
            no_query, no_key = query[part] >= held[part], (key[part] < 0) | (key[part] >= held[part])
            yield Piece(queries, keys, (len(no_key), size, widest), shift, no_query.flatten(), no_key[:, None])

    def _runs_of(self, starts: Tensor, counts: Tensor, step: int) -> Iterator[Units]:
        """The queries of buckets in runs of `step`, which divides a chunk; those with as many keys before them at a
        time."""
        size, chunks = self.chunks.size, self.chunks
        each = torch.div(counts + step - 1, step, rounding_mode="floor")
        starts, counts = starts.repeat_interleave(each), counts.repeat_interleave(each)
        number = torch.arange(len(starts), device=starts.device) - (each.cumsum(0) - each).repeat_interleave(each)
        first = number * step
        chunk = torch.div(first, size, rounding_mode="floor")
        shifts = first - (chunk - chunks.before).clamp(min=0) * size
        end = first + step if chunks.causal else (chunk + chunks.after + 1) * size
        keys, queries = torch.minimum(counts, end) - first + shifts, (counts - first).clamp(max=step)
        for shift in shifts.unique().tolist():
            runs = (shifts == shift).nonzero().flatten()
            yield Units((starts + first)[runs], queries[runs], keys[runs], shift)

    def _alike(self, units: Units) -> Iterator[Piece]:
        """Pieces of units of like length."""
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
        """Pieces of so many runs, whatever there are."""
        keys, (groups, buckets), size = units.shift + step, self.counts.shape, self.chunks.size
        # So many tokens of its bucket stand before such a run, which bounds how many there can be.
        most = groups * min(buckets - 1 if keys <= size else self.length, self.length // max(1, min(units.shift, size)))
        together = max(1, min(self.most_scores // (step * keys), most))
        missing = -len(units.first) % together
        # Chunks without a query fill up the last piece.
        filled = Units(
            torch.cat([units.first, units.first[-1:].expand(missing)]),
            torch.cat([units.queries, units.queries.new_zeros(missing)]),
            torch.cat([units.keys, units.keys[-1:].expand(missing)]),
            units.shift,
        )
        for start in range(0, len(filled.first), together):
            yield self._piece(filled.part(slice(start, start + together)), step, keys)

    def _piece(self, units: Units, deepest: int, widest: int) -> Piece:
        """Units filled up to so many queries and keys."""
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
        """The rows of runs of tokens, `(G·n,)`, the last one repeated up to so many, and which are repeated, `(G,
        n)`."""
        place = torch.arange(most, device=first.device)
        taken = first[:, None] + torch.minimum(place, (count[:, None] - 1).clamp(min=0))
        return self.rows[taken.flatten()], place >= count[:, None]
