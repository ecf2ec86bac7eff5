"""Poolingformer: a sliding window with globals, then a second, wider window over pooled keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longspan.attention.base import AttentionConfig, KeyValueState
from longspan.attention.parts.tokens import Tokens
from longspan.attention.parts.windowed import WindowedAttention, copy_linear, window_scores
from longspan.errors import InputError
from longspan.ops.attend import attend
from longspan.ops.pooling import pool, pool_shares, slot_mask
from longspan.ops.reference import dense_weights
from longspan.patterns import PooledWindow, Window
from longspan.settings import Range, Whole


@dataclass(frozen=True, kw_only=True)
class PoolingformerConfig(AttentionConfig):
    """Two levels, `(Y + Z) W_o`: Y is Longformer's window with globals, Z attends from Y to pools of Y.

    Attributes:
        left_tokens, right_tokens: the first level's window (paper: w₁ = 128 on each side).
        pooled_left_tokens, pooled_right_tokens: the second level's window in tokens (paper: w₂ = 512 on each side); a
            query sees the pools whose whole kernel lies inside it. Globals exist in the first level only.
        kernel, stride: tokens per pool and from one pool to the next (paper: κ = 5, ξ = 4).
        pooling: `"ldconv"` weighs a pool's tokens by a softmax predicted from its centre; `"mean"`, `"max"`.
        windows: `"shared"` pools the sequence once, with centres at multiples of the stride; `"per_query"` pools each
            query's own window, as the formula reads, at stride times the pools.
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
    separate_global_projections: bool = True
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

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        return sum(self.level_scores(length, global_tokens=global_tokens))

    def level_scores(self, length: int, *, global_tokens: int = 0) -> tuple[float, float]:
        """Mean scores per token of the first and of the second level, edges counted; globals are in the first only."""
        first = window_scores(length, left=self.left_tokens, right=self.right_tokens, global_tokens=global_tokens)
        if not self.has_pools:
            return first, 0.0
        left, right = self.centre_reach
        if self.windows == "per_query":
            pairs = sum(max(0, length - abs(offset)) for offset in range(-left, right + 1, self.stride))
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

    def build(self, *, width: int, heads: int, causal: bool = False) -> PoolingformerAttention:
        return PoolingformerAttention(self, width=width, heads=heads, causal=causal)


