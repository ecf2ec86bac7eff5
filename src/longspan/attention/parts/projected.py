"""Attention with linear projections of its own for queries, keys, values and the output."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor, nn

from longspan.attention.base import Attention, AttentionConfig, State
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

    def __init__(self, config: AttentionConfig, *, width: int, heads: int, causal: bool, bias: bool = True) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal)
        self.scale, inner = 1 / math.sqrt(self.head_width), heads * self.head_width
        self.query = nn.Linear(width, inner, bias=bias)
        self.key = nn.Linear(width, inner, bias=bias)
        self.value = nn.Linear(width, inner, bias=bias)
        self.output = nn.Linear(inner, width, bias=bias)

    def forward(self, hidden: Tensor, tokens: Tokens | None = None, state: State | None = None) -> Tensor:
        """`(B, T, E)` → `(B, T, E)`; padded tokens are seen by none. With `state`, the T tokens continue its sequence.

        Raises:
            InputError: a mask that does not cover the sequence, global tokens or a state that the mechanism, or its
                causal form, does not take.
        """
        tokens = tokens or Tokens()
        self.check_tokens(hidden, tokens, state)
        return self.output(self.context(hidden, tokens, state))

    def context(self, hidden: Tensor, tokens: Tokens, state: State | None = None) -> Tensor:
        """What each token gathers, before the output projection: `(B, T, E)` → `(B, T, E)`. Here: by `pattern`."""
        query, key, value, key_mask, offset = self.remember(hidden, tokens, state)
        context = attend(
            query,
            key,
            value,
            pattern=self.shown(tokens),
            terms=self.score_terms(query, key, tokens, state),
            key_mask=key_mask,
            dropout_prob=self.dropout_prob,
            query_offset=offset,
        )
        return self.merge_heads(context)

    def shown(self, tokens: Tokens) -> Pattern:
        """The pattern for these tokens."""
        return tokens.prefix or self.pattern

    def score_terms(self, query: Tensor, key: Tensor, tokens: Tokens, state: State | None = None) -> list[Term]:
        """What is added to the scores of queries, the last T of S keys, all `(B, H, …, D)`, `state` being what holds
        the keys before them; here nothing."""
        return []

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
        query, key, value = self.query(hidden), self.key(hidden), self.value(hidden)
        return self.split_heads(query), self.split_heads(key), self.split_heads(value)

    def split_heads(self, hidden: Tensor) -> Tensor:
        """`(…, T, E)` → `(…, H, T, D)`, without a copy."""
        return hidden.unflatten(-1, (self.heads, self.head_width)).transpose(-3, -2)

    def merge_heads(self, hidden: Tensor) -> Tensor:
        """`(B, H, T, D)` → `(B, T, E)`."""
        return hidden.transpose(1, 2).flatten(2)

    def remember(
        self, hidden: Tensor, tokens: Tokens, state: State | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, int]:
        """Project `(B, T, E)` and continue `state` with the keys and values.

        Returns the queries, the keys and values to attend to, the mask `(B, S)` of these, and the index of the first
        query among them.
        """
        query, key, value = self.project(hidden)
        new = hidden.shape[1]
        if state is not None:
            key, value = state.update(key, value)
            if state.is_compileable:  # a preallocated layer hands out places that are still empty
                seen = int(state.get_seq_length())
                key, value = key[:, :, :seen], value[:, :, :seen]
        offset = key.shape[2] - new
        return self.local_queries(query, tokens), key, value, tokens.last_mask(new + offset), offset

    def dense_weights(
        self, query: Tensor, key: Tensor, tokens: Tokens, is_global: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """Weights `(B, H, T, T)` of queries on keys, `(B, H, T, D)` both; a bias is added to the scaled scores."""
        seen = dense_mask(
            self.shown(tokens),
            query.shape[2],
            key.shape[2],
            key_mask=tokens.mask,
            is_global=is_global,
            query_offset=0,
            device=query.device,
        )
        return dense_weights(query, key, seen, scale=self.scale, bias=bias)
