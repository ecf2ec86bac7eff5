"""Calls with permuted heads and positions, so that the tiles of their patterns are regular and few.

Positions of one residue class are placed next to each other, so that dilated windows are contiguous; heads with
different patterns become rows of a larger batch; keys are padded so that every query tile sees the same number of key
tiles. Each such call also defines the inverse permutation.
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
"""Heads with different patterns run in one pass if that computes at most this multiple of the scores of separate
passes."""


@dataclass(frozen=True)
class Arranged:
    """A call as tiles compute it, and the mapping back to the caller's order; the base class is the identity."""

    call: Call

    def output(self, result: Tensor) -> Tensor:
        """Returns the result of the tiles, `(B, H, T, Dv)`, in the order of the caller."""
        return result

    def upstream(self, grad: Tensor) -> Tensor:
        """Returns the gradient of the result, `(B, H, T, Dv)`, in the order of the tiles, 0 at padding."""
        return grad

    def permuted(self, tensor: Tensor) -> Tensor:
        """Returns a tensor of the queries `(B, H, T, …)` in the order of the tiles."""
        return tensor

    def gradients(self, grads: list[Tensor]) -> list[Tensor]:
        """Returns the gradients of query, key, value and the tensors of the terms, in the order of the caller."""
        return grads


def arrange(call: Call) -> list[tuple[list[int] | slice, Arranged]]:
    """Returns the cheapest arrangement: all heads at once if possible, otherwise one part per pattern."""
    permuted = permute(call)
    if permuted is not None or traits_of(call.pattern).heads is None:
        return [(slice(None), permuted or _fill(call) or Arranged(call))]
    shared = by_pattern(call.pattern)
    return [(as_run(heads), arrange(heads_only(call, heads, pattern))[0][1]) for pattern, heads in shared.items()]


@lru_cache(maxsize=256)
def by_pattern(pattern: Pattern) -> dict[Pattern, list[int]]:
    """Returns the distinct patterns of the heads, and the indices of the heads that share each."""
    shared: dict[Pattern, list[int]] = {}
    for index in range(pattern.heads or 1):
        shared.setdefault(pattern.head(index), []).append(index)
    return shared


def as_run(heads: list[int]) -> list[int] | slice:
    """Returns an index of these heads: a slice if they are consecutive, which avoids a copy."""
    return slice(heads[0], heads[-1] + 1) if heads[-1] - heads[0] == len(heads) - 1 else heads


def heads_only(call: Call, heads: list[int], pattern: Pattern) -> Call:
    """Returns the call for some heads; each set of heads draws its own dropout."""
    terms = tuple(term.of_heads(heads) for term in call.terms)
    query, key, value = (tensor[:, as_run(heads)] for tensor in (call.query, call.key, call.value))
    seed = call.seed + heads[0] * 1_000_003
    return replace(call, query=query, key=key, value=value, pattern=pattern, terms=terms, seed=seed)


@dataclass(frozen=True)
class _Part:
    """Heads with one pattern, and the permutation of their positions: by residue class, so that dilated windows are
    contiguous.

    Attributes:
        order: the position at each place.
        inverse_order: the place of each position.
        real: `(places,)` bool, False where classes were padded.
        has_spare: whether they were.
    """

    heads: list[int]
    order: Tensor
    inverse_order: Tensor
    real: Tensor
    has_spare: bool


class _Permutation(NamedTuple):
    """Parts as rows of a larger batch, the combined pattern, and, for a single part, the number of positions per
    place."""

    pattern: Pattern
    parts: list[_Part]
    step: int


