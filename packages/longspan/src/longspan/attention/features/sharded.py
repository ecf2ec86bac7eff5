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

from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from longspan.attention.base import ROWS, Attention, projected
from longspan.attention.etc import EtcAttention
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
from longspan.ops.attend.call import gather_slots, mask_of_slots, put_slots, slots_of_mask
from longspan.ops.attend.reference import full_precision
from longspan.ops.kernels.linear import attend_linear
from longspan.ops.ring import attend_ring
from longspan.ops.shards import Shards, gathered_by_all, gathered_from


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
    known, near = Globals.of(shards, hidden, tokens), LongShard.of(hidden, tokens, _sides(attention))
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


@dataclass(frozen=True)
class Halo:
    """This process's part of rows, and the surrounding tokens that its queries attend to.

    Attributes:
        hidden: `(B, N, E)`.
        tokens: their properties, without global tokens.
        first: the position of the first of them in the whole row.
        before: the number of tokens before this process's own.
        count: T_r, the number of this process's own tokens.
    """

    hidden: Tensor
    tokens: Tokens
    first: int
    before: int
    count: int

    @classmethod
    def of(
        cls,
        attention: Any,
        hidden: Tensor,
        tokens: Tokens,
        *,
        further: int = 0,
        sides: tuple[int, int, int] | None = None,
    ) -> Halo:
        """Returns the halo of a mechanism with `further` more tokens at its left, or with `sides` as
        returned by `_sides`.
        """
        shards: Shards = tokens.shards  # pyright: ignore[reportAssignmentType]
        left, right, period = sides or _sides(attention)
        sides = left + further, right, period
        mask = mask_of_rows(shards, hidden, tokens, sides)
        low, _ = shards.halo_of(shards.rank, *sides)
        known = replace(tokens, shards=None, mask=mask, is_global=None, global_slots=None)
        return cls(shards.with_halo(hidden, *sides), known, low, shards.first - low, hidden.shape[1])

    def own(self, states: Tensor) -> Tensor:
        """Returns the part of `(B, N, …)` for this process's own tokens."""
        return states[:, self.before : self.before + self.count]


def _sides(attention: Any) -> tuple[int, int, int]:
    """Returns how many tokens a shard needs at its left and right, and the period of the grid."""
    reach = attention.config.reach()
    return reach.left, 0 if attention.causal else reach.right, reach.period


def mask_of_all(shards: Shards, hidden: Tensor, tokens: Tokens) -> Tensor | None:
    """Returns the mask `(B, T_r)` of this process, all True if only others have one; `None` if no process has one."""
    if not shards.once("masked", lambda: shards.any(tokens.mask is not None, hidden.device)):
        return None
    if tokens.mask is not None:
        return tokens.mask
    return torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)


def mask_of_rows(shards: Shards, hidden: Tensor, tokens: Tokens, sides: tuple[int, int, int]) -> Tensor | None:
    """Returns the mask `(B, N)` of a halo with these sides; `None` if no process has one."""
    mask = mask_of_all(shards, hidden, tokens)
    if mask is None:
        return None
    flags = mask.to(torch.uint8)
    return shards.once(("mask", *sides), lambda: shards.with_halo(flags, *sides).bool())


def first_real(shards: Shards, hidden: Tensor, tokens: Tokens) -> Tensor | None:
    """Returns the position of each row's first real token, `(B,)` int64, 0 in a row without any; `None` if all rows
    begin with one.
    """

    def places() -> Tensor | None:
        mask = mask_of_all(shards, hidden, tokens)
        if mask is None:
            return None
        here = torch.where(mask.any(1), (mask.cumsum(1) == 0).sum(1) + shards.first, shards.total)
        first = gathered_from(here, shards.group).amin(0)
        first = torch.where(first == shards.total, 0, first)
        return first if bool(first.any()) else None

    return shards.once("first real", places)


