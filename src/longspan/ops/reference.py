"""The dense reference of `attend`: obvious, quadratic, any dtype, any device. Every fast path is tested against it."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.patterns import Pattern


def dense_mask(
    pattern: Pattern,
    queries: int,
    keys: int,
    *,
    key_mask: Tensor | None,
    is_global: Tensor | None,
    query_offset: int,
    global_rows: bool = True,
    device: torch.device,
) -> Tensor:
    """What each query may see, `(B or 1, H or 1, T, S)` bool: pattern, global tokens, then padding."""
    query_index = torch.arange(queries, device=device)[:, None] + query_offset
    key_index = torch.arange(keys, device=device)[None, :]
    seen = pattern.visible(query_index, key_index)
    seen = (seen if pattern.heads else seen[None])[None]
    if is_global is not None:
        seen = seen | is_global[:, None, None, :]
        if global_rows:
            seen = seen | is_global[:, None, :, None]
    if key_mask is not None:
        seen = seen & key_mask[:, None, None, :]
    return seen


def dense_weights(query: Tensor, key: Tensor, seen: Tensor, *, scale: float, bias: Tensor | None = None) -> Tensor:
    """Attention weights `(B, H, T, S)`: softmax of the visible scores, zero in rows that see nothing.

    `softmax(scale·QKᵀ + bias)` over the visible keys (Vaswani et al. 2017, eq. 1), computed in at least float32.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = torch.matmul(query.to(wide), key.to(wide).transpose(-1, -2)) * scale
    if bias is not None:
        scores = scores + bias.to(wide)
    scores = scores.to(wide).masked_fill(~seen, torch.finfo(wide).min)  # autocast may have made them narrow
    return torch.softmax(scores, dim=-1).masked_fill(~seen, 0.0)


def attend_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern,
    key_mask: Tensor | None,
    slots: Tensor | None,
    *,
    global_rows: bool,
    bias: Tensor | None,
    scale: float,
    dropout_prob: float,
    query_offset: int,
) -> Tensor:
    """Dense attention; arguments as in `longspan.attend`, global tokens as slots."""
    seen = dense_mask(
        pattern,
        query.shape[2],
        key.shape[2],
        key_mask=key_mask,
        is_global=None if slots is None else mask_of_slots(slots, key.shape[2]),
        query_offset=query_offset,
        global_rows=global_rows,
        device=query.device,
    )
    weights = dense_weights(query, key, seen, scale=scale, bias=bias)
    weights = torch.nn.functional.dropout(weights, dropout_prob)
    return torch.matmul(weights, value.to(weights.dtype)).to(query.dtype)


def mask_of_slots(slots: Tensor, length: int) -> Tensor:
    """`(B, G)` slots, −1 where unused → `(B, length)` bool, True at the positions they name."""
    mask = torch.zeros(slots.shape[0], length + 1, dtype=torch.bool, device=slots.device)
    return mask.scatter(1, torch.where(slots < 0, length, slots), True)[:, :length]
