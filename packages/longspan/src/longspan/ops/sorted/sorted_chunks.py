"""Attention in chunks of all tokens sorted by bucket, as in the published Reformer: dense, and tiled.

The tokens of a round are sorted by bucket, then by position, and cut into chunks of m regardless of bucket borders. A
query sees its own chunk and those before and after it, in a ring through all rounds. A later token moves earlier ones
into other chunks, and the number of chunks is that of the padded input. Source: Kitaev et al. 2020, arXiv 2001.04451,
section 2.

If queries are not also keys, nothing is hashed: tokens, including padding, keep the order of the text, in the chunks of
the local attention that was published with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.reference import full_precision
from longspan.ops.sorted.hashed import unit
from longspan.ops.sorted.hashed_units import Chunks
from longspan.ops.sorted.hashing import NOWHERE


class _Order:
    """The sorted order: `chunks` `(B, H, R, N)` of each token in all rounds, and `tokens` `(B, H, R·N)` in sorted
    order."""

    def __init__(self, ids: Tensor, chunks: Chunks) -> None:
        (batch, heads, rounds, length), size = ids.shape, chunks.size
        self.length, self.padded = length, -(-length // size) * size
        self.ids = F.pad(ids, (0, self.padded - length), value=NOWHERE)
        last = torch.iinfo(ids.dtype).max if chunks.shared else 0
        order = torch.where(self.ids == NOWHERE, last, self.ids).sort(dim=-1, stable=True).indices
        places = torch.arange(rounds * self.padded, device=ids.device).view(rounds, self.padded)
        self.slots = torch.zeros_like(order).scatter(-1, order, places.expand_as(order))
        self.tokens = order.flatten(2)
        self.chunks, self.count = self.slots // size, rounds * self.padded // size
        self.shape = (batch * heads, self.count, size, -1)

    def take(self, hidden: Tensor) -> Tensor:
        """Returns `(B, H, N)` in the sorted order, in tiles `(B·H, C, m, 1)`."""
        return hidden.gather(-1, self.tokens).view(self.shape)


def published_times(ids: Tensor, chunks: Chunks, *, across: bool) -> Tensor:
    """Returns how often each query sees each key in all rounds, from all pairs: `(B, H, R, T)` → `(B, H, T, T)`.

    Args:
        ids: the bucket of every token in every round, −1 for padding.
        chunks: chunk size and visibility.
        across: whether a query sees tokens of other buckets in its chunks.
    """
    order, length = _Order(ids, chunks), ids.shape[-1]
    places = torch.arange(length, device=ids.device)
    times = _times(
        [tensor[..., :length, None] for tensor in order.chunks.unbind(2)],
        [tensor[..., None, :length] for tensor in order.chunks.unbind(2)],
        [tensor[..., None] == tensor[..., None, :] for tensor in ids.unbind(2)],
        order.count,
        chunks,
        across=across,
    )
    real = ids[:, :, 0] != NOWHERE
    return times * (chunks.allow(places[:, None], places) & real[..., None, :] & real[..., None])


def _times(
    query: list[Tensor], key: list[Tensor], same: list[Tensor], count: int, chunks: Chunks, *, across: bool
) -> Tensor:
    """Returns how many of the chunks that each query sees, in a ring of C, contain each key; one list entry per
    round."""
    times = torch.zeros((), dtype=torch.int64)
    for number, own in enumerate(query):
        for other, theirs in enumerate(key):
            if not across and other != number:
                continue
            for offset in range(-chunks.before, chunks.after + 1):
                matches = (theirs - own - _turn(offset, count)) % count == 0
                times = times + (matches if across else matches & same[number])
    return times


def _turn(offset: int, count: int) -> int:
    """Returns the distance of a chunk in a ring of `count`; beyond one turn, the published slices return a query's own
    chunk."""
    return offset if abs(offset) <= count else 0


def attend_sorted(
    query: Tensor,
    value: Tensor,
    ids: Tensor,
    chunks: Chunks,
    *,
    across: bool,
    dropout_prob: float = 0.0,
    key: Tensor | None = None,
) -> Tensor:
    """Computes attention of queries `(B, H, T, D)` over chunks of the sorted tokens → `(B, H, T, D)`; zeros for
    padding.

    Args:
        query: `(B, H, T, D)`.
        value: `(B, H, T, D)`.
        ids: `(B, H, R, T)` int64, the bucket of every token in every round, −1 for padding.
        chunks: chunk size and visibility.
        across: whether a query sees tokens of other buckets in its chunks.
        dropout_prob: probability of dropping an attention weight.
        key: `(B, H, T, D)` unless `chunks` are `shared`; then the keys are the normalised queries.
    """
    (rounds, length), order = ids.shape[2:], _Order(ids, chunks)
    wide = torch.promote_types(query.dtype, torch.float32)
    inputs = [query, value, *([] if key is None else [key])]
    rows = [tensor.transpose(1, 2).reshape(-1, tensor.shape[-1]) for tensor in inputs]
    index = rows_of(order.tokens.clamp(max=length - 1), length).flatten()
    tiles = [tensor.index_select(0, index).view(order.shape).to(wide) for tensor in rows]
    hidden, times = _tile_masks(order, chunks, across=across)
    with full_precision(query):
        scores = tiles[0] * chunks.scale @ _around(unit(tiles[0]) if key is None else tiles[2], chunks).mT
        if times is not None:
            scores = scores - times.to(wide).log()
        weighed = [tensor.flatten(0, 2) for tensor in weigh(scores, hidden, _around(tiles[1], chunks), dropout_prob)]
    parts: list[tuple[Tensor, ...]] = []
    for slots in order.slots[..., :length].unbind(2):
        back = rows_of(slots, rounds * order.padded, heads_last=False).transpose(1, 2)
        parts.append(tuple(tensor[back] for tensor in weighed))
    context = together(parts, value.transpose(1, 2).to(wide), dropout_prob).transpose(1, 2)
    return context.masked_fill((ids[:, :, 0] == NOWHERE)[..., None], 0).to(value.dtype)


def _tile_masks(order: _Order, chunks: Chunks, *, across: bool) -> tuple[Tensor, Tensor | None]:
    """Returns what the slots of a chunk do not see of the surrounding ones, `(B·H, C, m, K)`, and how often they see
    each key."""
    places = order.take(torch.arange(order.padded, device=order.ids.device).expand_as(order.ids[:, :, 0]))
    keys = _around(places, chunks).mT
    hidden = ~chunks.allow(places, keys)
    ids = [order.take(tensor) for tensor in order.ids.unbind(2)]
    hidden = hidden | (_around(ids[0], chunks).mT == NOWHERE)
    same = [id_ == _around(id_, chunks).mT for id_ in ids]
    if not across:
        own = torch.arange(order.count, device=places.device).view(-1, 1, 1) // (order.count // len(ids))
        rounds = _around(own.expand(*places.shape[:2], 1, 1).expand_as(places), chunks).mT
        same_bucket = torch.stack(same).gather(0, own.expand(hidden.shape)[None])[0]
        hidden = hidden | ~(same_bucket & (rounds == own))
    if not chunks.once:
        return hidden, None
    codes = [order.take(tensor) for tensor in order.chunks.unbind(2)]
    around = [_around(code, chunks).mT for code in codes]
    return hidden, _times(codes, around, same, order.count, chunks, across=across).clamp(min=1)


def _around(tiles: Tensor, chunks: Chunks) -> Tensor:
    """Concatenates every chunk `(B·H, C, m, D)` with its neighbours in the ring: `(B·H, C, K, D)`."""
    offsets = [_turn(offset, tiles.shape[1]) for offset in range(-chunks.before, chunks.after + 1)]
    return torch.cat([tiles.roll(-offset, 1) for offset in offsets], 2) if len(offsets) > 1 else tiles


def together(rounds: Sequence[tuple[Tensor, ...]], own: Tensor, dropout_prob: float) -> Tensor:
    """Combines all rounds into one softmax, from the results of `weigh` for each; rows that see nothing in any round
    get `own`, their own value."""
    top = torch.stack([top for _, _, top in rounds]).amax(0)
    shares = [(each - top).exp() for _, _, each in rounds]
    context = torch.stack([share * each for share, (each, _, _) in zip(shares, rounds, strict=True)]).sum(0)
    total = torch.stack([share * each for share, (_, each, _) in zip(shares, rounds, strict=True)]).sum(0)
    alone = total == 0
    if dropout_prob:
        own = own * F.dropout(torch.ones_like(total), dropout_prob)
    return torch.where(alone, own, context / total.masked_fill(alone, 1))


def weigh(scores: Tensor, hidden: Tensor, value: Tensor, dropout_prob: float) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the sums of values, the sums of weights, and the maximum scores, for an online softmax.

    Args:
        scores: `(…, T, S)`, overwritten.
        hidden: True for hidden keys.
        value: `(…, S, D)`.
        dropout_prob: probability of dropping a weight.
    """
    # In place, because the scores are the largest tensor.
    scores = scores.masked_fill_(hidden, -torch.inf)
    top = scores.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
    weights = scores.sub_(top).exp_()
    return F.dropout(weights, dropout_prob) @ value, weights.sum(-1, keepdim=True), top


def rows_of(table: Tensor, length: int, *, heads_last: bool = True) -> Tensor:
    """Converts positions `(B, H, …)` of the T tokens of a head to rows of `(B·T·H, D)`, or of `(B·H·T, D)`."""
    (batch, heads), ones = table.shape[:2], [1] * (table.ndim - 2)
    first = torch.arange(batch, device=table.device).view(-1, 1, *ones) * (length * heads)
    head = torch.arange(heads, device=table.device).view(-1, *ones)
    return first + (table * heads + head if heads_last else table + head * length)
