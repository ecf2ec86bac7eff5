"""Mechanisms whose patterns depend on the place of a token, which is counted without padding.

A block of tokens begins at the same real token whether a document stands alone, is padded, or comes in a batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention.base import State
from longspan.attention.parts.tokens import Tokens, in_order, real_first, rearranged, undone
from longspan.attention.parts.windowed import WindowedAttention
from longspan.ops.attend import attend
from longspan.ops.attend.reference import dense_weights
from longspan.patterns import Pattern

PAIRS = 1 << 20
"""Most pairs of query and key of a batch that are looked at one by one at a time."""


def without_gaps(hidden: Tensor, tokens: Tokens) -> tuple[Tensor, Tokens, Tensor | None]:
    """The same with all padding at the end, since places are counted without it, and the way back for `in_order`."""
    return (hidden, tokens, None) if tokens.mask is None else rearranged(hidden, tokens, real_first(tokens.mask))


class CountedAttention(WindowedAttention):
    """A pattern over the places of real tokens, and global tokens beside it; in the causal form a state that keeps the
    keys and values of all positions."""

    def new_state(self) -> State:
        """Keys and values of every position so far, where the form is causal."""
        if not self.causal:
            return super().new_state()
        from transformers.cache_utils import DynamicLayer

        return DynamicLayer()

    def context(self, hidden: Tensor, tokens: Tokens, state: State | None = None) -> Tensor:
        if state is not None:
            return self.continued(hidden, tokens, state)
        hidden, tokens, back = without_gaps(hidden, tokens.with_slots())
        return in_order(self.window_context(hidden, tokens), back)

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        hidden, tokens, back = without_gaps(hidden, tokens.with_slots())
        return in_order(super().context_weights(hidden, tokens), back, 2, 3)

    def continued(self, hidden: Tensor, tokens: Tokens, state: State) -> Tensor:
        """What `(B, T, E)` gather that continue the sequence of a state, rows of padded tokens 0."""
        query, key, value, mask, offset = self.remember(hidden, tokens, state)
        options = {"pattern": self.pattern, "dropout_prob": self.dropout_prob}
        if mask is None:
            return self.merge_heads(attend(query, key, value, query_offset=offset, **options))
        if offset:
            context = attend_counted(query, key, value, mask, **options)
        else:
            order = real_first(mask)
            inputs = (in_order(each, order, 2) for each in (query, key, value))
            context = in_order(attend(*inputs, key_mask=in_order(mask, order), **options), undone(order), 2)
        return self.merge_heads(context).masked_fill(~mask[:, offset:, None], 0)


def attend_counted(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *, pattern: Pattern, dropout_prob: float = 0.0
) -> Tensor:
    """Attention of the last T of S tokens, when each row has counted as many of them as it has real ones.

    Rows stand at different places of the pattern then, so every pair is looked at, some queries at a time.

    Args:
        query: `(B, H, T, D)`; key, value: `(B, H, S, D)`.
        mask: `(B, S)` bool, True where a token is real.
        pattern: which pairs of places may attend.
        dropout_prob: probability of dropping an attention weight.

    Returns:
        `(B, H, T, D)`; what stands in rows of padding means nothing.
    """
    place, (new, length) = mask.cumsum(1) - 1, (query.shape[2], key.shape[2])
    step = max(1, PAIRS // max(1, mask.numel()))
    found = [query.new_zeros(*query.shape[:2], 0, value.shape[-1])]
    for first in range(0, new, step):
        rows = slice(first, min(first + step, new))
        own = place[:, length - new :][:, rows]
        seen = pattern.visible(own[:, :, None], place[:, None, :])
        seen = (seen.transpose(0, 1) if pattern.heads else seen[:, None]) & mask[:, None, None, :]
        weights = dense_weights(query[:, :, rows], key, seen, scale=query.shape[-1] ** -0.5)
        found.append((F.dropout(weights, dropout_prob) @ value.to(weights.dtype)).to(query.dtype))
    return torch.cat(found, 2)
