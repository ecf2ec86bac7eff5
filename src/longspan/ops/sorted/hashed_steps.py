"""Attention among tokens of one bucket, step by step: what is kept of every bucket are the last tokens that can be
seen.

A ring of `(1 + before)·m` tokens for every bucket of every round, in constant memory: the next token of a bucket sees
no further back in it. See `longspan.ops.sorted.hashed`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.reference import full_precision
from longspan.ops.sorted.hashed import SPAN, codes_of, in_reach, ranks_in_buckets, times_of_codes, unit
from longspan.ops.sorted.hashed_units import Chunks
from longspan.ops.sorted.hashing import NOWHERE

Rings = dict[str, Tensor]
"""`keys` and `values` `(B, H, R, b + 1, W, D)`, `codes` `(B, H, R, b + 1, W, R)` of every kept token in every round,
`counts` `(B, H, R, b + 1)` of all tokens so far; the last bucket is for padding, and never read."""


def new_rings(query: Tensor, value: Tensor, rounds: int, buckets: int, chunks: Chunks) -> Rings:
    """Rings without tokens, for vectors `(B, H, T, D)`."""
    (batch, heads, _, width), room = query.shape, (1 + chunks.before) * chunks.size
    shape = (batch, heads, rounds, buckets + 1)
    return {
        "keys": query.new_zeros(*shape, room, width, dtype=torch.promote_types(query.dtype, torch.float32)),
        "values": value.new_zeros(*shape, room, width),
        "codes": torch.full((*shape, room, rounds), -SPAN, device=query.device),
        "counts": torch.zeros(shape, dtype=torch.int64, device=query.device),
    }


def attend_rings(
    query: Tensor,
    value: Tensor,
    ids: Tensor,
    chunks: Chunks,
    rings: Rings,
    dropout_prob: float = 0.0,
    key: Tensor | None = None,
) -> tuple[Tensor, Rings]:
    """Attention of tokens that continue a sequence, `(B, H, T, D)` → `(B, H, T, D)`, and the rings with these."""
    outputs = []
    key = unit(query) if key is None else key
    for start in range(0, query.shape[2], chunks.size):  # pieces that no ring is too short for
        piece = slice(start, start + chunks.size)
        parts = key[:, :, piece], value[:, :, piece], ids[..., piece]
        outputs.append(_attend_piece(query[:, :, piece], *parts, chunks, rings, dropout_prob))
        rings = filled(rings, *parts, chunks)
    return torch.cat(outputs, 2) if outputs else torch.zeros_like(value), rings


def filled(rings: Rings, key: Tensor, value: Tensor, ids: Tensor, chunks: Chunks) -> Rings:
    """The rings after these tokens; in place, unless a backward pass may still want them as they were."""
    if torch.is_grad_enabled():
        rings = {name: ring.clone() for name, ring in rings.items()}
    buckets, room = rings["keys"].shape[3] - 1, rings["keys"].shape[4]
    ranks, counts = _ranks(ids, rings)
    rounds = ids.shape[2]
    codes = codes_of(ids, ranks, chunks.size)
    rings["counts"] += counts
    lasting = (ids != NOWHERE) & (ranks >= rings["counts"].gather(-1, ids.clamp(min=0)) - room)
    places = torch.where(lasting, ids * room + ranks % room, buckets * room)[..., None]
    new = {
        "keys": key.to(rings["keys"].dtype)[:, :, None].expand(-1, -1, rounds, -1, -1),
        "values": value[:, :, None].expand(-1, -1, rounds, -1, -1),
        "codes": codes.transpose(2, 3)[:, :, None].expand(-1, -1, rounds, -1, -1),
    }
    for name, each in new.items():
        rings[name].flatten(3, 4).scatter_(3, places.expand_as(each), each)
    return rings


def _ranks(ids: Tensor, rings: Rings) -> tuple[Tensor, Tensor]:
    """How many tokens of its bucket came before each, and how many these add to every bucket."""
    ranks, counts = ranks_in_buckets(ids, rings["keys"].shape[3] - 1)
    return ranks + rings["counts"].gather(-1, ids.clamp(min=0)), counts


def _attend_piece(
    query: Tensor, key: Tensor, value: Tensor, ids: Tensor, chunks: Chunks, rings: Rings, dropout_prob: float
) -> Tensor:
    """At most m tokens: what they see in the rings, and of each other."""
    wide = torch.promote_types(query.dtype, torch.float32)
    real = (ids != NOWHERE)[..., None]
    codes = codes_of(ids, _ranks(ids, rings)[0], chunks.size)
    keys, values, others = (_of_buckets(rings[name], ids) for name in ("keys", "values", "codes"))
    reach = in_reach(codes.transpose(2, 3)[:, :, None, :, None], others, chunks)
    visible = reach.diagonal(dim1=2, dim2=5).movedim(-1, 2) & real
    if chunks.once:
        earlier = torch.ones(ids.shape[2], ids.shape[2], dtype=torch.bool, device=ids.device).tril(-1)
        visible = visible & ~(reach & earlier[:, None, None]).any(-1)
    times = times_of_codes(codes, chunks)
    with full_precision(query):
        past = (query.to(wide)[:, :, None, :, None] @ keys.mT)[..., 0, :]
        new = query.to(wide) @ key.to(wide).mT
        if not chunks.once:
            new = new + times.clamp(min=1).to(wide).log() / chunks.scale
        scores = torch.cat([past.movedim(2, 3).flatten(3), new], -1) * chunks.scale
        visible = torch.cat([visible.movedim(2, 3).flatten(3), times > 0], -1)
        weights = scores.masked_fill(~visible, torch.finfo(wide).min).softmax(-1).masked_fill(~visible, 0)
        alone = ~visible.any(-1) & (ids[:, :, 0] != NOWHERE)
        weights = torch.cat([weights, alone[..., None].to(wide)], -1)
        weights = F.dropout(weights, dropout_prob)
        past, new, own = weights.split([weights.shape[-1] - ids.shape[-1] - 1, ids.shape[-1], 1], -1)
        values = values.movedim(2, 3).flatten(3, 4).to(wide)
        context = (past[..., None, :] @ values)[..., 0, :] + new @ value.to(wide) + own * value.to(wide)
    return context.to(value.dtype)


def _of_buckets(ring: Tensor, ids: Tensor) -> Tensor:
    """What a ring `(B, H, R, b + 1, W, N)` holds of each token's bucket: `(B, H, R, T, W, N)`."""
    batch, heads, rounds, buckets = ring.shape[:4]
    first = torch.arange(batch * heads * rounds, device=ids.device).view(batch, heads, rounds, 1) * buckets
    return ring.flatten(0, 3).index_select(0, (first + ids.clamp(min=0)).flatten()).view(*ids.shape, *ring.shape[4:])
