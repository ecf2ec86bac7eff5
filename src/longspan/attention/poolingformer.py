"""Poolingformer: a sliding window with globals, then a second, wider window over pooled keys and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longspan.attention.base import LayerState
from longspan.attention.config import Activations, AttentionCost, Lengthening, Reach
from longspan.attention.longformer import LongformerConfig
from longspan.attention.parts.tokens import Tokens, in_order, inverse_order
from longspan.attention.parts.windowed import WindowedAttention, WindowedConfig, pairs_within, shifted
from longspan.errors import InputError
from longspan.ops.attend import attend
from longspan.ops.tiles.pooling import pool, pool_shares, slot_mask
from longspan.patterns import PooledWindow, Window
from longspan.settings import Range, Whole

OF_THE_POOLS = frozenset(
    ("pooled_left_tokens", "pooled_right_tokens", "kernel", "stride", "pooling", "windows", "init", "tie_levels")
)
"""Options that say nothing of a layer without a second level."""


@dataclass(frozen=True, kw_only=True)
class PoolingformerConfig(WindowedConfig):
    """Two levels, `(Y + Z) W_o`: Y is Longformer's window with globals, Z attends from Y to pools of Y.

    Attributes:
        left_tokens, right_tokens: the first level's window (paper: w₁ = 128 on each side).
        pooled_left_tokens, pooled_right_tokens: the second level's window in tokens (paper: w₂ = 512 on each side); a
            query sees the pools whose whole kernel lies inside it. Globals exist in the first level only.
        kernel, stride: tokens per pool and from one pool to the next (paper: κ = 5, ξ = 4).
        pooling: `"ldconv"` weighs a pool's tokens by a softmax predicted from its centre; `"mean"`, `"max"`.
        windows: `"shared"` pools the sequence once, with centres at multiples of the stride from each row's first real
            token (padding further on counts as places); `"per_query"` pools each query's own window, as the formula
            reads, at stride times the pools.
        init: `"zero_value"` starts exactly as the first level alone (for published weights), `"normal"` draws all
            second-level projections (from scratch), `"copy"` copies the first level's.
        separate_global_projections: global queries have projections of their own, as in `longformer`.
        tie_levels: the second level uses the first level's projections.
    """

    mechanism: ClassVar[str] = "poolingformer"
    cost: ClassVar[str] = (
        "left_tokens + 1 + right_tokens + 2G, plus (pooled_left_tokens + 1 + pooled_right_tokens - kernel) / stride + 1"
    )
    source: ClassVar[str] = "Zhang et al. 2021, Poolingformer, ICML, arXiv 2105.04371"
    exempt: ClassVar[Mapping[str, str]] = {
        "causal": "its levels are published for encoders, and pools hold tokens on both sides of their centres",
        "state": "it has no causal form",
    }

    left_tokens: Whole = 128
    right_tokens: Whole = 128
    pooled_left_tokens: Whole = 512
    pooled_right_tokens: Whole = 512
    kernel: Annotated[int, Range(1, 4096)] = 5
    stride: Annotated[int, Range(1, 4096)] = 4
    pooling: Literal["ldconv", "mean", "max"] = "ldconv"
    windows: Literal["shared", "per_query"] = "shared"
    init: Literal["zero_value", "normal", "copy"] = "zero_value"
    tie_levels: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride > self.kernel:
            raise InputError(
                f"stride={self.stride} exceeds kernel={self.kernel} and would skip tokens; lower the stride"
            )
        if self.kernel > self.pooled_left_tokens + 1 + self.pooled_right_tokens:
            raise InputError(
                f"kernel={self.kernel} does not fit into the pooled window of {self.pooled_left_tokens} + 1 + "
                f"{self.pooled_right_tokens} tokens; widen the window or shorten the kernel"
            )

    def activations(self) -> Activations:
        """With a second level, its projections, what it gathers, and the sum of both besides."""
        first = super().activations()
        if not self.has_pools:
            return first
        # Tied ones save weights, but no work.
        second = tuple(f"{'' if self.tie_levels else 'pooled_'}{name}" for name in ("query", "key", "value"))
        return Activations(projections=first.projections + second, copies=2)

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        return sum(self.level_scores(length, global_tokens=global_tokens))

    def costs(self, *, length: int, width: int, heads: int, causal: bool = False) -> AttentionCost:
        """As any mechanism; for keys and values alike, pooling costs κE per pool, twice that with LDConv."""
        cost = super().costs(length=length, width=width, heads=heads, causal=causal)
        if not self.has_pools:
            return cost
        pools = length if self.windows == "per_query" else -(-length // self.stride)
        passes = 2 if self.pooling == "ldconv" else 1
        return replace(cost, pooling=2 * passes * self.kernel * width * pools)

    def level_scores(self, length: int, *, global_tokens: int = 0) -> tuple[float, float]:
        """Mean scores per token of the first and of the second level, edges counted; globals are in the first only."""
        first = super().scores_per_token(length, global_tokens=global_tokens)
        if not self.has_pools:
            return first, 0.0
        left, right = self.centre_reach
        if self.windows == "per_query":
            pairs = pairs_within(length, -left, right, self.stride)
        else:
            centres = range(0, length, self.stride)
            pairs = sum(max(0, min(c + left, length - 1) - max(c - right, 0) + 1) for c in centres)
        return first, pairs / max(length, 1)

    @property
    def centre_reach(self) -> tuple[int, int]:
        """How far left and right of a query a pool's centre may lie, so that its whole kernel is in the window."""
        before = self.kernel // 2
        return self.pooled_left_tokens - before, self.pooled_right_tokens - (self.kernel - 1 - before)

    @property
    def has_pools(self) -> bool:
        """Whether there is a second level at all."""
        return True

    def depends_on(self, needed: Tensor, *, is_global: Tensor | None = None, causal: bool = False) -> Tensor:
        # The second level reads the first level's outputs, so those of every token in its pools are needed too.
        needed = needed | self.tokens_of(self.centres_of(needed))
        return super().depends_on(needed, is_global=is_global, causal=causal)

    def centres_of(self, needed: Tensor) -> Tensor:
        """Centres of the pools that the `needed` queries see, `(T,)` bool both; none without a second level."""
        if not self.has_pools:
            return torch.zeros_like(needed)
        left, right = self.centre_reach
        if self.windows == "per_query":
            return shifted(needed, -left, right, self.stride)
        return shifted(needed, -left, right) & (torch.arange(len(needed)) % self.stride == 0)

    def tokens_of(self, centres: Tensor) -> Tensor:
        """The tokens in the pools around these centres, `(T,)` bool both."""
        before = self.kernel // 2
        return shifted(centres, -before, self.kernel - 1 - before)

    def reach(self) -> Reach:
        if not self.has_pools:
            return super().reach()
        (left, right), after = self.centre_reach, self.kernel - 1 - self.kernel // 2
        if self.windows == "per_query":  # the last centre need not lie at the window's end
            right -= (left + right) % self.stride
        return Reach(
            left=self.left_tokens + self.pooled_left_tokens,
            right=self.right_tokens + max(0, right + after),
            period=self.stride if self.windows == "shared" else 1,
        )

    def lengthening(self, tokens: int = 1) -> Lengthening:
        answer = super().lengthening(tokens)
        pools_cover = not self.has_pools or min(self.centre_reach) >= tokens - 1
        wide = answer.widened
        if not pools_cover:
            names = ("pooled_left_tokens", "pooled_right_tokens")
            wide = replace(wide, **{name: max(getattr(self, name), tokens + self.kernel) for name in names})
        names = ("left_tokens", "right_tokens", "separate_global_projections", "dropout")
        return replace(
            answer,
            covers=answer.covers and pools_cover,
            widened=wide,
            first_level=LongformerConfig(**{name: getattr(self, name) for name in names}),
            starts_active=self.has_pools and (self.init != "zero_value" or self.tie_levels),
        )

    @property
    def idle(self) -> frozenset[str]:
        return frozenset() if self.has_pools else OF_THE_POOLS

    def build(self, *, width: int, heads: int, causal: bool = False) -> PoolingformerAttention:
        return PoolingformerAttention(self, width=width, heads=heads, causal=causal)


