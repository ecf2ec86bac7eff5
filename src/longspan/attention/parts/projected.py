"""Attention with linear projections of its own for queries, keys, values and the output."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from torch import Tensor, nn

from longspan.attention.base import Attention, AttentionConfig, LayerState
from longspan.attention.parts.tokens import Tokens
from longspan.ops.attend import attend
from longspan.ops.attend.reference import dense_mask, dense_weights
from longspan.ops.attend.terms import Term
from longspan.patterns import Pattern


class ProjectedAttention(Attention):
    """A mechanism with the four usual projections.

    They are always called `query`, `key`, `value` and `output` (`nn.Linear(E, E)` with bias, or between E and H·D where
    heads have a width of their own), so that published weights map onto every such mechanism in the same way. Between
    them stands `context`, and `context_weights`, its dense form.
    """

    inherits: ClassVar[tuple[str, ...]] = ("query", "key", "value", "output")
    pattern: Pattern
    """What a query sees."""
    has_positions: bool = False
    """Whether scores know how far apart two tokens are, by `position_terms`."""

    def __init__(self, config: AttentionConfig, *, width: int, heads: int, causal: bool, bias: bool = True) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal)
        self.scale, inner = 1 / math.sqrt(self.head_width), heads * self.head_width
        self.query = nn.Linear(width, inner, bias=bias)
        self.key = nn.Linear(width, inner, bias=bias)
        self.value = nn.Linear(width, inner, bias=bias)
        self.output = nn.Linear(inner, width, bias=bias)

    def forward(self, hidden: Tensor, tokens: Tokens | None = None, state: LayerState | None = None) -> Tensor:
        """`(B, T, E)` → `(B, T, E)`; padded tokens are seen by none. With `state`, the T tokens continue its sequence.

        Raises:
            InputError: a mask that does not cover the sequence, global tokens or a state that the mechanism, or its
                causal form, does not take.
        """
        tokens = tokens or Tokens()
        self.check_tokens(hidden, tokens, state)
        return self.output(self.context(hidden, tokens, state))

    def context(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        """What each token gathers, before the output projection: `(B, T, E)` → `(B, T, E)`. Here: by `pattern`."""
        query, key, value, key_mask, offset = self.remember(hidden, tokens, state)
        pattern, terms = self.shown(tokens), []
        if self.has_positions:
            query, pattern, terms, _ = self.position_terms(query, key, tokens, state)
        context = attend(
            query,
            key,
            value,
            pattern=pattern,
            terms=terms,
            key_mask=key_mask,
            dropout_prob=self.dropout_prob,
            query_offset=offset,
        )
        return self.merge_heads(context)

    def shown(self, tokens: Tokens) -> Pattern:
        """The pattern for these tokens."""
        return tokens.prefix or self.pattern

    def position_terms(
        self, query: Tensor, key: Tensor, tokens: Tokens, state: LayerState | None, slots: Tensor | None = None
    ) -> tuple[Tensor, Pattern, list[Term], Any]:
        """How scores know positions, of mechanisms with `has_positions`.

        Args:
            query, key: the last T of S positions and all of them, `(B, H, …, D)` both.
            tokens: what is known of each position, shared tables among it.
            state: what holds the keys before the queries.
            slots: `(B, G)` int64 positions of global tokens, −1 in unused slots.

        Returns:
            The queries as keys are multiplied by them, the pattern, what is added to the scores, and what
            `WindowedAttention.global_rows` needs to replace the rows of global queries, if it replaces any.
        """
        raise NotImplementedError

    def local_queries(self, query: Tensor, tokens: Tokens) -> Tensor:
        """Projected queries as keys are multiplied by them, `(B, H, T, D)`; here as they are."""
        return query

    def weights(self, hidden: Tensor, tokens: Tokens | None = None) -> Tensor:
        """Dense attention weights `(B, H, T, T)`."""
        tokens = tokens or Tokens()
        self.check_tokens(hidden, tokens)
        return self.context_weights(hidden, tokens)

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        """The weights by which `context` gathers, `(B, H, T, T)`: quadratic, so never part of a forward pass."""
        query, key, _ = self.project(hidden)
        return self.dense_weights(self.local_queries(query, tokens), key, tokens)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`(B, T, E)` → local queries, keys and values, `(B, H, T, D)` each."""
        query, key, value = (
            layer(hidden).unflatten(-1, (self.heads, self.head_width)).transpose(-3, -2)
            for layer in (self.query, self.key, self.value)
        )
        return query, key, value

    def split_heads(self, hidden: Tensor) -> Tensor:
        """`(…, T, E)` → `(…, H, T, D)`, without a copy."""
        return hidden.unflatten(-1, (self.heads, self.head_width)).transpose(-3, -2)

    def merge_heads(self, hidden: Tensor) -> Tensor:
        """`(B, H, T, D)` → `(B, T, E)`."""
        return hidden.transpose(1, 2).flatten(2)

    def remember(
        self, hidden: Tensor, tokens: Tokens, state: LayerState | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, int]:
        """Project `(B, T, E)` and continue `state` with the keys and values.

        Returns the queries, the keys and values to attend to, the mask `(B, S)` of these, and the index of the first
        query among them.
        """
        query, key, value = self.project(hidden)
        if state is not None:
            key, value = state.update(key, value)
            if state.is_compileable:  # a preallocated layer hands out places that are still empty
                length = int(state.get_seq_length())
                key, value = key[:, :, :length], value[:, :, :length]
        offset = key.shape[2] - hidden.shape[1]
        key_mask = None if tokens.mask is None else tokens.last_mask(key.shape[2])
        return query, key, value, key_mask, offset

    def dense_weights(
        self, query: Tensor, key: Tensor, tokens: Tokens, is_global: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """Weights `(B, H, T, T)` of queries on keys, `(B, H, T, D)` both; a bias is added to the scaled scores."""
        visible = dense_mask(
            self.shown(tokens),
            query.shape[2],
            key.shape[2],
            key_mask=tokens.mask,
            is_global=is_global,
            query_offset=0,
            device=query.device,
        )
        return dense_weights(query, key, visible, scale=self.scale, bias=bias)
