"""Random blocks of keys: BigBird's pattern, in a form that does not depend on the length of the document."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.patterns.base import Pattern, Span
from longspan.patterns.kinds import whole

MOST_BLOCKS = 256
"""Most random blocks of a query block; the published models draw 3."""
MOST_STEPS = 4096
"""Draws that the bounds over a rectangle look at; beyond, they count it as undecided."""


@dataclass(frozen=True)
class RandomBlocks(Pattern):
    """Blocks of `block` queries see other blocks of keys drawn at random: `count` for each on average.

    Every block i draws `count` of the blocks before it, one in each of `count` equal parts of them, or all where there
    are fewer. A draw of j is one pair that sees each other in one direction: i sees j, or j sees i. The directions take
    turns over the draws of a block, from a random start, so that as many pairs look back as look ahead, whatever the
    length. In BigBird (Zaheer et al. 2020, arXiv 2007.14062, §2) every query block draws among all blocks, which has no
    direction either, but changes what a token sees with the length.

    Draws depend on `seed` and i alone: padding or a longer document never changes which of two tokens see each other, a
    document's end only leaves out what would lie beyond it. So early blocks look ahead to more blocks than late ones
    (block i of n to `count / 2 · ln(n / i)` on average), while every block looks back to `count / 2`.
    """

    block: int
    count: int
    seed: int = 0

    def __post_init__(self) -> None:
        whole(self, "block", 1)
        whole(self, "count", 0, MOST_BLOCKS)
        whole(self, "seed", 0)

    def _part(self, later: Tensor, number: int | Tensor) -> tuple[Tensor, Tensor]:
        """First block and size of part `number` of the blocks before `later`; the size is 0 where there are too few."""
        first = later * number // self.count
        return first, later * (number + 1) // self.count - first

    def _draw(self, later: Tensor, number: int | Tensor) -> tuple[Tensor, Tensor]:
        """The block that `later` draws in a part (−1 for none), and whether it is `later` that looks, back."""
        first, size = self._part(later, number)
        drawn = first + _mix(later * MOST_BLOCKS + number, 2 * self.seed) % size.clamp(min=1)
        back = (_mix(later, 2 * self.seed + 1) >> 7) + number & 1 == 0
        return torch.where(size > 0, drawn, -1), back

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        query_block, key_block = query_index // self.block, key_index // self.block
        later, earlier = torch.maximum(query_block, key_block), torch.minimum(query_block, key_block)
        if self.count == 0:
            return later < earlier
        number = ((earlier + 1) * self.count - 1) // later.clamp(min=1)  # the part in which the earlier block lies
        drawn, back = self._draw(later, number)
        return (drawn == earlier) & (back == (query_block > key_block)) & (query_block != key_block)

    def some(self, span: Span) -> Tensor:
        query = span.q0 // self.block, span.q1 // self.block
        key = span.k0 // self.block, span.k1 // self.block
        return self._some_drawn(query, key, looks_back=True) | self._some_drawn(key, query, looks_back=False)

    def _some_drawn(self, later: tuple[Tensor, Tensor], earlier: tuple[Tensor, Tensor], *, looks_back: bool) -> Tensor:
        """Whether a block from `later[0]` to `later[1]` draws one from `earlier[0]` to `earlier[1]` in a direction."""
        first, last = later
        found = (first != first) & (earlier[0] != earlier[0])
        steps = int((last - first).max()) + 1 if last.numel() else 0
        if steps * self.count > MOST_STEPS:
            return last > earlier[0]
        for step in range(steps):
            block = torch.minimum(first + step, last)
            for number in range(self.count):
                drawn, back = self._draw(block, number)
                found = found | ((drawn >= earlier[0]) & (drawn <= earlier[1]) & (back == looks_back))
        return found

    def every(self, span: Span) -> Tensor:
        single = (span.q0 // self.block == span.q1 // self.block) & (span.k0 // self.block == span.k1 // self.block)
        return single & self.visible(span.q0, span.k0)


def _mix(value: Tensor, seed: int) -> Tensor:
    """A fixed integer hash to 31 bits: multiply–xorshift rounds, the same on every device."""
    mixed = (value + 0x9E37 * (seed + 1)) & 0x7FFFFFFF
    for multiplier in (0x45D9F3B, 0x119DE1F3):
        mixed = ((mixed ^ (mixed >> 16)) * multiplier) & 0x7FFFFFFF
    return mixed ^ (mixed >> 15)