@cached
def _permutation_of(pattern: Pattern, heads: int, length: int, device: torch.device) -> _Permutation | None:
    """Returns the permutation of heads and positions; `None` if none is needed, or if one pass would compute much more
    than separate ones."""
    shared = {pattern: list(range(heads))} if pattern.heads is None else by_pattern(pattern)
    folds = [counts.residues() for counts in shared]
    if len(shared) == 1 and (folds[0] is None or pattern.heads):
        return None
    steps = [min(fold.classes, max(1, length)) if fold else 1 for fold in folds]
    counts = [-(-length // step) for step in steps]
    places = max(step * count for step, count in zip(steps, counts, strict=True))
    inner = [
        fold.inner & Blocks(count) if fold else own for own, fold, count in zip(shared, folds, counts, strict=True)
    ]
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
    """Returns `order`, `inverse_order`, `real` and `has_spare` of a part with `step` classes, padded to `places`."""
    count = -(-length // step)
    place, position = torch.arange(places, device=device), torch.arange(length, device=device)
    source = place % count * step + place // count
    real = (source < length) & (place < step * count)
    return source.clamp(max=length - 1), position % step * count + position // step, real, length < places


@cached
def _inverse_heads(heads: tuple[int, ...], device: torch.device) -> Tensor | None:
    """Returns the index of each head in `heads`; `None` if they are in order."""
    if list(heads) == sorted(heads):
        return None
    return torch.tensor(heads).argsort().to(device)


@dataclass(frozen=True)
class _Permuted(Arranged):
    """Heads with different patterns as rows of a larger batch, part by part, with positions sorted by residue class."""

    parts: list[_Part]

    def output(self, result: Tensor) -> Tensor:
        parts = [rows.index_select(2, part.inverse_order) for part, rows in self._by_part(result)]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        order = _inverse_heads(tuple(head for part in self.parts for head in part.heads), whole.device)
        return whole if order is None else whole.index_select(1, order)

    def permuted(self, tensor: Tensor) -> Tensor:
        return _permuted(tensor, self.parts)

    def upstream(self, grad: Tensor) -> Tensor:
        permuted = self.permuted(grad)
        for part, rows in self._by_part(permuted):
            if part.has_spare:
                rows.mul_(part.real[:, None])
        return permuted

    def gradients(self, grads: list[Tensor]) -> list[Tensor]:
        placed = [True] * 3 + [isinstance(term, GlobalKeyBias) for term in self.call.terms for _ in term.tensors]
        return [
            self.output(grad) if permuted and grad.numel() else grad
            for grad, permuted in zip(grads, placed, strict=True)
        ]

    def _by_part(self, tensor: Tensor) -> Iterator[tuple[_Part, Tensor]]:
        return zip(self.parts, tensor.chunk(len(self.parts)), strict=True)


def permute(call: Call) -> _Permuted | None:
    """Returns the permuted call, if queries and keys are the same positions. Biases and tables are not permuted: heads
    with these run separately."""
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
    """Returns the mask of the permuted keys, `None` if none is hidden, and the slots of the global ones."""
    permutation = _permutation_of(pattern, heads, length, device)
    assert permutation is not None
    mask, parts = None, permutation.parts
    if any(part.has_spare for part in parts):
        mask = torch.cat([part.real.expand(batch, -1) for part in parts])
    if key_mask is not None:
        permuted_mask = torch.cat([key_mask[:, part.order] for part in parts])
        mask = permuted_mask if mask is None else mask & permuted_mask
    if slots is not None:
        slots = torch.cat([torch.where(slots < 0, slots, part.inverse_order[slots.clamp(min=0)]) for part in parts])
    return mask, slots


def _permuted(tensor: Tensor, parts: list[_Part]) -> Tensor:
    """`(B, H, T, …)` → `(parts·B, n, places, …)`; consecutive heads are read without a copy."""
    permuted = [tensor[:, as_run(part.heads)].index_select(2, part.order) for part in parts]
    return permuted[0] if len(permuted) == 1 else torch.cat(permuted)


@dataclass(frozen=True)
class _Filled(Arranged):
    """Keys padded at both ends, or cut to the visible ones, so that every query tile sees the same number of key tiles.

    Attributes:
        before, after: keys added at each end, negative where keys are cut off.
    """

    before: int
    after: int

    def gradients(self, grads: list[Tensor]) -> list[Tensor]:
        back = (0, 0, -self.before, -self.after)
        return [grads[0], F.pad(grads[1], back), F.pad(grads[2], back), *grads[3:]]


def _fill(call: Call) -> _Filled | None:
    """Returns the padded call, for content terms in a window, whose tiles are then one regular band."""
    content = any(isinstance(term, ContentToPosition | PositionToContent) for term in call.terms)
    if not content or any(isinstance(term, Bias) for term in call.terms):
        return None
    (low, high, step), (queries, keys) = call.pattern.reach(), (call.query.shape[2], call.key.shape[2])
    if step != 1:
        return None
    size = TILE_SIZES[-1]
    # The largest distance of two tokens.
    left, right = min(-low, call.query_offset + queries - 1), min(high, keys - 1 - call.query_offset)
    left, right = max(left, 0), max(right, 0)
    if left + right > queries:
        return None
    margin = -(-left // size) * size
    before = margin - call.query_offset
    after = -(-queries // size) * size + -(-right // size) * size + margin - keys - before
    whole = call.is_square and queries**2 <= ONE_TILE
    if whole and queries**2 * SCORE_COST[size] <= least_cost(call.pattern, queries, keys + before + after, margin):
        return None
    real = torch.ones(1, keys, dtype=torch.bool, device=call.query.device) if call.key_mask is None else call.key_mask
    mask = F.pad(real.expand(call.query.shape[0], -1), (before, after))
    slots = call.slots
    filled = replace(
        call,
        key=_filled_up(call.key, before, after),
        value=_filled_up(call.value, before, after),
        key_mask=mask,
        slots=None if slots is None else torch.where(slots < 0, slots, slots + before),
        query_offset=margin,
    )
    return _Filled(filled, before, after)


def _filled_up(tensor: Tensor, before: int, after: int) -> Tensor:
    """Returns `(B, H, S, D)` with this many zeros added, or keys removed, at each end, without zeroing memory that is
    then overwritten."""
    middle = tensor[:, :, max(0, -before) : tensor.shape[2] + min(0, after)]
    zeros = [tensor.new_zeros(*tensor.shape[:2], max(0, count), tensor.shape[3]) for count in (before, after)]
    return torch.cat([zeros[0], middle, zeros[1]], dim=2)
