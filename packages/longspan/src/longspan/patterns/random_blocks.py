"""Random blocks of keys, as BigBird's paper draws them: equally many for every block of a text, by the text's length
(`DrawnBlocks`), as its released code draws them (`PlannedBlocks`), or on average as many, whatever the length
(`RandomBlocks`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.patterns.base import LARGEST_TILE, Pattern, Span
from longspan.patterns.kinds import whole

MOST_BLOCKS = 256
"""Most random blocks of a query block; the published models draw 3."""
MOST_STEPS = 4096
"""Draws that the bounds over a rectangle look at; beyond, they count it as undecided."""
MOST_TABLED = 4096
"""Blocks of a sequence up to which all draws are looked up in one table, instead of drawn again for every pair."""
FEW = 8
"""Up to so many draws, comparing them with a key costs less than a table of all blocks."""


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
        drawn = first + hash_bits(later * MOST_BLOCKS + number, 2 * self.seed) % size.clamp(min=1)
        back = (hash_bits(later, 2 * self.seed + 1) >> 7) + number & 1 == 0
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
        steps = _blocks_across(first, last, self.block)
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


@dataclass(frozen=True)
class DrawnBlocks(Pattern):
    """Every block of `block` queries sees `count` other blocks of keys, or all that there are to draw where these are
    fewer: a set drawn uniformly among the blocks of the text.

    Source: BigBird (Zaheer et al. 2020, arXiv 2007.14062, §2), r random blocks for each block of queries.

    A draw depends on `seed`, the block and the number of blocks in the text. So a text draws the same alone, padded and
    in company, but its beginning draws otherwise than the beginning alone does: for texts that grow while they are
    read, as in a decoder, take `RandomBlocks`.

    The first block begins at position `start`: what stands before it draws nothing and is not drawn. A block does not
    draw itself and those up to `gap` away; the last `ends` blocks neither draw nor are drawn. Another part of a pattern
    shows them. With `within`, only the first so many blocks are drawn.

    `blocks` is how many blocks the text has from `start` on, the last one perhaps cut. 0 leaves it to the operator that
    meets the pattern: all keys, or those of each row up to its last real one.
    """

    block: int
    count: int
    seed: int = 0
    start: int = 0
    gap: int = 0
    ends: int = 0
    within: int = 0
    blocks: int = 0

    def __post_init__(self) -> None:
        whole(self, "block", 1)
        whole(self, "count", 0, MOST_BLOCKS)
        for name in (
            "seed",
            "start",
            "gap",
            "ends",
            "within",
            *(() if isinstance(self.blocks, Tensor) else ("blocks",)),
        ):
            whole(self, name, 0)

    def block_draws(self) -> Self | None:
        return self if self.count <= FEW else None

    @property
    def reads_length(self) -> bool:
        return not isinstance(self.blocks, Tensor) and self.blocks == 0

    def of_length(self, length: int | Tensor) -> Self:
        if not self.reads_length:
            return self
        blocks: Any = (length - self.start + self.block - 1) // self.block
        # A single block has nothing to draw, as none has; so 0 can stand for a text that is not known.
        return replace(self, blocks=blocks.clamp(min=1) if isinstance(blocks, Tensor) else max(1, blocks))

    @property
    def _drawing(self) -> Any:
        """How many blocks draw and are drawn, an int or a tensor."""
        if self.reads_length:
            raise InputError(f"pattern {self} depends on the length of the text; call of_length(tokens) first")
        return self.blocks - self.ends

    def _part(self, number: int) -> tuple[Any, Any, Any]:
        """Where draw `number` looks: the first block, that behind the last, and how many draws there are still left to
        be made in this part, with this one."""
        last = self._drawing
        return 0, (_least(last, self.within) if self.within else last), self.count - number

    def _block(self, index: Tensor) -> Tensor:
        """The number of the block of a position, negative before the first."""
        return (index - self.start) // self.block

    def draws(self, row: Tensor) -> list[Tensor]:
        """The blocks that each block of `row` draws, in `count` tensors; −1 for none.

        Sets of n out of m are drawn uniformly by Floyd's algorithm (Bentley and Floyd 1987, Communications of the ACM
        30(9)): for j from m − n to m − 1 a number up to j, or j itself where that number is drawn already.
        """
        drawn_before: list[Tensor] = []
        draws = (row >= 0) & (row < self._drawing)
        for number in range(self.count):
            first, last, left = self._part(number)
            near = [(row + side).clamp(min=first).clamp(max=last) for side in (-self.gap, self.gap + 1)]
            hidden = near[1] - near[0]
            top = last - first - hidden - left
            key = hash_bits(row * MOST_BLOCKS + number, self.seed) ^ (self.blocks * 40_503)
            guess, top = (
                place + first + torch.where(place + first >= near[0], hidden, 0)
                for place in (hash_bits(key, self.seed) % (top + 1).clamp(min=1), torch.where(top < 0, -1 - first, top))
            )
            for earlier in drawn_before:
                guess = torch.where(guess == earlier, top, guess)
            drawn_before.append(torch.where(draws & (top >= 0), guess, -1))
        return drawn_before

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        row, key_block = self._block(query_index), self._block(key_index)
        shown = (row != row) & (key_block != key_block)
        if self._table_serves(shown.numel()):
            inside = [(each >= 0) & (each < self.blocks) for each in (row, key_block)]
            places = (each.clamp(0, self.blocks - 1) for each in (row, key_block))
            return self._table(row.device)[tuple(places)] & inside[0] & inside[1]
        for drawn in self.draws(row):
            shown = shown | (drawn == key_block)
        return shown & (key_block >= 0)

    def _table_serves(self, pairs: int) -> bool:
        """Whether so many pairs are better looked up in a table of all blocks."""
        if self.count <= FEW or torch.compiler.is_compiling() or isinstance(self.blocks, Tensor):
            return False
        return self.blocks <= MOST_TABLED and self.blocks**2 <= 64 * pairs

    def _table(self, device: torch.device) -> Tensor:
        """`(blocks, blocks)` bool: which block sees which."""
        row = torch.arange(self.blocks, device=device)
        drawn = torch.stack(self.draws(row), -1)
        shown = torch.zeros(self.blocks, self.blocks + 1, dtype=torch.bool, device=device)
        # What is not drawn is written beside the table.
        return shown.scatter_(1, torch.where(drawn < 0, self.blocks, drawn), True)[:, :-1]

    def some(self, span: Span) -> Tensor:
        first, last = self._block(span.q0), self._block(span.q1)
        keys = self._block(span.k0).clamp(min=0), self._block(span.k1)
        steps = _blocks_across(first, last, self.block)
        if steps * self.count > MOST_STEPS:
            return (first < self._drawing) & (last >= 0) & (keys[0] < self._drawing) & (keys[1] >= 0)
        some = (first != first) & (keys[0] != keys[0])
        for step in range(steps):
            for drawn in self.draws(torch.minimum(first + step, last)):
                some = some | ((drawn >= keys[0]) & (drawn <= keys[1]))
        return some

    def every(self, span: Span) -> Tensor:
        single = (self._block(span.q0) == self._block(span.q1)) & (self._block(span.k0) == self._block(span.k1))
        return single & self.visible(span.q0, span.k0)


@dataclass(frozen=True)
class PlannedBlocks(DrawnBlocks):
    """The same, but drawn where the released code of BigBird looks at most lengths: of a text of N blocks with
    r = `count`, among the first 2r + 5 where N > 2r + 5; else where N > r + 5 half of them among the first r + 5, the
    others behind; else anywhere. N counts the blocks before `start`, and `within` is not read.
    """

    def _part(self, number: int) -> tuple[Any, Any, Any]:
        front, last, half = self.start // self.block, self._drawing, self.count // 2
        blocks, border = self.blocks + front, self.count + 5 - front
        long, short = blocks > 2 * self.count + 5, blocks <= self.count + 5
        if number < half:
            middle = (0, _least(last, border), half - number)
        else:
            middle = (border, last, self.count - number)
        left, far = self.count - number, _least(last, 2 * self.count + 5 - front)
        return tuple(
            _choice(short, everywhere, _choice(long, early, between))
            for everywhere, early, between in zip((0, last, left), (0, far, left), middle, strict=True)
        )  # pyright: ignore[reportReturnType]


def _blocks_across(first: Tensor, last: Tensor, block: int) -> int:
    """How many blocks of `block` positions a rectangle touches at most, by its first and last ones. A compiled graph,
    which cannot look, is for rectangles of up to `LARGEST_TILE` positions."""
    if torch.compiler.is_compiling():
        return (LARGEST_TILE - 1) // block + 2
    return int((last - first).max()) + 1 if last.numel() else 0


def _least(left: Any, right: int) -> Any:
    """The smaller of two numbers, of which the first may be a tensor."""
    return left.clamp(max=right) if isinstance(left, Tensor) else min(left, right)


def _choice(condition: Any, yes: Any, no: Any) -> Any:
    """One of two numbers, by a bool or by a tensor of them."""
    if isinstance(condition, Tensor):
        return torch.where(condition, yes, no)
    return yes if condition else no


def hash_bits(value: Tensor, seed: int) -> Tensor:
    """A fixed integer hash to 31 bits: multiply–xorshift rounds, the same on every device."""
    value = (value + 0x9E37 * (seed + 1)) & 0x7FFFFFFF
    for multiplier in (0x45D9F3B, 0x119DE1F3):
        value = ((value ^ (value >> 16)) * multiplier) & 0x7FFFFFFF
    return value ^ (value >> 15)
