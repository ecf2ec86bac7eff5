"""Levels of windows over tokens and over pools of tokens: what a user writes of them, and what follows from that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from longspan.attention.parts.windowed import pairs_within, shifted
from longspan.errors import InputError
from longspan.patterns import PooledWindow
from longspan.settings import Range, Whole, check

Pooling = Literal["ldconv", "mean", "max"]
PoolSize = Annotated[int, Range(1, 4096)]


@dataclass(frozen=True, kw_only=True, repr=False)
class Level:
    """One level: its window, and from the second level on its pools.

    Attributes:
        left_tokens, right_tokens: the window on each side, in tokens.
        kernel, stride: tokens per pool and from one pool to the next (5 and 4 where they are left out).
        pooling: what makes a pool of its tokens (`"ldconv"` where it is left out).
    """

    left_tokens: Whole
    right_tokens: Whole
    kernel: PoolSize | None = None
    stride: PoolSize | None = None
    pooling: Pooling | None = None

    def __post_init__(self) -> None:
        check(self)

    def __repr__(self) -> str:
        """`128`, or `512/4 ldconv(5)`: the window by the stride, and the pools."""
        left, right = self.left_tokens, self.right_tokens
        window = f"{left}" if left == right else f"{left}|{right}"
        return window if self.kernel is None else f"{window}/{self.stride} {self.pooling}({self.kernel})"

    def widened(self, side: int) -> Level:
        """The same with a window of at least so many tokens to each side."""
        return replace(self, left_tokens=max(self.left_tokens, side), right_tokens=max(self.right_tokens, side))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without what a level does not have."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Pools:
    """A level beyond the first: a window over pools of what the levels below it gave.

    Attributes:
        left_tokens, right_tokens: the window in tokens; a query sees the pools whose whole kernel lies inside it.
        kernel, stride: tokens per pool, κ, and from one pool to the next, ξ.
        pooling: what makes a pool of its tokens.
        shared: whether the sequence is pooled once, or else the window of every query.
    """

    left_tokens: int
    right_tokens: int
    kernel: int
    stride: int
    pooling: Pooling
    shared: bool = True

    @property
    def before(self) -> int:
        """Tokens of a pool before its centre."""
        return self.kernel // 2

    @property
    def after(self) -> int:
        """Tokens of a pool behind its centre."""
        return self.kernel - 1 - self.before

    @property
    def centre_reach(self) -> tuple[int, int]:
        """How far left and right of a query a pool's centre may lie, so that its whole kernel is in the window."""
        return self.left_tokens - self.before, self.right_tokens - self.after

    @property
    def pattern(self) -> PooledWindow:
        """Which pools a query sees, of a sequence that is pooled once."""
        return PooledWindow(self.left_tokens, self.right_tokens, self.kernel, self.stride)

    def pool_count(self, length: int) -> int:
        """How many pools are made of so many tokens."""
        return -(-length // self.stride) if self.shared else length

    def complete(self, length: int) -> int:
        """How many pools of a sequence that is pooled once have their last token among the first so many."""
        return max(0, (length - 1 - self.after) // self.stride + 1)

    def pairs(self, length: int) -> int:
        """Pairs of a query and a pool that it sees, of so many tokens."""
        left, right = self.centre_reach
        if not self.shared:
            return pairs_within(length, -left, right, self.stride)
        centres = torch.arange(0, length, self.stride)
        seen = (centres + left).clamp(max=length - 1) - (centres - right).clamp(min=0) + 1
        return int(seen.clamp(min=0).sum())

    def centres_of(self, needed: Tensor) -> Tensor:
        """Centres of the pools that the `needed` queries see, `(T,)` bool both."""
        left, right = self.centre_reach
        if not self.shared:
            return shifted(needed, -left, right, self.stride)
        return shifted(needed, -left, right) & (torch.arange(len(needed)) % self.stride == 0)

    def tokens_of(self, centres: Tensor) -> Tensor:
        """The tokens in the pools around these centres, `(T,)` bool both."""
        return shifted(centres, -self.before, self.after)

    def phase(self) -> tuple[int, int, int]:
        """How far to shift pools of a query's own so that one of its centres, `i − left + m·stride`, falls onto i, and
        how many of them then lie before and after that one."""
        left, right = self.centre_reach
        count = (left + right) // self.stride + 1
        before = min(max(0, left // self.stride), count - 1)
        return left - before * self.stride, before, count - 1 - before

    @property
    def reach(self) -> tuple[int, int]:
        """How many tokens to each side a query sees at most, in pools."""
        left, right = self.centre_reach
        if not self.shared:  # the last centre need not lie at the window's end
            right -= (left + right) % self.stride
        return self.left_tokens, max(0, right + self.after)

    def furthest(self, token: Tensor, left: bool) -> Tensor:
        """The furthest token to one side in the pools that these tokens see, each of which sees one at least."""
        reach = self.centre_reach
        if not self.shared:
            return token - self.left_tokens if left else token + self.reach[1]
        if left:
            centre = -((reach[0] - token) // self.stride) * self.stride
            return torch.minimum(token, centre - self.before)
        return torch.maximum(token, (token + reach[1]) // self.stride * self.stride + self.after)


def furthest_reach(levels: Sequence[Pools], period: int) -> tuple[int, int]:
    """How far to each side the last of these levels reaches at most, through all of them.

    The sum of their windows, or less, where the pools of one level do not end where the next level's begin: then the
    furthest over one period is looked for.
    """
    left, right = (sum(sides) for sides in zip(*(pools.reach for pools in levels), strict=True))
    every_token_sees_one = all(not pools.shared or sum(pools.centre_reach) >= pools.stride - 1 for pools in levels)
    if len(levels) == 1 or not every_token_sees_one or period > 1 << 16:
        return left, right
    places = torch.arange(period)
    first = last = places
    for pools in reversed(levels):
        first, last = pools.furthest(first, left=True), pools.furthest(last, left=False)
    return int((places - first).max()), int((last - places).max())


def check_pools(kernel: int, stride: int, left: int, right: int, place: str = "") -> None:
    """Refuse pools that skip tokens, or that no window of so many tokens to each side holds."""
    if stride > kernel:
        raise InputError(
            f"{place}stride={stride} exceeds {place}kernel={kernel} and would skip tokens; lower the stride"
        )
    if kernel > left + 1 + right:
        raise InputError(
            f"{place}kernel={kernel} does not fit into the pooled window of {left} + 1 + {right} tokens; widen the "
            "window or shorten the kernel"
        )


def check_levels(levels: Sequence[Level]) -> None:
    """Refuse levels that see less than the one before, or leave a gap behind it."""
    if not levels:
        raise InputError("levels=() names no level; give one at least")
    for name in ("kernel", "stride", "pooling"):
        value = getattr(levels[0], name)
        if value is not None:
            raise InputError(f"levels[0].{name}={value!r}, but the first level sees tokens and no pools; leave it out")
    for number, (narrow, wide) in enumerate(pairwise(levels), 1):
        kernel, stride = wide.kernel, wide.stride
        assert kernel is not None
        assert stride is not None
        check_pools(kernel, stride, wide.left_tokens, wide.right_tokens, f"levels[{number}].")
        for side in ("left_tokens", "right_tokens"):
            less, more = getattr(narrow, side), getattr(wide, side)
            if more < less:
                raise InputError(
                    f"levels[{number}].{side}={more} is less than the {less} of the level before; give each level a "
                    "window at least as wide as the one before it"
                )
            if more > less < kernel + stride:
                raise InputError(
                    f"levels[{number - 1}].{side}={less} is less than kernel + stride = {kernel + stride} of "
                    f"levels[{number}], which leaves a gap between what is seen by the one and by the other; widen it, "
                    "or shorten the pools"
                )
