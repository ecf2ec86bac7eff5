"""One document divided between processes: each holds a run of its tokens, and gets from the others what its queries
see.

Queries within a bounded reach need the hidden states at the edges of neighbouring shards, a *halo*; global tokens are
few and every process gets them all, and what they gather from each shard is merged by its softmax; kernels need the
sums of the other shards. Hidden states are exchanged rather than keys and values: they are half as large, and the
projections of a halo are computed twice, by the process that owns it and by the one that sees it.

Every process of the group makes the same calls in the same order, in backward too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention.parts.tokens import Tokens
from longspan.errors import InputError
from longspan.ops.attend.call import gather_slots, put_slots, slots_of_mask
from longspan.ops.shards import Shards, gathered_from


def through_halo(attention: Any, hidden: Tensor, tokens: Tokens) -> Tensor:
    """What a mechanism of bounded reach, without global tokens, makes of this process's part of a row: `(B, T_r, E)`.

    Raises:
        InputError: nothing bounds the reach; places are counted in periods, and a row has padding in front of a token.
    """
    wide, known, left = in_halo(attention, hidden, tokens)
    return attention(wide, known)[:, left : left + hidden.shape[1]]


def in_halo(attention: Any, hidden: Tensor, tokens: Tokens) -> tuple[Tensor, Tokens, int]:
    """`(B, T_r, E)` with its halo, what is known of these tokens, and how many of them come before one's own."""
    shards: Shards = tokens.shards  # pyright: ignore[reportAssignmentType]
    left, right, period = needed(attention)
    mask = shards.once(
        ("mask", left, right, period), lambda: _mask_in_halo(shards, hidden, tokens, left, right, period)
    )
    wide = shards.with_halo(hidden, left, right, period)
    low, _ = shards.halo_of(shards.rank, left, right, period)
    known = replace(tokens, shards=None, mask=mask, is_global=None, global_slots=None)
    return wide, known, shards.first - low


def needed(attention: Any) -> tuple[int, int, int]:
    """How many tokens at its left and right a shard needs, and the period of places.

    Raises:
        InputError: nothing bounds them.
    """
    reach = attention.config.reach()
    if reach.left is None or reach.right is None:
        raise InputError(
            f"attention {attention.config.mechanism!r} cannot read a row that is divided between processes, since "
            "nothing bounds how far a token sees; choose a window such as 'longformer', or 'linear', or give every "
            "process whole rows"
        )
    return reach.left, 0 if attention.causal else reach.right, reach.period


def _mask_in_halo(shards: Shards, hidden: Tensor, tokens: Tokens, left: int, right: int, period: int) -> Tensor | None:
    """The mask of the tokens with their halo; `None` where no process has any padding."""
    mask = mask_of_all(shards, hidden, tokens)
    if mask is None:
        return None
    if period > 1:
        whole = shards.with_halo(mask.to(torch.uint8), shards.total, shards.total).bool()
        if bool((whole[:, 1:] & ~whole[:, :-1]).any()):
            raise InputError(
                "a row that is divided between processes has padding in front of a real token, and the mechanism "
                "counts places without padding; put all padding at the end of the row"
            )
    return shards.with_halo(mask.to(torch.uint8), left, right, period).bool()


def mask_of_all(shards: Shards, hidden: Tensor, tokens: Tokens) -> Tensor | None:
    """The mask `(B, T_r)` of this process, all True where only others have one; `None` where nobody has."""
    if not shards.once("masked", lambda: shards.any(tokens.mask is not None, hidden.device)):
        return None
    if tokens.mask is not None:
        return tokens.mask
    return torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)


