"""Sequence parallelism: each process has a contiguous part of every document's tokens, and receives the states that its
queries need from the other processes.

Queries with a bounded reach need the hidden states at the edges of neighbouring shards, a *halo*. Global tokens are
few, so every process receives all of them, and their attention over each shard is combined with its softmax. Kernels
need the sums of the other shards. Hidden states are exchanged rather than keys and values, since they are half as
large; the projections of a halo are computed twice, by its owner and by the receiver. Full attention, whose keys every
process would project again, exchanges keys and values (`longspan.ops.ring`).

Every process of the group makes the same calls in the same order, in the backward pass too.
"""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from longspan.attention.base import ROWS, Attention, projected
from longspan.attention.etc import EtcAttention
from longspan.attention.features.received import (
    Globals,
    Halo,
    LongShard,
    check_owners,
    first_real,
    mask_of_all,
    mask_of_rows,
    sides_of,
    sums_of_others,
)
from longspan.attention.full import FullAttention
from longspan.attention.linear import KernelAttention
from longspan.attention.parts.global_local import Parts, put_rows
from longspan.attention.parts.pooled import PooledAttention
from longspan.attention.parts.sinusoidal_relative import ANY, OffsetAttention
from longspan.attention.parts.tokens import Tokens, in_order
from longspan.attention.parts.windowed import WindowedAttention
from longspan.attention.support import check_support, supports
from longspan.errors import InputError
from longspan.ops.attend import attend
from longspan.ops.attend.call import mask_of_slots, put_slots
from longspan.ops.attend.reference import full_precision
from longspan.ops.kernels.linear import attend_linear
from longspan.ops.ring import attend_ring
from longspan.ops.shards import Shards, gathered_by_all


def forward_sharded(attention: Attention, hidden: Tensor, tokens: Tokens) -> Tensor:
    """Computes the outputs of `attention` for this process's part of rows, `(B, T_r, E)` → `(B, T_r, E)`.

    Raises:
        InputError: the mechanism does not support sharded rows; `tokens` has fields other than padding, global tokens
            and structure; a shard has another length.
    """
    if attention.causal and isinstance(attention, OffsetAttention):
        return forward_sharded_behind(attention, hidden[:, :0], hidden, tokens)
    _check_shard(attention, hidden, tokens)
    return _read(attention, hidden, tokens)


ROWS["shards"] = forward_sharded


@singledispatch
def _read(attention: Any, hidden: Tensor, tokens: Tokens) -> Tensor:
    """Exchanges the hidden states within `config.reach()`."""
    halo = Halo.of(attention, hidden, tokens)
    return halo.own(attention(halo.hidden, halo.tokens))


@_read.register
def _windows(attention: WindowedAttention, hidden: Tensor, tokens: Tokens) -> Tensor:
    """Exchanges a halo and the global tokens."""
    halo = Halo.of(attention, hidden, tokens)
    return projected(attention.output, halo.own(window_in_halo(attention, halo, hidden, tokens)))


@_read.register
def _pools(attention: PooledAttention, hidden: Tensor, tokens: Tokens) -> Tensor:
    """As for windows; pools are computed from the halo, after its global tokens attended to all shards.

    The grid of shared pools begins at each row's first real token, in any shard.
    """
    shards, period = tokens.shards, attention.config.reach().period
    assert shards is not None
    begins = first_real(shards, hidden, tokens) if period > 1 else None
    halo = Halo.of(attention, hidden, tokens, further=0 if begins is None else period - 1)
    total = window_in_halo(attention, halo, hidden, tokens)
    # The halo itself begins at a multiple of the period, and may end before its grid begins.
    before = 0 if begins is None else (begins % period).clamp(max=halo.hidden.shape[1])
    for level in attention.levels:
        total = total + attention.pooled_context(total, halo.tokens, level, before)
    return projected(attention.output, halo.own(total))


@_read.register
def _sums(attention: KernelAttention, hidden: Tensor, tokens: Tokens) -> Tensor:
    """Exchanges the sums over the keys of the other processes, or in the causal form of those before this one."""
    assert tokens.shards is not None
    query, key, value = attention.project(hidden)
    features, mask = attention.key_features(key), mask_of_all(tokens.shards, hidden, tokens)
    context, _ = attend_linear(
        attention.query_features(query),
        features,
        value,
        causal=attention.causal,
        key_mask=mask,
        sums=sums_of_others(tokens.shards, features, value, mask, causal=attention.causal),
        dropout_prob=attention.dropout_prob,
        epsilon=attention.epsilon,
    )
    return projected(attention.output, attention.merge_heads(context))


