"""Linear attention: every token sees every token, or all before it, through one sum over the keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from longspan.attention.parts.kernel import KernelAttention, KernelConfig
from longspan.ops.kernels.linear import elu_features


@dataclass(frozen=True, kw_only=True)
class LinearConfig(KernelConfig):
    """Features in place of the softmax, `φ(x) = elu(x) + 1`: `φ(Q) (φ(K)ᵀ V)`, divided by `φ(Q) · Σ φ(K)`.

    Queries and keys are not scaled by `1/√D`. Global tokens change nothing here, because every token already attends
    everywhere. `dropout` drops a token for all queries of a head at once, because weights are never made one by one.
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
