"""Random blocks of keys, as in BigBird: equally many for every block of a text, depending on its length, as in the
paper (`DrawnBlocks`) or in the released code (`PlannedBlocks`), or equally many on average, independent of the length
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
"""Maximum number of random blocks per query block; the published models use 3."""
MOST_STEPS = 4096
"""Maximum number of draws that a bound over a rectangle evaluates; with more, the rectangle counts as undecided."""
MOST_TABLED = 4096
"""Maximum number of blocks whose draws are all kept in one table instead of being drawn again for every pair."""
FEW = 8
"""Up to this number of draws, comparing each with a key costs less than a table of all blocks."""


@dataclass(frozen=True)
class RandomBlocks(Pattern):
    """Blocks of `block` queries see other blocks of keys drawn at random: `count` for each on average.

    Every block i draws `count` of the blocks before it, one in each of `count` equal parts of them, or all if there are
    fewer. A draw j makes one pair visible in one direction: i sees j, or j sees i. The directions alternate over the
    draws of a block, from a random start, so that as many pairs look back as ahead at every length. In BigBird (Zaheer
    et al. 2020, arXiv 2007.14062, §2) every query block draws equally many among all blocks, so that the pattern of a
    token depends on the length: see `DrawnBlocks`.

    Draws depend on `seed` and i alone: padding or a longer document does not change which of two tokens see each other.
    Early blocks therefore look ahead to more blocks than late ones (block i of n to `count / 2 · ln(n / i)` on
    average), while every block looks back to `count / 2`.

    The first block begins at position `start`; earlier positions take no part. Blocks up to `gap` away are not drawn
    either: another part of a pattern shows them.
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
        """The block index of a position, negative before the first block."""
        return (index - self.start) // self.block

    def _draw(self, later: Tensor, number: int | Tensor) -> tuple[Tensor, Tensor]:
        """Returns the block that `later` draws in part `number` of the earlier blocks (−1 if there are too few), and
        whether `later` sees it (True) or is seen by it (False)."""
        pool = (later - self.gap).clamp(min=0)
        first = pool * number // self.count
        size = pool * (number + 1) // self.count - first
        drawn = first + hash_bits(later * MOST_BLOCKS + number, 2 * self.seed) % size.clamp(min=1)
        back = (hash_bits(later, 2 * self.seed + 1) >> 7) + number & 1 == 0
        return torch.where(size > 0, drawn, -1), back

    def _table(self, blocks: int, device: torch.device) -> Tensor:
        """Returns `(blocks, blocks)` bool: which query block sees which key block."""
        later = torch.arange(blocks, device=device)[:, None]
        drawn, back = self._draw(later, torch.arange(self.count, device=device))
        drawn = torch.where(drawn < 0, blocks, drawn)  # −1 goes to an additional column, which is cut off
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
        number = ((earlier + 1) * self.count - 1) // pool.clamp(min=1)  # the part that contains the earlier block
        drawn, back = self._draw(later, number)
        return (drawn == earlier) & (earlier >= 0) & (earlier < pool) & (back == (query_block > key_block))

    def some(self, span: Span) -> Tensor:
        query = self._block(span.q0), self._block(span.q1)
        key = self._block(span.k0), self._block(span.k1)
        return self._some_drawn(query, key, looks_back=True) | self._some_drawn(key, query, looks_back=False)

    def _some_drawn(self, later: tuple[Tensor, Tensor], earlier: tuple[Tensor, Tensor], *, looks_back: bool) -> Tensor:
        """Whether a block from `later[0]` to `later[1]` draws one from `earlier[0]` to `earlier[1]` in this
        direction."""
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
    """Every block of `block` queries sees `count` other blocks of keys, drawn uniformly among the blocks of the text,
    or all of them if there are fewer.

    Source: BigBird (Zaheer et al. 2020, arXiv 2007.14062, §2), r random blocks for each block of queries.

    A draw depends on `seed`, the block and the number of blocks in the text. A text therefore has the same draws alone,
    padded and in a batch, but other draws than a prefix of it. For texts that grow while they are processed, as in a
    decoder, use `RandomBlocks`.

    The first block begins at position `start`; earlier positions take no part. A block does not draw itself and those
    up to `gap` away; the last `ends` blocks neither draw nor are drawn. Another part of a pattern shows them. With
    `within`, only the first `within` blocks are drawn.

    `blocks` is the number of blocks of the text from `start` on, including a partial last one. With 0, the operator
    sets it: from all keys, or for each row from its last unpadded key.
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
        # A single block draws nothing, as zero blocks do; so 0 can mean an unknown length.
        return replace(self, blocks=blocks.clamp(min=1) if isinstance(blocks, Tensor) else max(1, blocks))

    @property
    def _drawing(self) -> Any:
        """The number of blocks that draw and are drawn, an int or a tensor."""
        if self.reads_length:
            raise InputError(f"pattern {self} depends on the length of the text; call of_length(tokens) first")
        return self.blocks - self.ends

    def _part(self, number: int) -> tuple[Any, Any, Any]:
        """Returns the range of blocks for draw `number`, as first and end (exclusive), and the number of draws left in
        this range, including this one."""
        last = self._drawing
        return 0, (_least(last, self.within) if self.within else last), self.count - number

    def _block(self, index: Tensor) -> Tensor:
        """The block index of a position, negative before the first block."""
        return (index - self.start) // self.block

    def draws(self, row: Tensor) -> list[Tensor]:
        """Returns the blocks that each block of `row` draws, as a list of `count` tensors; −1 for none.

        Sets of n out of m are drawn uniformly by Floyd's algorithm (Bentley and Floyd 1987, Communications of the ACM
        30(9)): for j from m − n to m − 1 a random number up to j, or j itself if that number is already drawn.
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
            inside = [(block >= 0) & (block < self.blocks) for block in (row, key_block)]
            places = (block.clamp(0, self.blocks - 1) for block in (row, key_block))
            return self._table(row.device)[tuple(places)] & inside[0] & inside[1]
        for drawn in self.draws(row):
            shown = shown | (drawn == key_block)
        return shown & (key_block >= 0)

    def _table_serves(self, pairs: int) -> bool:
        """Whether this number of pairs is cheaper to look up in a table of all blocks."""
        if self.count <= FEW or torch.compiler.is_compiling() or isinstance(self.blocks, Tensor):
            return False
        return self.blocks <= MOST_TABLED and self.blocks**2 <= 64 * pairs

    def _table(self, device: torch.device) -> Tensor:
        """Returns `(blocks, blocks)` bool: which query block sees which key block."""
        row = torch.arange(self.blocks, device=device)
        drawn = torch.stack(self.draws(row), -1)
        shown = torch.zeros(self.blocks, self.blocks + 1, dtype=torch.bool, device=device)
        # −1 goes to an additional column, which is cut off.
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
    """As `DrawnBlocks`, but drawn from the ranges that BigBird's released code uses at most lengths.

    For a text of N blocks with r = `count`: among the first 2r + 5 blocks if N > 2r + 5; otherwise, if N > r + 5, half
    of the draws among the first r + 5 and the others after them; otherwise anywhere. N includes the blocks before
    `start`, and `within` is ignored.
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
    """The maximum number of blocks that one of the rectangles overlaps, from its first and last blocks. In a compiled
    graph, which cannot read values, it assumes rectangles of up to `LARGEST_TILE` positions."""
    if torch.compiler.is_compiling():
        return (LARGEST_TILE - 1) // block + 2
    return int((last - first).max()) + 1 if last.numel() else 0


def _least(left: Any, right: int) -> Any:
    """`min` where the first operand may be a tensor."""
    return left.clamp(max=right) if isinstance(left, Tensor) else min(left, right)


def _choice(condition: Any, yes: Any, no: Any) -> Any:
    """`yes if condition else no` where the condition may be a tensor."""
    if isinstance(condition, Tensor):
        return torch.where(condition, yes, no)
    return yes if condition else no


def hash_bits(value: Tensor, seed: int) -> Tensor:
    """Returns a fixed 31-bit integer hash: multiply–xorshift rounds, identical on every device."""
    value = (value + 0x9E37 * (seed + 1)) & 0x7FFFFFFF
    for multiplier in (0x45D9F3B, 0x119DE1F3):
        value = ((value ^ (value >> 16)) * multiplier) & 0x7FFFFFFF
    return value ^ (value >> 15)
