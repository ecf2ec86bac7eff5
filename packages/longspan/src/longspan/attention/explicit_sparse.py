"""Explicit sparse attention: each query attends only to the keys with the highest scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from longspan.attention.base import LayerState, ProjectedAttention, input_dtype
from longspan.attention.config import AttentionConfig, Lengthening, full_inputs
from longspan.attention.parts.tokens import Tokens
from longspan.attention.support import Support
from longspan.ops.attend.reference import full_precision
from longspan.ops.sorted.top_scores import Budget, attend_top, top_weights
from longspan.settings import Count, Share


@dataclass(frozen=True, kw_only=True)
class ExplicitSparseConfig(AttentionConfig):
    """A query attends to the `top_k` keys with the highest scores in each head, and to keys that tie with the
    last of them.

    Scores tie if they are equal up to rounding, within 32 units of it (`longspan.ops.sorted.top_scores.ROUNDING`):
    repeated tokens are then kept or dropped together, alone, padded, in a batch and step by step. In half precision the
    projections are rounded before they are compared, so equal tokens can differ.

    All pairs are scored: this is a method for quality, not for long texts. Memory is still linear, since scores are
    computed for some queries at a time and never stored. Global tokens change nothing, because every token may attend
    to all.

    Attributes:
        top_k: how many keys a query keeps (paper: k), all if there are fewer.
        top_fraction: a query keeps at least this share of its visible keys, if that is more.
        local_budget: half of the kept keys are the nearest, the other half the highest of the rest. Positions count
            real tokens.
    """

    mechanism: ClassVar[str] = "explicit_sparse"
    causal: ClassVar[bool] = True
    incremental: ClassVar[bool] = True
    cost: ClassVar[str] = "T (causal: (T + 1) / 2), of which top_k are used"
    source: ClassVar[str] = "Zhao et al. 2019, arXiv 1912.11637, section 2.2"
    support: ClassVar[Mapping[str, Support]] = {
        "linear": "every pair is scored before the highest are known",
        "static_cache": True,
    }

    top_k: Count = 8
    top_fraction: Share = 0.0
    local_budget: bool = False

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        return (length + 1) / 2 if causal else float(length)

    def lengthening(self, tokens: int = 1) -> Lengthening:
        covers = tokens <= max(1, self.top_k) or self.top_fraction == 1
        wide = replace(self, top_k=max(self.top_k, tokens))
        return replace(super().lengthening(tokens), covers=covers, widened=wide)

    def depends_on(self, needed: Tensor, *, is_global: Tensor | None = None, causal: bool = False) -> Tensor:
        """An upper bound: the scores determine which of the visible keys are kept."""
        return full_inputs(needed, causal=causal)

    def build(self, *, width: int, heads: int, causal: bool = False) -> ExplicitSparseAttention:
        return ExplicitSparseAttention(self, width=width, heads=heads, causal=causal)


class ExplicitSparseAttention(ProjectedAttention):
    """The module of `ExplicitSparseConfig`."""

    config: ExplicitSparseConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    state_kind = "keys"

    @property
    def budget(self) -> Budget:
        """Returns how many of a query's visible keys are kept in its softmax."""
        config = self.config
        return Budget(config.top_k, config.top_fraction, config.local_budget)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Projects `(B, T, E)` to queries, keys and values `(B, H, T, D)` without autocast, since rounded scores would
        select other keys.
        """
        with full_precision(hidden):
            wide = hidden.to(input_dtype(self.query))
            query, key = self.heads_of(self.query, wide), self.heads_of(self.key, wide)
        return query, key, self.heads_of(self.value, hidden).to(query.dtype)

    def context(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        query, key, value, key_mask, _ = self.remember(hidden, tokens, state)
        context = attend_top(
            query,
            key,
            value,
            self.budget,
            causal=self.causal,
            key_mask=key_mask,
            dropout_prob=self.dropout_prob,
        )
        return self.merge_heads(context)

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        query, key, _ = self.project(hidden)
        return top_weights(query, key, self.budget, causal=self.causal, key_mask=tokens.mask)