@dataclass(frozen=True)
class Globals:
    """The global tokens of whole rows, at most G, which every process has.

    Attributes:
        own: `(B, G)` int64, the index of each among this process's tokens, −1 for those of other processes.
        there: `(B, G)` bool, True for used slots.
        places: `(B, G)` int64, positions in the whole rows.
    """

    own: Tensor
    there: Tensor
    places: Tensor

    @classmethod
    def of(cls, shards: Shards, hidden: Tensor, tokens: Tokens) -> Globals | None:
        """Collects the global tokens of rows of which this process has `(B, T_r, E)`; `None` if no process has any."""
        return shards.once("globals", lambda: cls._looked_for(shards, hidden, tokens))

    @classmethod
    def _looked_for(cls, shards: Shards, hidden: Tensor, tokens: Tokens) -> Globals | None:
        flags = tokens.global_mask(hidden.shape[1])
        if flags is None:
            flags = torch.zeros(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
        counts = gathered_from(flags.sum(1), shards.group)
        if not (most := int(counts.sum(0).max())):
            return None
        slot = torch.arange(most, device=hidden.device) - counts[: shards.rank].sum(0)[:, None]
        here = slots_of_mask(flags, most)
        mine = (slot >= 0) & (slot < flags.sum(1)[:, None])
        local_slots = torch.where(mine, here.gather(1, slot.clamp(min=0)), -1)
        places = gathered_from(torch.where(mine, local_slots + shards.first, 0), shards.group).sum(0)
        return cls(local_slots, torch.arange(most, device=hidden.device) < counts.sum(0)[:, None], places)

    def states(self, shards: Shards, hidden: Tensor) -> Tensor:
        """Returns their states `(B, G, E)`, 0 in unused slots."""
        hidden = functional.pad(hidden, (0, 0, 0, int(not hidden.shape[1])))  # unused slots read position 0
        local_states = gather_slots(hidden[:, None], self.own)[:, 0].masked_fill((self.own < 0)[..., None], 0)
        return shards.summed(local_states, "globals")

    def slots_in(self, halo: Halo) -> Tensor:
        """Returns their indices among the tokens of a halo, `(B, G)` int64, −1 for those outside."""
        place = self.places - halo.first
        return torch.where(self.there & (place >= 0) & (place < halo.hidden.shape[1]), place, -1)


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


@dataclass(frozen=True)
class LongShard:
    """The long part of rows, their real tokens without the global ones, around this process's shard; the same for all
    layers of a mechanism.

    Distances count long tokens only, so the distance in positions to the nearest r of them depends on the rows. Every
    process knows which tokens of whole rows are long, one byte for each.

    Attributes:
        wanted: the first position that each process needs, and the end (exclusive).
        order: `(B, N)` int64, the indices of the long tokens among the positions around this shard, in order; the
            number of long tokens of the row before the first slot is a multiple of `period`.
        there: `(B, N)` bool, True for used slots.
        own: `(B, T_r)` int64, the slots of this process's tokens, −1 for those that are not long.
    """

    wanted: list[tuple[int, int]]
    order: Tensor
    there: Tensor
    own: Tensor

    @classmethod
    def of(cls, hidden: Tensor, tokens: Tokens, sides: tuple[int, int, int]) -> LongShard:
        """Collects the long tokens for the numbers needed at the left and the right, and the period, of `sides`."""
        shards: Shards = tokens.shards  # pyright: ignore[reportAssignmentType]
        return shards.once(("long", sides), lambda: cls._looked_for(shards, hidden, tokens, *sides))

    @classmethod
    def _looked_for(
        cls, shards: Shards, hidden: Tensor, tokens: Tokens, left: int, right: int, period: int
    ) -> LongShard:
        flags, mask = tokens.global_mask(hidden.shape[1]), mask_of_all(shards, hidden, tokens)
        is_long = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device) if mask is None else mask
        is_long = is_long if flags is None else is_long & ~flags
        whole = shards.with_halo(is_long.to(torch.uint8), shards.total, shards.total).long()
        upto = functional.pad(whole.cumsum(1), (1, 0))  # number of long tokens before each position
        wanted = [_around(upto, shards.range_of(rank), left, right) for rank in range(shards.count)]
        low, high = wanted[shards.rank]
        before = upto[:, low : low + 1]
        room = high - low + period - 1 if high > low else 0
        slots = torch.where(whole[:, low:high].bool(), upto[:, low:high] - before + before % period, room)
        places = torch.arange(high - low, device=hidden.device).expand_as(slots)
        order = upto.new_zeros(len(upto), room + 1).scatter(1, slots, places)
        there = torch.zeros_like(order, dtype=torch.bool).scatter(1, slots, torch.ones_like(slots, dtype=torch.bool))
        local_slots = slots[:, shards.first - low : shards.first - low + hidden.shape[1]]
        return cls(wanted, order[:, :room], there[:, :room], torch.where(local_slots == room, -1, local_slots))

    def of_own(self, values: Tensor) -> Tensor:
        """Scatters `(B, T_r)` of this process's tokens to the slots of the long ones, `(B, N)`, −1 elsewhere."""
        room = self.there.shape[1]
        slots = torch.where(self.own < 0, room, self.own)
        return values.new_full((len(values), room + 1), -1).scatter(1, slots, values)[:, :room]


