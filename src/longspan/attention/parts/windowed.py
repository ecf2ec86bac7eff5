"""What Longformer and Poolingformer's first level share: a window, and global tokens with their own projections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from longspan.attention.parts.global_rows import global_context, put_rows
from longspan.attention.parts.projected import ProjectedAttention
from longspan.attention.parts.tokens import Tokens
from longspan.ops.attend import attend
from longspan.patterns import Pattern

if TYPE_CHECKING:
    from transformers.cache_utils import CacheLayerMixin


class WindowedAttention(ProjectedAttention):
    """A local pattern and global tokens, exactly as the official Longformer layer computes them.

    Every query sees the keys of its pattern and the global keys by the local projections, in one softmax. The rows of
    global queries are then replaced by attention over all real keys, by `global_query`, `global_key` and `global_value`
    when these are separate.

    Args:
        config: an `AttentionConfig` with the option `separate_global_projections`.
        pattern: what a local query sees.
    """

    def __init__(
        self,
        config: Any,
        *,
        width: int,
        heads: int,
        causal: bool,
        pattern: Pattern,
    ) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal)
        self.pattern = pattern
        self.reach = config.reach[0] if config.reach else 0
        self.separate = config.separate_global_projections and not causal
        if self.separate:
            self.global_query = nn.Linear(width, width)
            self.global_key = nn.Linear(width, width)
            self.global_value = nn.Linear(width, width)

    @property
    def starts_from(self) -> Mapping[str, str]:
        """Global projections start as copies of the local ones, as published."""
        return {f"global_{name}": name for name in ("query", "key", "value")} if self.separate else {}

    def new_state(self) -> CacheLayerMixin:
        """Keys and values of the positions within reach, where the form is causal."""
        if not self.causal:
            return super().new_state()
        from longspan.attention.parts.state import WindowLayer

        return WindowLayer(self.reach)

    def window_context(self, hidden: Tensor, tokens: Tokens, state: CacheLayerMixin | None = None) -> Tensor:
        """The window and the globals, before the output projection: `(B, T, E)`, rows of padded tokens 0."""
        self.check_tokens(hidden, tokens, state)
        tokens = tokens.with_slots()
        slots = tokens.real_slots() if hidden.shape[1] else None
        query, key, value = self.project(hidden)
        key, value, key_mask, offset = self.remember(key, value, tokens, state)
        context = attend(
            query,
            key,
            value,
            pattern=self.pattern,
            key_mask=key_mask,
            globals=slots,
            global_rows=not self.separate,
            dropout_prob=self.dropout_prob,
            query_offset=offset,
        )
        context = self.merge_heads(context)
        real = None if key_mask is None else key_mask[:, offset:]
        if slots is None:
            return context if real is None else context.masked_fill(~real[:, :, None], 0)
        return self._with_globals(context, hidden, real, slots)

    def _with_globals(self, context: Tensor, hidden: Tensor, real: Tensor | None, slots: Tensor) -> Tensor:
        """Blank padded rows and write the rows of global queries."""
        if not self.separate:
            return context if real is None else context.masked_fill(~real[:, :, None], 0)
        rows = global_context(
            hidden,
            slots,
            real,
            heads=self.heads,
            query=self.global_query,
            key=self.global_key,
            value=self.global_value,
            dropout_prob=self.dropout_prob,
        )
        return put_rows(context, rows, slots, real)

    def window_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        """Dense weights `(B, H, T, T)` of the window and the globals; rows of padded queries are 0."""
        self.check_tokens(hidden, tokens)
        is_global = tokens.global_mask(hidden.shape[1])
        query, key, _ = self.project(hidden)
        weights = self.dense_weights(query, key, self.pattern, tokens.mask, is_global)
        if self.separate and is_global is not None:
            query, key = self.split_heads(self.global_query(hidden)), self.split_heads(self.global_key(hidden))
            rows = self.dense_weights(query, key, self.pattern, tokens.mask, is_global)
            weights = torch.where(is_global[:, None, :, None], rows, weights)
        return weights if tokens.mask is None else weights * tokens.mask[:, None, :, None]
