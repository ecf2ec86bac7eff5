"""Poolingformer: a sliding window with global tokens, then wider windows over pooled keys and values."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from longspan.attention.config import Activations, AttentionCost, Lengthening, Reach
from longspan.attention.features.starts import Start
from longspan.attention.longformer import LongformerConfig
from longspan.attention.parts.pooled import PooledAttention, Pooling, Pools, PoolSize, furthest_reach, numbered
from longspan.attention.parts.windowed import WindowedConfig
from longspan.errors import InputError
from longspan.settings import Whole, check, convert, hints_of

WINDOWS = ("left_tokens", "right_tokens", "pooled_left_tokens", "pooled_right_tokens", "kernel", "stride", "pooling")
"""Options of two levels that `levels` replaces."""
OF_THE_POOLS = frozenset((*WINDOWS[2:], "windows", "init", "tie_levels"))
"""Options without effect for a layer of one level."""
OWN_WINDOWS = "windows='per_query' pools the window of every query anew, which is published for encoders"
"""Why pools of every query's own window have no causal form."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Level:
    """One level: its window, and from the second level on its pools.

    Attributes:
        left_tokens, right_tokens: the window on each side, in tokens.
        kernel, stride: tokens per pool and from one pool to the next (default 5 and 4).
        pooling: how a pool is computed from its tokens (default `"ldconv"`).
    """

    left_tokens: Whole
    right_tokens: Whole
    kernel: PoolSize | None = None
    stride: PoolSize | None = None
    pooling: Pooling | None = None

    def __post_init__(self) -> None:
        check(self)

    def __repr__(self) -> str:
        """Returns `128`, or `512/4 ldconv(5)`: the window by the stride, and the pools."""
        left, right = self.left_tokens, self.right_tokens
        window = f"{left}" if left == right else f"{left}|{right}"
        return window if self.kernel is None else f"{window}/{self.stride} {self.pooling}({self.kernel})"

    def widened(self, side: int) -> Level:
        """Returns the level with a window of at least `side` tokens on each side."""
        return replace(self, left_tokens=max(self.left_tokens, side), right_tokens=max(self.right_tokens, side))

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data, without unset options."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class PoolingformerConfig(WindowedConfig):
    """Levels, summed before the output: `(Y₁ + Y₂ + …) W_o`. The first is Longformer's window with global tokens; each
    further one attends from the sum of those below it to pools of that sum, in a wider window. Two are published.

    In the causal form every window is limited to the left, and a pool is visible from its last token on. It does not
    support global tokens.

    Attributes:
        left_tokens, right_tokens: the first level's window (paper: w₁ = 128 on each side).
        pooled_left_tokens, pooled_right_tokens: the second level's window in tokens (paper: w₂ = 512 on each side); a
            query attends to the pools whose whole kernel lies inside it. Only the first level has global tokens.
        kernel, stride: tokens per pool and from one pool to the next (paper: κ = 5, ξ = 4).
        pooling: `"ldconv"` weights a pool's tokens by a softmax predicted from its centre; `"mean"`, `"max"`.
        levels: any number of levels, in place of the options above: windows of increasing size, and from the
            second level on a kernel, a stride and a pooling (default 5, 4 and `"ldconv"`). One level is a
            window without pools.
        windows: `"shared"` pools the sequence once, with centres at multiples of the stride from each row's first real
            token (later padding counts as positions); `"per_query"` pools each query's own window, as in the formula,
            with stride times as many pools, and has no causal form.
        init: `"zero_value"` initially computes exactly the first level alone (for published weights), `"normal"` draws
            all projections of further levels (from scratch), `"copy"` copies the first level's.
        separate_global_projections: global queries have projections of their own, as in `longformer`.
        tie_levels: whether further levels use the first level's projections.
    """

    mechanism: ClassVar[str] = "poolingformer"
    causal: ClassVar[bool] = True
    incremental: ClassVar[bool] = True
    cost: ClassVar[str] = (
        "left_tokens + 1 + right_tokens + 2G, plus (pooled_left_tokens + 1 + pooled_right_tokens - kernel) / stride + 1"
        " (causal: left only); with levels, so much for each"
    )
    source: ClassVar[str] = "Zhang et al. 2021, Poolingformer, ICML, arXiv 2105.04371"
    replaces: ClassVar[Mapping[str, tuple[str, ...]]] = {"levels": WINDOWS}

    left_tokens: Whole = 128
    right_tokens: Whole = 128
    pooled_left_tokens: Whole = 512
    pooled_right_tokens: Whole = 512
    kernel: PoolSize = 5
    stride: PoolSize = 4
    pooling: Pooling = "ldconv"
    levels: tuple[Level, ...] | None = None
    windows: Literal["shared", "per_query"] = "shared"
    init: Literal["zero_value", "normal", "copy"] = "zero_value"
    tie_levels: bool = False

    def __post_init__(self) -> None:
        if self.levels is not None:
            self._take_levels()
        super().__post_init__()
        if self.levels is None:
            check_pools(self.kernel, self.stride, self.pooled_left_tokens, self.pooled_right_tokens)
        reason = self._not_causal()
        if reason and type(self).causal:
            # The instance attribute hides the class's: these options have no such form, although others do.
            support = {**self.support, "causal": reason}
            for name, value in {"causal": False, "incremental": False, "support": support}.items():
                object.__setattr__(self, name, value)

    def _take_levels(self) -> None:
        """Reads `levels` from plain data, sets the defaults of further levels, and sets the options that `levels`
        replaces to equal values if possible.
        """
        parsed = convert(hints_of(type(self))["levels"], self.levels, "levels")
        filled = {"kernel": 5, "stride": 4, "pooling": "ldconv"}
        levels = parsed[:1] + tuple(Level(**(filled | level.to_dict())) for level in parsed[1:])
        check_levels(levels)
        says = {name: getattr(levels[0], name) for name in WINDOWS[:2]}
        if len(levels) > 1:
            says |= {name: getattr(levels[1], name.removeprefix("pooled_")) for name in WINDOWS[2:]}
        for name in WINDOWS:
            value, default = getattr(self, name), getattr(PoolingformerConfig, name)
            if value not in (default, says.get(name, default)):
                raise InputError(
                    f"{name}={value!r} and levels exclude each other; set it in levels, or leave these out"
                )
        for name, value in {"levels": levels, **says}.items():
            object.__setattr__(self, name, value)

    def _not_causal(self) -> str:
        """Returns why these options have no causal form; empty if they have one."""
        if self.pools and self.windows == "per_query":
            return OWN_WINDOWS
        narrow = next((pools for pools in self.pools if pools.kernel > pools.left_tokens + 1), None)
        if narrow is None:
            return ""
        return f"a pool of {narrow.kernel} tokens does not fit into a window that looks {narrow.left_tokens} back"

    @property
    def pools(self) -> tuple[Pools, ...]:
        """The levels beyond the first."""
        shared = self.windows == "shared"
        if self.levels is not None:
            return tuple(Pools(**level.to_dict(), shared=shared) for level in self.levels[1:])
        sides = {"left_tokens": self.pooled_left_tokens, "right_tokens": self.pooled_right_tokens}
        return (Pools(**sides, kernel=self.kernel, stride=self.stride, pooling=self.pooling, shared=shared),)

    def pools_of(self, causal: bool) -> tuple[Pools, ...]:
        """Returns the levels beyond the first; in the causal form without windows to the right."""
        return tuple(replace(pools, right_tokens=0) for pools in self.pools) if causal else self.pools

    def activations(self) -> Activations:
        """For every further level, its projections, its output, and the sum."""
        first = super().activations()
        # Tied ones save weights, but no work.
        names = tuple(f"{'' if self.tie_levels else 'pooled_'}{name}" for name in ("query", "key", "value"))
        count = len(self.pools)
        return Activations(projections=first.projections + count * names, copies=2 * count)

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        return sum(self.level_scores(length, global_tokens=global_tokens, causal=causal))

    def costs(self, *, length: int, width: int, heads: int, causal: bool = False) -> AttentionCost:
        """As for any mechanism; for keys and values alike, pooling costs κE per pool, twice that with LDConv."""
        cost = super().costs(length=length, width=width, heads=heads, causal=causal)
        taps = sum(
            (2 if pools.pooling == "ldconv" else 1) * pools.kernel * pools.pool_count(length) for pools in self.pools
        )
        return replace(cost, pooling=2 * width * taps)

    def level_scores(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> tuple[float, ...]:
        """Returns the mean scores per token of each level, including edges; global tokens are in the first only."""
        first = super().scores_per_token(length, global_tokens=global_tokens, causal=causal)
        return (first, *(pools.pairs(length) / max(length, 1) for pools in self.pools_of(causal)))

    def depends_on(self, needed: Tensor, *, is_global: Tensor | None = None, causal: bool = False) -> Tensor:
        # A level attends to the sum of those below it, so those of every token in its pools are needed too.
        for pools in reversed(self.pools_of(causal)):
            needed = needed | pools.tokens_of(pools.centres_of(needed))
        return super().depends_on(needed, is_global=is_global, causal=causal)

    def reach(self) -> Reach:
        if not self.pools:
            return super().reach()
        period = math.lcm(*(pools.stride if pools.shared else 1 for pools in self.pools))
        left, right = furthest_reach(self.pools, period)
        return Reach(left=self.left_tokens + left, right=self.right_tokens + right, period=period)

    def lengthening(self, tokens: int = 1) -> Lengthening:
        answer = super().lengthening(tokens)
        active = bool(self.pools) and (self.init != "zero_value" or self.tie_levels)
        names = ("left_tokens", "right_tokens", "separate_global_projections", "dropout")
        return replace(
            answer,
            covers=answer.covers and self._pools_cover(tokens),
            first_level=LongformerConfig(**{name: getattr(self, name) for name in names}),
            starts_active=active,
        )

    def _pools_cover(self, tokens: int) -> bool:
        return all(min(pools.centre_reach) >= tokens - 1 for pools in self.pools)

    def widened(self, side: int, tokens: int) -> PoolingformerConfig:
        """Returns the configuration with a first window of at least `side`, and further ones that cover a text of
        `tokens` tokens.
        """
        if self.levels is not None:
            most = side if self._pools_cover(tokens) else tokens + max(pools.kernel for pools in self.pools)
            limit = most if self.widest_window is None else self.widest_window
            wide = [
                level.widened(min(most, limit) if number == 0 else most) for number, level in enumerate(self.levels)
            ]
            return self.with_levels(tuple(wide))
        first = {name: max(getattr(self, name), side) for name in ("left_tokens", "right_tokens")}
        if self._pools_cover(tokens):
            return replace(self, **first)
        names = ("pooled_left_tokens", "pooled_right_tokens")
        return replace(self, **first, **{name: max(getattr(self, name), tokens + self.kernel) for name in names})

    def with_levels(self, levels: tuple[Level, ...]) -> PoolingformerConfig:
        defaults = {name: getattr(PoolingformerConfig, name) for name in WINDOWS}
        return replace(self, levels=levels, **defaults)

    @property
    def idle(self) -> frozenset[str]:
        idle = frozenset() if self.pools else OF_THE_POOLS
        return idle if self.levels is None else idle | frozenset(WINDOWS)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data with either the levels, or the options that they replace."""
        data = super().to_dict()
        if self.levels is None:
            del data["levels"]
            return data
        data = {name: value for name, value in data.items() if name not in WINDOWS}
        return data | {"levels": [level.to_dict() for level in self.levels]}

    def build(self, *, width: int, heads: int, causal: bool = False) -> PoolingformerAttention:
        return PoolingformerAttention(self, width=width, heads=heads, causal=causal)


def check_pools(kernel: int, stride: int, left: int, right: int, place: str = "") -> None:
    """Raises `InputError` for pools that skip tokens, or do not fit into the window."""
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
    """Raises `InputError` for levels with a smaller window than the level below, or a gap after it."""
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


class PoolingformerAttention(PooledAttention):
    """The module of `PoolingformerConfig`; `output` follows the sum of all levels."""

    config: PoolingformerConfig

    def __init__(self, config: PoolingformerConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal)

    def add_weights(self) -> None:
        width, self.pools = self.width, self.config.pools_of(self.causal)
        for level, pools in enumerate(self.pools, 2):
            if not self.config.tie_levels:
                for name in ("query", "key", "value"):
                    setattr(self, numbered(f"pooled_{name}", level), nn.Linear(width, width))
            if pools.pooling == "ldconv":
                for name in ("key", "value"):
                    weight = torch.zeros(self.heads, pools.kernel, self.head_width)
                    setattr(self, numbered(f"pool_{name}_weight", level), nn.Parameter(weight))

    @property
    def starts_from(self) -> Mapping[str, str]:
        """The global projections, and with `init="copy"` those of further levels, start as copies of the local ones."""
        copied = self.levels if self.config.init == "copy" and not self.config.tie_levels else ()
        pooled = {numbered(f"pooled_{name}", level): name for level in copied for name in ("query", "key", "value")}
        return {**super().starts_from, **pooled}

    def init_extra_weights(self, std: float = 0.02) -> None:
        """Initialises global projections as in Longformer, those of further levels by `init`, pooling weights with
        0: a mean.
        """
        super().init_extra_weights(std)
        for level in self.levels:
            for name in ("key", "value"):
                weight = self.pool_weight(name, level)
                if weight is not None:
                    nn.init.zeros_(weight)
            if self.config.tie_levels or self.config.init == "copy":
                continue
            for name in ("query", "key", "value"):
                projection = self.projection(name, level)
                nn.init.zeros_(projection.bias)
                if self.config.init == "zero_value" and name == "value":
                    nn.init.zeros_(projection.weight)
                else:
                    nn.init.normal_(projection.weight, std=std)

    @torch.no_grad()
    def warm_start(self, missing: Collection[str], std: float = 0.02) -> dict[str, Start]:
        """Initialises levels that the source lacks with zero values, however its first level was initialised."""
        started = super().warm_start(missing, std)
        old = [level for level in self.levels if numbered("pooled_value", level) + ".weight" not in missing]
        for level in self.levels if old and not self.config.tie_levels else ():
            for kind, parameter in self.projection("value", level).named_parameters():
                name = f"{numbered('pooled_value', level)}.{kind}"
                if name in missing:
                    nn.init.zeros_(parameter)
                    started[name] = "new"
        return started
