"""The patterns of the literature: index predicates with bounds over rectangles of positions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.patterns.base import (
    LARGEST_TILE,
    Band,
    NearFar,
    Pattern,
    Reach,
    Repeats,
    Residues,
    Span,
    Without,
    shortened,
    text_name,
)

LARGEST = 2**31 - 1
"""The largest number in a pattern: no sequence is longer, and products of two still fit into 64 bits."""


def whole(pattern: Pattern, name: str, minimum: int, maximum: int = LARGEST) -> None:
    """Raises `InputError` unless the field is an integer from `minimum` to `maximum`."""
    value = getattr(pattern, name)
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        wanted = f"of at least {minimum}" if isinstance(value, int) and value < minimum else f"up to {maximum}"
        raise InputError(
            f"{name}={shortened(repr(value))} of pattern {text_name(type(pattern))} must be a whole number {wanted}"
        )


@dataclass(frozen=True)
class Full(Pattern):
    """Every query sees every key."""

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return (query_index == query_index) & (key_index == key_index)

    def some(self, span: Span) -> Tensor:
        return self.visible(span.q0, span.k0)

    every = some

    def repeats(self) -> Repeats:
        return Repeats(1, 0)

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        return [torch.zeros_like(key_start - query_start)]

    def reach(self) -> Reach:
        return Reach(step=1)

    def thinned(self, step: int) -> Pattern:
        return self


@dataclass(frozen=True)
class Causal(Pattern):
    """A query sees itself and all earlier keys."""

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return key_index <= query_index

    def some(self, span: Span) -> Tensor:
        return span.k0 <= span.q1

    def every(self, span: Span) -> Tensor:
        return span.k1 <= span.q0

    def repeats(self) -> Repeats:
        return Repeats(1, 0)

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        return [torch.clamp(key_start - query_start, -LARGEST_TILE, LARGEST_TILE)]

    def reach(self) -> Reach:
        return Reach(last=0, step=1)

    def thinned(self, step: int) -> Pattern:
        return self


@dataclass(frozen=True)
class Window(Pattern):
    """A query sees itself, `left` keys before it and `right` keys after it, `dilation` positions apart.

    Source: Longformer (Beltagy et al. 2020, arXiv 2004.05150, §3.1), sliding and dilated windows; w = left + right.
    """

    left: int
    right: int
    dilation: int = 1

    def __post_init__(self) -> None:
        whole(self, "left", 0)
        whole(self, "right", 0)
        whole(self, "dilation", 1)

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        offset = key_index - query_index
        shown = (offset >= -self.left * self.dilation) & (offset <= self.right * self.dilation)
        return shown if self.dilation == 1 else shown & (offset % self.dilation == 0)

    def some(self, span: Span) -> Tensor:
        reach_left, reach_right = self.left * self.dilation, self.right * self.dilation
        return (span.k1 - span.q0 >= -reach_left) & (span.k0 - span.q1 <= reach_right)

    def every(self, span: Span) -> Tensor:
        inside = (span.k0 - span.q1 >= -self.left) & (span.k1 - span.q0 <= self.right)
        return inside if self.dilation == 1 else torch.zeros_like(inside)

    def repeats(self) -> Repeats:
        return Repeats(self.dilation, (self.left + self.right) * self.dilation)

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        left, right = self.left * self.dilation, self.right * self.dilation
        return [torch.clamp(key_start - query_start, -left - LARGEST_TILE, right + LARGEST_TILE)]

    def reach(self) -> Reach:
        return Reach(-self.left * self.dilation, self.right * self.dilation, self.dilation)

    def residues(self) -> Residues | None:
        return Residues(Window(self.left, self.right), self.dilation) if self.dilation > 1 else None

    def thinned(self, step: int) -> Pattern | None:
        return Window(self.left // step, self.right // step) if self.dilation == 1 else None


@dataclass(frozen=True)
class First(Pattern):
    """Global tokens at the start: the first `count` positions see all positions, and all positions see them."""

    count: int

    def __post_init__(self) -> None:
        whole(self, "count", 0)

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return (query_index < self.count) | (key_index < self.count)

    def some(self, span: Span) -> Tensor:
        return self.visible(span.q0, span.k0)

    def every(self, span: Span) -> Tensor:
        return self.visible(span.q1, span.k1)

    def repeats(self) -> Repeats:
        return Repeats(1, self.count)

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        return [
            torch.clamp(query_start, max=self.count) + 0 * key_start,
            torch.clamp(key_start, max=self.count) + 0 * query_start,
        ]


@dataclass(frozen=True)
class Blocks(Pattern):
    """The sequence is split into blocks of `size`; a query sees its own block, `before` blocks before and `after` after
    it.

    One block begins at position `start`; the others follow from there in both directions.
    """

    size: int
    before: int = 0
    after: int = 0
    start: int = 0

    def __post_init__(self) -> None:
        whole(self, "size", 1)
        for name in ("before", "after", "start"):
            whole(self, name, 0)

    def _block(self, index: Tensor) -> Tensor:
        return (index - self.start) // self.size

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        offset = self._block(key_index) - self._block(query_index)
        return (offset >= -self.before) & (offset <= self.after)

    def some(self, span: Span) -> Tensor:
        highest, lowest = self._block(span.k1) - self._block(span.q0), self._block(span.k0) - self._block(span.q1)
        return (highest >= -self.before) & (lowest <= self.after)

    def every(self, span: Span) -> Tensor:
        highest, lowest = self._block(span.k1) - self._block(span.q0), self._block(span.k0) - self._block(span.q1)
        return (lowest >= -self.before) & (highest <= self.after)

    def repeats(self) -> Repeats:
        return Repeats(self.size, (self.before + self.after + 1) * self.size + self.start)

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        # The first block border inside the tile, if any, on both sides; and the number of blocks between the sides.
        borders = [
            torch.clamp(self.size - (start - self.start) % self.size, max=LARGEST_TILE)
            for start in torch.broadcast_tensors(query_start, key_start)
        ]
        apart, spread = self._block(key_start) - self._block(query_start), LARGEST_TILE // self.size + 2
        return [*borders, torch.clamp(apart, -self.before - spread, self.after + spread)]

    def reach(self) -> Reach:
        return Reach(1 - (self.before + 1) * self.size, (self.after + 1) * self.size - 1)


@dataclass(frozen=True)
class Strided(Pattern):
    """A query sees every `stride`-th key, counted from itself in both directions.

    Source: Sparse Transformer (Child et al. 2019, arXiv 1904.10509, §4.3), set A² of the strided pattern; combine with
    `Causal()` for the autoregressive form.
    """

    stride: int

    def __post_init__(self) -> None:
        whole(self, "stride", 1)

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return (query_index - key_index) % self.stride == 0

    def some(self, span: Span) -> Tensor:
        highest = span.q1 - span.k0
        return highest // self.stride * self.stride >= span.q0 - span.k1

    def every(self, span: Span) -> Tensor:
        single = (span.q0 == span.q1) & (span.k0 == span.k1)
        return self.visible(span.q0, span.k0) & (single | (self.stride == 1))

    def repeats(self) -> Repeats:
        return Repeats(self.stride, 0)

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        return [(key_start - query_start) % self.stride]

    def reach(self) -> Reach:
        return Reach(step=self.stride)

    def residues(self) -> Residues | None:
        return Residues(Full(), self.stride) if self.stride > 1 else None


@dataclass(frozen=True)
class Fixed(Pattern):
    """A query sees its own block of `stride` positions and `summary` positions of every block: the last ones, or those
    `sub_block · summary` positions before them.

    Source: Sparse Transformer (Child et al. 2019, §4.3), fixed pattern, union of both sets: l = `stride`, c =
    `summary`; combine with `Causal()` for the autoregressive form. The heads of §5.2 have different sub-blocks.
    """

    stride: int
    summary: int
    sub_block: int = 0

    def __post_init__(self) -> None:
        whole(self, "stride", 1)
        whole(self, "summary", 0)
        whole(self, "sub_block", 0)
        if self.summary > self.stride:
            raise InputError(
                f"summary={self.summary} of pattern fixed exceeds stride={self.stride}; give at most the stride"
            )
        if self.columns.first < 0:
            raise InputError(
                f"sub_block={self.sub_block} of pattern fixed lies before its block of stride={self.stride}; give one "
                f"below {self.stride // self.summary}"
            )

    @property
    def columns(self) -> Columns:
        """The positions of each block that every query sees."""
        end = self.stride - self.sub_block * self.summary
        return Columns(self.stride, end - self.summary, end)

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return self._either.visible(query_index, key_index)

    def some(self, span: Span) -> Tensor:
        return self._either.some(span)

    def every(self, span: Span) -> Tensor:
        return self._either.every(span)

    def repeats(self) -> Repeats:
        return Repeats(self.stride, 0)

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        return self._either.phase(query_start, key_start)

    def near_far(self, *, causal: bool = False) -> NearFar | None:
        if not 0 < self.summary < self.stride:
            return None
        if not causal:
            return NearFar(Without(Blocks(self.stride), self.columns), Full(), self.columns)
        # Enough blocks are merged that their columns fill whole tiles, which then need no mask.
        count = LARGEST_TILE // math.gcd(LARGEST_TILE, self.summary)
        near = (self & Causal()) & Blocks(count * self.stride)
        return NearFar(near, Before(count * self.stride, count * self.summary), self.columns)

    @property
    def _either(self) -> Pattern:
        return Blocks(self.stride) | self.columns


@dataclass(frozen=True)
class Columns(Pattern):
    """Every query sees the positions `first` to `end` − 1 of every block of `stride` positions; a part of `Fixed`."""

    stride: int
    first: int
    end: int

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        place = key_index % self.stride
        return (place >= self.first) & (place < self.end) & (query_index == query_index)

    def some(self, span: Span) -> Tensor:
        place = span.k0 % self.stride
        wait = torch.where(place < self.end, (self.first - place).clamp(min=0), self.stride - place + self.first)
        return (span.k0 + wait <= span.k1) & (self.first < self.end) & (span.q0 == span.q0)

    def every(self, span: Span) -> Tensor:
        one_block = span.k0 // self.stride == span.k1 // self.stride
        inside = one_block & self.visible(span.q0, span.k0) & self.visible(span.q1, span.k1)
        return inside | (self.end - self.first == self.stride)

    def repeats(self) -> Repeats:
        return Repeats(self.stride, 0)

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        return [key_start % self.stride + 0 * query_start]

    def places(self, length: int) -> Tensor:
        """Returns the visible positions of a text of `length` tokens, `(S',)` int64, ascending."""
        place = torch.arange(length)
        return place[self.visible(place, place)]

    def count(self, length: int) -> int:
        """Returns the number of visible positions, S'."""
        blocks, rest = divmod(length, self.stride)
        return blocks * (self.end - self.first) + min(max(rest - self.first, 0), self.end - self.first)


