"""Poolingformer: a sliding window with globals, then a second, wider window over pooled keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longspan.attention.base import AttentionConfig, KeyValueState, Tokens, require_choice, require_count
from longspan.attention.longformer import LongformerAttention, copy_linear, window_scores
from longspan.errors import InputError
from longspan.ops.attend import attend
from longspan.ops.pooling import POOLINGS, pool, slot_mask
from longspan.patterns import PooledWindow, Window

WINDOWS = ("shared", "per_query")
INITS = ("zero_value", "normal", "copy")


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
        tie_levels: the second level uses the first level's projections.
    """

    mechanism: ClassVar[str] = "poolingformer"
    cost: ClassVar[str] = (
        "left_tokens + 1 + right_tokens + 2G, plus (pooled_left_tokens + 1 + pooled_right_tokens - kernel) / stride + 1"
    )
    source: ClassVar[str] = "Zhang et al. 2021, Poolingformer, ICML, arXiv 2105.04371"

    left_tokens: int = 128
    right_tokens: int = 128
    pooled_left_tokens: int = 512
    pooled_right_tokens: int = 512
    kernel: int = 5
    stride: int = 4
    pooling: str = "ldconv"
    windows: str = "shared"
    init: str = "zero_value"
    separate_global_projections: bool = True
    tie_levels: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("left_tokens", "right_tokens", "pooled_left_tokens", "pooled_right_tokens"):
            require_count(name, getattr(self, name), 0)
        require_count("kernel", self.kernel, 1)
        require_count("stride", self.stride, 1)
        require_choice("pooling", self.pooling, POOLINGS)
        require_choice("windows", self.windows, WINDOWS)
        require_choice("init", self.init, INITS)
        if self.stride > self.kernel:
            raise InputError(
                f"stride={self.stride} exceeds kernel={self.kernel} and would skip tokens; lower the stride"
            )
        if self.kernel > self.pooled_left_tokens + 1 + self.pooled_right_tokens:
            raise InputError(
                f"kernel={self.kernel} does not fit into the pooled window of {self.pooled_left_tokens} + 1 + "
                f"{self.pooled_right_tokens} tokens; widen the window or shorten the kernel"
            )

    def scores_per_token(self, length: int, *, global_tokens: int = 0) -> float:
        return sum(self.level_scores(length, global_tokens=global_tokens))

    def level_scores(self, length: int, *, global_tokens: int = 0) -> tuple[float, float]:
        """Scores per token of the first and of the second level, edges counted."""
        first = window_scores(length, self.left_tokens, self.right_tokens, 1, global_tokens)
        before, after = self.kernel // 2, self.kernel - 1 - self.kernel // 2
        left, right = self.pooled_left_tokens - before, self.pooled_right_tokens - after
        if self.windows == "shared":
            centres = range(0, length, self.stride)
            pairs = sum(max(0, min(c + left, length - 1) - max(c - right, 0) + 1) for c in centres)
        else:
            pairs = sum(max(0, length - abs(offset)) for offset in range(-left, right + 1, self.stride))
        return first, pairs / max(length, 1)

    def build(self, *, width: int, heads: int, causal: bool = False) -> PoolingformerAttention:
        return PoolingformerAttention(self, width=width, heads=heads, causal=causal)


