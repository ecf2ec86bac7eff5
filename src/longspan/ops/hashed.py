"""Attention among tokens of one bucket, over several rounds of hashing: the dense reference, and chunks of sorted
tokens.

The tokens of a bucket, in the order of their positions, make chunks of m. A query sees its own chunk and those before
(and after) it in its bucket, itself excepted, in every round; the rounds are one softmax over all that is seen in any
of them. A later token never changes the chunk of an earlier one. Source: Kitaev et al. 2020, arXiv 2001.04451, section
2 and appendix A, whose chunks run on over the borders of buckets instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.hashing import NOWHERE
from longspan.ops.reference import dense_weights, full_precision

SPAN = 1 << 31
"""More than there are chunks in a bucket."""
EPSILON = 1e-6


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
        seen = key_places <= query_places if self.causal else torch.ones_like(key_places == query_places)
        return seen & (key_places != query_places) if self.shared else seen


def unit(vectors: Tensor) -> Tensor:
    """Vectors of length 1 along the last dimension: what a shared query is as a key."""
    wide = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    return wide * (wide.square().sum(-1, keepdim=True) + EPSILON * wide.shape[-1]).rsqrt()


def times_seen(ids: Tensor, chunks: Chunks) -> Tensor:
    """In how many rounds each query sees each key, by comparing all pairs: `(B, H, R, T)` → `(B, H, T, T)`."""
    same = (ids[..., :, None] == ids[..., None, :]) & (ids != NOWHERE)[..., None]
    chunk = same.tril(-1).sum(-1) // chunks.size
    offset = chunk[..., None, :] - chunk[..., :, None]
    times = (same & (offset >= -chunks.before) & (offset <= chunks.after)).sum(2)
    places = torch.arange(ids.shape[-1], device=ids.device)
    return times * chunks.allow(places[:, None], places)


def hashed_weights(
    query: Tensor, ids: Tensor, chunks: Chunks, times: Tensor | None = None, key: Tensor | None = None
) -> Tensor:
    """The dense reference: weights `(B, H, T, T)` of queries `(B, H, T, D)` whose buckets are `(B, H, R, T)`, on the
    keys, by default the queries at length 1.

    A query that sees nothing attends to itself; padding has no weights.
    """
    times = times_seen(ids, chunks) if times is None else times
    bias = None if chunks.once else times.clamp(min=1).to(torch.promote_types(query.dtype, torch.float32)).log()
    weights = dense_weights(query, unit(query) if key is None else key, times > 0, scale=chunks.scale, bias=bias)
    alone = (times.sum(-1) == 0) & (ids[:, :, 0] != NOWHERE)
    return weights + torch.diag_embed(alone.to(weights.dtype))


def ranks_in_buckets(ids: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """How many earlier tokens are in each token's bucket, `(…, T)`, and how many each bucket holds, `(…, most + 1)`:
    the last count is that of padding."""
    ids = torch.where(ids == NOWHERE, most, ids)
    ordered, order = ids.sort(dim=-1, stable=True)
    counts = ids.new_zeros(*ids.shape[:-1], most + 1).scatter_add(-1, ids, torch.ones_like(ids))
    starts = counts.cumsum(-1) - counts
    ranks = torch.arange(ids.shape[-1], device=ids.device) - starts.gather(-1, ordered)
    return torch.zeros_like(ids).scatter(-1, order, ranks), counts


def codes_of(ids: Tensor, ranks: Tensor, size: int) -> Tensor:
    """One number for bucket and chunk, `(…, T)`: those of neighbouring chunks of a bucket are neighbours, no others
    are."""
    return torch.where(ids == NOWHERE, -SPAN, ids * SPAN + torch.div(ranks, size, rounding_mode="floor"))


def in_reach(query_codes: Tensor, key_codes: Tensor, chunks: Chunks) -> Tensor:
    """Whether the chunk of a key is one that the query sees, of codes that broadcast."""
    return (key_codes >= query_codes - chunks.before) & (key_codes <= query_codes + chunks.after)


def attend_hashed(
    query: Tensor,
    value: Tensor,
    ids: Tensor,
    chunks: Chunks,
    *,
    most: int,
    dropout_prob: float = 0.0,
    key: Tensor | None = None,
) -> Tensor:
    """Attention of queries over the keys of their buckets: `(B, H, T, D)` → `(B, H, T, D)`; padding gives zeros.

    Args:
        query: `(B, H, T, D)`.
        value: `(B, H, T, D)`.
        ids: `(B, H, R, T)` int64, the bucket of every token in every round, −1 for padding.
        chunks: what a query sees of them.
        most: a bound on the number of buckets.
        dropout_prob: probability of dropping an attention weight.
        key: `(B, H, T, D)` where `chunks` are not `shared`; else the queries at length 1.
    """
    (rounds, length), size = ids.shape[2:], chunks.size
    ranks, counts = ranks_in_buckets(ids, most)
    codes, counts = codes_of(ids, ranks, size), counts[..., :most]
    tiles = torch.div(counts + size - 1, size, rounding_mode="floor")
    room = length // size + most
    if not torch.compiler.is_compiling():
        if not chunks.causal and ids.numel():  # what later tokens fill may not change what earlier ones are computed in
            room = max(1, int(tiles.sum(-1).max()))
        if _dense_is_cheaper(length, rounds * room, chunks):
            times = times_of_codes(codes, chunks)
            return _dense(query, value, hashed_weights(query, ids, chunks, times, key), dropout_prob)
    starts = tiles.cumsum(-1) - tiles
    # Numbers of 32 bits are faster to compare; those between two buckets keep the chunks of one from the other.
    between = torch.arange(most, device=ids.device) * (chunks.before + chunks.after)
    codes = (starts + between).gather(-1, ids.clamp(min=0)) + torch.div(ranks, size, rounding_mode="floor")
    codes = codes.masked_fill(ids == NOWHERE, -SPAN).to(torch.int32)
    slots = starts.gather(-1, ids.clamp(min=0)) * size + ranks
    slots = torch.where(ids == NOWHERE, room * size, slots)
    with full_precision(query):
        return _tiled(query, key, value, codes, slots, room, chunks, dropout_prob)


def _dense_is_cheaper(length: int, tiles: int, chunks: Chunks) -> bool:
    """Whether all pairs of tokens are no more than those in so many tiles."""
    return length * length <= tiles * (1 + chunks.before + chunks.after) * chunks.size**2


def times_of_codes(codes: Tensor, chunks: Chunks) -> Tensor:
    """`times_seen`, from codes `(B, H, R, T)`, one round after the other."""
    times = torch.zeros((), dtype=torch.int8, device=codes.device)
    for each in codes.unbind(2):
        near = in_reach(each[..., None], each[..., None, :], chunks)
        times = times + (near & (each != -SPAN)[..., None]).to(torch.int8)
    places = torch.arange(codes.shape[-1], device=codes.device)
    return times * chunks.allow(places[:, None], places)


def _dense(query: Tensor, value: Tensor, weights: Tensor, dropout_prob: float) -> Tensor:
    with full_precision(query):
        return (F.dropout(weights, dropout_prob) @ value.to(weights.dtype)).to(value.dtype)


def _tiled(
    query: Tensor,
    key: Tensor | None,
    value: Tensor,
    codes: Tensor,
    slots: Tensor,
    room: int,
    chunks: Chunks,
    dropout_prob: float,
) -> Tensor:
    """Every round in tiles of one chunk, at places `slots` `(B, H, R, T)` of `room` tiles, and the rounds together.

    Shapes are made by indices, not by views, which would hold an exported program to lengths of one kind.
    """
    length, size = slots.shape[-1], chunks.size
    wide = torch.promote_types(query.dtype, torch.float32)
    rows = [each.transpose(1, 2).flatten(0, 2) for each in (query, value, *([] if key is None else [key]))]
    places = torch.arange(room, device=slots.device)[:, None] * size + torch.arange(size, device=slots.device)
    rounds: list[tuple[Tensor, ...]] = []
    for number, slot in enumerate(slots.unbind(2)):
        table = slot.new_full((*slot.shape[:2], room * size + 1), length)
        table = table.scatter(-1, slot, torch.arange(length, device=slot.device).expand_as(slot))[:, :, places]
        tiles = _Tiles(table, codes[:, :, : number + 1], chunks)
        weighed = tiles.attend(*(F.embedding(tiles.rows, each).to(wide) for each in rows), dropout_prob=dropout_prob)
        back = rows_of(slot.clamp(max=room * size - 1), room * size, heads_last=False).transpose(1, 2)
        rounds.append(tuple(F.embedding(back, each.flatten(0, 3)) for each in weighed))
    context = together(rounds, value.transpose(1, 2).to(wide), dropout_prob).transpose(1, 2)
    return context.masked_fill((codes[:, :, 0] == -SPAN)[..., None], 0).to(value.dtype)


def together(rounds: Sequence[tuple[Tensor, ...]], own: Tensor, dropout_prob: float) -> Tensor:
    """One softmax over all rounds, from what `weigh` returned for each, row by row; its `own` value for a row that saw
    nothing in any of them."""
    top = torch.stack([top for _, _, top in rounds]).amax(0)
    shares = [(each - top).exp() for _, _, each in rounds]
    context = torch.stack([share * each for share, (each, _, _) in zip(shares, rounds, strict=True)]).sum(0)
    total = torch.stack([share * each for share, (_, each, _) in zip(shares, rounds, strict=True)]).sum(0)
    alone = total == 0
    if dropout_prob:
        own = own * F.dropout(torch.ones_like(total), dropout_prob)
    return torch.where(alone, own, context / total.masked_fill(alone, 1))


def weigh(scores: Tensor, hidden: Tensor, value: Tensor, dropout_prob: float) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of values, sums of weights, and the largest scores, by which both must still be divided and compared.

    Args:
        scores: `(…, T, S)`, which are written over.
        hidden: which of them are not seen.
        value: `(…, S, D)`.
        dropout_prob: probability of dropping a weight.
    """
    # In place, because the scores are the largest tensor there is.
    scores = scores.masked_fill_(hidden, -torch.inf)
    top = scores.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
    weights = scores.sub_(top).exp_()
    return F.dropout(weights, dropout_prob) @ value, weights.sum(-1, keepdim=True), top