@_read.register
def _long_and_global(attention: EtcAttention, hidden: Tensor, tokens: Tokens) -> Tensor:
    """Exchanges the long tokens around this process's part, the global tokens, and their attention over each part.
    `belongs_to` counts the global tokens of whole rows.
    """
    shards: Shards = tokens.shards  # pyright: ignore[reportAssignmentType]
    known, near = Globals.of(shards, hidden, tokens), LongShard.of(hidden, tokens, sides_of(attention))
    check_owners(hidden, tokens, known)
    around = in_order(shards.with_places(hidden, near.wanted), near.order)
    parts, place = Parts(around, near.there), near.own.clamp(min=0)
    if known is not None:
        more = -known.there.shape[1] % attention.pad_globals
        there, copies = (
            functional.pad(known.there, (0, more)),
            functional.pad(known.states(shards, hidden), (0, 0, 0, more)),
        )
        belongs = None if tokens.belongs_to is None else near.of_own(tokens.belongs_to)
        parts = parts._replace(slots=torch.where(there, 0, -1), globals=copies, belongs=belongs)
    long, rows = attention.calls(parts)
    context = attention.merge_heads(attend(**long)[:, :, parts.global_keys :])
    out = projected(attention.output, in_order(context, place).masked_fill((near.own < 0)[..., None], 0))
    if rows is None or known is None:
        return out
    # Every process has the global keys; only the first one includes them in the sums.
    there, mine = parts.slots >= 0, near.of_own(torch.zeros_like(near.own)) == 0  # pyright: ignore
    seen = torch.cat([there if shards.rank == 0 else torch.zeros_like(there), mine], 1)
    wide = torch.promote_types(hidden.dtype, torch.float32)
    with full_precision(hidden):
        scores = (rows["query"].to(wide) * attention.scale) @ rows["key"].to(wide).mT
        for bias in rows["terms"]:  # Hidden keys have weight 0, since there is always a visible global key.
            scores = scores + bias.values.clamp(min=torch.finfo(wide).min / 4)
        gathered = gathered_by_all(
            scores, rows["value"], seen, shards, "global rows", dropout_prob=attention.dropout_prob
        )
    rows = projected(
        attention.layer("global_output", "output"), attention.merge_heads(gathered)[:, : known.own.shape[1]]
    )
    # Without tokens, rows stay part of the graph, since their backward pass is a collective operation.
    count = rows.shape[1] if hidden.shape[1] else 0
    return put_rows(out, rows[:, :count], known.own[:, :count], 1)


def forward_sharded_behind(attention: Any, past: Tensor, hidden: Tensor, tokens: Tokens) -> Tensor:
    """Computes the outputs of a causal mechanism for this process's part of rows, `(B, T_r, E)`, after `(B, M, E)`,
    which every process has.
    """
    if not isinstance(attention, OffsetAttention):
        return _behind_the_first(attention, past, hidden, tokens)
    _check_shard(attention, hidden, tokens)
    reach = -attention.shown_offsets[0]
    if reach > ANY:
        return in_ring(attention, hidden, tokens, past)
    # The states within reach come from the previous processes and, if these have too few, from the end of the past.
    halo = Halo.of(attention, hidden, tokens, sides=(reach, 0, 1))
    before, mask = halo.hidden[:, : halo.before], halo.tokens.mask
    missing = min(past.shape[1], reach - halo.before)
    past = past[:, past.shape[1] - missing :].to(hidden.dtype)
    mask = None if mask is None else functional.pad(mask, (missing, 0), value=True)
    return attention.forward_from(torch.cat([past, before], dim=1), hidden, replace(halo.tokens, mask=mask))


def _behind_the_first(attention: Any, past: Tensor, hidden: Tensor, tokens: Tokens) -> Tensor:
    """As `forward_sharded_behind`; the first process adds the past to its part."""
    shards: Shards = tokens.shards  # pyright: ignore[reportAssignmentType]
    count, mask = past.shape[1], tokens.mask
    if shards.rank:
        return attention(hidden, replace(tokens, shards=shards.with_leading(count)))
    mask = None if mask is None else functional.pad(mask, (count, 0), value=True)
    both = torch.cat([past.to(hidden.dtype), hidden], dim=1)
    return attention(both, replace(tokens, mask=mask, shards=shards.with_leading(count)))[:, count:]


