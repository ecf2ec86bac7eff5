"""Attention with linear projections of its own for queries, keys, values and the output."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor, nn

from longspan.attention.base import Attention, AttentionConfig
from longspan.attention.parts.tokens import Tokens
from longspan.ops.reference import dense_mask, dense_weights
from longspan.patterns import Pattern

if TYPE_CHECKING:
    from transformers.cache_utils import CacheLayerMixin


class ProjectedAttention(Attention):
    """A mechanism with the four usual projections.

    They are always called `query`, `key`, `value` and `output` (`nn.Linear(E, E)` with bias), so that published weights
    map onto every such mechanism in the same way.
    """

    inherits: ClassVar[tuple[str, ...]] = ("query", "key", "value", "output")

    def __init__(self, config: AttentionConfig, *, width: int, heads: int, causal: bool) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`(B, T, E)` → local queries, keys and values, `(B, H, T, D)` each."""
        query, key, value = self.query(hidden), self.key(hidden), self.value(hidden)
        return self.split_heads(query), self.split_heads(key), self.split_heads(value)

    def split_heads(self, hidden: Tensor) -> Tensor:
        """`(B, T, E)` → `(B, H, T, D)`, without a copy."""
        return hidden.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)

    def merge_heads(self, hidden: Tensor) -> Tensor:
        """`(B, H, T, D)` → `(B, T, E)`."""
        return hidden.transpose(1, 2).flatten(2)

    def remember(
        self, key: Tensor, value: Tensor, tokens: Tokens, state: CacheLayerMixin | None
    ) -> tuple[Tensor, Tensor, Tensor | None, int]:
        """Continue `state` with new `(B, H, T, D)` keys and values.

        Returns the keys and values to attend to, their mask `(B, S)` and the index of the first query among them.
        """
        new = key.shape[2]
        if state is not None:
            key, value = state.update(key, value)
            if state.is_compileable:  # a preallocated layer hands out places that are still empty
                seen = int(state.get_seq_length())
                key, value = key[:, :, :seen], value[:, :, :seen]
        offset = key.shape[2] - new
        mask = tokens.mask
        return key, value, mask if mask is None else mask[:, mask.shape[1] - new - offset :], offset

    def dense_weights(
        self, query: Tensor, key: Tensor, pattern: Pattern, key_mask: Tensor | None, is_global: Tensor | None = None
    ) -> Tensor:
        """Weights `(B, H, T, S)` of queries on keys `(B, H, ·, D)`: quadratic, so never part of a forward pass."""
        seen = dense_mask(
            pattern,
            query.shape[2],
            key.shape[2],
            key_mask=key_mask,
            is_global=is_global,
            query_offset=0,
            device=query.device,
        )
        return dense_weights(query, key, seen, scale=query.shape[-1] ** -0.5)
