"""The base class of attention patterns, and their combinations: `|`, `&`, and one pattern per head."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from longspan.errors import InputError

LARGEST_TILE = 128
"""Maximum side, in positions, of the tiles that `phase` distinguishes."""
DEEPEST = 100
"""Maximum nesting depth of a pattern: each level costs a pass over every tile."""


@dataclass(frozen=True)
class Span:
    """Rectangles of positions: queries `q0…q1` by keys `k0…k1`, bounds inclusive, as broadcastable tensors."""

    q0: Tensor
    q1: Tensor
    k0: Tensor
    k1: Tensor


class Reach(NamedTuple):
    """The smallest and the largest visible offset key − query, and the step between visible offsets.

    With step d, exactly the multiples of d from `first` to `last` are visible at every position; 1 means all of them.
    With `None`, only the two bounds are known.
    """

    first: int = -sys.maxsize
    last: int = sys.maxsize
    step: int | None = None


class Band(NamedTuple):
    """Query i sees exactly the keys j with `i − left ≤ j·stride ≤ i + right`."""

    left: int
    right: int
    stride: int


class Residues(NamedTuple):
    """The pattern within one residue class, indexed by positions in that class, and the number of classes. Tokens of
    different classes never see each other."""

    inner: Pattern
    classes: int


class Repeats(NamedTuple):
    """How the number of visible pairs of a text grows: for lengths from `extent` on that leave the same remainder when
    divided by `period`, it is a quadratic polynomial of the length."""

    period: int
    extent: int


class KeyPlaces(Protocol):
    """A subset of the keys that is gathered in order."""

    def places(self, length: int) -> Tensor:
        """Returns the positions of the gathered keys in a text of `length` tokens, `(S',)` int64, ascending."""
        ...

    def count(self, length: int) -> int:
        """Returns the number of gathered keys, S'."""
        ...


class NearFar(NamedTuple):
    """Two disjoint patterns whose union is the original one: `near` over all keys, and `far` over all keys or over
    those of `columns`, indexed by their rank among these."""

    near: Pattern
    far: Pattern
    columns: KeyPlaces | None = None


