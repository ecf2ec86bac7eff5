"""Calls whose heads and positions stand in another order, so that the tiles of their patterns are regular and few.

Positions of one residue class stand side by side, so that dilated windows are contiguous; heads with different patterns
become rows of a larger batch; keys are filled up so that every query tile sees as many key tiles. Each such call knows
the way back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.call import Call
from longspan.ops.attend.terms import Bias, ContentToPosition, GlobalKeyBias, OffsetTerm, PositionToContent
from longspan.ops.runtime import cached, shared_in_pass
from longspan.ops.tiles.layout import ONE_TILE, SCORE_COST, TILE_SIZES, least_cost, traits_of
from longspan.patterns import Blocks, Pattern, PerHead

TOGETHER = 1.15
"""Heads with different patterns run in one pass if that computes at most so many times the scores of turns."""


@dataclass(frozen=True)
class Arranged:
    """A call as tiles compute it, and the way back: by default as it stands."""

    call: Call

    def output(self, result: Tensor) -> Tensor:
        """The result of the tiles, `(B, H, T, Dv)` in the order of the caller."""
        return result

    def upstream(self, grad: Tensor) -> Tensor:
        """The gradient of the result, `(B, H, T, Dv)`, in the order of the tiles, and 0 where these are filled up."""
        return grad

    def permuted(self, tensor: Tensor) -> Tensor:
        """What belongs to the queries `(B, H, T, …)` in the order of the tiles."""
        return tensor

    def gradients(self, grads: list[Tensor]) -> list[Tensor]:
        """Those of query, key, value and the tensors of the terms, in the order of the caller."""
        return grads


def arrange(call: Call) -> list[tuple[list[int] | slice, Arranged]]:
    """The call as its tiles are cheapest: all heads at once where they can be, else in turns those of each pattern."""
    permuted = permute(call)
    if permuted is not None or traits_of(call.pattern).heads is None:
        return [(slice(None), permuted or _fill(call) or Arranged(call))]
    shared = by_pattern(call.pattern)
    return [(as_run(heads), arrange(heads_only(call, heads, each))[0][1]) for each, heads in shared.items()]


@lru_cache(maxsize=256)
def by_pattern(pattern: Pattern) -> dict[Pattern, list[int]]:
    """The patterns of a pattern with heads, and the numbers of the heads that share each."""
    shared: dict[Pattern, list[int]] = {}
    for index in range(pattern.heads or 1):
        shared.setdefault(pattern.head(index), []).append(index)
    return shared


def as_run(heads: list[int]) -> list[int] | slice:
    """An index of these heads: a slice where they follow each other, which copies nothing."""
    return slice(heads[0], heads[-1] + 1) if heads[-1] - heads[0] == len(heads) - 1 else heads


def heads_only(call: Call, heads: list[int], pattern: Pattern) -> Call:
    """The same call for some heads; each set of heads draws its own dropout."""
    terms = tuple(term.of_heads(heads) for term in call.terms)
    query, key, value = (tensor[:, as_run(heads)] for tensor in (call.query, call.key, call.value))
    seed = call.seed + heads[0] * 1_000_003
    return replace(call, query=query, key=key, value=value, pattern=pattern, terms=terms, seed=seed)


@dataclass(frozen=True)
class _Part:
    """Heads with one pattern, and where their positions go: by residue class, so that dilated windows are contiguous.

    Attributes:
        order: the position that stands at each place.
        inverse_order: the place of each position.
        real: `(places,)` bool, False where classes were filled up.
        has_spare: whether they were.
    """

    heads: list[int]
    order: Tensor
    inverse_order: Tensor
    real: Tensor
    has_spare: bool


class _Permutation(NamedTuple):
    """Parts as rows of a larger batch, the pattern of all of them there, and how many positions one place counts for
    where there is one part."""

    pattern: Pattern
    parts: list[_Part]
    step: int


@cached
def _permutation_of(pattern: Pattern, heads: int, length: int, device: torch.device) -> _Permutation | None:
    """How heads and positions are put elsewhere; `None` where nothing is to be, or heads would compute much more than
    in turns."""
    shared = {pattern: list(range(heads))} if pattern.heads is None else by_pattern(pattern)
    folds = [each.residues() for each in shared]
    if len(shared) == 1 and (folds[0] is None or pattern.heads):
        return None
    steps = [min(fold.classes, max(1, length)) if fold else 1 for fold in folds]
    each = [-(-length // step) for step in steps]
    places = max(step * count for step, count in zip(steps, each, strict=True))
    inner = [fold.inner & Blocks(count) if fold else own for own, fold, count in zip(shared, folds, each, strict=True)]
    together = math.gcd(*(len(members) for members in shared.values()))
    patterns, parts = [], []
    for own, members, step in zip(inner, shared.values(), steps, strict=True):
        where = _places(length, step, places, device)
        for first in range(0, len(members), together):
            patterns.append(own)
            parts.append(_Part(members[first : first + together], *where))
    if len(parts) == 1:
        return _Permutation(patterns[0], parts, steps[0])
    whole = PerHead(patterns)
    turns = sum(least_cost(own, places, places) for own in patterns)
    as_cheap = least_cost(whole, places, places) * len(patterns) <= TOGETHER * turns
    return _Permutation(whole, parts, steps[0]) if as_cheap else None


def _places(length: int, step: int, places: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, bool]:
    """`order`, `inverse_order`, `real` and `has_spare` of a part with so many classes, filled up to so many places."""
    each = -(-length // step)
    place, position = torch.arange(places, device=device), torch.arange(length, device=device)
    source = place % each * step + place // each
    real = (source < length) & (place < step * each)
    return source.clamp(max=length - 1), position % step * each + position // step, real, length < places


@cached
def _inverse_heads(heads: tuple[int, ...], device: torch.device) -> Tensor | None:
    """Where each head stands among `heads`; `None` where they are in order."""
    if list(heads) == sorted(heads):
        return None
    return torch.tensor(heads).argsort().to(device)


@dataclass(frozen=True)
class _Permuted(Arranged):
    """Heads with different patterns as rows of a larger batch, part after part, and their positions by residue."""

    parts: list[_Part]

    def output(self, result: Tensor) -> Tensor:
        parts = [own.index_select(2, part.inverse_order) for part, own in self._by_part(result)]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        order = _inverse_heads(tuple(head for part in self.parts for head in part.heads), whole.device)
        return whole if order is None else whole.index_select(1, order)

    def permuted(self, tensor: Tensor) -> Tensor:
        return _permuted(tensor, self.parts)

    def upstream(self, grad: Tensor) -> Tensor:
        permuted = self.permuted(grad)
        for part, own in self._by_part(permuted):
            if part.has_spare:
                own.mul_(part.real[:, None])
        return permuted

    def gradients(self, grads: list[Tensor]) -> list[Tensor]:
        placed = [True] * 3 + [isinstance(term, GlobalKeyBias) for term in self.call.terms for _ in term.tensors]
        return [
            self.output(each) if permuted and each.numel() else each
            for each, permuted in zip(grads, placed, strict=True)
        ]

    def _by_part(self, tensor: Tensor) -> Iterator[tuple[_Part, Tensor]]:
        """The parts, and the rows of each."""
        return zip(self.parts, tensor.chunk(len(self.parts)), strict=True)


def permute(call: Call) -> _Permuted | None:
    """The call in another order, where queries and keys are the same positions. A bias has places of its own, and a
    table its heads: heads with these take turns."""
    if not call.is_square:
        return None
    permutation = _permutation_of(call.pattern, call.query.shape[1], call.query.shape[2], call.query.device)
    if permutation is None:
        return None
    pattern, parts, step = permutation
    kinds = GlobalKeyBias if len(parts) > 1 else GlobalKeyBias | OffsetTerm
    if not all(isinstance(term, kinds) for term in call.terms):
        return None
    query, key, value = (_permuted(tensor, parts) for tensor in (call.query, call.key, call.value))
    sizes = (call.pattern, call.query.shape[1], call.query.shape[2], call.query.device, call.query.shape[0])
    mask, slots = _permuted_flags(*sizes, call.key_mask, call.slots)
    terms = tuple(
        GlobalKeyBias(_permuted(term.values, parts)) if isinstance(term, GlobalKeyBias) else term for term in call.terms
    )
    options = {"pattern": pattern, "terms": terms, "key_mask": mask, "slots": slots, "step": step}
    return _Permuted(replace(call, query=query, key=key, value=value, **options), parts)


@shared_in_pass
def _permuted_flags(
    pattern: Pattern,
    heads: int,
    length: int,
    device: torch.device,
    batch: int,
    key_mask: Tensor | None,
    slots: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """The mask of the permuted keys, `None` where none is hidden, and the slots of the global ones."""
    permutation = _permutation_of(pattern, heads, length, device)
    assert permutation is not None
    mask, parts = None, permutation.parts
    if any(part.has_spare for part in parts):
        mask = torch.cat([part.real.expand(batch, -1) for part in parts])
    if key_mask is not None:
        own = torch.cat([key_mask[:, part.order] for part in parts])
        mask = own if mask is None else mask & own
    if slots is not None:
        slots = torch.cat([torch.where(slots < 0, slots, part.inverse_order[slots.clamp(min=0)]) for part in parts])
    return mask, slots


def _permuted(tensor: Tensor, parts: list[_Part]) -> Tensor:
    """`(B, H, T, …)` → `(parts·B, n, places, …)`; heads that follow each other are read in place."""
    permuted = [tensor[:, as_run(part.heads)].index_select(2, part.order) for part in parts]
    return permuted[0] if len(permuted) == 1 else torch.cat(permuted)


@dataclass(frozen=True)
class _Filled(Arranged):
    """Keys filled up at both ends, or cut to those that a query sees, so that every query tile sees as many key tiles.

    Attributes:
        before, behind: keys added at each end, negative where some are cut off.
    """

    before: int
    behind: int

    def gradients(self, grads: list[Tensor]) -> list[Tensor]:
        back = (0, 0, -self.before, -self.behind)
        return [grads[0], F.pad(grads[1], back), F.pad(grads[2], back), *grads[3:]]


def _fill(call: Call) -> _Filled | None:
    """The filled call, for content terms in a window, whose tiles are then one regular band."""
    content = any(isinstance(term, ContentToPosition | PositionToContent) for term in call.terms)
    if not content or any(isinstance(term, Bias) for term in call.terms):
        return None
    (low, high, step), (queries, keys) = call.pattern.reach(), (call.query.shape[2], call.key.shape[2])
    if step != 1:
        return None
    size = TILE_SIZES[-1]
    # No two tokens are further apart.
    left, right = min(-low, call.query_offset + queries - 1), min(high, keys - 1 - call.query_offset)
    left, right = max(left, 0), max(right, 0)
    if left + right > queries:
        return None
    margin = -(-left // size) * size
    before = margin - call.query_offset
    behind = -(-queries // size) * size + -(-right // size) * size + margin - keys - before
    whole = call.is_square and queries**2 <= ONE_TILE
    if whole and queries**2 * SCORE_COST[size] <= least_cost(call.pattern, queries, keys + before + behind, margin):
        return None
    real = torch.ones(1, keys, dtype=torch.bool, device=call.query.device) if call.key_mask is None else call.key_mask
    mask = F.pad(real.expand(call.query.shape[0], -1), (before, behind))
    slots = call.slots
    filled = replace(
        call,
        key=_filled_up(call.key, before, behind),
        value=_filled_up(call.value, before, behind),
        key_mask=mask,
        slots=None if slots is None else torch.where(slots < 0, slots, slots + before),
        query_offset=margin,
    )
    return _Filled(filled, before, behind)


def _filled_up(tensor: Tensor, before: int, behind: int) -> Tensor:
    """`(B, H, S, D)` with that many zeros at each end, or so many keys less; what is copied is not first set to 0."""
    middle = tensor[:, :, max(0, -before) : tensor.shape[2] + min(0, behind)]
    zeros = [tensor.new_zeros(*tensor.shape[:2], max(0, count), tensor.shape[3]) for count in (before, behind)]
    return torch.cat([zeros[0], middle, zeros[1]], dim=2)