@_read.register
def in_ring(attention: FullAttention, hidden: Tensor, tokens: Tokens, past: Tensor | None = None) -> Tensor:
    """Exchanges keys and values, a block at a time. In the causal form, `(B, M, E)` may come before whole rows.

    Relative positions need the projections of the distances to all tokens, `(H, T + T_r, D)` in each process.
    """
    shards: Shards = tokens.shards  # pyright: ignore[reportAssignmentType]
    (query, key, value), terms = attention.project(hidden), []
    before = None
    if past is not None and past.shape[1]:
        past = past.to(hidden.dtype)
        before = attention.heads_of(attention.key, past), attention.heads_of(attention.value, past)
    if attention.has_positions:
        query = attention.local_queries(query, tokens)
        left = shards.range_of(shards.rank)[1] - 1 + (0 if past is None else past.shape[1])
        terms = [attention.position_term(query, tokens, left, shards.total - 1 - shards.first)]
    context = attend_ring(
        query,
        key,
        value,
        shards=shards,
        causal=attention.causal,
        past=before,
        key_mask=mask_of_rows(shards, hidden, tokens, (shards.total, shards.total, 1)),
        terms=terms,
        dropout_prob=attention.dropout_prob,
    )
    return projected(attention.output, attention.merge_heads(context))


def _check_shard(attention: Any, hidden: Tensor, tokens: Tokens) -> None:
    """Raises unless a mechanism supports this process's part of rows with these properties of tokens.

    Raises:
        InputError: `tokens` has fields other than padding and supported ones; a shard has another length.
    """
    shards = tokens.shards
    assert shards is not None
    if hidden.shape[1] != shards.lengths[shards.rank]:
        raise InputError(
            f"hidden has {hidden.shape[1]} tokens, but in shards, process {shards.rank} has "
            f"{shards.lengths[shards.rank]}; make shards of the same states"
        )
    structured = supports(attention.config, "structure")
    for flag in ("documents", "belongs_to", "prefix"):
        if getattr(tokens, flag) is not None and not (flag == "belongs_to" and structured):
            raise InputError(f"{flag} was given with rows that are sharded between processes; leave it out")
    check_support(attention.config, "sharded", causal=attention.causal)
    attention.check_tokens(hidden, replace(tokens, shards=None, belongs_to=None))


def window_in_halo(attention: Any, halo: Halo, hidden: Tensor, tokens: Tokens) -> Tensor:
    """Computes attention of the tokens of a halo to their window and to the global tokens of all processes, before the
    output projection: `(B, N, E)`. Outputs that depend on tokens outside of the halo are meaningless.

    Copies of the global tokens are placed before the halo, and their own places are masked in the window. The attention
    of a global token over the shards is combined by the sums of its weights.
    """
    shards: Shards = tokens.shards  # pyright: ignore[reportAssignmentType]
    known = Globals.of(shards, hidden, tokens)
    if known is None:
        return attention.window_context(halo.hidden, halo.tokens)
    copies, inside, real = known.states(shards, hidden), known.slots_in(halo), halo.tokens.mask
    count, length = copies.shape[1], halo.hidden.shape[1]
    near = ~mask_of_slots(inside, length)
    key_mask = torch.cat([known.there, near if real is None else near & real], 1)
    slots = torch.where(known.there, torch.arange(count, device=hidden.device), -1)
    query, key, value = attention.project(torch.cat([copies, halo.hidden], 1))
    pattern, terms, far = attention.pattern, [], None
    if attention.has_positions:
        around = torch.arange(halo.first, halo.first + length, device=hidden.device).expand(len(hidden), -1)
        places = torch.cat([known.places, around], 1)
        query, pattern, terms, far = attention.position_terms(query, key, tokens, None, slots, places)
    context = attend(
        query,
        key,
        value,
        pattern=pattern,
        terms=terms,
        key_mask=key_mask,
        globals=slots,
        global_rows=False,
        scale=attention.scale,
        dropout_prob=attention.dropout_prob,
    )
    context = attention.merge_heads(context[:, :, count:])
    context = context if real is None else context.masked_fill(~real[:, :, None], 0)
    rows = _global_rows(attention, known, copies, hidden, tokens, far).to(context.dtype)
    return put_slots(context[:, None], rows[:, None], inside)[:, 0]


def _global_rows(attention: Any, known: Globals, copies: Tensor, hidden: Tensor, tokens: Tokens, far: Any) -> Tensor:
    """Computes attention of the global tokens `(B, G, E)` to the real tokens of all shards, `(B, G, E)`."""
    shards: Shards = tokens.shards  # pyright: ignore[reportAssignmentType]
    prefix = "global_" if attention.separate else ""
    query, key, value = (
        attention.split_heads(getattr(attention, prefix + name)(states))
        for name, states in (("query", copies), ("key", hidden), ("value", hidden))
    )
    if not attention.separate:
        query = attention.local_queries(query, tokens)
    place = torch.arange(shards.first, shards.first + hidden.shape[1], device=hidden.device)[None]
    scores = attention.row_scores(query, key, known.places, place, far)
    context = gathered_by_all(
        scores,
        value,
        mask_of_all(shards, hidden, tokens),
        shards,
        "global rows",
        dropout_prob=attention.dropout_prob,
    )
    return attention.merge_heads(context)
