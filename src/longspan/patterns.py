"""Which token pairs may attend: index predicates, combined with `|` and `&`.

A pattern is data. It answers one question, `visible(query_index, key_index) -> bool`, for broadcastable integer
tensors of absolute positions. From that predicate follow the dense mask (`dense`), the tiles a fast path may skip
(`some` and `every`, which bound the predicate over rectangles of positions), FlexAttention's `mask_mod`, and the
number of scores (`count_visible`). `str(pattern)` is a text that `parse` reads back:

>>> str(parse("window(128) | first(1)"))
'window(128, 128) | first(1)'

One window definition everywhere: `left` and `right` count tokens on each side; the token itself is always seen and not
counted. A total width w of the literature is `left = right = w // 2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from longspan.errors import InputError

__all__ = [
    "Blocks",
    "Both",
    "Causal",
    "Either",
    "First",
    "Fixed",
    "Full",
    "Pattern",
    "PerHead",
    "PooledWindow",
    "RandomBlocks",
    "Strided",
    "Window",
    "parse",
]


@dataclass(frozen=True)
class Span:
    """Rectangles of positions: queries `q0…q1` against keys `k0…k1`, bounds included, as broadcastable tensors."""

    q0: Tensor
    q1: Tensor
    k0: Tensor
    k1: Tensor


@dataclass(frozen=True)
class Pattern:
    """Base of all patterns. Patterns are immutable, comparable and hashable."""

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        """True where the query may attend to the key; the shape is the broadcast of both, led by H for `PerHead`."""
        raise NotImplementedError

    def some(self, span: Span) -> Tensor:
        """False only where no pair of the rectangle is visible (True may be an over-estimate)."""
        raise NotImplementedError

    def every(self, span: Span) -> Tensor:
        """True only where all pairs of the rectangle are visible (False may be an under-estimate)."""
        raise NotImplementedError

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        """What the mask of a tile depends on: tiles of one size with equal phases have equal masks.

        By default the two starting positions themselves; a pattern that repeats itself says how.
        """
        return list(torch.broadcast_tensors(query_start, key_start))

    @property
    def heads(self) -> int | None:
        """The number of heads the pattern distinguishes, or `None` when all heads see the same."""
        return None

    def head(self, index: int) -> Pattern:
        """The pattern of one head."""
        return self

    def dense(self, queries: int, keys: int | None = None, *, query_offset: int = 0) -> Tensor:
        """The whole mask, `(T, S)` bool, or `(H, T, S)` for per-head patterns."""
        query_index = torch.arange(queries)[:, None] + query_offset
        key_index = torch.arange(queries if keys is None else keys)[None, :]
        seen = self.visible(query_index, key_index)
        leading = seen.shape[:-2] if self.heads else ()
        return seen.expand(*leading, query_index.shape[0], key_index.shape[1])

    def count_visible(self, queries: int, keys: int | None = None, *, query_offset: int = 0) -> int:
        """Number of visible pairs (summed over heads for per-head patterns), without a T×S tensor."""
        keys = queries if keys is None else keys
        rows = max(1, (1 << 20) // max(keys, 1))
        return sum(
            int(self.dense(min(rows, queries - start), keys, query_offset=query_offset + start).sum())
            for start in range(0, queries, rows)
        )

    def __or__(self, other: Pattern) -> Pattern:
        return Either(self, other)

    def __and__(self, other: Pattern) -> Pattern:
        return Both(self, other)

    def __str__(self) -> str:
        names = [field.name for field in fields(self)]
        # Options at the end that have their default are left out; the class itself holds the defaults.
        while names and getattr(self, names[-1]) == getattr(type(self), names[-1], None):
            names.pop()
        return f"{_text_name(type(self))}({', '.join(str(getattr(self, name)) for name in names)})"


def _text_name(kind: type[Pattern]) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in kind.__name__).lstrip("_")


def _whole(pattern: Pattern, name: str, minimum: int) -> None:
    """Check that a field is a whole number of at least `minimum`."""
    value = getattr(pattern, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InputError(
            f"{name}={value!r} of pattern {_text_name(type(pattern))} must be a whole number of at least {minimum}"
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


@dataclass(frozen=True)
class PerHead(Pattern):
    """A pattern for each head: `PerHead([p0, p1, …])`, as many as the attention has heads."""

    patterns: tuple[Pattern, ...]

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        if not patterns:
            raise InputError("patterns=[] of pattern per_head is empty; give one pattern for each head")
        if any(pattern.heads for pattern in patterns):
            raise InputError("patterns of per_head must not be per-head themselves; give each head one plain pattern")
        object.__setattr__(self, "patterns", tuple(patterns))

    @property
    def heads(self) -> int | None:
        return len(self.patterns)

    def head(self, index: int) -> Pattern:
        return self.patterns[index]

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return torch.stack([pattern.visible(query_index, key_index) for pattern in self.patterns])

    def some(self, span: Span) -> Tensor:
        return torch.stack([pattern.some(span) for pattern in self.patterns])

    def every(self, span: Span) -> Tensor:
        return torch.stack([pattern.every(span) for pattern in self.patterns])

    def __str__(self) -> str:
        return f"per_head({', '.join(map(str, self.patterns))})"


@dataclass(frozen=True)
class _Pair(Pattern):
    first: Pattern
    second: Pattern

    def __post_init__(self) -> None:
        for part in (self.first, self.second):
            if not isinstance(part, Pattern):
                raise TypeError(f"a pattern combines with patterns only, not with {part!r}")
        if self.first.heads and self.second.heads and self.first.heads != self.second.heads:
            raise InputError(
                f"patterns for {self.first.heads} and {self.second.heads} heads do not combine; give both as many"
            )

    @property
    def heads(self) -> int | None:
        return self.first.heads or self.second.heads

    def head(self, index: int) -> Pattern:
        return type(self)(self.first.head(index), self.second.head(index))


@dataclass(frozen=True)
class Either(_Pair):
    """What either of two patterns shows: `first | second`."""

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return self.first.visible(query_index, key_index) | self.second.visible(query_index, key_index)

    def some(self, span: Span) -> Tensor:
        return self.first.some(span) | self.second.some(span)

    def every(self, span: Span) -> Tensor:
        return self.first.every(span) | self.second.every(span)

    def __str__(self) -> str:
        second = f"({self.second})" if isinstance(self.second, Either) else str(self.second)
        return f"{self.first} | {second}"

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        return [*self.first.phase(query_start, key_start), *self.second.phase(query_start, key_start)]


@dataclass(frozen=True)
class Both(_Pair):
    """What both of two patterns show: `first & second`."""

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return self.first.visible(query_index, key_index) & self.second.visible(query_index, key_index)

    def some(self, span: Span) -> Tensor:
        return self.first.some(span) & self.second.some(span)

    def every(self, span: Span) -> Tensor:
        return self.first.every(span) & self.second.every(span)

    def __str__(self) -> str:
        first = f"({self.first})" if isinstance(self.first, Either) else str(self.first)
        second = f"({self.second})" if isinstance(self.second, _Pair) else str(self.second)
        return f"{first} & {second}"

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        return [*self.first.phase(query_start, key_start), *self.second.phase(query_start, key_start)]


def parse(text: str) -> Pattern:
    """Read a pattern from text, such as `"window(128) | first(1)"` or `"causal() & (blocks(64) | strided(64))"`.

    Names are those of the classes in lower case with underscores. `window(128)` means 128 on each side.
    `per_head(…)` takes one pattern for each head. Raises `InputError` with what is wrong and what there is.
    """
    from longspan.pattern_text import read_pattern

    return read_pattern(text, _BY_NAME)


_BY_NAME: dict[str, Any] = {
    _text_name(kind): kind
    for kind in (Full, Causal, Window, First, Blocks, Strided, Fixed, RandomBlocks, PooledWindow, PerHead)
}
