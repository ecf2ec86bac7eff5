"""Longformer: a sliding window, optionally dilated per head, and global tokens with their own projections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from longspan.attention.base import Attention, AttentionConfig, KeyValueState, Tokens, require_count
from longspan.attention.global_rows import global_context, put_rows, slot_rows
from longspan.errors import InputError
from longspan.ops.attend import attend
from longspan.patterns import Pattern, PerHead, Window


@dataclass(frozen=True, kw_only=True)
class LongformerConfig(AttentionConfig):
    """A window of `left_tokens` and `right_tokens` around each token, and global tokens.

    A total width w, as published and in transformers' `attention_window`, is `left_tokens = right_tokens = w // 2`.
    The causal form looks left only: `right_tokens` has no effect on it, and it takes no global tokens.

    Attributes:
        dilation: 1 looks at neighbours, d at every d-th token, so that the window reaches d times as far; one number,
            or one per head. The paper's tables count gaps: their 0 is our 1.
        separate_global_projections: global queries use `global_query`, `global_key`, `global_value`. A local query that
            looks at a global token uses the local projections, as the official code does.
    """

    mechanism: ClassVar[str] = "longformer"
    causal: ClassVar[bool] = True
    incremental: ClassVar[bool] = True
    cost: ClassVar[str] = "left_tokens + 1 + right_tokens + 2G (causal: left_tokens + 1)"
    source: ClassVar[str] = "Beltagy et al. 2020, arXiv 2004.05150, section 3"

    left_tokens: int = 256
    right_tokens: int = 256
    dilation: int | tuple[int, ...] = 1
    separate_global_projections: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("left_tokens", self.left_tokens, 0)
        require_count("right_tokens", self.right_tokens, 0)
        if isinstance(self.dilation, list):  # as plain data, from JSON or YAML
            object.__setattr__(self, "dilation", tuple(self.dilation))
        for dilation in self.dilation if isinstance(self.dilation, tuple) else (self.dilation,):
            require_count("dilation", dilation, 1)
        if self.dilation == ():
            raise InputError("dilation=() names no head; give one number, or one per head")

    def scores_per_token(self, length: int, *, global_tokens: int = 0) -> float:
        dilations = self.dilation if isinstance(self.dilation, tuple) else (self.dilation,)
        counts = [window_scores(length, self.left_tokens, self.right_tokens, d, global_tokens) for d in dilations]
        return sum(counts) / len(counts)

    def build(self, *, width: int, heads: int, causal: bool = False) -> LongformerAttention:
        return LongformerAttention(self, width=width, heads=heads, causal=causal)


def window_scores(length: int, left: int, right: int, dilation: int = 1, global_tokens: int = 0) -> float:
    """Mean keys per query of a window at this length, edges counted; every query also sees the globals, and they all."""
    offsets = [-dilation * step for step in range(1, left + 1)] + [dilation * step for step in range(right + 1)]
    pairs = sum(max(0, length - abs(offset)) for offset in offsets)
    return min(float(length), pairs / max(length, 1) + 2 * global_tokens)


class LongformerAttention(Attention):
    """The module of `LongformerConfig`."""

    def __init__(self, config: Any, *, width: int, heads: int, causal: bool) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal)
        self.pattern = _window(config, heads, causal)
        self.separate = config.separate_global_projections and not causal
        if self.separate:
            self.global_query = nn.Linear(width, width)
            self.global_key = nn.Linear(width, width)
            self.global_value = nn.Linear(width, width)
        self.init_extra_weights()

    def init_extra_weights(self, std: float = 0.02) -> None:
        """Copy the local projections into the global ones, as published."""
        if self.separate:
            for name in ("query", "key", "value"):
                copy_linear(getattr(self, name), getattr(self, f"global_{name}"))

    def forward(self, hidden: Tensor, tokens: Tokens | None = None, state: KeyValueState | None = None) -> Tensor:
        """`(B, T, E)` → `(B, T, E)`; padded tokens gather nothing. With `state`, the T tokens continue its sequence.

        Raises:
            InputError: global tokens in the causal form, or a mask that does not cover the sequence.
        """
        return self.output(self.window_context(hidden, tokens or Tokens(), state))

    def window_context(self, hidden: Tensor, tokens: Tokens, state: KeyValueState | None = None) -> Tensor:
        """The window and the globals, before the output projection: `(B, T, E)` with padded rows 0."""
        self.refuse_causal_globals(tokens)
        tokens = tokens.with_slots()
        slots = tokens.global_slots
        query, key, value = self.project(hidden)
        key, value, key_mask, offset = self.remember(key, value, tokens, state, keep=_reach(self.config))
        context = self.merge_heads(
            attend(
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
        )
        real = None if key_mask is None else key_mask[:, key_mask.shape[1] - hidden.shape[1] :]
        if slots is None or hidden.shape[1] == 0:
            return context if real is None else context.masked_fill(~real[:, :, None], 0)
        return self._with_globals(context, hidden, tokens, slots)

    def _with_globals(self, context: Tensor, hidden: Tensor, tokens: Tokens, slots: Tensor) -> Tensor:
        """Blank padded rows and write the rows of global queries."""
        is_global = tokens.global_mask(hidden.shape[1])
        assert is_global is not None
        keep = ~is_global if tokens.mask is None else tokens.mask & ~is_global
        if not self.separate:
            rows = slot_rows(context, slots)
        else:
            rows = global_context(
                hidden,
                slots,
                tokens.mask,
                heads=self.heads,
                query=self.global_query,
                key=self.global_key,
                value=self.global_value,
                dropout_prob=self.dropout_prob,
            )
        return put_rows(context, rows, slots, keep)

    def weights(self, hidden: Tensor, tokens: Tokens | None = None) -> Tensor:
        """Dense attention weights `(B, H, T, T)`; rows of padded queries are 0."""
        tokens = tokens or Tokens()
        self.refuse_causal_globals(tokens)
        is_global = tokens.global_mask(hidden.shape[1])
        query, key, _ = self.project(hidden)
        weights = self.dense_weights(query, key, self.pattern, tokens.mask, is_global)
        if self.separate and is_global is not None:
            query, key = self.split_heads(self.global_query(hidden)), self.split_heads(self.global_key(hidden))
            rows = self.dense_weights(query, key, self.pattern, tokens.mask, is_global)
            weights = torch.where(is_global[:, None, :, None], rows, weights)
        return weights if tokens.mask is None else weights * tokens.mask[:, None, :, None]


def copy_linear(source: nn.Linear, target: nn.Linear) -> None:
    """Copy weight and bias, except into weights that transformers marked as loaded."""
    for name in ("weight", "bias"):
        parameter = getattr(target, name)
        if not getattr(parameter, "_is_hf_initialized", False):
            with torch.no_grad():
                parameter.copy_(getattr(source, name))


def _window(config: Any, heads: int, causal: bool) -> Pattern:
    """The pattern of the window: one for all heads, or one per head when their dilations differ."""
    right = 0 if causal else config.right_tokens
    dilation = getattr(config, "dilation", 1)
    if isinstance(dilation, int):
        return Window(config.left_tokens, right, dilation)
    if len(dilation) != heads:
        raise InputError(f"dilation={dilation!r} has {len(dilation)} entries for {heads} heads; give one per head")
    if len(set(dilation)) == 1:
        return Window(config.left_tokens, right, dilation[0])
    return PerHead([Window(config.left_tokens, right, d) for d in dilation])


def _reach(config: Any) -> int:
    """How many past positions a later token can still see, in the causal form."""
    dilation = getattr(config, "dilation", 1)
    return config.left_tokens * (dilation if isinstance(dilation, int) else max(dilation))