def globals_of_all(shards: Shards, hidden: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor, Tensor] | None:
    """The slots of this process's global tokens `(B, G_r)`, −1 in unused ones, as many as any process needs; which of
    the slots of all processes, one after the other, hold one, `(B, G)` bool, G = P·G_r; and which of the tokens with
    no halo are global, `(B, T_r)` bool. `None` where no process has any."""

    def slots() -> tuple[Tensor, Tensor, Tensor] | None:
        flags = tokens.global_mask(hidden.shape[1])
        if flags is None:
            flags = torch.zeros(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
        most = int(gathered_from(flags.sum(1).max()[None], shards.group).max())
        if not most:
            return None
        own = slots_of_mask(flags, most)
        there = gathered_from(own >= 0, shards.group)
        return own, there.transpose(0, 1).flatten(1), flags

    return shards.once("globals", slots)


def check_shard(attention: Any, hidden: Tensor, tokens: Tokens, *, takes_globals: bool) -> None:
    """Raise unless a mechanism can read this process's part of rows with what is known of its tokens.

    Raises:
        InputError: something besides padding, and perhaps global tokens, is known of them; a shard of another length.
    """
    shards, name = tokens.shards, f"attention {attention.config.mechanism!r}"
    assert shards is not None
    if hidden.shape[1] != shards.lengths[shards.rank]:
        raise InputError(
            f"hidden has {hidden.shape[1]} tokens, but shards say that process {shards.rank} holds "
            f"{shards.lengths[shards.rank]}; make shards of the same states"
        )
    for flag in ("documents", "belongs_to", "prefix"):
        if getattr(tokens, flag) is not None:
            raise InputError(f"{flag} was given with rows that are divided between processes; leave it out")
    attention.check_reads_shards()
    attention.check_tokens(hidden, replace(tokens, shards=None))
    if not takes_globals and globals_of_all(shards, hidden, tokens) is not None:
        raise InputError(
            f"{name} takes no global tokens where a row is divided between processes, since windows beside pools or "
            "relative positions need them in their places; leave them out, or choose 'longformer' without positions"
        )


def with_globals(attention: Any, hidden: Tensor, tokens: Tokens) -> Tensor | None:
    """What a window and the global tokens of all processes make of this process's part; `None` where there are none.

    Copies of the global tokens stand before the halo, and their own places show nothing. What a global token gathers is
    put together from what it gathers of every shard, by the sums of its weights.
    """
    shards: Shards = tokens.shards  # pyright: ignore[reportAssignmentType]
    known = globals_of_all(shards, hidden, tokens)
    if known is None:
        return None
    own, there, flags = known
    wide, around, left = in_halo(attention, hidden, tokens)
    copies = shards.gathered(gather_slots(hidden[:, None], own)[:, 0], "globals")
    copies = copies.transpose(0, 1).flatten(1, 2)
    count = copies.shape[1]

    def mask() -> Tensor:
        low, right, period = needed(attention)
        places = shards.with_halo(flags.to(torch.uint8), low, right, period).bool()
        return torch.cat([there, ~places if around.mask is None else around.mask & ~places], 1)

    slots = torch.where(there, torch.arange(count, device=hidden.device), -1)
    beside = Tokens(
        mask=shards.once(("beside", *needed(attention)), mask), global_slots=slots, relative=tokens.relative
    )
    first = count + left
    output = attention(torch.cat([copies, wide], 1), beside)[:, first : first + hidden.shape[1]]
    rows = attention.output(_global_rows(attention, copies, hidden, mask_of_all(shards, hidden, tokens), shards))
    own_rows = rows[:, shards.rank * own.shape[1] :][:, : own.shape[1]]
    return put_slots(output[:, None], own_rows[:, None], own)[:, 0]


def _global_rows(attention: Any, copies: Tensor, hidden: Tensor, mask: Tensor | None, shards: Shards) -> Tensor:
    """What the global tokens `(B, G, E)` gather from the real tokens of all shards, `(B, G, E)`."""
    prefix = "global_" if attention.separate else ""
    query, key, value = (
        attention.split_heads(getattr(attention, prefix + name)(states))
        for name, states in (("query", copies), ("key", hidden), ("value", hidden))
    )
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(wide) @ key.to(wide).mT * attention.scale
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], torch.finfo(wide).min)
    total = scores.logsumexp(-1, keepdim=True)
    context = F.dropout((scores - total).exp(), attention.dropout_prob) @ value.to(wide)
    parts = shards.gathered(torch.cat([context, total], -1), "global rows")
    merged = (parts[..., :-1] * parts[..., -1:].softmax(0)).sum(0)
    return attention.merge_heads(merged.to(hidden.dtype))


def sums_of_others(shards: Shards, features: Tensor, value: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
    """`Σ_j φ(k_j)ᵀ [v_j, 1]` over the keys of the other shards, in the causal form of those before this one:
    `(B, H, F, D + 1)`, in at least float32. Features are `(B, H, T_r, F)`, values `(B, H, T_r, D)`."""
    wide = torch.promote_types(features.dtype, torch.float32)
    features, value = features.to(wide), value.to(wide)
    if mask is not None:
        features = features.masked_fill(~mask[:, None, :, None], 0)
    own = torch.cat([features.mT @ value, features.sum(2)[..., None]], -1)
    all_sums, rank = shards.gathered(own, "sums"), shards.rank
    before = all_sums[:rank].sum(0)
    return before if causal else before + all_sums[rank + 1 :].sum(0)
