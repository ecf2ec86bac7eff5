"""What a pattern is, and how patterns combine: `|`, `&`, and one for each head."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from longspan.errors import InputError

LARGEST_TILE = 128
"""Most positions on a side of the tiles that `phase` tells apart: beyond its reach, a pattern looks the same."""
DEEPEST = 100
"""Most patterns that stand inside each other: each level costs a pass over every tile."""


@dataclass(frozen=True)
class Span:
    """Rectangles of positions: queries `q0…q1` against keys `k0…k1`, bounds included, as broadcastable tensors."""

    q0: Tensor
    q1: Tensor
    k0: Tensor
    k1: Tensor


class Reach(NamedTuple):
    """The smallest and the largest offset key − query that may be shown, and the step between those that are.

    Step d says: exactly the multiples of d from `first` to `last` are shown, whatever the position; 1 means all of
    them. `None` promises nothing but the two ends.
    """

    first: int = -sys.maxsize
    last: int = sys.maxsize
    step: int | None = None


class Band(NamedTuple):
    """Exactly the keys j with `i − left ≤ j·stride ≤ i + right` are shown to query i."""

    left: int
    right: int
    stride: int


class Residues(NamedTuple):
    """What a pattern shows inside of a residue class, counted in places of that class, and how many classes there are;
    tokens of two classes never see each other."""

    inner: Pattern
    classes: int


class KeyPlaces(Protocol):
    """Which keys of a text are gathered, in order, and how many they are."""

    def places(self, length: int) -> Tensor:
        """`(S',)` int64, rising: those of a text of `length` tokens."""
        ...

    def count(self, length: int) -> int:
        """How many these are, S'."""
        ...


class NearFar(NamedTuple):
    """Two patterns that together show what one did, no pair twice: `near` for all keys, `far` for all too, or for those
    of `columns`, counted by themselves."""

    near: Pattern
    far: Pattern
    columns: KeyPlaces | None = None


