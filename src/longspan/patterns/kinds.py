"""The patterns of the literature, each an index predicate with bounds over rectangles of positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.patterns.base import Pattern, Span, text_name


def _whole(pattern: Pattern, name: str, minimum: int) -> None:
    """Check that a field is a whole number of at least `minimum`."""
    value = getattr(pattern, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InputError(
            f"{name}={value!r} of pattern {text_name(type(pattern))} must be a whole number of at least {minimum}"
        )


@dataclass(frozen=True)
class Full(Pattern):
    """Every query sees every key."""

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return (query_index == query_index) & (key_index == key_index)

    def some(self, span: Span) -> Tensor:
        return self.visible(span.q0, span.k0)

    every = some

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        return [torch.zeros_like(key_start - query_start)]


@dataclass(frozen=True)
class Causal(Pattern):
    """A query sees itself and what comes before it."""

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return key_index <= query_index

    def some(self, span: Span) -> Tensor:
        return span.k0 <= span.q1

    def every(self, span: Span) -> Tensor:
        return span.k1 <= span.q0

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        return [key_start - query_start]


@dataclass(frozen=True)
class Window(Pattern):
    """A query sees itself, `left` keys before it and `right` keys after it, `dilation` positions apart.

    Source: Longformer (Beltagy et al. 2020, arXiv 2004.05150, §3.1), sliding and dilated windows; w = left + right.
    """

    left: int
    right: int
    dilation: int = 1

    def __post_init__(self) -> None:
        _whole(self, "left", 0)
        _whole(self, "right", 0)
        _whole(self, "dilation", 1)

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        offset = key_index - query_index
        seen = (offset >= -self.left * self.dilation) & (offset <= self.right * self.dilation)
        return seen if self.dilation == 1 else seen & (offset % self.dilation == 0)

    def some(self, span: Span) -> Tensor:
        reach_left, reach_right = self.left * self.dilation, self.right * self.dilation
        return (span.k1 - span.q0 >= -reach_left) & (span.k0 - span.q1 <= reach_right)

    def every(self, span: Span) -> Tensor:
        inside = (span.k0 - span.q1 >= -self.left) & (span.k1 - span.q0 <= self.right)
        return inside if self.dilation == 1 else torch.zeros_like(inside)

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        return [key_start - query_start]


@dataclass(frozen=True)
class First(Pattern):
    """The first `count` positions see everything and are seen by everything (global tokens at a fixed place)."""

    count: int

    def __post_init__(self) -> None:
        _whole(self, "count", 0)

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return (query_index < self.count) | (key_index < self.count)

    def some(self, span: Span) -> Tensor:
        return self.visible(span.q0, span.k0)

    def every(self, span: Span) -> Tensor:
        return self.visible(span.q1, span.k1)

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        return [
            torch.clamp(query_start, max=self.count) + 0 * key_start,
            torch.clamp(key_start, max=self.count) + 0 * query_start,
        ]


@dataclass(frozen=True)
class Blocks(Pattern):
    """The sequence is cut into blocks of `size` positions; a query sees its own block."""

    size: int

    def __post_init__(self) -> None:
        _whole(self, "size", 1)

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return query_index // self.size == key_index // self.size

    def some(self, span: Span) -> Tensor:
        return (span.q0 // self.size <= span.k1 // self.size) & (span.k0 // self.size <= span.q1 // self.size)

    def every(self, span: Span) -> Tensor:
        first = torch.minimum(span.q0, span.k0) // self.size
        return first == torch.maximum(span.q1, span.k1) // self.size

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        return [query_start % self.size + 0 * key_start, key_start - query_start]


@dataclass(frozen=True)
class Strided(Pattern):
    """A query sees every `stride`-th key, counted from itself in both directions.

    Source: Sparse Transformer (Child et al. 2019, arXiv 1904.10509, §4.3), set A² of the strided pattern; combine with
    `Causal()` for its autoregressive form.
    """

    stride: int

    def __post_init__(self) -> None:
        _whole(self, "stride", 1)

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return (query_index - key_index) % self.stride == 0

    def some(self, span: Span) -> Tensor:
        highest = span.q1 - span.k0
        return highest // self.stride * self.stride >= span.q0 - span.k1

    def every(self, span: Span) -> Tensor:
        single = (span.q0 == span.q1) & (span.k0 == span.k1)
        return self.visible(span.q0, span.k0) & (single | (self.stride == 1))

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        return [(key_start - query_start) % self.stride]


@dataclass(frozen=True)
class Fixed(Pattern):
    """A query sees its own block of `stride` positions, and the last `summary` positions of every block.

    Source: Sparse Transformer (Child et al. 2019, §4.3), fixed pattern, both sets merged: l = stride, c = summary;
    combine with `Causal()` for its autoregressive form.
    """

    stride: int
    summary: int

    def __post_init__(self) -> None:
        _whole(self, "stride", 1)
        _whole(self, "summary", 0)
        if self.summary > self.stride:
            raise InputError(
                f"summary={self.summary} of pattern fixed exceeds stride={self.stride}; give at most the stride"
            )

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        own = query_index // self.stride == key_index // self.stride
        return own | (key_index % self.stride >= self.stride - self.summary)

    def some(self, span: Span) -> Tensor:
        last_summary = span.k1 // self.stride * self.stride + self.stride - self.summary
        reached = (span.k1 >= last_summary) | (span.k0 // self.stride < span.k1 // self.stride)
        return Blocks(self.stride).some(span) | (reached & (self.summary > 0))

    def every(self, span: Span) -> Tensor:
        same_block = span.k0 // self.stride == span.k1 // self.stride
        all_summary = same_block & (span.k0 % self.stride >= self.stride - self.summary)
        return Blocks(self.stride).every(span) | all_summary | (span.q0 != span.q0) | (self.summary == self.stride)

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        return [query_start % self.stride + 0 * key_start, key_start - query_start]


@dataclass(frozen=True)
class RandomBlocks(Pattern):
    """Every block of `block` queries sees up to `count` key blocks drawn at random, the same for every length.

    Query block i draws `count` distinct blocks among the first 2^m, the smallest power of two above i that holds them;
    a draw beyond the end of the sequence is simply absent. The draws depend on `seed` and i alone, so that padding or
    a longer document never changes what a token sees. Source: BigBird (Zaheer et al. 2020, arXiv 2007.14062, §2), in
    a length-free form.
    """

    block: int
    count: int
    seed: int = 0

    def __post_init__(self) -> None:
        _whole(self, "block", 1)
        _whole(self, "count", 0)
        _whole(self, "seed", 0)

    def _draws(self, query_block: Tensor) -> list[Tensor]:
        """The key blocks that each query block sees; an odd step through a power of two never meets one twice."""
        highest = torch.clamp(query_block, min=max(self.count - 1, 0), max=2**31 - 1)
        for shift in (1, 2, 4, 8, 16):
            highest = highest | (highest >> shift)
        start, step = _mix(query_block, 2 * self.seed), _mix(query_block, 2 * self.seed + 1) | 1
        return [(start + draw * step) & highest for draw in range(self.count)]

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        key_block = key_index // self.block
        seen = (query_index != query_index) & (key_index != key_index)
        for drawn in self._draws(query_index // self.block):
            seen = seen | (drawn == key_block)
        return seen

    def some(self, span: Span) -> Tensor:
        first, last = span.q0 // self.block, span.q1 // self.block
        found = (first != first) & (span.k0 != span.k0)
        for step in range(int((last - first).max()) + 1 if last.numel() else 0):
            for drawn in self._draws(torch.minimum(first + step, last)):
                found = found | ((drawn >= span.k0 // self.block) & (drawn <= span.k1 // self.block))
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


@dataclass(frozen=True)
class PooledWindow(Pattern):
    """Key s stands for a pool of `kernel` tokens centred at token s·`stride`; a query sees the pools within its window.

    A pool is seen when its whole kernel lies in `[i − left, i + right]`. Source: Poolingformer (Zhang et al. 2021,
    arXiv 2105.04371), second level with one pooled sequence for all queries; w₂ = left = right, κ = kernel, ξ = stride.
    """

    left: int
    right: int
    kernel: int
    stride: int

    def __post_init__(self) -> None:
        for name, minimum in (("left", 0), ("right", 0), ("kernel", 1), ("stride", 1)):
            _whole(self, name, minimum)

    @property
    def _inner(self) -> tuple[int, int]:
        """How far a visible centre may lie to the left and to the right of the query."""
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
