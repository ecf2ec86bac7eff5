"""What one attention layer costs: scores, multiply-adds with its projections, and the weights it may have to store."""

from __future__ import annotations

from dataclasses import dataclass

from longspan.attention import AttentionConfig, FullConfig, LongformerConfig, PoolingformerConfig
from longspan.errors import InputError


@dataclass(frozen=True, kw_only=True)
class AttentionCost:
    """The cost of one layer over one text without global tokens; counts are exact, the ends of the text included.

    Attributes:
        tokens: length of the text, T.
        scores: pairs of query and key, or query and pool, in one head.
        projections: multiply-adds of the linear projections, the output's included.
        mixing: multiply-adds of scores and of the weighted sums over values, all heads.
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


def attention_cost(config: AttentionConfig, *, length: int, width: int, heads: int) -> AttentionCost:
    """Count the cost of a layer, model width E and H heads, on a text of T tokens.

    A projection costs E² per token and a score 2E in all heads: D each for the product and for the sum over values.
    Poolingformer's second level adds three projections (tied ones save weights, but no work) and, for keys and values
    alike, κE per pool, twice that with LDConv.

    Raises:
        InputError: a mechanism whose cost is not known here.
    """
    # Fusion is a Poolingformer too, but its relative positions have scores and projections of their own.
    if type(config) not in (FullConfig, LongformerConfig, PoolingformerConfig):
        raise InputError(
            f"attention {config.mechanism!r} has no known cost; take one of full, longformer, poolingformer"
        )
    scores = round(config.scores_per_token(length) * length)
    projections, pooling = 4, 0
    if isinstance(config, PoolingformerConfig):
        projections += 3
        pools = length if config.windows == "per_query" else -(-length // config.stride)
        passes = 2 if config.pooling == "ldconv" else 1
        pooling = 2 * passes * config.kernel * width * pools
    return AttentionCost(
        tokens=length,
        scores=scores,
        projections=projections * width**2 * length,
        mixing=2 * width * scores,
        pooling=pooling,
        weights=heads * scores,
    )
