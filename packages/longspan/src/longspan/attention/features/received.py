"""What a process of sequence parallelism receives of other processes: a halo, the global tokens, the long tokens around
its own, masks, and sums over keys. What all layers share is exchanged once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from longspan.attention.parts.tokens import Tokens
from longspan.errors import InputError
from longspan.ops.attend.call import gather_slots, slots_of_mask
from longspan.ops.shards import Shards, gathered_from


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
        returned by `sides_of`.
        """
        shards: Shards = tokens.shards  # pyright: ignore[reportAssignmentType]
        left, right, period = sides or sides_of(attention)
        sides = left + further, right, period
        mask = mask_of_rows(shards, hidden, tokens, sides)
        low, _ = shards.halo_of(shards.rank, *sides)
        known = replace(tokens, shards=None, mask=mask, is_global=None, global_slots=None)
        return cls(shards.with_halo(hidden, *sides), known, low, shards.first - low, hidden.shape[1])

    def own(self, states: Tensor) -> Tensor:
        """Returns the part of `(B, N, …)` for this process's own tokens."""
        return states[:, self.before : self.before + self.count]


def sides_of(attention: Any) -> tuple[int, int, int]:
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
