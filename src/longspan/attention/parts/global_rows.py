"""The rows of global queries under separate global projections, for a static number of slots."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longspan.ops.reference import full_precision


def slot_rows(hidden: Tensor, slots: Tensor) -> Tensor:
    """`(B, T, E)` and `(B, G)` → `(B, G, E)`: the hidden states at the slots, those of token 0 at unused slots."""
    index = slots.clamp(min=0)[:, :, None].expand(-1, -1, hidden.shape[2])
    return hidden.gather(1, index)


def put_rows(merged: Tensor, rows: Tensor, slots: Tensor, real: Tensor | None) -> Tensor:
    """Replace the rows of `(B, T, E)` at the slots by `(B, G, E)`, and blank the rows of padding.

    Blanking before adding makes the replacement exact, and lets an unused slot add nothing to token 0.
    """
    batch, length, width = merged.shape
    used = slots >= 0
    keep = torch.ones(batch, length + 1, dtype=torch.bool, device=merged.device)
    keep = keep.scatter(1, torch.where(used, slots, length), False)[:, :length]
    keep = keep if real is None else keep & real
    index = slots.clamp(min=0)[:, :, None].expand(-1, -1, width)
    rows = rows.to(merged.dtype)  # autocast may have left the two in different types
    return merged.masked_fill(~keep[:, :, None], 0).scatter_add(1, index, rows.masked_fill(~used[:, :, None], 0))


def absorbed_context(
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
