"""What mechanisms with a local pattern share: global tokens beside it, with their own projections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longspan.attention.base import State
from longspan.attention.parts.projected import ProjectedAttention
from longspan.attention.parts.tokens import Tokens
from longspan.ops.attend import attend
from longspan.ops.attend.reference import full_precision
from longspan.ops.attend.slots import gather_slots, mask_of_slots
from longspan.ops.attend.terms import Term
from longspan.patterns import Full, Pattern, PerHead, Window


class WindowedAttention(ProjectedAttention):
    """A local pattern and global tokens, exactly as the official Longformer layer computes them.

    Every query sees the keys of its pattern and the global keys by the local projections, in one softmax. The rows of
    global queries are then replaced by attention over all real keys, by `global_query`, `global_key` and `global_value`
    when these are separate.

    Args:
        config: an `AttentionConfig` with the option `separate_global_projections`.
    """

    config: Any

    def __init__(self, config: Any, *, width: int, heads: int, causal: bool, bias: bool = True) -> None:
        super().__init__(config, width=width, heads=heads, causal=causal, bias=bias)
        self.pattern = self.make_pattern()
        self.separate = config.separate_global_projections and not causal
        if self.separate:
            self.global_query = nn.Linear(width, width, bias=bias)
            self.global_key = nn.Linear(width, width, bias=bias)
            self.global_value = nn.Linear(width, width, bias=bias)
        self.add_weights()
        self.init_extra_weights()

    def make_pattern(self) -> Pattern:
        """What a local query sees: the window of a `WindowedConfig`."""
        right = 0 if self.causal else self.config.right_tokens
        windows = [Window(self.config.left_tokens, right, dilation) for dilation in self.config.dilations]
        return windows[0] if len(set(windows)) == 1 else PerHead(windows)

    def add_weights(self) -> None:
        """Make the weights beyond these projections; here there are none."""

    @property
    def starts_from(self) -> Mapping[str, str]:
        """Global projections start as copies of the local ones, as published."""
        return {f"global_{name}": name for name in ("query", "key", "value")} if self.separate else {}

    def new_state(self) -> State:
        """Keys and values of the positions within reach, where the form is causal."""
        if not self.causal:
            return super().new_state()
        from longspan.attention.parts.state import WindowLayer

        return WindowLayer(self.config.reach().left)

    def context(self, hidden: Tensor, tokens: Tokens, state: State | None = None) -> Tensor:
        return self.window_context(hidden, tokens, state)

    def window_context(self, hidden: Tensor, tokens: Tokens, state: State | None = None) -> Tensor:
        """The window and the globals, before the output projection: `(B, T, E)`, rows of padded tokens 0."""
        tokens = tokens.with_slots()
        slots = tokens.real_slots() if hidden.shape[1] else None
        query, key, value, key_mask, offset = self.remember(hidden, tokens, state)
        pattern, terms, far = self.window_terms(query, key, tokens, slots)
        context = attend(
            query,
            key,
            value,
            pattern=pattern,
            terms=[*terms, *self.score_terms(query, key, tokens, state)],
            key_mask=key_mask,
            globals=slots,
            global_rows=far is None and not self.separate,
            scale=self.scale,
            dropout_prob=self.dropout_prob,
            query_offset=offset,
        )
        context = self.merge_heads(context)
        real = None if key_mask is None else key_mask[:, offset:]
        if slots is not None and (far is not None or self.separate):
            rows = self.global_rows(hidden, (query, key, value), real, slots, far)
            return _put_rows(context, rows, slots, real)
        return context if real is None else context.masked_fill(~real[:, :, None], 0)

    def window_terms(
        self, query: Tensor, key: Tensor, tokens: Tokens, slots: Tensor | None
    ) -> tuple[Pattern, list[Term], Any]:
        """The pattern of the window, what is added to its scores, and what `global_rows` needs to replace the rows of
        global queries where their projections are not separate."""
        return self.pattern, [], None

    def global_rows(
        self, hidden: Tensor, local: tuple[Tensor, Tensor, Tensor], real: Tensor | None, slots: Tensor, far: Any
    ) -> Tensor:
        """What each global query gathers from every real key, by its own projections: `(B, G, E)`.

        With fewer slots than half a head's width it is cheaper to move the key and value projections to the query's
        side, `q·(W x + b) = (Wᵀq)·x + q·b` and `Σ p (W x + b) = W Σ p x + b Σ p`, than to project all T tokens twice.

        Args:
            hidden: `(B, T, E)`.
            local: queries, keys and values `(B, H, T, D)` by the local projections.
            real: `(B, T)` bool, True where a token is real.
            slots: `(B, G)` int64, −1 in unused slots, whose rows of the result mean nothing.
            far: what `window_terms` left.
        """
        query = self.split_heads(self.global_query(gather_slots(hidden[:, None], slots)[:, 0]))
        layers = self.global_key, self.global_value
        # A subclass or wrapper of Linear (an adapter, a quantised layer) computes something else than its weights say.
        plain = all(type(layer) is nn.Linear and layer.bias is not None for layer in layers)
        if plain and 2 * slots.shape[1] <= self.head_width:
            return _absorbed(query, hidden, real, *layers, self.dropout_prob)
        key, value = (self.split_heads(layer(hidden)) for layer in layers)
        context = attend(query, key, value, pattern=Full(), key_mask=real, dropout_prob=self.dropout_prob)
        return self.merge_heads(context)

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        """Those of the window and the globals; rows of padded queries are 0."""
        is_global = tokens.global_mask(hidden.shape[1])
        query, key, _ = self.project(hidden)
        weights = self.dense_weights(self.local_queries(query, tokens), key, tokens, is_global)
        if self.separate and is_global is not None:
            query, key = self.split_heads(self.global_query(hidden)), self.split_heads(self.global_key(hidden))
            rows = self.dense_weights(query, key, tokens, is_global)
            weights = torch.where(is_global[:, None, :, None], rows, weights)
        return weights if tokens.mask is None else weights * tokens.mask[:, None, :, None]


def _put_rows(merged: Tensor, rows: Tensor, slots: Tensor, real: Tensor | None) -> Tensor:
    """Replace the rows of `(B, T, E)` at the slots by `(B, G, E)`, and blank the rows of padding.

    Blanking before adding makes the replacement exact, and lets an unused slot add nothing to token 0.
    """
    used = slots >= 0
    keep = ~mask_of_slots(slots, merged.shape[1])
    keep = keep if real is None else keep & real
    index = slots.clamp(min=0)[:, :, None].expand(rows.shape)
    rows = rows.to(merged.dtype)  # autocast may have left the two in different types
    return merged.masked_fill(~keep[:, :, None], 0).scatter_add(1, index, rows.masked_fill(~used[:, :, None], 0))


def _absorbed(
    queries: Tensor, hidden: Tensor, key_mask: Tensor | None, key: nn.Linear, value: nn.Linear, dropout_prob: float
) -> Tensor:
    """What `(B, H, G, D)` queries gather, `(B, G, E)`, without projecting `hidden`: scores are `(B, H·G, T)`.

    All in float32 at least, as the scores of every path.
    """
    heads, slots, head_width = queries.shape[1:]
    dtype = queries.dtype
    wide = torch.promote_types(dtype, torch.float32)
    with full_precision(hidden):
        queries, hidden = queries.to(wide) * head_width**-0.5, hidden.to(wide)
        key_weight, value_weight = (each.weight.to(wide).view(heads, head_width, -1) for each in (key, value))
        key_bias, value_bias = (each.bias.to(wide).view(heads, head_width) for each in (key, value))
        on_hidden = torch.einsum("bhgd,hde->bhge", queries, key_weight)
        scores = on_hidden.flatten(1, 2) @ hidden.transpose(1, 2)
        scores = scores + torch.einsum("bhgd,hd->bhg", queries, key_bias).flatten(1, 2)[:, :, None]
        if key_mask is not None:
            scores = scores.masked_fill(~key_mask[:, None, :], torch.finfo(wide).min)
        weights = F.dropout(scores.softmax(-1), dropout_prob)
        gathered = (weights @ hidden).unflatten(1, (heads, slots))
        total = weights.sum(-1).unflatten(1, (heads, slots))
        context = torch.einsum("bhge,hde->bghd", gathered, value_weight)
        return (context + total.transpose(1, 2)[..., None] * value_bias).flatten(2).to(dtype)