class PoolingformerAttention(WindowedAttention):
    """The module of `PoolingformerConfig`; `output` follows the sum of both levels."""

    config: PoolingformerConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def add_weights(self) -> None:
        levels, width = self.config, self.width
        if not levels.has_pools:
            return
        if not levels.tie_levels:
            self.pooled_query = nn.Linear(width, width)
            self.pooled_key = nn.Linear(width, width)
            self.pooled_value = nn.Linear(width, width)
        if levels.pooling == "ldconv":
            self.pool_key_weight = nn.Parameter(torch.zeros(self.heads, levels.kernel, self.head_width))
            self.pool_value_weight = nn.Parameter(torch.zeros(self.heads, levels.kernel, self.head_width))

    @property
    def starts_from(self) -> Mapping[str, str]:
        """The global projections, and with `init="copy"` those of the second level, are copies of the local ones."""
        levels = self.config
        copied = levels.has_pools and levels.init == "copy" and not levels.tie_levels
        pooled = {f"pooled_{name}": name for name in ("query", "key", "value")} if copied else {}
        return {**super().starts_from, **pooled}

    def init_extra_weights(self, std: float = 0.02) -> None:
        """Global projections as in Longformer, second-level projections by `init`, pooling weights 0: a mean."""
        super().init_extra_weights(std)
        if not self.config.has_pools:
            return
        if self.config.pooling == "ldconv":
            nn.init.zeros_(self.pool_key_weight)
            nn.init.zeros_(self.pool_value_weight)
        if self.config.tie_levels or self.config.init == "copy":
            return
        for name in ("query", "key", "value"):
            projection = self.second_level(name)
            nn.init.zeros_(projection.bias)
            if self.config.init == "zero_value" and name == "value":
                nn.init.zeros_(projection.weight)
            else:
                nn.init.normal_(projection.weight, std=std)

    def second_level(self, name: str) -> nn.Linear:
        """The second level's `query`, `key` or `value` projection `(E, E)`: that of the first where levels are tied."""
        return getattr(self, name if self.config.tie_levels else f"pooled_{name}")

    window_context = WindowedAttention.context

    def context(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        first = self.window_context(hidden, tokens, state)
        return first + self.pooled_context(first, tokens) if self.config.has_pools else first

    def pooled_context(self, first: Tensor, tokens: Tokens) -> Tensor:
        """The second level Z from the first level's output Y, before the output projection: `(B, T, E)` both."""
        first, mask, back = self._from_the_first(first, tokens)
        context = self.merge_heads(self.attend_pools(*self._project_pools(first), mask))
        context = context if mask is None else context.masked_fill(~mask[:, :, None], 0)
        return in_order(context, back)

    def _from_the_first(self, first: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Rows that begin with a real token, on which the grid of shared pools lies, their mask, and the way back."""
        order = tokens.places_from_the_first() if self.config.windows == "shared" else None
        if order is None or tokens.mask is None:
            return first, tokens.mask, None
        return in_order(first, order), in_order(tokens.mask, order), inverse_order(order)

    def _project_pools(self, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The second level's queries, keys and values before pooling, `(B, H, T, D)` each."""
        query, key, value = (self.split_heads(self.second_level(name)(first)) for name in ("query", "key", "value"))
        return query, key, value

    def attend_pools(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, dense: bool = False
    ) -> Tensor:
        """The second level without projections: keys and values are pooled here; `(B, H, T, D)` each and out.

        Args:
            dense: give the weights of the tokens `(B, H, T, T)` in place of what they gather, as the values are pooled.
        """
        levels, length, shared = self.config, query.shape[2], self.config.windows == "shared"
        stride = levels.stride if shared else 1
        if shared and torch.compiler.is_compiling():
            # A graph for every length would demand two pools. Padding adds one that nobody sees.
            mask = key.new_ones((key.shape[0], length), dtype=torch.bool) if mask is None else mask
            mask = F.pad(mask, (0, stride), value=False)
            key, value = (F.pad(each, (0, 0, 0, stride)) for each in (key, value))
        key = self._pool(pool, "key", key, mask, stride)
        value = self._pool(pool_shares if dense else pool, "value", value, mask, stride)
        options: dict[str, Any] = {"backend": "reference"} if dense else {"dropout_prob": self.dropout_prob}
        if not shared:
            return self._per_query(query, key, value, mask, options)
        window = PooledWindow(levels.pooled_left_tokens, levels.pooled_right_tokens, levels.kernel, stride)
        return attend(query, key, value, pattern=window, key_mask=slot_mask(mask, stride), **options)

    def _pool(
        self, pooled: Callable[..., Tensor], name: str, hidden: Tensor, mask: Tensor | None, stride: int
    ) -> Tensor:
        """Pools of keys or values, `(B, H, T, D)` → `(B, H, ⌈T / stride⌉, D)`, or the shares of tokens in them."""
        pooling = self.config.pooling
        weight = getattr(self, f"pool_{name}_weight") if pooling == "ldconv" else None
        return pooled(hidden, kernel=self.config.kernel, stride=stride, pooling=pooling, mask=mask, weight=weight)

    def _per_query(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: dict[str, Any]
    ) -> Tensor:
        """Every query looks at every `stride`-th pool, counted from its own window's left end.

        Pools are taken around every token. Shifted by that phase, they make this a window dilated by the stride, which
        `attend` computes residue by residue; no window is ever materialised. Queries and pools are filled up to the
        same length.
        """
        length = query.shape[2]
        shift, before, after = phase(self.config)
        ahead, behind = max(shift, 0), max(-shift, 0)
        real = query.new_ones((query.shape[0], length), dtype=torch.bool) if mask is None else mask
        key, value = (F.pad(pools[:, :, behind:], (0, 0, ahead, behind)) for pools in (key, value))
        context = attend(
            F.pad(query, (0, 0, 0, ahead)),
            key,
            value,
            pattern=Window(before, after, self.config.stride),
            key_mask=F.pad(real[:, behind:], (ahead, behind), value=False),
            **options,
        )
        return context[:, :, :length]

    def weights(self, hidden: Tensor, tokens: Tokens | None = None, level: int | None = None) -> Tensor:
        """Dense weights `(B, H, T, T)` of one level, or the mean of both; rows of padded queries are 0.

        The second level's weights are spread over the tokens of each pool as the value pooling weighs them; for
        `"max"`, by the share of channels each token won. They are weights over the first level's outputs.
        """
        tokens = tokens or Tokens()
        if level not in (None, 1, 2):
            raise InputError(f"level={level!r} is no level of Poolingformer; give 1, 2 or None for the mean of both")
        first = super().weights(hidden, tokens)
        if level == 1 or (level is None and not self.config.has_pools):
            return first
        if not self.config.has_pools:
            raise InputError("level=2 does not exist in this layer, which has two_level=False; give 1")
        second = self._pooled_weights(self.window_context(hidden, tokens), tokens)
        return second if level == 2 else (first + second) / 2

    def _pooled_weights(self, first: Tensor, tokens: Tokens) -> Tensor:
        """The second level's weights, from the first level's output `(B, T, E)`, over its tokens: `(B, H, T, T)`."""
        first, mask, back = self._from_the_first(first, tokens)
        wide = torch.promote_types(first.dtype, torch.float32)
        query, key, value = (each.to(wide) for each in self._project_pools(first))
        weights = self.attend_pools(query, key, value, mask, dense=True)
        weights = weights if mask is None else weights * mask[:, None, :, None]
        return in_order(weights, back, 2, 3)


def phase(levels: PoolingformerConfig) -> tuple[int, int, int]:
    """How far to shift the pools so that one of query i's centres, `i − left + m·stride`, falls onto i, and how many of
    its centres then lie before and after that one."""
    left, right = levels.centre_reach
    count = (left + right) // levels.stride + 1
    before = min(max(0, left // levels.stride), count - 1)
    return left - before * levels.stride, before, count - 1 - before