@dataclass(frozen=True)
class Before(Pattern):
    """A query in a block of `queries` positions sees the keys of all earlier blocks, `keys` in each; the far part of a
    causal `Fixed`."""

    queries: int
    keys: int

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return key_index // self.keys < query_index // self.queries

    def some(self, span: Span) -> Tensor:
        return self.visible(span.q1, span.k0)

    def every(self, span: Span) -> Tensor:
        return self.visible(span.q0, span.k1)


@dataclass(frozen=True)
class PooledWindow(Pattern):
    """Key s is the pool of `kernel` tokens centred at token s·`stride`; a query sees the pools within its window.

    A pool is visible if its whole kernel lies in `[i − left, i + right]`. Source: Poolingformer (Zhang et al. 2021,
    arXiv 2105.04371), second level with one pooled sequence for all queries; w₂ = left = right, κ = kernel, ξ = stride.
    """

    left: int
    right: int
    kernel: int
    stride: int

    def __post_init__(self) -> None:
        for name, minimum in (("left", 0), ("right", 0), ("kernel", 1), ("stride", 1)):
            whole(self, name, minimum)

    @property
    def _inner(self) -> tuple[int, int]:
        """Largest distance of a visible centre to the left and to the right of the query."""
        before = self.kernel // 2
        return self.left - before, self.right - (self.kernel - 1 - before)

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        left, right = self._inner
        offset = key_index * self.stride - query_index
        return (offset >= -left) & (offset <= right)

    def some(self, span: Span) -> Tensor:
        left, right = self._inner
        return (span.k1 * self.stride - span.q0 >= -left) & (span.k0 * self.stride - span.q1 <= right)

    def every(self, span: Span) -> Tensor:
        left, right = self._inner
        return (span.k0 * self.stride - span.q1 >= -left) & (span.k1 * self.stride - span.q0 <= right)

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        return [key_start * self.stride - query_start]

    def band(self) -> Band:
        return Band(*self._inner, self.stride)
