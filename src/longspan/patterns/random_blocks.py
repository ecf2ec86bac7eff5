"""Random blocks of keys that do not depend on the length of the document, on average as many as BigBird's."""

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
MOST_TABLED = 4096
"""Blocks of a sequence up to which all draws are looked up in one table, instead of drawn again for every pair."""


@dataclass(frozen=True)
class RandomBlocks(Pattern):
    """Blocks of `block` queries see other blocks of keys drawn at random: `count` for each on average.

    Every block i draws `count` of the blocks before it, one in each of `count` equal parts of them, or all where there
    are fewer. A draw of j is one pair that sees each other in one direction: i sees j, or j sees i. The directions take
    turns over the draws of a block, from a random start, so that as many pairs look back as look ahead, whatever the
    length. In BigBird (Zaheer et al. 2020, arXiv 2007.14062, §2) every query block draws equally many among all blocks,
    which changes what a token sees with the length: that is `DrawnBlocks`.

    Draws depend on `seed` and i alone: padding or a longer document never changes which of two tokens see each other, a
    document's end only leaves out what would lie beyond it. So early blocks look ahead to more blocks than late ones
    (block i of n to `count / 2 · ln(n / i)` on average), while every block looks back to `count / 2`.

    The first block begins at position `start`: what stands before it draws nothing and is not drawn. Blocks up to `gap`
    away are not drawn either; another part of a pattern shows them.
    """

    block: int
    count: int
    seed: int = 0
    start: int = 0
    gap: int = 0

    def __post_init__(self) -> None:
        whole(self, "block", 1)
        whole(self, "count", 0, MOST_BLOCKS)
        for name in ("seed", "start", "gap"):
            whole(self, name, 0)

    def _block(self, index: Tensor) -> Tensor:
        """The number of the block of a position, negative before the first."""
        return (index - self.start) // self.block

    def _draw(self, later: Tensor, number: int | Tensor) -> tuple[Tensor, Tensor]:
        """The block that `later` draws in part `number` of those before it (−1 where there are too few for that), and
        whether it is `later` that looks, back."""
        pool = (later - self.gap).clamp(min=0)
        first = pool * number // self.count
        size = pool * (number + 1) // self.count - first
        drawn = first + mixed(later * MOST_BLOCKS + number, 2 * self.seed) % size.clamp(min=1)
        back = (mixed(later, 2 * self.seed + 1) >> 7) + number & 1 == 0
        return torch.where(size > 0, drawn, -1), back

    def _table(self, blocks: int, device: torch.device) -> Tensor:
        """`(blocks, blocks)` bool: who sees whom among the first blocks."""
        later = torch.arange(blocks, device=device)[:, None]
        drawn, back = self._draw(later, torch.arange(self.count, device=device))
        drawn = torch.where(drawn < 0, blocks, drawn)  # what is not drawn is written beside the table
        shown = torch.zeros(blocks + 1, blocks + 1, dtype=torch.bool, device=device)
        shown[torch.where(back, later, drawn), torch.where(back, drawn, later)] = True
        return shown[:blocks, :blocks]

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        query_block, key_block = self._block(query_index), self._block(key_index)
        earlier, later = torch.minimum(query_block, key_block), torch.maximum(query_block, key_block)
        if self.count == 0:
            return later < earlier
        if not torch.compiler.is_compiling() and later.numel() > MOST_STEPS:
            blocks = int(later.max()) + 1
            if 0 < blocks <= MOST_TABLED and blocks**2 <= 64 * later.numel():  # less work than a draw for every pair
                shown = self._table(blocks, later.device)[query_block.clamp(min=0), key_block.clamp(min=0)]
                return shown & (earlier >= 0)
        pool = later - self.gap
        number = ((earlier + 1) * self.count - 1) // pool.clamp(min=1)  # the part in which the earlier block lies
        drawn, back = self._draw(later, number)
        return (drawn == earlier) & (earlier >= 0) & (earlier < pool) & (back == (query_block > key_block))

    def some(self, span: Span) -> Tensor:
        query = self._block(span.q0), self._block(span.q1)
        key = self._block(span.k0), self._block(span.k1)
        return self._some_drawn(query, key, looks_back=True) | self._some_drawn(key, query, looks_back=False)

    def _some_drawn(self, later: tuple[Tensor, Tensor], earlier: tuple[Tensor, Tensor], *, looks_back: bool) -> Tensor:
        """Whether a block from `later[0]` to `later[1]` draws one from `earlier[0]` to `earlier[1]` in a direction."""
        first, last = later
        some = (first != first) & (earlier[0] != earlier[0])
        steps = int((last - first).max()) + 1 if last.numel() else 0
        if steps * self.count > MOST_STEPS:
            return (last > earlier[0]) & (earlier[1] >= 0)
        for step in range(steps):
            block = torch.minimum(first + step, last)
            for number in range(self.count):
                drawn, back = self._draw(block, number)
                in_reach = (drawn >= earlier[0].clamp(min=0)) & (drawn <= earlier[1])
                some = some | (in_reach & (back == looks_back))
        return some

    def every(self, span: Span) -> Tensor:
        single = (self._block(span.q0) == self._block(span.q1)) & (self._block(span.k0) == self._block(span.k1))
        return single & self.visible(span.q0, span.k0)


def mixed(value: Tensor, seed: int) -> Tensor:
    """A fixed integer hash to 31 bits: multiply–xorshift rounds, the same on every device."""
    value = (value + 0x9E37 * (seed + 1)) & 0x7FFFFFFF
    for multiplier in (0x45D9F3B, 0x119DE1F3):
        value = ((value ^ (value >> 16)) * multiplier) & 0x7FFFFFFF
    return value ^ (value >> 15)
