"""Random blocks of keys as BigBird's paper draws them: equally many for every block of a text, by the text's length."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.patterns.base import Pattern, Span
from longspan.patterns.kinds import whole
from longspan.patterns.random_blocks import MOST_BLOCKS, MOST_STEPS, MOST_TABLED, mixed

FEW = 8
"""Up to so many draws, comparing them with a key costs less than a table of all blocks."""


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
            key = mixed(row * MOST_BLOCKS + number, self.seed) ^ (self.blocks * 40_503)
            guess, top = (
                place + first + torch.where(place + first >= near[0], hidden, 0)
                for place in (mixed(key, self.seed) % (top + 1).clamp(min=1), torch.where(top < 0, -1 - first, top))
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
        steps = int((last - first).max()) + 1 if last.numel() else 0
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


def _least(left: Any, right: int) -> Any:
    """The smaller of two numbers, of which the first may be a tensor."""
    return left.clamp(max=right) if isinstance(left, Tensor) else min(left, right)


def _choice(condition: Any, yes: Any, no: Any) -> Any:
    """One of two numbers, by a bool or by a tensor of them."""
    if isinstance(condition, Tensor):
        return torch.where(condition, yes, no)
    return yes if condition else no