def rows_of(table: Tensor, length: int, *, heads_last: bool = True) -> Tensor:
    """Positions `(B, H, …)` of the T tokens of a head as rows of `(B·T·H, D)`, or of `(B·H·T, D)`."""
    (batch, heads), ones = table.shape[:2], [1] * (table.ndim - 2)
    first = torch.arange(batch, device=table.device).view(-1, 1, *ones) * (length * heads)
    head = torch.arange(heads, device=table.device).view(-1, *ones)
    return first + (table * heads + head if heads_last else table + head * length)


class _Tiles:
    """One round: which token `(B, H, P, m)` stands at each place of P tiles, T where none does."""

    def __init__(self, table: Tensor, codes: Tensor, chunks: Chunks) -> None:
        self.chunks, length = chunks, codes.shape[-1]
        empty, table = table == length, table.clamp(max=length - 1)
        self.rows = rows_of(table, length)
        batch, heads = (torch.arange(each, device=table.device) for each in table.shape[:2])
        self.codes = [each[batch[:, None, None, None], heads[:, None, None], table] for each in codes.unbind(2)]
        self.codes[-1] = self.codes[-1].masked_fill(empty, -SPAN)

    def attend(
        self, query: Tensor, value: Tensor, key: Tensor | None = None, *, dropout_prob: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What `weigh` returns of tiles `(B, H, P, m, D)`."""
        scores = query * self.chunks.scale @ self.around(unit(query) if key is None else key).mT
        return weigh(scores, self.hidden(), self.around(value), dropout_prob)

    def hidden(self) -> Tensor:
        """What each place of a tile does not see of itself and its neighbours, `(B, H, P, m, K)`."""
        chunks, size = self.chunks, self.chunks.size
        keys = [self.around(each[..., None], -SPAN).mT for each in self.codes]
        places = torch.arange(size, device=keys[0].device)
        own = chunks.allow(places[:, None], places)
        own = F.pad(own, (chunks.before * size, chunks.after * size), value=True)
        # All that stand in a tile have its first one's chunk.
        near = in_reach(self.codes[-1][..., :1, None], keys[-1], chunks) & (keys[-1] != -SPAN)
        hidden = ~near | ~own
        for query, key in zip(self.codes[:-1], keys[:-1], strict=True):
            if chunks.once:  # seen in an earlier round
                hidden = hidden | in_reach(query[..., None], key, chunks)
        return hidden

    def around(self, tiles: Tensor, fill: int | None = None) -> Tensor:
        """Every tile `(B, H, P, m, D)` with its neighbours: `(B, H, P, K, D)`; beyond the ends anything, or `fill`."""
        count, parts = tiles.shape[2], []
        for offset in range(-self.chunks.before, self.chunks.after + 1):
            if offset == 0:
                parts.append(tiles)
                continue
            place = torch.arange(count, device=tiles.device) + offset
            part = tiles.index_select(2, place.clamp(0, count - 1))
            outside = (place < 0) | (place >= count)
            parts.append(part if fill is None else part.masked_fill(outside[:, None, None], fill))
        return torch.cat(parts, dim=3) if len(parts) > 1 else tiles
