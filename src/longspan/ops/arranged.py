"""Calls whose positions are put elsewhere, so that the tiles of their pattern are regular."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.call import Call
from longspan.ops.term_tiles import bounds
from longspan.ops.terms import Bias, ContentToPosition, GlobalKeyBias, PositionToContent
from longspan.ops.tiles import ONE_TILE, SCORE_COST, TILE_SIZES, best_layout, cost
from longspan.patterns import Blocks, Both, Causal, Full, Pattern, Strided, Window


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

    def gradients(self, grads: list[Tensor]) -> list[Tensor]:
        """Those of query, key, value and the tensors of the terms, in the order of the caller."""
        return grads


def arrange(call: Call) -> Arranged:
    """The call as its tiles are cheapest."""
    return _fold(call) or _fill(call) or Arranged(call)


@dataclass(frozen=True)
class _Folded(Arranged):
    """Positions by residue class: dilation and strides become contiguous windows and blocks.

    Attributes:
        order: the position that stands at each place.
        inverse: the place of each position.
        real: `(places,)` bool, False where a class was filled up.
    """

    order: Tensor
    inverse: Tensor
    real: Tensor

    def output(self, result: Tensor) -> Tensor:
        return result.index_select(2, self.inverse)

    def upstream(self, grad: Tensor) -> Tensor:
        return grad.index_select(2, self.order) * self.real[:, None]

    def gradients(self, grads: list[Tensor]) -> list[Tensor]:
        placed = [True] * 3 + [isinstance(term, GlobalKeyBias) for term in self.call.terms for _ in term.tensors]
        return [
            each.index_select(2, self.inverse) if moved and each.numel() else each
            for each, moved in zip(grads, placed, strict=True)
        ]


def _fold(call: Call) -> _Folded | None:
    """The folded call, where queries and keys are the same positions and no bias has places of its own."""
    length, found = call.query.shape[2], _classes(call.pattern)
    if found is None or not call.is_square or any(isinstance(term, Bias) for term in call.terms):
        return None
    pattern, step = found
    classes = min(step, max(1, length))
    each = -(-length // classes)
    place = torch.arange(classes * each, device=call.query.device)
    position = torch.arange(length, device=place.device)
    source = place % each * classes + place // each
    real, order = source < length, source.clamp(max=length - 1)
    inverse = position % classes * each + position // classes
    query, key, value = (tensor.index_select(2, order) for tensor in (call.query, call.key, call.value))
    mask, slots = real.expand(query.shape[0], -1), call.slots
    terms = tuple(
        GlobalKeyBias(term.values.index_select(2, order)) if isinstance(term, GlobalKeyBias) else term
        for term in call.terms
    )
    folded = replace(
        call,
        query=query,
        key=key,
        value=value,
        pattern=pattern & Blocks(each),
        terms=terms,
        key_mask=mask if call.key_mask is None else mask & call.key_mask[:, order],
        slots=None if slots is None else torch.where(slots < 0, slots, inverse[slots.clamp(min=0)]),
        step=step,
    )
    return _Folded(folded, order, inverse, real)


def _classes(pattern: Pattern) -> tuple[Pattern, int] | None:
    """What a dilated or strided pattern shows inside of a residue class, and how many of these there are."""
    if isinstance(pattern, Both) and pattern.second == Causal():
        inner = _classes(pattern.first)
        return None if inner is None else (inner[0] & Causal(), inner[1])
    if isinstance(pattern, Window) and pattern.dilation > 1:
        return Window(pattern.left, pattern.right), pattern.dilation
    if isinstance(pattern, Strided) and pattern.stride > 1:
        return Full(), pattern.stride
    return None


@dataclass(frozen=True)
class _Filled(Arranged):
    """Keys filled up at both ends, or cut to those that are seen, so that every query tile sees as many key tiles.

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
    (low, high, exact), (queries, keys) = bounds(call.pattern), (call.query.shape[2], call.key.shape[2])
    if not content or not exact or any(isinstance(term, Bias) for term in call.terms):
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
    sizes = (queries, keys + before + behind, margin, call.query.device)
    whole = (
        call.is_square
        and queries**2 <= ONE_TILE
        and queries**2 * SCORE_COST[size] <= cost(best_layout(call.pattern, *sizes))
    )
    if whole:
        return None
    real = torch.ones(1, keys, dtype=torch.bool, device=call.query.device) if call.key_mask is None else call.key_mask
    mask = F.pad(real.expand(call.query.shape[0], -1), (before, behind))
    slots = call.slots
    filled = replace(
        call,
        key=F.pad(call.key, (0, 0, before, behind)),
        value=F.pad(call.value, (0, 0, before, behind)),
        key_mask=mask,
        slots=None if slots is None else torch.where(slots < 0, slots, slots + before),
        query_offset=margin,
    )
    return _Filled(filled, before, behind)
