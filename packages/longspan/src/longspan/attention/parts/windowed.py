"""Windows around each token and global tokens, exactly as in the official Longformer layer.

`WindowedConfig` has the options of a window and computes its costs without weights; `WindowedAttention` is the module,
whose `context` is the forward pass between the projections. `CountedAttention` is for patterns that depend on the
position of a token, counted without padding: a block begins at the same real token whether a document is alone, padded,
or in a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longspan.attention.base import LayerState, ProjectedAttention
from longspan.attention.config import AttentionConfig, Lengthening, Reach
from longspan.attention.features.starts import FurtherWeights
from longspan.attention.parts.tokens import Tokens, in_order, inverse_order, permuted, real_first
from longspan.ops.attend import attend
from longspan.ops.attend.call import gather_slots, mask_of_slots
from longspan.ops.attend.reference import dense_weights
from longspan.ops.runtime import full_precision, keeps_bfloat16, wide_product
from longspan.patterns import Full, Pattern, PerHead, Window
from longspan.settings import Whole

PAIRS = 1 << 20
"""Most pairs of query and key of a batch that are computed at once if rows have different positions."""


@dataclass(frozen=True, kw_only=True)
class WindowedConfig(AttentionConfig):
    """Base class of configurations whose first level is a window with global tokens.

    Attributes:
        left_tokens, right_tokens: how many tokens a token attends to on each side, without itself.
        separate_global_projections: whether global queries have projections of their own.
    """

    left_tokens: Whole = 256
    right_tokens: Whole = 256
    separate_global_projections: bool = True

    @property
    def widest_window(self) -> int | None:
        """The widest window on each side, in tokens; `None` for no limit."""
        return None

    @property
    def dilations(self) -> tuple[int, ...]:
        """Distance between neighbours of the window, one for all heads or one per head."""
        return (1,)

    def reach(self) -> Reach:
        furthest = max(self.dilations)
        left, right = self.left_tokens * furthest, self.right_tokens * furthest
        return Reach(left=left, right=right, dilations=self.dilations)

    def lengthening(self, tokens: int = 1) -> Lengthening:
        dense = tokens <= 1 or set(self.dilations) == {1}
        covers = dense and min(self.left_tokens, self.right_tokens) >= tokens - 1
        side = tokens if self.widest_window is None else min(tokens, self.widest_window)
        return replace(super().lengthening(tokens), covers=covers, widened=self.widened(side, tokens))

    def widened(self, side: int, tokens: int) -> WindowedConfig:
        """Returns the configuration with a window of at least `side` tokens on each side, for a text
        of `tokens` tokens.
        """
        return replace(self, left_tokens=max(self.left_tokens, side), right_tokens=max(self.right_tokens, side))

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        """Includes the edges. Every query attends to global tokens, and they to every key; a global token inside a
        window counts for both.
        """
        left, right = self.left_tokens, 0 if causal else self.right_tokens
        most = (length + 1) / 2 if causal else float(length)
        pairs = [pairs_within(length, -left * step, right * step, step) for step in self.dilations]
        return sum(min(most, count / max(length, 1) + 2 * global_tokens) for count in pairs) / len(pairs)

    def depends_on(self, needed: Tensor, *, is_global: Tensor | None = None, causal: bool = False) -> Tensor:
        return needed | self.window_of(needed, is_global=is_global, causal=causal)

    def window_of(self, needed: Tensor, *, is_global: Tensor | None = None, causal: bool = False) -> Tensor:
        """Returns the tokens that the `needed` queries attend to in the window and through global tokens,
        all `(T,)` bool.
        """
        visible = torch.zeros_like(needed)
        right = 0 if causal else self.right_tokens
        for step in self.dilations:
            visible |= shifted(needed, -self.left_tokens * step, right * step, step)
        if is_global is not None:
            visible |= is_global & needed.any()
            visible |= (needed & is_global).any()
        return visible


def pairs_within(length: int, low: int, high: int, step: int = 1) -> int:
    """Returns how many pairs of `length` tokens are `low`, `low + step`, … `high` apart: the sum of `length −
    |offset|`, as an arithmetic series on each side of 0, so that the cost does not grow with the window.
    """
    offsets = range(low, high + 1, step)
    bounds = 1 - length, 0, length
    first, zero, end = (min(max(-((low - bound) // step), 0), len(offsets)) for bound in bounds)
    sides = offsets[first:zero], offsets[zero:end]
    return sum(length * len(side) - abs(side[0] + side[-1]) * len(side) // 2 for side in sides if side)


def shifted(tokens: Tensor, low: int, high: int, step: int = 1) -> Tensor:
    """Returns the places `low`, `low + step`, … `high` away from a token of the set, `(T,)` bool, within the text.

    Counts along each residue of the step are differences of a running sum, so that the cost does not grow with the
    width of the window.
    """
    length, width = len(tokens), (high - low) // step + 1
    if width < 1:
        return torch.zeros_like(tokens)
    lead, tail = max(low, 0), max(-low, 0)
    padded = F.pad(tokens.long(), (lead, tail))
    padded = F.pad(padded, (0, -len(padded) % step)).view(-1, step)
    total = padded.cumsum(0)
    total[width:] = total[width:] - padded.cumsum(0)[:-width]
    return (total.flatten() > 0)[tail : tail + length]


class WindowedAttention(FurtherWeights, ProjectedAttention):
    """A local pattern and global tokens, exactly as in the official Longformer layer.

    Every query attends to the keys of its pattern and to the global keys with the local projections, in one softmax.
    The rows of global queries are then replaced by attention over all real keys, with `global_query`, `global_key` and
    `global_value` if these are separate.

    Args:
        config: an `AttentionConfig` with the option `separate_global_projections`.
    """

    config: Any
    state_kind = "window"

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
        """Returns the pattern of a local query: the window of a `WindowedConfig`."""
        right = 0 if self.causal else self.config.right_tokens
        windows = [Window(self.config.left_tokens, right, dilation) for dilation in self.config.dilations]
        return windows[0] if len(set(windows)) == 1 else PerHead(windows)

    def add_weights(self) -> None:
        """Creates further weights; none by default."""

    @property
    def starts_from(self) -> Mapping[str, str]:
        """Global projections start as copies of the local ones, as published."""
        return {f"global_{name}": name for name in ("query", "key", "value")} if self.separate else {}

    def context(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        """Computes attention to the window and the global tokens, before the output projection: `(B, T, E)`,
        0 for padding.
        """
        has_globals = tokens.is_global is not None or tokens.global_slots is not None
        slots = tokens.with_slots().real_slots() if has_globals and hidden.shape[1] else None
        query, key, value, key_mask, offset = self.remember(hidden, tokens, state)
        pattern, terms, far = self.pattern, [], None
        if tokens.in_buffer:
            pattern = self.shown(tokens)
        if self.has_positions:
            query, pattern, terms, far = self.position_terms(query, key, tokens, state, slots)
        replaces_rows = far is not None or self.separate
        context = attend(
            query,
            key,
            value,
            pattern=pattern,
            terms=terms,
            key_mask=key_mask,
            globals=slots,
            global_rows=not replaces_rows,
            scale=self.scale,
            dropout_prob=self.dropout_prob,
            query_offset=offset,
        )
        context = context.transpose(1, 2).flatten(2)
        real = None if tokens.mask is None else tokens.mask[:, tokens.mask.shape[1] - hidden.shape[1] :]
        if slots is None or not replaces_rows:
            return context if real is None else context.masked_fill(~real[:, :, None], 0)
        # The rows of global queries are set to 0 before theirs are added: the replacement is exact, and an unused slot
        # adds nothing to token 0. With autocast the two may have different dtypes.
        rows = self.global_rows(hidden, (query, key, value), real, slots, far).to(context.dtype)
        blank = mask_of_slots(slots, context.shape[1])
        blank = blank if real is None else blank | ~real
        index = slots.clamp(min=0)[:, :, None].expand(rows.shape)
        rows = rows.masked_fill((slots < 0)[:, :, None], 0)
        return context.masked_fill(blank[:, :, None], 0).scatter_add(1, index, rows)

    window_context = context

    def row_scores(self, query: Tensor, key: Tensor, query_place: Tensor, key_place: Tensor, far: Any) -> Tensor:
        """Returns the scaled scores `(B, H, G, T)` of global queries `(B, H, G, D)` and keys `(B, H, T, D)`, in float32
        at least. Their positions are `(B, G)` and `(1 or B, T)`, and `far` is as in `global_rows`.
        """
        wide = torch.promote_types(query.dtype, torch.float32)
        with full_precision(query):
            return (query.to(wide) * self.scale) @ key.to(wide).transpose(-1, -2)

    def global_rows(
        self, hidden: Tensor, local: tuple[Tensor, Tensor, Tensor], real: Tensor | None, slots: Tensor, far: Any
    ) -> Tensor:
        """Computes attention of each global query to every real key, with its own projections: `(B, G, E)`.

        With fewer slots than half a head's width it is cheaper to move the key and value projections to the query's
        side, `q·(W x + b) = (Wᵀq)·x + q·b` and `Σ p (W x + b) = W Σ p x + b Σ p`, than to project all T tokens twice.
        Scores are then `(B, H·G, T)`, in float32 at least, as in every path.

        Args:
            hidden: `(B, T, E)`.
            local: queries, keys and values `(B, H, T, D)` of the local projections.
            real: `(B, T)` bool, True where a token is real.
            slots: `(B, G)` int64, −1 in unused slots, whose rows of the result are meaningless.
            far: the last result of `position_terms`.
        """
        query = self.heads_of(self.global_query, gather_slots(hidden[:, None], slots)[:, 0])
        layers = self.global_key, self.global_value
        plain = all(type(layer) is nn.Linear and layer.bias is not None for layer in layers)
        if not plain or 2 * slots.shape[1] > self.head_width:
            key, value = (self.heads_of(layer, hidden) for layer in layers)
            context = attend(query, key, value, pattern=Full(), key_mask=real, dropout_prob=self.dropout_prob)
            return self.merge_heads(context)
        heads, count, head_width = query.shape[1:]
        dtype = query.dtype
        wide = torch.promote_types(dtype, torch.float32)
        with full_precision(hidden):
            narrow = hidden.is_cuda and keeps_bfloat16(hidden)
            product = wide_product if narrow else torch.matmul
            query, hidden = query.to(wide) * head_width**-0.5, hidden if narrow else hidden.to(wide)
            key_weight, value_weight = (layer.weight.to(wide).view(heads, head_width, -1) for layer in layers)
            key_bias, value_bias = (layer.bias.to(wide).view(heads, head_width) for layer in layers)
            on_hidden = torch.einsum("bhgd,hde->bhge", query, key_weight)
            scores = product(on_hidden.flatten(1, 2), hidden.transpose(1, 2))
            scores = scores + torch.einsum("bhgd,hd->bhg", query, key_bias).flatten(1, 2)[:, :, None]
            if real is not None:
                scores = scores.masked_fill(~real[:, None, :], torch.finfo(wide).min)
            weights = F.dropout(scores.softmax(-1), self.dropout_prob)
            gathered = product(weights, hidden).unflatten(1, (heads, count))
            total = weights.sum(-1).unflatten(1, (heads, count))
            context = torch.einsum("bhge,hde->bghd", gathered, value_weight)
            return (context + total.transpose(1, 2)[..., None] * value_bias).flatten(2).to(dtype)

    @property
    def window_alone(self) -> bool:
        """Whether a local query attends to its window and the global tokens only."""
        return True

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        """Returns the weights of the window and the global tokens; rows of padded queries are 0."""
        is_global = tokens.global_mask(hidden.shape[1])
        query, key, _ = self.project(hidden)
        weights = self.dense_weights(self.local_queries(query, tokens), key, tokens, is_global)
        if self.separate and is_global is not None:
            query, key = self.heads_of(self.global_query, hidden), self.heads_of(self.global_key, hidden)
            rows = self.dense_weights(query, key, tokens, is_global)
            weights = torch.where(is_global[:, None, :, None], rows, weights)
        return weights if tokens.mask is None else weights * tokens.mask[:, None, :, None]


def without_gaps(hidden: Tensor, tokens: Tokens) -> tuple[Tensor, Tokens, Tensor | None]:
    """Moves all padding to the end, since positions are counted without it; also returns the inverse
    order for `in_order`.
    """
    return (hidden, tokens, None) if tokens.mask is None else permuted(hidden, tokens, real_first(tokens.mask))


class CountedAttention(WindowedAttention):
    """A pattern over the positions of real tokens, and global tokens. The state of the causal form holds the keys and
    values of all positions.
    """

    state_kind = "keys"

    @property
    def window_alone(self) -> bool:
        return False

    def context(self, hidden: Tensor, tokens: Tokens, state: LayerState | None = None) -> Tensor:
        if state is not None:
            return self.continued(hidden, tokens, state)
        hidden, tokens, back = without_gaps(hidden, tokens.with_slots())
        return in_order(super().context(hidden, tokens), back)

    def context_weights(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        hidden, tokens, back = without_gaps(hidden, tokens.with_slots())
        return in_order(super().context_weights(hidden, tokens), back, 2, 3)

    def continued(self, hidden: Tensor, tokens: Tokens, state: LayerState) -> Tensor:
        """Computes attention of `(B, T, E)` that continue the sequence of a state; rows of padded tokens are 0."""
        query, key, value, mask, offset = self.remember(hidden, tokens, state)
        options = {"pattern": self.pattern, "dropout_prob": self.dropout_prob}
        if mask is None:
            return self.merge_heads(attend(query, key, value, query_offset=offset, **options))
        if offset:
            context = attend_counted(query, key, value, mask, **options)
        else:
            order = real_first(mask)
            inputs = (in_order(tensor, order, 2) for tensor in (query, key, value))
            context = in_order(attend(*inputs, key_mask=in_order(mask, order), **options), inverse_order(order), 2)
        real = tokens.last_mask(hidden.shape[1])
        return self.merge_heads(context if real is None else context.masked_fill(~real[:, None, :, None], 0))


def attend_counted(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *, pattern: Pattern, dropout_prob: float = 0.0
) -> Tensor:
    """Computes attention of the last T of S tokens, whose positions each row counts among its real tokens.

    Rows then have different positions in the pattern, so every pair is computed, for some queries at a time.

    Args:
        query: `(B, H, T, D)`; key, value: `(B, H, S, D)`.
        mask: `(B, S)` bool, True where a token is real.
        pattern: the pairs of positions that may attend.
        dropout_prob: probability of dropping an attention weight.

    Returns:
        `(B, H, T, D)`; rows of padding are meaningless.
    """
    place, (new, length) = mask.cumsum(1) - 1, (query.shape[2], key.shape[2])
    step = max(1, PAIRS // max(1, mask.numel()))
    rows_of_all = [query.new_zeros(*query.shape[:2], 0, value.shape[-1])]
    for first in range(0, new, step):
        rows = slice(first, min(first + step, new))
        query_places = place[:, length - new :][:, rows]
        visible = pattern.visible(query_places[:, :, None], place[:, None, :])
        visible = (visible.transpose(0, 1) if pattern.heads else visible[:, None]) & mask[:, None, None, :]
        weights = dense_weights(query[:, :, rows], key, visible, scale=query.shape[-1] ** -0.5)
        rows_of_all.append((F.dropout(weights, dropout_prob) @ value.to(weights.dtype)).to(query.dtype))
    return torch.cat(rows_of_all, 2)
