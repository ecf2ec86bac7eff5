"""Attention weights as a model returns them with `output_attentions`; those of a window have a column per offset."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.attention.base import Attention
from longspan.attention.parts.tokens import Tokens
from longspan.attention.parts.windowed import WindowedAttention
from longspan.errors import InputError
from longspan.ops.attend.call import gather_slots, mask_of_slots

MOST_DENSE = 4096
"""Tokens of the longest text with dense weights: with 12 heads these take 0.8 GB per layer."""
GATHERED = 1 << 24
"""Numbers of keys that are gathered at once, by query and offset."""


def reported_weights(
    attention: Attention, hidden: Tensor, tokens: Tokens | None = None
) -> tuple[Tensor, Tensor | None]:
    """Returns the weights of a layer for `output_attentions`, and separate ones of global queries if the
    layout has them.

    A window with global tokens takes linear memory in the layout of transformers' Longformer: `(B, H, T, G +
    left_tokens + 1 + right_tokens)`, the global keys first, and for global queries over all keys `(B, H, T, G)`,
    key first; rows of global queries are 0 in the former. Other mechanisms return the dense weights `(B, H, T,
    S)` and `None`.

    Raises:
        InputError: the text is too long for dense weights.
    """
    if isinstance(attention, WindowedAttention) and _has_one_window(attention):
        return _of_window(attention, hidden, (tokens or Tokens()).with_slots())
    if hidden.shape[1] > MOST_DENSE:
        raise InputError(
            f"output_attentions=True gives the weight of every pair of tokens with attention "
            f"{attention.config.mechanism!r}, which at {hidden.shape[1]:,} tokens would be a matrix of "
            f"{hidden.shape[1]:,} rows and columns for each head; give at most {MOST_DENSE:,} tokens"
        )
    return attention.weights(hidden, tokens), None


def _has_one_window(attention: WindowedAttention) -> bool:
    plain = attention.window_alone and not attention.causal and not attention.has_positions
    return plain and len(set(attention.config.dilations)) == 1


def _of_window(attention: WindowedAttention, hidden: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor | None]:
    attention.check_tokens(hidden, tokens)
    query, key, _ = attention.project(hidden)
    config = attention.config
    left, right, step = config.left_tokens, config.right_tokens, config.dilations[0]
    offsets, slots = torch.arange(-left, right + 1, device=hidden.device) * step, tokens.real_slots()
    local = window_weights(query, key, offsets, mask=tokens.mask, slots=slots, scale=attention.scale)
    if slots is None:
        return local, None
    if attention.separate:
        query = attention.heads_of(attention.global_query, hidden)
        key = attention.heads_of(attention.global_key, hidden)
    return local, global_weights(query, key, slots, tokens.mask, scale=attention.scale)


def window_weights(
    query: Tensor,
    key: Tensor,
    offsets: Tensor,
    *,
    mask: Tensor | None,
    slots: Tensor | None,
    scale: float,
) -> Tensor:
    """Returns weights of local queries in the layout of transformers' Longformer, `(B, H, T, G + W)`.

    The first G columns are the global keys in the order of their slots. Column G + o is the key at `offsets[o]` from
    the query; it is 0 for padding and for global keys, which have their own columns. Rows of padding and of global
    queries are 0.

    Args:
        query, key: `(B, H, T, D)`.
        offsets: `(W,)` int64.
        mask: `(B, T)` bool, True where a token is real; `None` means all.
        slots: `(B, G)` int64, −1 if unused; `None` means no global tokens.
        scale: factor on the scores.
    """
    rows, heads, length, width = query.shape
    seen = query.new_ones(rows, length, dtype=torch.bool) if mask is None else mask
    visible = seen
    wide = torch.promote_types(query.dtype, torch.float32)
    query, key = query.to(wide) * scale, key.to(wide)
    columns: list[Tensor] = []
    if slots is not None:
        far = (query @ gather_slots(key, slots).transpose(-1, -2)).masked_fill((slots < 0)[:, None, None], -torch.inf)
        columns.append(far)
        visible = seen & ~mask_of_slots(slots, length)
    step = max(1, GATHERED // max(1, rows * heads * len(offsets) * width))
    near = [query.new_zeros(rows, heads, 0, len(offsets))]
    for first in range(0, length, step):
        places = torch.arange(first, min(first + step, length), device=query.device)[:, None] + offsets
        inside = (places >= 0) & (places < length)
        places = places.clamp(0, length - 1)
        scores = torch.einsum("bhtd,bhtwd->bhtw", query[:, :, first : first + step], key[:, :, places])
        near.append(scores.masked_fill(~(inside & visible[:, places])[:, None], -torch.inf))
    scores = torch.cat([*columns, torch.cat(near, 2)], -1)
    nothing = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.masked_fill(nothing, 0).softmax(-1).masked_fill(nothing | ~visible[:, None, :, None], 0)


def global_weights(query: Tensor, key: Tensor, slots: Tensor, mask: Tensor | None, *, scale: float) -> Tensor:
    """Returns weights of global queries over all real keys, `(B, H, T, G)`, key first; 0 in unused slots.

    Args:
        query, key: `(B, H, T, D)`, from the projections of global tokens.
        slots, mask, scale: as in `window_weights`.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = gather_slots(query, slots).to(wide) @ key.to(wide).transpose(-1, -2) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], torch.finfo(wide).min)
    return scores.softmax(-1).masked_fill((slots < 0)[:, None, :, None], 0).transpose(-1, -2)