def check_owners(hidden: Tensor, tokens: Tokens, known: Globals | None) -> None:
    """Raises `InputError` in all processes if a long token of one belongs to a global token that the whole row does not
    have; checked once for all layers.
    """
    shards: Shards = tokens.shards  # pyright: ignore[reportAssignmentType]
    belongs = tokens.belongs_to

    def fits() -> bool:
        if belongs is None:
            return True
        if belongs.shape != hidden.shape[:2]:
            return False
        count = 0 if known is None else known.there.sum(1)[:, None]
        read, flags = tokens.mask, tokens.global_mask(hidden.shape[1])
        wrong = (belongs < -1) | (belongs >= count)
        wrong = wrong if read is None else wrong & read
        return not bool((wrong if flags is None else wrong & ~flags).any())

    if shards.once("owners", lambda: shards.any(not fits(), hidden.device)):
        raise InputError(
            "belongs_to of some process has another shape than its part of the rows, or a number that no global token "
            "of the whole row has; give the number of one of them, counted from 0 in whole rows, or -1 for none"
        )


def _around(upto: Tensor, part: tuple[int, int], left: int, right: int) -> tuple[int, int]:
    """Returns the first position that a part of rows needs, and the end (exclusive), for `left` and `right` long
    tokens; `upto` `(B, T + 1)` counts the long tokens before each position.
    """
    first, end = part
    low, high = upto[:, first : first + 1] - left, upto[:, end : end + 1] + right
    some = upto[:, end] > upto[:, first]  # rows in which the part has long tokens
    if not bool(some.any()):
        return part
    # The i-th long token is at the last position with at most i of them before it.
    total = upto[:, -1:]
    starts = torch.searchsorted(upto, low.clamp(min=0), right=True)[some] - 1
    ends = torch.searchsorted(upto, high.clamp(max=total))[some]
    return min(first, int(starts.min())), max(end, int(ends.max()))


def sums_of_others(shards: Shards, features: Tensor, value: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
    """Returns `Σ_j φ(k_j)ᵀ [v_j, 1]` over the keys of the other shards, in the causal form of those before this one:
    `(B, H, F, D + 1)`, in at least float32. Features are `(B, H, T_r, F)`, values `(B, H, T_r, D)`.
    """
    wide = torch.promote_types(features.dtype, torch.float32)
    features, value = features.to(wide), value.to(wide)
    if mask is not None:
        features = features.masked_fill(~mask[:, None, :, None], 0)
    local_sums = torch.cat([features.mT @ value, features.sum(2)[..., None]], -1)
    all_sums, rank = shards.gathered(local_sums, "sums"), shards.rank
    before = all_sums[:rank].sum(0)
    return before if causal else before + all_sums[rank + 1 :].sum(0)