class PoolingformerAttention(LongformerAttention):
    """The module of `PoolingformerConfig`: its first level is Longformer's, and `output` follows the sum of both."""

    config: PoolingformerConfig

    def __init__(self, config: PoolingformerConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal)
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
        for name in ("pool_key_weight", "pool_value_weight"):
            if hasattr(self, name):
                nn.init.zeros_(getattr(self, name))
        for name in ("query", "key", "value"):
            projection = getattr(self, f"pooled_{name}", None)
            if projection is None:
                continue
            if self.config.init == "copy":
                copy_linear(getattr(self, name), projection)
            elif self.config.init == "zero_value" and name == "value":
                nn.init.zeros_(projection.weight)
                nn.init.zeros_(projection.bias)
            else:
                nn.init.normal_(projection.weight, std=std)
                nn.init.zeros_(projection.bias)

    def forward(self, hidden: Tensor, tokens: Tokens | None = None, state: KeyValueState | None = None) -> Tensor:
        """`(B, T, E)` → `(B, T, E)`; padded tokens gather nothing, and are in no pool.

        Raises:
            InputError: a mask that does not cover the sequence.
        """
        tokens = tokens or Tokens()
        first = self.window_context(hidden, tokens, state)
        second = self.pooled_context(first, tokens.mask)
        return self.output(first + second)

    def second_level(self, name: str) -> nn.Linear:
        """The second level's `query`, `key` or `value` projection."""
        return getattr(self, name if self.config.tie_levels else f"pooled_{name}")

    def pooled_context(self, first: Tensor, mask: Tensor | None) -> Tensor:
        """The second level Z of the first level's output Y, before the output projection: `(B, T, E)` both."""
        query = self.split_heads(self.second_level("query")(first))
        key = self.split_heads(self.second_level("key")(first))
        value = self.split_heads(self.second_level("value")(first))
        level = self._shared if self.config.windows == "shared" else self._per_query
        context = self.merge_heads(level(query, key, value, mask))
        return context if mask is None else context.masked_fill(~mask[:, :, None], 0)

    def _pooled(self, key: Tensor, value: Tensor, mask: Tensor | None, stride: int) -> tuple[Tensor, Tensor]:
        """Pools of keys and values, `(B, H, T, D)` → `(B, H, ⌈T / stride⌉, D)` each."""
        kernel, pooling = self.config.kernel, self.config.pooling
        key_weight = self.pool_key_weight if pooling == "ldconv" else None
        value_weight = self.pool_value_weight if pooling == "ldconv" else None
        return (
            pool(key, kernel=kernel, stride=stride, pooling=pooling, mask=mask, weight=key_weight),
            pool(value, kernel=kernel, stride=stride, pooling=pooling, mask=mask, weight=value_weight),
        )

    def _shared(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Every query looks at one pooled sequence, stride times shorter than the queries."""
        config = self.config
        pools, pooled_value = self._pooled(key, value, mask, config.stride)
        pattern = PooledWindow(config.pooled_left_tokens, config.pooled_right_tokens, config.kernel, config.stride)
        return attend(
            query,
            pools,
            pooled_value,
            pattern=pattern,
            key_mask=slot_mask(mask, config.stride),
            dropout_prob=self.dropout_prob,
        )

    def _per_query(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Every query looks at every stride-th pool, counted from its own window's left end.

        With the pools shifted by that phase, queries of residue r modulo the stride look at pools of residue r alone,
        so the residue becomes a batch axis and the dilated window a plain one. No window is ever materialised.
        """
        length, stride = query.shape[2], self.config.stride
        shift, left, right = phase(self.config)
        pools, pooled_value = self._pooled(key, value, mask, 1)
        real = torch.ones(query.shape[0], length, dtype=torch.bool, device=query.device) if mask is None else mask
        context = attend(
            fold(query, stride),
            fold(moved(pools, shift), stride),
            fold(moved(pooled_value, shift), stride),
            pattern=Window(left, right),
            key_mask=fold(moved(real[:, None, :, None], shift), stride)[:, 0, :, 0],
            dropout_prob=self.dropout_prob,
        )
        return unfold(context, stride, length)

    def weights(self, hidden: Tensor, tokens: Tokens | None = None) -> Tensor:
        raise NotImplementedError


def phase(config: PoolingformerConfig) -> tuple[int, int, int]:
    """Of the pool centres `i − left + κ//2 + m·stride` of query i: the shift that moves one of them onto i, and how many
    lie before and after it."""
    first = config.kernel // 2 - config.pooled_left_tokens
    count = (config.pooled_left_tokens + config.pooled_right_tokens + 1 - config.kernel) // config.stride + 1
    left = min(max(0, -first // config.stride), count - 1)
    return -(first + left * config.stride), left, count - 1 - left


def moved(hidden: Tensor, shift: int) -> Tensor:
    """`(B, H, T, D)` with `shift` zero rows put in front, or, when negative, that many rows dropped."""
    if shift < 0:
        return hidden[:, :, -shift:]
    return F.pad(hidden, (0, 0, shift, 0))


def fold(hidden: Tensor, stride: int) -> Tensor:
    """`(B, H, T, D)` → `(B·stride, H, ⌈T / stride⌉, D)`: positions of equal residue become one batch row."""
    batch, heads, length, width = hidden.shape
    folded = F.pad(hidden, (0, 0, 0, -length % stride)).unflatten(2, (-1, stride))
    return folded.permute(0, 3, 1, 2, 4).reshape(batch * stride, heads, -1, width)


def unfold(folded: Tensor, stride: int, length: int) -> Tensor:
    """The inverse of `fold`, for T = `length`."""
    return folded.unflatten(0, (-1, stride)).permute(0, 2, 3, 1, 4).flatten(2, 3)[:, :, :length]