@dataclass(frozen=True)
class Pattern:
    """Base of all patterns. Patterns are immutable, comparable and hashable."""

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        """Returns True where the query may attend to the key, in the broadcast shape of both; `PerHead` adds a leading
        H."""
        raise NotImplementedError(f"pattern {type(self).__name__} must define visible(query_index, key_index)")

    def some(self, span: Span) -> Tensor:
        """Returns False only where no pair of the rectangle is visible; True may be an over-estimate. The default is
        True everywhere: such a pattern is computed in full, at the cost of full attention."""
        return torch.ones_like(span.q0 + span.k0, dtype=torch.bool)

    def every(self, span: Span) -> Tensor:
        """Returns True only where all pairs of the rectangle are visible; False, the default, may be an
        under-estimate."""
        return torch.zeros_like(span.q0 + span.k0, dtype=torch.bool)

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        """Returns keys that identify the mask of a tile: tiles of equal size, up to `LARGEST_TILE`, with equal phases
        have equal masks. The default is the two starting positions; a periodic pattern returns fewer distinct
        values."""
        return list(torch.broadcast_tensors(query_start, key_start))

    def reach(self) -> Reach:
        """Returns the offsets key − query that may be visible, by which a fast path is chosen; by default any."""
        return Reach()

    def band(self) -> Band | None:
        """Returns the pattern as a band of offsets, for kernels that compute nothing else, or `None` if it is not a
        band."""
        first, last, step = self.reach()
        return Band(-first, last, 1) if step == 1 else None

    def block_draws(self) -> Any:
        """Returns itself, a `DrawnBlocks`, if it shows few blocks, which a kernel then looks up in a table; otherwise
        `None`."""
        return None

    def residues(self) -> Residues | None:
        """Returns the pattern within residue classes if nothing is visible across classes; otherwise `None`, the
        default.

        Tiles then place the positions of a class next to each other, so that columns of single keys become dense.
        """
        return None

    def near_far(self, *, causal: bool = False) -> NearFar | None:
        """Returns the pattern (with `causal`, its intersection with `Causal()`) split into a near and a far part if two
        softmaxes are cheaper for long inputs; otherwise `None`, the default."""
        return None

    def thinned(self, step: int) -> Pattern | None:
        """Returns the pattern restricted to every `step`-th position and indexed by their rank, or `None`, the default,
        if that is unknown."""
        return None

    def alternatives(self) -> list[Pattern]:
        """Returns the operands of `|`, in order; by default the pattern alone."""
        return [self]

    @property
    def is_full(self) -> bool:
        """Whether every query sees every key."""
        return tuple(self.reach()) == (-sys.maxsize, sys.maxsize, 1)

    @property
    def is_causal(self) -> bool:
        """Whether a query sees exactly itself and all earlier positions."""
        return tuple(self.reach()) == (-sys.maxsize, 0, 1)

    @property
    def depth(self) -> int:
        """Nesting depth of the pattern."""
        return 1

    @property
    def heads(self) -> int | None:
        """The number of heads the pattern distinguishes, or `None` if it is the same for all heads."""
        return None

    def head(self, index: int) -> Pattern:
        """Returns the pattern of head `index`; the pattern itself if it is the same for all heads."""
        return self

    @property
    def reads_length(self) -> bool:
        """Whether the pattern depends on the length of the text, so that `of_length` must be called first."""
        return False

    def of_length(self, length: int | Tensor) -> Pattern:
        """Returns the pattern for a text of `length` tokens, or for several texts if `length` is a tensor that
        broadcasts with the indices. A pattern that does not depend on the length returns itself."""
        return self

    def dense(self, queries: int, keys: int | None = None, *, query_offset: int = 0) -> Tensor:
        """Returns the whole mask, `(T, S)` bool, or `(H, T, S)` for per-head patterns. S is the length of the text."""
        query_index = torch.arange(queries)[:, None] + query_offset
        key_index = torch.arange(queries if keys is None else keys)[None, :]
        shown = self.of_length(key_index.shape[1]).visible(query_index, key_index)
        leading = shown.shape[:-2] if self.heads else ()
        return shown.expand(*leading, query_index.shape[0], key_index.shape[1])

    def repeats(self) -> Repeats | None:
        """Returns how the number of visible pairs grows, by which `count_visible` needs no long text; `None`, the
        default, if that is unknown.

        A pattern bounded by offsets, positions and residues repeats with the least common multiple of its residues,
        from the sum of its bounds on.
        """
        return None

    def count_visible(self, queries: int, keys: int | None = None) -> int:
        """Returns the number of visible pairs (summed over heads for per-head patterns) without a T×S tensor.

        The counts of patterns with `repeats` are extrapolated, exactly, from those of three short texts.
        """
        if (keys is None or keys == queries) and (repeats := self.repeats()) is not None:
            period, extent = repeats
            short = extent + (queries - extent) % period
            if short + 3 * period <= queries:
                lengths = (short, short + period, short + 2 * period)
                first, second, third = (_pairs(self, length, length) for length in lengths)
                steps, slope = (queries - short) // period, second - first
                return first + steps * slope + steps * (steps - 1) // 2 * (third - second - slope)
        return _pairs(self, queries, queries if keys is None else keys)

    def __or__(self, other: Pattern) -> Pattern:
        return Either(self, other)

    def __and__(self, other: Pattern) -> Pattern:
        return Both(self, other)

    def __str__(self) -> str:
        names = [field.name for field in fields(self)]
        # Trailing options that have their default are left out.
        while names and getattr(self, names[-1]) == getattr(type(self), names[-1], None):
            names.pop()
        return f"{text_name(type(self))}({', '.join(str(getattr(self, name)) for name in names)})"


def _together(patterns: Sequence[Pattern]) -> Repeats | None:
    """What combinations of the patterns repeat with."""
    known = [pattern.repeats() for pattern in patterns]
    if None in known:
        return None
    parts = [repeats for repeats in known if repeats is not None]
    return Repeats(math.lcm(*(part.period for part in parts)), sum(part.extent for part in parts))