class PoolingformerAttention(WindowedAttention):
    """The module of `PoolingformerConfig`; `output` follows the sum of both levels."""

    def __init__(self, config: PoolingformerConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__(
            config,
            width=width,
            heads=heads,
            causal=causal,
            pattern=Window(config.left_tokens, config.right_tokens),
            reach=config.left_tokens,
            separate=config.separate_global_projections,
        )
        self.levels = config
        if not config.has_pools:
            self.init_extra_weights()
            return
        if not config.tie_levels:
            self.pooled_query = nn.Linear(width, width)
            self.pooled_key = nn.Linear(width, width)
            self.pooled_value = nn.Linear(width, width)
        if config.pooling == "ldconv":
            self.pool_key_weight = nn.Parameter(torch.zeros(heads, config.kernel, self.head_width))
            self.pool_value_weight = nn.Parameter(torch.zeros(heads, config.kernel, self.head_width))
        self.init_extra_weights()

    def init_extra_weights(self, std: float = 0.02) -> None:
        """Global projections as in Longformer, second-level projections by `init`, pooling weights 0: a mean."""
        super().init_extra_weights(std)
        if not self.levels.has_pools:
            return
        if self.levels.pooling == "ldconv":
            nn.init.zeros_(self.pool_key_weight)
            nn.init.zeros_(self.pool_value_weight)
        if self.levels.tie_levels:
            return
        for name in ("query", "key", "value"):
            projection = self.second_level(name)
            if self.levels.init == "copy":
                copy_linear(getattr(self, name), projection)
                continue
            nn.init.zeros_(projection.bias)
            if self.levels.init == "zero_value" and name == "value":
                nn.init.zeros_(projection.weight)
            else:
                nn.init.normal_(projection.weight, std=std)

    def second_level(self, name: str) -> nn.Linear:
        """The second level's `query`, `key` or `value` projection."""
        return getattr(self, name if self.levels.tie_levels else f"pooled_{name}")

    def forward(self, hidden: Tensor, tokens: Tokens | None = None, state: KeyValueState | None = None) -> Tensor:
        """`(B, T, E)` → `(B, T, E)`; padded tokens gather nothing, and are in no pool.

        Raises:
            InputError: a mask that does not cover the sequence, or a `state`.
        """
        tokens = tokens or Tokens()
        first = self.window_context(hidden, tokens, state)
        return self.output(first + self.pooled_context(first, tokens.mask) if self.levels.has_pools else first)

    def pooled_context(self, first: Tensor, mask: Tensor | None) -> Tensor:
        """The second level Z from the first level's output Y, before the output projection: `(B, T, E)` both."""
        query = self.split_heads(self.second_level("query")(first))
        key = self.split_heads(self.second_level("key")(first))
        value = self.split_heads(self.second_level("value")(first))
        context = self.merge_heads(self.attend_pools(query, key, value, mask))
        return context if mask is None else context.masked_fill(~mask[:, :, None], 0)

    def attend_pools(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """The second level without projections: keys and values are pooled here; `(B, H, T, D)` each and out."""
        attended = self._shared if self.levels.windows == "shared" else self._per_query
        return attended(query, key, value, mask)

    def _pool(self, name: str, hidden: Tensor, mask: Tensor | None, stride: int) -> Tensor:
        """Pools of keys or values, `(B, H, T, D)` → `(B, H, ⌈T / stride⌉, D)`."""
        pooling = self.levels.pooling
        weight = getattr(self, f"pool_{name}_weight") if pooling == "ldconv" else None
        return pool(hidden, kernel=self.levels.kernel, stride=stride, pooling=pooling, mask=mask, weight=weight)

    def _shared(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Every query looks at one pooled sequence, `stride` times shorter than the queries."""
        levels = self.levels
        if torch.compiler.is_compiling():
            # A graph for every length would demand two pools. Padding adds one that nobody sees.
            mask = key.new_ones((key.shape[0], key.shape[2]), dtype=torch.bool) if mask is None else mask
            mask = F.pad(mask, (0, levels.stride), value=False)
            key, value = (F.pad(each, (0, 0, 0, levels.stride)) for each in (key, value))
        return attend(
            query,
            self._pool("key", key, mask, levels.stride),
            self._pool("value", value, mask, levels.stride),
            pattern=_pooled_window(levels),
            key_mask=slot_mask(mask, levels.stride),
            dropout_prob=self.dropout_prob,
        )

    def _per_query(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Every query looks at every `stride`-th pool, counted from its own window's left end.

        Pools are taken around every token. Shifted by that phase, they make this a window dilated by the stride, which
        `attend` computes residue by residue; no window is ever materialised. Queries and pools are filled up to the
        same length.
        """
        length = query.shape[2]
        shift, before, after = phase(self.levels)
        ahead, behind = max(shift, 0), max(-shift, 0)
        real = query.new_ones((query.shape[0], length), dtype=torch.bool) if mask is None else mask
        pools = (self._pool("key", key, mask, 1), self._pool("value", value, mask, 1))
        key, value = (F.pad(pool[:, :, behind:], (0, 0, ahead, behind)) for pool in pools)
        context = attend(
            F.pad(query, (0, 0, 0, ahead)),
            key,
            value,
            pattern=Window(before, after, self.levels.stride),
            key_mask=F.pad(real[:, behind:], (ahead, behind), value=False),
            dropout_prob=self.dropout_prob,
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
        first = self.window_weights(hidden, tokens)
        if level == 1 or (level is None and not self.levels.has_pools):
            return first
        if not self.levels.has_pools:
            raise InputError("level=2 does not exist in this layer, which has two_level=False; give 1")
        second = self._pooled_weights(self.window_context(hidden, tokens), tokens.mask)
        return second if level == 2 else (first + second) / 2

    def _pooled_weights(self, first: Tensor, mask: Tensor | None) -> Tensor:
        """The second level's weights, from the first level's output `(B, T, E)`, over its tokens: `(B, H, T, T)`."""
        levels, length = self.levels, first.shape[1]
        stride = levels.stride if levels.windows == "shared" else 1
        query = self.split_heads(self.second_level("query")(first))
        pools = self._pool("key", self.split_heads(self.second_level("key")(first)), mask, stride)
        rows, centres = torch.arange(length, device=first.device), torch.arange(0, length, stride, device=first.device)
        offset = centres[None, :] - rows[:, None]
        left, right = levels.centre_reach
        seen = (offset >= -left) & (offset <= right)
        if stride != levels.stride:
            seen = seen & ((offset + left) % levels.stride == 0)
        valid = slot_mask(mask, stride)
        seen = seen[None, None] if valid is None else seen[None, None] & valid[:, None, None, :]
        if mask is not None:
            seen = seen & mask[:, None, :, None]
        weights = dense_weights(query, pools, seen, scale=self.head_width**-0.5)
        value = self.split_heads(self.second_level("value")(first))
        weight = self.pool_value_weight if levels.pooling == "ldconv" else None
        shares = pool_shares(
            value, kernel=levels.kernel, stride=stride, pooling=levels.pooling, mask=mask, weight=weight
        )
        return weights @ shares.to(weights.dtype)


def _pooled_window(levels: PoolingformerConfig) -> PooledWindow:
    return PooledWindow(levels.pooled_left_tokens, levels.pooled_right_tokens, levels.kernel, levels.stride)


def phase(levels: PoolingformerConfig) -> tuple[int, int, int]:
    """How far to shift the pools so that one of query i's centres, `i − left + m·stride`, falls onto i, and how many of
    its centres then lie before and after that one."""
    left, right = levels.centre_reach
    count = (left + right) // levels.stride + 1
    before = min(max(0, left // levels.stride), count - 1)
    return left - before * levels.stride, before, count - 1 - before
