"""Attention weights as a model reports them by `output_attentions`: of a window in as many columns as it is wide."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.ops.attend.call import gather_slots, mask_of_slots

MOST_DENSE = 4096
"""Tokens of the longest text whose weights are reported pair by pair: with 12 heads these are 0.8 GB a layer."""
GATHERED = 1 << 24
"""Numbers of keys that are laid out at once, by query and offset."""


def window_weights(
    query: Tensor,
    key: Tensor,
    offsets: Tensor,
    *,
    mask: Tensor | None,
    slots: Tensor | None,
    scale: float,
) -> Tensor:
    """Weights of local queries, in the layout of transformers' Longformer: `(B, H, T, G + W)`.

    The first G columns are the global keys in the order of their slots, column G + o is the key at `offsets[o]` from
    the query, 0 where that is no real token or a global one, whose weight stands in its own column. Rows of padding and
    of global queries are 0.

    Args:
        query, key: `(B, H, T, D)`.
        offsets: `(W,)` int64.
        mask: `(B, T)` bool, True where a token is real; `None` means all.
        slots: `(B, G)` int64, −1 where unused; `None` means no global tokens.
        scale: factor on the scores.
    """
    rows, heads, length, width = query.shape
    seen = query.new_ones(rows, length, dtype=torch.bool) if mask is None else mask
    own = seen
    wide = torch.promote_types(query.dtype, torch.float32)
    query, key = query.to(wide) * scale, key.to(wide)
    columns: list[Tensor] = []
    if slots is not None:
        far = (query @ gather_slots(key, slots).transpose(-1, -2)).masked_fill((slots < 0)[:, None, None], -torch.inf)
        columns.append(far)
        own = seen & ~mask_of_slots(slots, length)
    step = max(1, GATHERED // max(1, rows * heads * len(offsets) * width))
    near = [query.new_zeros(rows, heads, 0, len(offsets))]
    for first in range(0, length, step):
        places = torch.arange(first, min(first + step, length), device=query.device)[:, None] + offsets
        inside = (places >= 0) & (places < length)
        places = places.clamp(0, length - 1)
        scores = torch.einsum("bhtd,bhtwd->bhtw", query[:, :, first : first + step], key[:, :, places])
        near.append(scores.masked_fill(~(inside & own[:, places])[:, None], -torch.inf))
    scores = torch.cat([*columns, torch.cat(near, 2)], -1)
    nothing = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.masked_fill(nothing, 0).softmax(-1).masked_fill(nothing | ~own[:, None, :, None], 0)


def global_weights(query: Tensor, key: Tensor, slots: Tensor, mask: Tensor | None, *, scale: float) -> Tensor:
    """Weights of global queries over all real keys, `(B, H, T, G)`, key first; 0 in unused slots.

    Args:
        query, key: `(B, H, T, D)`, by the projections of global tokens.
        slots, mask, scale: as in `window_weights`.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = gather_slots(query, slots).to(wide) @ key.to(wide).transpose(-1, -2) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], torch.finfo(wide).min)
    return scores.softmax(-1).masked_fill((slots < 0)[:, None, :, None], 0).transpose(-1, -2)