@lru_cache(maxsize=256)
def _pairs(pattern: Pattern, queries: int, keys: int) -> int:
    """The number of visible pairs, some rows at a time."""
    rows = max(1, (1 << 20) // max(keys, 1))
    starts = range(0, queries, rows)
    return sum(int(pattern.dense(min(rows, queries - start), keys, query_offset=start).sum()) for start in starts)


def shortened(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def text_name(kind: type[Pattern]) -> str:
    """Returns the name of a kind of pattern in text, such as `pooled_window` for `PooledWindow`."""
    return "".join("_" + c.lower() if c.isupper() else c for c in kind.__name__).lstrip("_")


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
        # Stored, because computing it recursively for every pair would take quadratic time.
        object.__setattr__(self, "_depth", 1 + max(self.first.depth, self.second.depth))
        if self.depth > DEEPEST:
            raise InputError(
                f"a pattern of more than {DEEPEST} parts inside each other is too deep; join fewer with | and &"
            )

    @property
    def depth(self) -> int:
        return self._depth  # type: ignore[attr-defined]

    @property
    def heads(self) -> int | None:
        return self.first.heads or self.second.heads

    def repeats(self) -> Repeats | None:
        return _together([self.first, self.second])

    def head(self, index: int) -> Pattern:
        return type(self)(self.first.head(index), self.second.head(index))

    @property
    def reads_length(self) -> bool:
        return self.first.reads_length or self.second.reads_length

    def of_length(self, length: int | Tensor) -> Pattern:
        return type(self)(self.first.of_length(length), self.second.of_length(length)) if self.reads_length else self


@dataclass(frozen=True)
class Either(_Pair):
    """The union of two patterns: `first | second`."""

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return self.first.visible(query_index, key_index) | self.second.visible(query_index, key_index)

    def some(self, span: Span) -> Tensor:
        return self.first.some(span) | self.second.some(span)

    def every(self, span: Span) -> Tensor:
        return self.first.every(span) | self.second.every(span)

    def __str__(self) -> str:
        second = f"({self.second})" if isinstance(self.second, Either) else str(self.second)
        return str(self.first) + " | " + second  # not an f-string, which `torch.compile` cannot trace

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        return [*self.first.phase(query_start, key_start), *self.second.phase(query_start, key_start)]

    def near_far(self, *, causal: bool = False) -> NearFar | None:
        # A contiguous range of offsets, and columns: the strided form of Child et al. (2019, §4.3).
        near, far = self.first.reach(), self.second.residues()
        bounded = near.step == 1 and -sys.maxsize < near.first <= 0 <= near.last < sys.maxsize
        if causal or not bounded or far is None or self.first.thinned(far.classes) is None:
            return None
        if not (far.inner.is_full or far.inner.is_causal):
            return None
        return NearFar(self.first, Without(self.second, self.first))

    def alternatives(self) -> list[Pattern]:
        return [*self.first.alternatives(), *self.second.alternatives()]


@dataclass(frozen=True)
class Both(_Pair):
    """The intersection of two patterns: `first & second`."""

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

    def reach(self) -> Reach:
        first, second = self.first.reach(), self.second.reach()
        step = 1 if first.step == second.step == 1 else None
        return Reach(max(first.first, second.first), min(first.last, second.last), step)

    def residues(self) -> Residues | None:
        inner = self.first.residues() if self.second.is_causal else None
        return None if inner is None else Residues(inner.inner & self.second, inner.classes)

    def near_far(self, *, causal: bool = False) -> NearFar | None:
        return self.first.near_far(causal=True) if self.second.is_causal and not causal else None

    def thinned(self, step: int) -> Pattern | None:
        first, second = self.first.thinned(step), self.second.thinned(step)
        return None if first is None or second is None else first & second


@dataclass(frozen=True)
class Without(Pattern):
    """The set difference of two patterns: visible in `shown` and not in `hidden`."""

    shown: Pattern
    hidden: Pattern

    @property
    def reads_length(self) -> bool:
        return self.shown.reads_length or self.hidden.reads_length

    def of_length(self, length: int | Tensor) -> Pattern:
        return Without(self.shown.of_length(length), self.hidden.of_length(length))

    def repeats(self) -> Repeats | None:
        return _together([self.shown, self.hidden])

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        return self.shown.visible(query_index, key_index) & ~self.hidden.visible(query_index, key_index)

    def some(self, span: Span) -> Tensor:
        return self.shown.some(span) & ~self.hidden.every(span)

    def every(self, span: Span) -> Tensor:
        return self.shown.every(span) & ~self.hidden.some(span)

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        return [*self.shown.phase(query_start, key_start), *self.hidden.phase(query_start, key_start)]

    def residues(self) -> Residues | None:
        inner = self.shown.residues()
        hidden = None if inner is None else self.hidden.thinned(inner.classes)
        return None if inner is None or hidden is None else Residues(Without(inner.inner, hidden), inner.classes)


@dataclass(frozen=True)
class PerHead(Pattern):
    """One pattern for each head: `PerHead([p0, p1, …])`, as many as the attention has heads."""

    patterns: tuple[Pattern, ...]

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        if not patterns:
            raise InputError("patterns=[] of pattern per_head is empty; give one pattern for each head")
        if any(pattern.heads for pattern in patterns):
            raise InputError("patterns of per_head must not be per-head themselves; give each head one plain pattern")
        object.__setattr__(self, "patterns", tuple(patterns))

    @property
    def depth(self) -> int:
        return 1 + max(pattern.depth for pattern in self.patterns)

    @property
    def heads(self) -> int | None:
        return len(self.patterns)

    def head(self, index: int) -> Pattern:
        return self.patterns[index]

    @property
    def reads_length(self) -> bool:
        return any(pattern.reads_length for pattern in self.patterns)

    def of_length(self, length: int | Tensor) -> Pattern:
        return PerHead([pattern.of_length(length) for pattern in self.patterns]) if self.reads_length else self

    def repeats(self) -> Repeats | None:
        return _together(self.patterns)

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        # Patterns with the lengths of several texts have an additional leading axis.
        return torch.stack(torch.broadcast_tensors(*(part.visible(query_index, key_index) for part in self.patterns)))

    def some(self, span: Span) -> Tensor:
        return torch.stack([pattern.some(span) for pattern in self.patterns])

    def every(self, span: Span) -> Tensor:
        return torch.stack([pattern.every(span) for pattern in self.patterns])

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        return [phase for pattern in dict.fromkeys(self.patterns) for phase in pattern.phase(query_start, key_start)]

    def __str__(self) -> str:
        return f"per_head({', '.join(map(str, self.patterns))})"
