"""Calls whose heads and positions are put elsewhere, so that the tiles of their patterns are regular and few."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.call import Call
from longspan.ops.attend.terms import Bias, ContentToPosition, GlobalKeyBias, OffsetTerm, PositionToContent
from longspan.ops.tiles.layout import ONE_TILE, SCORE_COST, TILE_SIZES, least_cost
from longspan.patterns import Blocks, Pattern, PerHead

TOGETHER = 1.15
"""Heads with different patterns run in one pass if that computes at most so many times the scores of turns."""


@dataclass(frozen=True)
class Arranged:
    """A call as tiles compute it, and the way back: by default as it stands."""

    call: Call

    def output(self, result: Tensor) -> Tensor:
        """The result in the order of the caller."""
        return result

    def upstream(self, grad: Tensor) -> Tensor:
        """The gradient of the result in the order of the tiles."""
        return grad

    def moved(self, tensor: Tensor) -> Tensor:
        """What belongs to the queries `(B, H, T, …)` in the order of the tiles."""
        return tensor

    def gradients(self, grads: list[Tensor]) -> list[Tensor]:
        """Those of query, key, value and the tensors of the terms, in the order of the caller."""
        return grads


def arrange(call: Call) -> list[tuple[list[int] | slice, Arranged]]:
    """The call as its tiles are cheapest: all heads at once where they can be, else in turns those of each pattern."""
    moved = _move(call)
    if moved is not None or call.pattern.heads is None:
        return [(slice(None), moved or _fill(call) or Arranged(call))]
    shared = by_pattern(call)
    return [(as_run(heads), arrange(heads_only(call, heads, each))[0][1]) for each, heads in shared.items()]


def by_pattern(call: Call) -> dict[Pattern, list[int]]:
    """The heads that share each pattern."""
    shared: dict[Pattern, list[int]] = {}
    for index in range(call.query.shape[1]):
        shared.setdefault(call.pattern.head(index), []).append(index)
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
        inverse: the place of each position.
        real: `(places,)` bool, False where classes were filled up.
    """

    heads: list[int]
    order: Tensor
    inverse: Tensor
    real: Tensor

    def of(self, tensor: Tensor) -> Tensor:
        """`(B, H, …)` → `(B, n, …)`, a view where the heads follow each other."""
        first, last = self.heads[0], self.heads[-1] + 1
        return tensor[:, first:last] if last - first == len(self.heads) else tensor[:, self.heads]


@dataclass(frozen=True)
class _Moved(Arranged):
    """Heads with different patterns as rows of a larger batch, part after part, and their positions by residue."""

    parts: list[_Part]

    def output(self, result: Tensor) -> Tensor:
        parts = [own.index_select(2, part.inverse) for part, own in self._by_part(result)]
        order = torch.tensor([head for part in self.parts for head in part.heads])
        whole = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return whole if bool((order[1:] > order[:-1]).all()) else whole[:, order.argsort()]

    def moved(self, tensor: Tensor) -> Tensor:
        return _moved(tensor, self.parts)

    def upstream(self, grad: Tensor) -> Tensor:
        moved = self.moved(grad)
        for part, own in self._by_part(moved):
            if not bool(part.real.all()):
                own.mul_(part.real[:, None])
        return moved

    def gradients(self, grads: list[Tensor]) -> list[Tensor]:
        placed = [True] * 3 + [isinstance(term, GlobalKeyBias) for term in self.call.terms for _ in term.tensors]
        return [
            self.output(each) if moved and each.numel() else each for each, moved in zip(grads, placed, strict=True)
        ]

    def _by_part(self, tensor: Tensor) -> Iterator[tuple[_Part, Tensor]]:
        """The parts, and the rows of each."""
        return zip(self.parts, tensor.chunk(len(self.parts)), strict=True)


def _move(call: Call) -> _Moved | None:
    """The moved call, where queries and keys are the same positions; `None` where nothing is to be moved, or heads
    would compute much more than in turns. A bias has places of its own, and a table its heads: those take turns too."""
    if not call.is_square:
        return None
    shared = {call.pattern: list(range(call.query.shape[1]))} if call.pattern.heads is None else by_pattern(call)
    folds = [each.residues() for each in shared]
    if (len(shared) == 1 and (folds[0] is None or call.pattern.heads)) or not _serves(call, len(shared)):
        return None
    steps = [min(fold.classes, max(1, call.query.shape[2])) if fold else 1 for fold in folds]
    length = call.query.shape[2]
    each = [-(-length // step) for step in steps]
    places = max(step * count for step, count in zip(steps, each, strict=True))
    inner = [
        fold.inner & Blocks(count) if fold else pattern
        for pattern, fold, count in zip(shared, folds, each, strict=True)
    ]
    split = math.gcd(*(len(heads) for heads in shared.values()))
    patterns, parts = [], []
    for pattern, heads, step in zip(inner, shared.values(), steps, strict=True):
        where = _places(length, step, places, call.query.device)
        for first in range(0, len(heads), split):
            patterns.append(pattern)
            parts.append(_Part(heads[first : first + split], *where))
    pattern = patterns[0] if len(patterns) == 1 else PerHead(patterns)
    if len(parts) > 1 and not _as_cheap(pattern, places):
        return None
    return _Moved(_moved_call(call, pattern, parts, steps[0]), parts)


def _serves(call: Call, patterns: int) -> bool:
    kinds = GlobalKeyBias if patterns > 1 else GlobalKeyBias | OffsetTerm
    return all(isinstance(term, kinds) for term in call.terms)


def _as_cheap(pattern: Pattern, places: int) -> bool:
    """Whether tiles for all patterns at once are about as many as those of each."""
    turns = [least_cost(pattern.head(index), places, places) for index in range(pattern.heads or 1)]
    return least_cost(pattern, places, places) * len(turns) <= TOGETHER * sum(turns)


def _places(length: int, step: int, places: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """`order`, `inverse` and `real` of a part with so many classes, filled up to so many places."""
    each = -(-length // step)
    place, position = torch.arange(places, device=device), torch.arange(length, device=device)
    source = place % each * step + place // each
    real = (source < length) & (place < step * each)
    return source.clamp(max=length - 1), position % step * each + position // step, real


def _moved(tensor: Tensor, parts: list[_Part]) -> Tensor:
    """`(B, H, T, …)` → `(parts·B, n, places, …)`."""
    moved = [part.of(tensor).index_select(2, part.order) for part in parts]
    return moved[0] if len(moved) == 1 else torch.cat(moved)


def _moved_call(call: Call, pattern: Pattern, parts: list[_Part], step: int) -> Call:
    query, key, value = (_moved(tensor, parts) for tensor in (call.query, call.key, call.value))
    mask = torch.cat([part.real.expand(call.query.shape[0], -1) for part in parts])
    if call.key_mask is not None:
        mask = mask & torch.cat([call.key_mask[:, part.order] for part in parts])
    slots = call.slots
    if slots is not None:
        slots = torch.cat([torch.where(slots < 0, slots, part.inverse[slots.clamp(min=0)]) for part in parts])
    terms = tuple(
        GlobalKeyBias(_moved(term.values, parts)) if isinstance(term, GlobalKeyBias) else term for term in call.terms
    )
    options = {"pattern": pattern, "terms": terms, "key_mask": mask, "slots": slots, "step": step}
    return replace(call, query=query, key=key, value=value, **options)


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
    (low, high, step), (queries, keys) = call.pattern.reach(), (call.query.shape[2], call.key.shape[2])
    if not content or step != 1 or any(isinstance(term, Bias) for term in call.terms):
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
