"""Cluster: tokens are sorted by their nearest centroid, and attend to the chunk of their sorted position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from longspan.attention.base import LayerState
from longspan.attention.config import Activations, AttentionConfig, AttentionCost, Lengthening
from longspan.attention.parts.centroids import CentroidAttention, normal
from longspan.attention.parts.tokens import Tokens, in_order, permuted
from longspan.attention.parts.windowed import pairs_within
from longspan.attention.support import Support
from longspan.ops.attend import attend
from longspan.ops.sorted.clusters import sorted_by_cluster
from longspan.patterns import Blocks, Full
from longspan.settings import Count, Seed, Share, Whole


@dataclass(frozen=True, kw_only=True)
class ClusterConfig(AttentionConfig):
    """Tokens with similar states attend to each other at any distance, in layers between those with a window.

    All real tokens of a text are sorted by cluster, those of a cluster in the order of the text, and split into chunks;
    a large cluster fills several, and small ones share one. Centroids are buffers that follow the states of training
    batches without gradients, see `Centroids`.

    Attributes:
        clusters: number of centroids, which all heads share (paper: k).
        chunk_tokens: real tokens of a chunk.
        side_chunks: chunks that a token attends to on each side of its own; the published form has none.
        decay: weight of the old centroid at each step of training.
        first_iterations: rounds of k-means on the first training batch; 0 keeps the random centroids.
        seed: random seed of the centroids.
    """

    mechanism: ClassVar[str] = "cluster"
    chooses: ClassVar[bool] = True
    cost: ClassVar[str] = "(2·side_chunks + 1)·chunk_tokens + 2G"
    source: ClassVar[str] = "Wang et al. 2021, Cluster-Former, arXiv 2009.06097, section 3"
    support: ClassVar[Mapping[str, Support]] = {
        "causal": "where a chunk begins depends on how many later tokens are sorted before it",
    }

    clusters: Count = 64
    chunk_tokens: Count = 256
    side_chunks: Whole = 0
    decay: Share = 0.999
    first_iterations: Whole = 10
    seed: Seed = 0

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        """Returns the mean pairs per token, with those of the shorter last chunk counted exactly; 2G more for
        G global tokens.
        """
        size, chunks = self.chunk_tokens, -(-length // self.chunk_tokens)
        sides = min(self.side_chunks, max(chunks - 1, 0))
        pairs = size**2 * pairs_within(chunks, -sides, sides)
        if chunks:  # the last one is not full
            last = length - (chunks - 1) * size
            pairs += (2 * sides * size + last + size) * (last - size)
        return min(float(length), pairs / max(length, 1) + 2 * global_tokens)

    def activations(self) -> Activations:
        """The sorted states, and the outputs in their order."""
        return Activations(copies=2)

    def covers(self, tokens: int) -> bool:
        """Whether a chunk and its neighbours on one side contain a text of `tokens` tokens."""
        return tokens <= self.chunk_tokens * (1 + self.side_chunks)

    def lengthening(self, tokens: int = 1) -> Lengthening:
        wide = replace(self, chunk_tokens=max(self.chunk_tokens, tokens))
        return replace(super().lengthening(tokens), covers=self.covers(tokens), widened=wide)

    def costs(self, *, length: int, width: int, heads: int, causal: bool = False) -> AttentionCost:
        """`mixing` includes the products of states and centroids."""
        cost = super().costs(length=length, width=width, heads=heads, causal=causal)
        return replace(cost, mixing=cost.mixing + width * self.clusters * length)

    def depends_on(self, needed: Tensor, *, is_global: Tensor | None = None, causal: bool = False) -> Tensor:
        return needed.any().expand(needed.shape)

    def build(self, *, width: int, heads: int, causal: bool = False) -> ClusterAttention:
        return ClusterAttention(self, width=width, heads=heads, causal=causal)


class ClusterAttention(CentroidAttention):
    """The module of `ClusterConfig`."""

    config: ClusterConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: ClusterConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal)
        self.pattern = Blocks(config.chunk_tokens, config.side_chunks, config.side_chunks)
        self.centroids = self.new_centroids(1, width)

    def context(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        if not torch.compiler.is_compiling() and self.config.covers(hidden.shape[1]):
            # Every token attends to every other, in any order, so sorting is not needed.
            if self.training:
                self.centroids.note(normal(hidden)[1][:, None], tokens.mask)
            options = {"key_mask": tokens.mask, "dropout_prob": self.dropout_prob}
            return self.merge_heads(attend(*self.project(hidden), pattern=Full(), **options))
        hidden, tokens, back = self._sorted(hidden, tokens.with_slots())
        slots = tokens.real_slots() if hidden.shape[1] else None
        options = {"key_mask": tokens.mask, "globals": slots, "dropout_prob": self.dropout_prob}
        context = self.merge_heads(attend(*self.project(hidden), pattern=self.pattern, **options))
        return in_order(context, back)

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        hidden, tokens, back = self._sorted(hidden, tokens.with_slots())
        query, key, _ = self.project(hidden)
        weights = self.dense_weights(query, key, tokens, tokens.global_mask(hidden.shape[1]))
        return in_order(weights, back, 2, 3)

    def _sorted(self, hidden: Tensor, tokens: Tokens) -> tuple[Tensor, Tokens, Tensor]:
        """Sorts the tokens by cluster, padding last; also returns the inverse order."""
        unit = normal(hidden)[1][:, None]
        self.centroids.note(unit, tokens.mask)
        clusters = self.centroids.nearest(unit)[:, 0]
        if tokens.mask is not None:
            clusters = clusters.masked_fill(~tokens.mask, -1)
        return permuted(hidden, tokens, sorted_by_cluster(clusters, self.config.clusters))
