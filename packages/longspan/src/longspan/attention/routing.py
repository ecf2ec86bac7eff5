"""Routing: some heads attend to a window, the others to the tokens of their own cluster, found by online k-means."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Tensor

from longspan.attention.base import LayerState
from longspan.attention.config import AttentionConfig, AttentionCost, Lengthening, full_inputs
from longspan.attention.parts.centroids import CentroidAttention, normal
from longspan.attention.parts.tokens import Tokens
from longspan.attention.parts.windowed import pairs_within
from longspan.attention.support import Support
from longspan.errors import InputError
from longspan.ops.attend import attend
from longspan.ops.attend.reference import dense_mask, dense_weights
from longspan.ops.sorted.balanced import attend_balanced, balanced_weights
from longspan.ops.sorted.clusters import LastOfClusters, attend_clusters, cluster_mask, continue_clusters
from longspan.patterns import Window
from longspan.settings import Count, Range, Seed, Share, Whole

if TYPE_CHECKING:
    from longspan.attention.parts.state import RecurrentLayer


@dataclass(frozen=True, kw_only=True)
class RoutingConfig(AttentionConfig):
    """Local heads attend to a window; routing heads attend to tokens of the same cluster at any distance.

    Queries and keys of routing heads are normalised, `q = LayerNorm(x W_q)` without weights. Centroids are buffers that
    follow the vectors of training batches without gradients, see `Centroids`.

    Attributes:
        left_tokens: tokens before a query that the local heads attend to, without the query itself.
        right_tokens: tokens after it; bidirectional only.
        routing_share: share of the heads that route; the others are local.
        clusters: centroids of each routing head (paper: k).
        selection: "nearest" assigns every token to its nearest centroid, and in this cluster it attends to the nearest
            `cluster_tokens` others; queries are their own keys. "balanced" is published: every centroid selects as many
            queries, and as many keys, ⌈n / clusters⌉ of n real tokens, so a token can be in several clusters or in
            none. The selection depends on the whole text.
        causal_form: with "exact", balanced clusters have no causal form, since none is exactly causal. "published" is
            the paper's: queries are their own keys, a token attends to earlier tokens of its cluster, but **the
            clusters are selected from the whole text, so the future leaks**: a later token that is nearer to the
            centroid replaces an earlier one. Likelihoods of such a model are too good, generation selects among the
            earlier tokens only, unlike training, and there is no state, so that every step processes the whole text
            again. For comparisons with published numbers.
        cluster_tokens: tokens of its cluster that a query attends to before itself and, if bidirectional, after itself;
            only with "nearest" (paper: w, which is n / k there).
        decay: weight of the old centroid at each step of training (paper: λ).
        first_iterations: rounds of k-means on the first training batch; 0 keeps the random centroids.
        seed: random seed of the centroids.
    """

    mechanism: ClassVar[str] = "routing"
    causal: ClassVar[bool] = True
    incremental: ClassVar[bool] = True
    chooses: ClassVar[bool] = True
    cost: ClassVar[str] = (
        "(1 − routing_share)·(left_tokens + 1 + right_tokens) + routing_share·2·cluster_tokens (balanced: T / clusters)"
    )
    source: ClassVar[str] = "Roy et al. 2021, arXiv 2003.05997, section 4 and algorithm 1"

    left_tokens: Whole = 256
    right_tokens: Whole = 256
    routing_share: Annotated[float, Range(0, below=1)] = 0.5
    clusters: Count = 32
    selection: Literal["nearest", "balanced"] = "nearest"
    causal_form: Literal["exact", "published"] = "exact"
    cluster_tokens: Count = 128
    decay: Share = 0.999
    first_iterations: Whole = 10
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        leaks = self.causal_form == "published"
        if leaks and self.selection != "balanced":
            raise InputError(
                f"causal_form='published' is the paper's of selection='balanced', and selection={self.selection!r} has "
                "an exact one; leave it out"
            )
        if self.selection == "balanced":
            # The instance attribute hides the class's: these options have no such form, although others do.
            support = BALANCED | ({"strict": LEAK, "state": WHOLE} if leaks else {"causal": WHOLE})
            for name, value in {"causal": leaks, "incremental": False, "support": support}.items():
                object.__setattr__(self, name, value)

    @property
    def idle(self) -> frozenset[str]:
        return frozenset({"cluster_tokens"} if self.selection == "balanced" else ())

    def lengthening(self, tokens: int = 1) -> Lengthening:
        sides = [self.left_tokens, self.right_tokens]
        if self.selection == "nearest" and self.routing_share:
            sides.append(self.cluster_tokens)
        covers = tokens <= 1 or min(sides) >= tokens - 1
        wide = {name: max(getattr(self, name), tokens) for name in ("left_tokens", "right_tokens", "cluster_tokens")}
        return replace(super().lengthening(tokens), covers=covers, widened=replace(self, **wide))

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        """Counted for clusters of equal size, without the products with centroids."""
        near = pairs_within(length, -self.left_tokens, 0 if causal else self.right_tokens) / max(length, 1)
        near = min((length + 1) / 2 if causal else float(length), near + 2 * global_tokens)
        cluster_size, more = divmod(length, self.clusters)
        sizes = ((cluster_size + 1, more), (cluster_size, self.clusters - more))
        if self.selection == "balanced":
            size = cluster_size + bool(more)
            far = float(self.clusters * ((size * (size - 1) // 2 + min(size, 1)) if causal else size**2))
        else:
            far = float(sum(many * self._pairs_in_cluster(size, causal) for size, many in sizes))
        return (1 - self.routing_share) * near + self.routing_share * far / max(length, 1)

    def _pairs_in_cluster(self, size: int, causal: bool) -> int:
        """Returns the pairs of query and key in a cluster of `size` tokens; a token without visible others
        attends to itself.
        """
        reach = min(self.cluster_tokens, size)
        pairs = pairs_within(size, -reach, 0 if causal else reach) - size
        return pairs + (min(size, 1) if causal else size == 1)

    def costs(self, *, length: int, width: int, heads: int, causal: bool = False) -> AttentionCost:
        """`mixing` includes the products with the centroids, twice if queries and keys are different."""
        cost = super().costs(length=length, width=width, heads=heads, causal=causal)
        times = 2 if self.selection == "balanced" and not causal else 1
        products = times * round(self.routing_share * heads) * (width // heads) * self.clusters * length
        saved = cost.saved_activations + 2 * cost.weights  # also scores and weights within the clusters
        return replace(cost, mixing=cost.mixing + products, saved_activations=saved)

    def depends_on(self, needed: Tensor, *, is_global: Tensor | None = None, causal: bool = False) -> Tensor:
        return full_inputs(needed, causal=causal and self.causal_form == "exact")

    def build(self, *, width: int, heads: int, causal: bool = False) -> RoutingAttention:
        return RoutingAttention(self, width=width, heads=heads, causal=causal)


WHOLE = "balanced clusters choose their members from the whole text, later tokens included"
LEAK = "the published causal form chooses the members of a cluster from the whole text, so that the future leaks"
BALANCED: dict[str, Support] = {"linear": "balanced clusters grow with the text"}
"""Features that no form of balanced clusters supports."""


class RoutingAttention(CentroidAttention):
    """The module of `RoutingConfig`. Its first heads are local, the others route."""

    config: RoutingConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    state_kind = "sums"  # the window of the local heads, and the last tokens of every cluster

    def __init__(self, config: RoutingConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal)
        routing = config.routing_share * heads
        if not float(routing).is_integer():
            raise InputError(
                f"routing_share={config.routing_share} of heads={heads} are no whole heads; choose a share that is"
            )
        self.near = heads - int(routing)
        self.pattern = Window(config.left_tokens, 0 if causal else config.right_tokens)
        self.left, self.right = config.cluster_tokens, 0 if causal else config.cluster_tokens
        self.centroids = self.new_centroids(int(routing), self.head_width)

    def context(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        query, key, value = self.project(hidden)
        if state is not None:
            from longspan.attention.parts.state import recurrent

            return self.merge_heads(self._continued(query, key, value, tokens.mask, recurrent(state, "clusters")))
        near = (tensor[:, : self.near] for tensor in (query, key, value))
        slots = tokens.with_slots().real_slots() if hidden.shape[1] else None
        options = {"key_mask": tokens.mask, "globals": slots, "dropout_prob": self.dropout_prob}
        contexts = [attend(*near, pattern=self.pattern, **options)]
        if self.near < self.heads:
            query, key, value = (tensor[:, self.near :] for tensor in (query, key, value))
            contexts.append(self._routed(query, key, value, tokens.mask))
        return self.merge_heads(torch.cat(contexts, 1))

    def _routed(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Computes the routing heads, `(B, H', T, D)`."""
        query, unit = normal(query)
        if self.config.selection == "nearest":
            clusters = self._clusters(unit, mask)
            self.centroids.note(unit, mask)
            limits = {"left": self.left, "right": self.right, "dropout_prob": self.dropout_prob}
            return attend_clusters(query, query, value, clusters, self.config.clusters, **limits)
        real, options = _real(query, mask), {"causal": self.causal, "dropout_prob": self.dropout_prob}
        if self.causal:
            self.centroids.note(unit, mask)
            return attend_balanced(query, query, value, self.centroids.centres, real, **options)
        key, unit_key = normal(key)
        twice = None if mask is None else torch.cat([mask, mask], 1)
        self.centroids.note(torch.cat([unit, unit_key], 2), twice)
        return attend_balanced(query, key, value, self.centroids.centres, real, **options)

    def _clusters(self, unit: Tensor, mask: Tensor | None) -> Tensor:
        """Returns the cluster of each token in each head, `(B, H', T)`, −1 for padding."""
        clusters = self.centroids.nearest(unit)
        return clusters if mask is None else clusters.masked_fill(~mask[:, None], -1)

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        query, key, _ = self.project(hidden)
        sizes = {"queries": hidden.shape[1], "keys": hidden.shape[1], "query_offset": 0, "device": hidden.device}
        visible = dense_mask(self.pattern, key_mask=tokens.mask, is_global=tokens.global_mask(hidden.shape[1]), **sizes)
        near = dense_weights(query[:, : self.near], key[:, : self.near], visible, scale=self.scale)
        (query, unit), (key, _) = (normal(tensor[:, self.near :]) for tensor in (query, key))
        if self.config.selection == "nearest":
            clusters = self._clusters(unit, tokens.mask)
            visible = cluster_mask(clusters, self.config.clusters, left=self.left, right=self.right)
            far = dense_weights(query, query, visible, scale=self.scale)
        else:
            key = query if self.causal else key
            real = _real(query, tokens.mask)
            far = balanced_weights(query, key, self.centroids.centres, real, causal=self.causal)
        return torch.cat([near, far.to(near.dtype)], 1)

    def _continued(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, state: RecurrentLayer
    ) -> Tensor:
        """Computes T new tokens `(B, H, T, D)` after those of the state, which is updated."""
        held, new = state.tensors, query.shape[2]
        near_query, keys, values = (tensor[:, : self.near] for tensor in (query, key, value))
        if held:
            keys, values = torch.cat([held["near_keys"], keys], 2), torch.cat([held["near_values"], values], 2)
        key_mask = None if mask is None else mask[:, mask.shape[1] - keys.shape[2] :]
        options = {"key_mask": key_mask, "query_offset": keys.shape[2] - new, "dropout_prob": self.dropout_prob}
        contexts = [attend(near_query, keys, values, pattern=self.pattern, **options)]
        first = max(0, keys.shape[2] - self.config.left_tokens)
        # a view would keep all of them alive
        tensors = {"near_keys": keys[:, :, first:].clone(), "near_values": values[:, :, first:].clone()}
        if self.near < self.heads:
            query, unit = normal(query[:, self.near :])
            real = None if mask is None else mask[:, mask.shape[1] - new :]
            self.centroids.note(unit, real)
            mixed, last = continue_clusters(
                query,
                query,
                value[:, self.near :],
                self._clusters(unit, real),
                self.config.clusters,
                LastOfClusters(*(held[name] for name in LastOfClusters._fields)) if held else None,
                size=self.left,
                dropout_prob=self.dropout_prob,
            )
            contexts.append(mixed)
            tensors |= last._asdict()
        state.advance(new, **tensors)
        return torch.cat(contexts, 1)


def _real(query: Tensor, mask: Tensor | None) -> Tensor:
    """Returns the mask `(B, T)`, or one of all real tokens."""
    if mask is not None:
        return mask
    return torch.ones(query.shape[0], query.shape[2], dtype=torch.bool, device=query.device)
