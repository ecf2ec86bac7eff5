"""What one attention layer costs: scores, multiply-adds with its projections, and the weights it may have to store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class AttentionCost:
    """The cost of one layer over one text without global tokens; counts are exact, the ends of the text included.

    Attributes:
        tokens: length of the text, T.
        scores: pairs of query and key, or query and pool, in one head.
        projections: multiply-adds of the linear projections, the output's included.
        mixing: multiply-adds of scores, with all their terms, and of the weighted sums over values, all heads.
        pooling: multiply-adds of pooling keys and values, the prediction of LDConv's weights included.
        weights: attention weights of all heads, which is what an implementation stores that keeps them for backward.
    """

    tokens: int
    scores: int
    projections: int
    mixing: int
    pooling: int
    weights: int

    @property
    def multiply_adds(self) -> int:
        """All of them."""
        return self.projections + self.mixing + self.pooling
