"""Linear attention: features replace the softmax, so that one sum over the keys serves every query.

`KernelConfig` and `KernelAttention` implement everything except the features, which `linear` and `performer` define.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from longspan.attention.base import LayerState, ProjectedAttention
from longspan.attention.config import AttentionConfig, AttentionCost
from longspan.attention.parts.tokens import Tokens
from longspan.attention.support import Support
from longspan.ops.kernels.linear import attend_linear, elu_features, linear_weights
from longspan.ops.kernels.linear_bidirectional import attend_elu


@dataclass(frozen=True, kw_only=True)
class KernelConfig(AttentionConfig):
    """Features φ replace the softmax: `φ(Q) (φ(K)ᵀ V)`, divided by `φ(Q) · Σ φ(K)`.

    Global tokens change nothing, because every token already attends to all. `dropout` drops a token for all queries of
    a head at once, because single weights are never computed.
    """

    causal: ClassVar[bool] = True
    incremental: ClassVar[bool] = True
    sees_everything: ClassVar[bool] = True
    support: ClassVar[Mapping[str, Support]] = {"sharded": True}  # sums have no distances

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        """Returns 1: the score of a query with the sum over the keys. The scores within chunks, with which the causal
        form computes many tokens at once, are not part of the definition and not counted.
        """
        return 1.0

    def costs(self, *, length: int, width: int, heads: int, causal: bool = False) -> AttentionCost:
        """In each head, the F features of a key times the D numbers of its value are added to a sum; the F features of
        a query are multiplied with the D + 1 numbers of this sum.
        """
        cost = super().costs(length=length, width=width, heads=heads, causal=causal)
        head_width = width // heads
        per_token = self.feature_count(head_width) * (2 * head_width + 1) + 2 * self.feature_cost(head_width)
        features = 2 * heads * self.feature_count(head_width) * length  # of queries and keys, saved too
        return replace(cost, mixing=heads * per_token * length, saved_activations=cost.saved_activations + features)

    def feature_count(self, head_width: int) -> int:
        """Features of one query or key, F."""
        return head_width

    def feature_cost(self, head_width: int) -> int:
        """Multiply-adds for the features of one query or key."""
        return 0


class KernelAttention(ProjectedAttention):
    """The module of a `KernelConfig`, which defines `query_features` and `key_features`: `(B, H, T, D)` → `(B, H, T,
    F)`, non-negative, in at least float32.
    """

    state_kind = "sums"
    epsilon: ClassVar[float] = 0.0
    """Constant added to the denominator."""

    def query_features(self, query: Tensor) -> Tensor:
        raise NotImplementedError

    def key_features(self, key: Tensor) -> Tensor:
        raise NotImplementedError

    def mixed(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
        """Computes `attend_linear` with the features of queries and keys."""
        return attend_linear(self.query_features(query), self.key_features(key), value, **options)

    def context(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        new, past = hidden.shape[1], None
        if state is not None:
            from longspan.attention.parts.state import recurrent

            past = recurrent(state, "sums")
        context, sums = self.mixed(
            *self.project(hidden),
            causal=self.causal,
            key_mask=tokens.last_mask(new),
            sums=None if past is None else past.tensors.get("sums"),
            dropout_prob=self.dropout_prob,
            epsilon=self.epsilon,
        )
        if past is not None:
            assert sums is not None
            past.advance(new, sums=sums)
        return self.merge_heads(context)

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        query, key, _ = self.project(hidden)
        features = self.query_features(query), self.key_features(key)
        return linear_weights(*features, causal=self.causal, key_mask=tokens.mask, epsilon=self.epsilon)


@dataclass(frozen=True, kw_only=True)
class LinearConfig(KernelConfig):
    """Features replace the softmax, `φ(x) = elu(x) + 1`: `φ(Q) (φ(K)ᵀ V)`, divided by `φ(Q) · Σ φ(K)`.

    Queries and keys are not scaled by `1/√D`. Global tokens change nothing, because every token already attends to all.
    `dropout` drops a token for all queries of a head at once, because single weights are never computed.
    """

    mechanism: ClassVar[str] = "linear"
    cost: ClassVar[str] = "1, of about D times the work"
    source: ClassVar[str] = "Katharopoulos et al. 2020, arXiv 2006.16236, sections 3.2 and 3.3"

    def build(self, *, width: int, heads: int, causal: bool = False) -> LinearAttention:
        return LinearAttention(self, width=width, heads=heads, causal=causal)


class LinearAttention(KernelAttention):
    """The module of `LinearConfig`."""

    epsilon: ClassVar[float] = 1e-6
    """As in the published code."""

    def query_features(self, query: Tensor) -> Tensor:
        return elu_features(query)

    def key_features(self, key: Tensor) -> Tensor:
        return elu_features(key)

    def mixed(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
        return attend_elu(query, key, value, **options)
