"""Transformer-XL's relative positions, as terms of the scores for any mechanism with projections and a pattern.

Dai et al. 2019, "Transformer-XL", arXiv 1901.02860, section 3.3: with r = i - j,
`score = ((q_i + u)·k_j + (q_i + v)·(W_{k,R} R_r)) / √D`. Letters: q, k = `query`, `key` of the mechanism; W_{k,R} =
`position`; R_r the sinusoid of a distance; u = `content_bias`; v = `position_bias`.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longspan.attention.base import LayerState, ProjectedAttention
from longspan.attention.config import AttentionConfig, AttentionCost, SharedTables
from longspan.attention.features.starts import FurtherWeights, Start
from longspan.attention.parts.tokens import Tokens
from longspan.errors import InputError
from longspan.ops.attend.reference import full_precision
from longspan.ops.attend.terms import Bias, ContentToPosition, Term, content_scores
from longspan.ops.half_linear import linear
from longspan.ops.sinusoids import distance_sinusoids, rows_of_pairs
from longspan.patterns import Pattern
from longspan.settings import Count, Dropout

ANY = sys.maxsize // 2
"""Offsets beyond this are unbounded."""


@dataclass(frozen=True, kw_only=True)
class RelativeConfig(AttentionConfig):
    """Base class of configurations whose scores can include relative positions.

    Attributes:
        positions: "relative" adds Transformer-XL's two products to every score, "none" nothing.
        share_biases: whether all layers of a model share u and v (code: False is `untie_r`).
        clamp_tokens: the maximal distance, to which larger ones are clamped (code: `clamp_len`); `None` for no limit.
        position_dropout: probability of dropping an element of the sinusoids in training.
        bias: whether the projections of tokens have biases; Transformer-XL's have none.
    """

    positions: Literal["none", "relative"] = "none"
    share_biases: bool = True
    clamp_tokens: Count | None = None
    position_dropout: Dropout = 0.0
    bias: bool = True

    def shared_tables(self) -> SharedTables | None:
        """The two biases, if layers share them. `RelativeAttention.warm_start` starts a source without relative
        positions at 0.
        """
        if self.positions == "none" or not self.share_biases:
            return super().shared_tables()
        trained = ("positions", "share_biases", "bias")
        return SharedTables(
            build=RelativeBiases,
            agreed=("positions", "share_biases"),
            trained=trained,
            handed_on={name: getattr(self, name) for name in (*trained, "clamp_tokens", "position_dropout")},
            start=_start_at_zero,
        )

    @property
    def idle(self) -> frozenset[str]:
        without = {"share_biases", "clamp_tokens", "position_dropout"} if self.positions == "none" else set[str]()
        return super().idle | without | ({"clamp_tokens"} if self.clamp_tokens is None else set())

    def costs(self, *, length: int, width: int, heads: int, causal: bool = False) -> AttentionCost:
        """Each pair has one more product, and each head projects each visible distance once."""
        cost = super().costs(length=length, width=width, heads=heads, causal=causal)
        if self.positions == "none" or not length:
            return cost
        most = length - 1 if self.clamp_tokens is None else min(self.clamp_tokens, length - 1)
        reach = self.reach()
        left, right = (most, most) if reach.left is None or reach.right is None else (reach.left, reach.right)
        sides = (left,) if causal else (left, right)
        if self.clamp_tokens is None:  # else any row may be needed
            furthest, steps = max(reach.dilations), reach.dilations
        else:
            furthest, steps = 1, (1,)
        rows = sum(1 + sum(min(side // furthest, most // step) for side in sides) for step in steps) / len(steps)
        positions = round(rows * width**2)
        return replace(cost, projections=cost.projections + positions, mixing=cost.mixing + width * cost.scores)


@torch.no_grad()
def _start_at_zero(positions: Any, missing: Collection[str]) -> set[str]:
    for name in missing:
        getattr(positions, name).zero_()
    return set()


class RelativeBiases(nn.Module):
    """The biases that all layers share, `(H, D)` each: u is `content_bias`, v `position_bias`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.content_bias = nn.Parameter(torch.empty(heads, width // heads))
        self.position_bias = nn.Parameter(torch.empty(heads, width // heads))
        self.init_extra_weights()

    @torch.no_grad()
    def init_extra_weights(self, std: float = 0.02) -> None:
        """Initialises what transformers has not marked as loaded with N(0, std), as published."""
        for bias in (self.content_bias, self.position_bias):
            nn.init.normal_(bias, std=std)

    def forward(self) -> tuple[Tensor, ...]:
        """Returns u and v, `(H, D)` each, for `Tokens(relative=…)`."""
        return self.content_bias, self.position_bias


class OffsetAttention(ProjectedAttention):
    """A mechanism whose pattern depends on distance alone. Subclasses list it after the class that defines the pattern
    in `make_pattern`: a `Window`, one per head, `Causal` or `Full`.

    Outputs do not depend on positions before the first key, so a memory of keys and values is equivalent to one of the
    states that they were computed from.
    """

    nearest: int = 0
    """Distance of the nearest visible key."""
    growth: ClassVar[int] = 0
    """By how many positions `shown_offsets` may grow before a state is used."""

    def make_pattern(self) -> Pattern:
        """Returns the pattern of the configuration."""
        raise NotImplementedError

    @property
    def shown_offsets(self) -> tuple[int, int]:
        """Returns the smallest and the largest offset j - i of the pattern; beyond `ANY` if unbounded."""
        reaches = [pattern.reach() for pattern in each_head(self.pattern)]
        return min(low for low, _, _ in reaches), max(high for _, high, _ in reaches)

    def forward_from(self, past: Tensor, hidden: Tensor, tokens: Tokens) -> Tensor:
        """Returns outputs `(B, T, E)` of the last T of M + T positions, causal. Of the first `(B, M, E)`, only keys and
        values within reach are computed. `tokens` describes all positions.
        """
        from transformers.cache_utils import DynamicLayer

        first = 0 if torch.compiler.is_compiling() else max(0, past.shape[1] + self.shown_offsets[0])
        past, state = past[:, first:], DynamicLayer()
        state.update(self.heads_of(self.key, past), self.heads_of(self.value, past))
        return self(hidden, replace(tokens, mask=tokens.last_mask(past.shape[1] + hidden.shape[1])), state)


def each_head(pattern: Pattern) -> tuple[Pattern, ...]:
    """Returns the patterns of the heads, or the one of all."""
    return tuple(pattern.head(index) for index in range(pattern.heads or 1))


class RelativeAttention(FurtherWeights, OffsetAttention):
    """A mechanism whose configuration is a `RelativeConfig`. Subclasses list it after the class that it
    adds positions to.

    Only distances in its pattern are projected, for each head those of its own dilation, so there are never more
    than keys. The module owns its biases until a model that shares them calls `share_positions`. Pairs with a
    global token have no relative position, as their distance is unbounded: their scores are `(q_i + u)·k_j` with
    the local projections.
    """

    config: Any
    content_bias: nn.Parameter | None
    position_bias: nn.Parameter | None

    def add_positions(self) -> None:
        """Creates the weights of relative positions, if any."""
        self.has_positions = self.config.positions == "relative"
        if self.has_positions:
            biases = RelativeBiases(self.width, self.heads)
            self.position = nn.Linear(self.width, self.heads * self.head_width, bias=False)
            self.content_bias, self.position_bias = biases.content_bias, biases.position_bias

    @torch.no_grad()
    def init_extra_weights(self, std: float = 0.02) -> None:
        super().init_extra_weights(std)
        for bias in (self.content_bias, self.position_bias) if self.has_positions else ():
            if bias is not None:
                nn.init.normal_(bias, std=std)

    @torch.no_grad()
    def warm_start(self, missing: Collection[str], std: float = 0.02) -> dict[str, Start]:
        """Starts a source without relative positions at 0: all their weights are zero, and gradients reach `position`
        at the first step, and with it the biases.
        """
        started = super().warm_start(missing, std)
        for name in {"position.weight", "content_bias", "position_bias"} & set(missing):
            self.get_parameter(name).zero_()
        return started

    def share_positions(self) -> None:
        """Deletes the module's own biases; from now on they are passed in `Tokens(relative=…)`."""
        if self.config.shared_tables() is not None:
            self.content_bias = self.position_bias = None

    def biases(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Returns u and v, `(H, D)` both: the module's own, or those of `tokens`.

        Raises:
            InputError: they are missing, or have another shape.
        """
        if self.content_bias is not None and self.position_bias is not None:
            return self.content_bias, self.position_bias
        shape, shared = (self.heads, self.head_width), tokens.relative
        if shared is None or len(shared) != 2 or any(bias.shape != shape for bias in shared):
            has = None if shared is None else [tuple(bias.shape) for bias in shared]
            raise InputError(
                f"relative={has} of Tokens leaves this layer without the two biases of relative positions, {shape} "
                "each, which its model holds for all layers; give Tokens(relative=…) the model's"
            )
        return shared[0], shared[1]

    def local_queries(self, query: Tensor, tokens: Tokens) -> Tensor:
        """Returns `q + u` `(B, H, T, D)`, to be multiplied with the keys; `q` itself without relative positions."""
        return query + self.biases(tokens)[0][:, None].to(query.dtype) if self.has_positions else query

    def position_terms(
        self,
        query: Tensor,
        key: Tensor,
        tokens: Tokens,
        state: LayerState | None,
        slots: Tensor | None = None,
        places: Tensor | None = None,
    ) -> tuple[Tensor, Pattern, list[Term], Any]:
        """Adds `(q + v)·(W_{k,R} R)` to the scores of `q + u`."""
        query, furthest = self.local_queries(query, tokens), key.shape[2] - 1
        if self._one_length(tokens) and 2 * query.shape[2] <= self.head_width and query.shape[2] < key.shape[2]:
            first, rows = self._dropped_sinusoids(furthest, furthest, key)
            further = self._from_content_to_position(query, tokens)
            scores = self._of_few(query + further[:, None], rows, first, key.shape[2])
            return query, self.shown(tokens), [Bias(scores, globals=False)], None
        return query, self.shown(tokens), [self.position_term(query, tokens, furthest, furthest, state)], None

    def position_term(
        self, query: Tensor, tokens: Tokens, left: int, right: int, state: LayerState | None = None
    ) -> ContentToPosition:
        """Returns the term `(q + v)·(W_{k,R} R)` of the scores of `q + u` `(B, H, T, D)`, for keys of up to `left`
        positions before a query and `right` after it.
        """
        first, rows = self._dropped_sinusoids(left, right, query)
        table = (
            self._cached_table(rows, first, state) if self._one_length(tokens) else self.heads_of(self.position, rows)
        )
        return ContentToPosition(
            table, query_bias=self._from_content_to_position(query, tokens), first=first, globals=False
        )

    def _one_length(self, tokens: Tokens) -> bool:
        """Whether the distances are those of one length, projected by a plain layer, whose weight can be read."""
        one_length = tokens.in_buffer or not torch.compiler.is_compiling()
        return one_length and type(self.position) is nn.Linear

    def _dropped_sinusoids(self, left: int, right: int, like: Tensor) -> tuple[int, Tensor]:
        """Returns `_sinusoids` after dropout."""
        first, rows = self._sinusoids(left, right, like)
        return first, F.dropout(rows, self.config.position_dropout, self.training)

    def _cached_table(self, rows: Tensor, first: int, state: LayerState | None) -> Tensor:
        """Returns the projected distances `(H, rows, D)`. Segments after a full memory have the same ones, so their
        state caches them with the keys and values.
        """
        if state is None or self.training or torch.is_grad_enabled():
            return self._table(rows, first)
        from longspan.attention.parts.state import WindowLayer

        cached = state.positions if isinstance(state, WindowLayer) else None
        table = self._table(rows, first) if cached is None or cached.shape[1] != len(rows) else cached
        if isinstance(state, WindowLayer):
            state.positions = table
        return table

    def _table(self, rows: Tensor, first: int) -> Tensor:
        """Returns the projected distances `(H, rows, D)`: for each head those in its pattern, 0 for the others, so that
        a window of W projects W + 1 of them for any dilation.
        """
        groups = self._shown_rows(len(rows), first)
        if groups is None:
            return self.heads_of(self.position, rows)
        weight = self.position.weight.unflatten(0, (self.heads, self.head_width))
        parts = []
        for heads, shown in groups:
            table_of_heads = linear(rows[shown], weight[heads].flatten(0, 1)).unflatten(
                -1, (len(heads), self.head_width)
            )
            table = table_of_heads.new_zeros(len(heads), len(rows), self.head_width)
            table[:, shown] = table_of_heads.transpose(0, 1)
            parts.append(table)
        order = torch.tensor([head for heads, _ in groups for head in heads])
        return torch.cat(parts)[order.argsort()]

    def _shown_rows(self, rows: int, first: int) -> list[tuple[list[int], slice]] | None:
        """Returns heads, and the rows from offset `first` on in their windows; `None` if every head uses all rows."""
        if self.config.clamp_tokens is not None:  # distances beyond the clamp use its row, whatever the dilation
            return None
        shared: dict[tuple[int, int, int], list[int]] = {}
        for head in range(self.heads):
            low, high, step = self.pattern.head(head).reach()
            if step is None or low < -ANY or high > ANY:
                return None
            span = max(low, first), high, step
            shared.setdefault(span, []).append(head)
        if set(shared) == {(first, first + rows - 1, 1)}:
            return None
        groups = []
        for (low, high, step), heads in shared.items():
            # The lowest visible offset is a multiple of the step; if the text is shorter than the window, the next one.
            start = -(-low // step) * step - first
            groups.append((heads, slice(start, min(high - first, rows - 1) + 1, step)))
        return groups

    def _from_content_to_position(self, query: Tensor, tokens: Tokens) -> Tensor:
        """Returns v - u, `(H, D)`."""
        content, position = self.biases(tokens)
        return (position - content).to(query.dtype)

    def _sinusoids(self, left: int, right: int, like: Tensor) -> tuple[int, Tensor]:
        """Returns the first offset j - i with a row, and R, one row for each offset from there on, `(rows, E)`, for up
        to `left` positions before a query and `right` after it.
        """
        low, high = self.shown_offsets
        clamp = self.config.clamp_tokens
        if clamp is not None:
            low, high = max(low, -clamp), min(high, clamp)
        if not torch.compiler.is_compiling():
            low, high = max(low, -max(left, 0)), min(high, max(right, 0))
        else:  # a compiled graph serves every length, so only the number of keys is a bound
            low, high = (-left if low < -ANY else low), (right if high > ANY else high)
        return low, distance_sinusoids(low, high, self.width, like)

    def _of_few(self, query: Tensor, rows: Tensor, first: int, keys: int) -> Tensor:
        """Returns the scaled scores `(B, H, T, S)` of few queries with positions: `(q + v)·(W R_r) = (Wᵀ(q + v))·R_r`
        projects the queries instead of every distance, which is faster for one new token.

        In float32 at least, as the scores of every path.
        """
        wide = torch.promote_types(query.dtype, torch.float32)
        pairs = rows_of_pairs(query.shape[2], keys, first, len(rows), query.device)
        with full_precision(query):
            weight = self.position.weight.to(wide).view(self.heads, self.head_width, -1)
            back = torch.einsum("bhtd,hde->bhte", query.to(wide) * self.scale, weight)
            scores = back @ rows.to(wide).T
        return scores.gather(-1, pairs.expand(*scores.shape[:2], -1, -1))

    def dense_weights(
        self, query: Tensor, key: Tensor, tokens: Tokens, is_global: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """Computes weights from the definition: each pair uses the row of its own distance."""
        if self.has_positions:
            first, rows = self._sinusoids(key.shape[2] - 1, key.shape[2] - 1, key)
            pairs = rows_of_pairs(query.shape[2], key.shape[2], first, len(rows), query.device)
            queries = query + self._from_content_to_position(query, tokens)[:, None]
            scores = content_scores(queries, self.heads_of(self.position, rows), pairs) * self.scale
            if is_global is not None:
                scores = scores.masked_fill(is_global[:, None, :, None] | is_global[:, None, None, :], 0)
            bias = scores if bias is None else bias + scores
        return super().dense_weights(query, key, tokens, is_global, bias)
