"""What Longformer and Poolingformer's first level share: a window, and global tokens with their own projections."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from longspan.attention.base import AttentionConfig, KeyValueState
from longspan.attention.parts.global_rows import global_context, put_rows
from longspan.attention.parts.projected import ProjectedAttention
from longspan.attention.parts.tokens import Tokens
from longspan.ops.attend import attend
from longspan.patterns import Pattern


class WindowedAttention(ProjectedAttention):
    """A local pattern and global tokens, exactly as the official Longformer layer computes them.

    Every query sees the keys of its pattern and the global keys by the local projections, in one softmax. The rows of
    global queries are then replaced by attention over all real keys, by the global projections when these are separate.

    Args:
        pattern: what a local query sees.
        reach: how many past positions a later token can still see, in the causal form.
        separate: whether global queries have projections of their own, `global_query`, `global_key`, `global_value`.
    """

    def __init__(
        self,
        config: AttentionConfig,
        *,
        width: int,
        heads: int,
        causal: bool,
        pattern: Pattern,
        reach: int,
        separate: bool,
    ) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal)
        self.pattern = pattern
        self.reach = reach
        self.separate = separate and not causal
        if self.separate:
            self.global_query = nn.Linear(width, width)
            self.global_key = nn.Linear(width, width)
            self.global_value = nn.Linear(width, width)

    def init_extra_weights(self, std: float = 0.02) -> None:
        """Copy the local projections into the global ones, as published."""
        if self.separate:
            for name in ("query", "key", "value"):
                copy_linear(getattr(self, name), getattr(self, f"global_{name}"))

    def window_context(self, hidden: Tensor, tokens: Tokens, state: KeyValueState | None = None) -> Tensor:
        """The window and the globals, before the output projection: `(B, T, E)`, rows of padded tokens 0."""
        self.check_tokens(hidden, tokens, state)
        tokens = tokens.with_slots()
        slots = tokens.real_slots() if hidden.shape[1] else None
        query, key, value = self.project(hidden)
        key, value, key_mask, offset = self.remember(key, value, tokens, state, keep=self.reach)
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


def copy_linear(source: nn.Linear, target: nn.Linear) -> None:
    """Copy weight and bias, if there is one, except into weights that transformers marked as loaded."""
    for name in ("weight", "bias"):
        parameter = getattr(target, name)
        if parameter is not None and not getattr(parameter, "_is_hf_initialized", False):
            with torch.no_grad():
                parameter.copy_(getattr(source, name))


def window_scores(
    length: int, *, left: int, right: int, dilation: int = 1, global_tokens: int = 0, causal: bool = False
) -> float:
    """Mean keys per query of a window at this length, edges counted.

    With globals, every query sees them and they see every key; a global inside a window counts for both.
    """
    offsets = [dilation * step for step in range(-left, 1 if causal else right + 1)]
    pairs = sum(max(0, length - abs(offset)) for offset in offsets)
    most = (length + 1) / 2 if causal else float(length)
    return min(most, pairs / max(length, 1) + 2 * global_tokens)