@dataclass(frozen=True)
class Pattern:
    """Base of all patterns. Patterns are immutable, comparable and hashable."""

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        """True where the query may attend to the key; the shape is the broadcast of both, led by H for `PerHead`."""
        raise NotImplementedError(f"pattern {type(self).__name__} must define visible(query_index, key_index)")

    def some(self, span: Span) -> Tensor:
        """False only where no pair of the rectangle is visible (True may be an over-estimate). By default True
        everywhere: a pattern that does not say more is computed in whole, as full attention would be."""
        return torch.ones_like(span.q0 + span.k0, dtype=torch.bool)

    def every(self, span: Span) -> Tensor:
        """True only where all pairs of the rectangle are visible (False may be an under-estimate; the default)."""
        return torch.zeros_like(span.q0 + span.k0, dtype=torch.bool)

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        """What a tile shows: tiles of one size, up to `LARGEST_TILE`, with equal phases have equal masks. By default
        the two starting positions themselves; a pattern that repeats itself says how."""
        return list(torch.broadcast_tensors(query_start, key_start))

    def reach(self) -> Reach:
        """Which offsets key − query it may show; by default any. A fast path is chosen by it."""
        return Reach()

    def band(self) -> Band | None:
        """The pattern as a band of offsets, for kernels that compute nothing else; `None` where it is none."""
        first, last, step = self.reach()
        return Band(-first, last, 1) if step == 1 else None

    def block_draws(self) -> Any:
        """Itself, a `DrawnBlocks`, where few blocks are all that it shows, to be looked up in a table; else `None`."""
        return None

    def residues(self) -> Residues | None:
        """The pattern inside of residue classes, where it shows nothing between them; `None` by default.

        Tiles then put the positions of a class side by side, so that columns of single keys become dense.
        """
        return None

    def near_far(self, *, causal: bool = False) -> NearFar | None:
        """The pattern (with `causal`, what it shows up to the query) as a near and a far part, where long inputs are
        cheaper with a softmax for each; `None` by default."""
        return None

    def thinned(self, step: int) -> Pattern | None:
        """What it shows of every `step`-th position, counted by themselves; `None`, the default, where that is not
        known."""
        return None

    def alternatives(self) -> list[Pattern]:
        """The patterns that were joined by `|`, in order; by default the pattern alone."""
        return [self]

    @property
    def is_full(self) -> bool:
        """Whether every query sees every key."""
        return tuple(self.reach()) == (-sys.maxsize, sys.maxsize, 1)

    @property
    def is_causal(self) -> bool:
        """Whether a query sees itself and all that comes before it, and nothing else."""
        return tuple(self.reach()) == (-sys.maxsize, 0, 1)

    @property
    def depth(self) -> int:
        """How many patterns stand inside each other."""
        return 1

    @property
    def heads(self) -> int | None:
        """The number of heads the pattern distinguishes, or `None` when all heads see the same."""
        return None

    def head(self, index: int) -> Pattern:
        """The pattern of head `index`; the pattern itself where all heads see the same."""
        return self

    @property
    def reads_length(self) -> bool:
        """Whether what it shows depends on the length of the text, so that `of_length` must say it first."""
        return False

    def of_length(self, length: int | Tensor) -> Pattern:
        """The pattern of a text of `length` tokens, or of texts by a tensor that broadcasts with the indices; one that
        reads no length is the same for all."""
        return self

    def dense(self, queries: int, keys: int | None = None, *, query_offset: int = 0) -> Tensor:
        """The whole mask, `(T, S)` bool, or `(H, T, S)` for per-head patterns; S keys are the length of the text."""
        query_index = torch.arange(queries)[:, None] + query_offset
        key_index = torch.arange(queries if keys is None else keys)[None, :]
        shown = self.of_length(key_index.shape[1]).visible(query_index, key_index)
        leading = shown.shape[:-2] if self.heads else ()
        return shown.expand(*leading, query_index.shape[0], key_index.shape[1])

    def count_visible(self, queries: int, keys: int | None = None) -> int:
        """Number of visible pairs (summed over heads for per-head patterns), without a T×S tensor."""
        keys = queries if keys is None else keys
        rows = max(1, (1 << 20) // max(keys, 1))
        return sum(
            int(self.dense(min(rows, queries - start), keys, query_offset=start).sum())
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
        return f"{text_name(type(self))}({', '.join(str(getattr(self, name)) for name in names)})"


def shortened(text: str, most: int = 80) -> str:
    """A text as an error message shows it: whole, or its beginning."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def text_name(kind: type[Pattern]) -> str:
    """The name of a kind of pattern in text: `PooledWindow` is `pooled_window`."""
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
        # Kept, since asking every pair for its depth again would take time quadratic in it.
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

    def head(self, index: int) -> Pattern:
        return type(self)(self.first.head(index), self.second.head(index))

    @property
    def reads_length(self) -> bool:
        return self.first.reads_length or self.second.reads_length

    def of_length(self, length: int | Tensor) -> Pattern:
        return type(self)(self.first.of_length(length), self.second.of_length(length)) if self.reads_length else self


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
        return str(self.first) + " | " + second  # which `torch.compile` reads, unlike a formatted pattern

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        return [*self.first.phase(query_start, key_start), *self.second.phase(query_start, key_start)]

    def near_far(self, *, causal: bool = False) -> NearFar | None:
        # A run of offsets, and columns beside it: the strided form of Child et al. (2019, §4.3).
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
    """What `shown` shows and `hidden` does not."""

    shown: Pattern
    hidden: Pattern

    @property
    def reads_length(self) -> bool:
        return self.shown.reads_length or self.hidden.reads_length

    def of_length(self, length: int | Tensor) -> Pattern:
        return Without(self.shown.of_length(length), self.hidden.of_length(length))

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
    """A pattern for each head: `PerHead([p0, p1, …])`, as many as the attention has heads."""

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

    def visible(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        # Those that know the lengths of several texts have them for a leading axis.
        return torch.stack(torch.broadcast_tensors(*(each.visible(query_index, key_index) for each in self.patterns)))

    def some(self, span: Span) -> Tensor:
        return torch.stack([pattern.some(span) for pattern in self.patterns])

    def every(self, span: Span) -> Tensor:
        return torch.stack([pattern.every(span) for pattern in self.patterns])

    def phase(self, query_start: Tensor, key_start: Tensor) -> list[Tensor]:
        return [phase for pattern in dict.fromkeys(self.patterns) for phase in pattern.phase(query_start, key_start)]

    def __str__(self) -> str:
        return f"per_head({', '.join(map(str, self.patterns))})"
