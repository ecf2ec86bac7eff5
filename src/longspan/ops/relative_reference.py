"""The dense reference of attention with disentangled relative positions: quadratic, any dtype, any device."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.ops.reference import full_precision
from longspan.ops.slots import mask_of_slots
from longspan.patterns import Window


def relative_scores(
    query: Tensor, key: Tensor, position_key: Tensor, position_query: Tensor, key_row: Tensor, query_row: Tensor
) -> Tensor:
    """Content-to-position and position-to-content scores, unscaled: `q_i·K^r[key_row_ij] + k_j·Q^r[query_row_ij]`.

    Args:
        query, key: `(B, H, T, D)`, `(B, H, S, D)`.
        position_key, position_query: projected tables `(H, R, D)` (paper: K^r, Q^r).
        key_row, query_row: `(T, S)` rows of the tables.

    Returns:
        `(B, H, T, S)`, in at least float32.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    with full_precision(query):
        by_query = query.to(wide) @ position_key.to(wide).transpose(-1, -2)
        by_key = key.to(wide) @ position_query.to(wide).transpose(-1, -2)
    shape = (*query.shape[:3], key.shape[2])
    to_position = by_query.gather(-1, key_row.expand(shape))
    to_content = by_key.gather(-1, query_row.T.expand(*shape[:2], shape[3], shape[2])).transpose(-1, -2)
    return to_position + to_content


def attend_relative_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position_key: Tensor,
    position_query: Tensor,
    key_mask: Tensor | None,
    slots: Tensor | None,
    global_bias: Tensor | None,
    *,
    left: int,
    right: int,
    scale: float,
    dropout_prob: float,
) -> Tensor:
    """Dense attention; arguments as in `longspan.ops.relative.attend_relative`."""
    with full_precision(query):
        length, wide = query.shape[2], torch.promote_types(query.dtype, torch.float32)
        place = torch.arange(length, device=query.device)
        offset = place[None, :] - place[:, None]
        row = (offset + left).clamp(0, left + right)
        scores = query.to(wide) @ key.to(wide).transpose(-1, -2)
        scores = (scores + relative_scores(query, key, position_key, position_query, row, row)) * scale
        seen = Window(left, right).visible(place[:, None], place[None, :])[None, None]
        if key_mask is not None:
            seen = seen & key_mask[:, None, None, :]
        values = value.to(wide)
        if slots is not None and global_bias is not None:
            seen = seen & ~mask_of_slots(slots, length)[:, None, None, :]
            index = slots.clamp(min=0)[:, None, :, None]
            global_key = key.to(wide).gather(2, index.expand(-1, key.shape[1], -1, key.shape[3]))
            global_value = values.gather(2, index.expand(-1, value.shape[1], -1, value.shape[3]))
            columns = query.to(wide) @ global_key.transpose(-1, -2) * scale + global_bias.to(wide)
            used = (slots >= 0)[:, None, None, :].expand(-1, 1, length, -1)
            scores, values = torch.cat([scores, columns], -1), torch.cat([values, global_value], 2)
            seen = torch.cat([seen.expand(query.shape[0], 1, length, length), used], -1)
        scores = scores.masked_fill(~seen, torch.finfo(wide).min)
        weights = torch.softmax(scores, dim=-1).masked_fill(~seen, 0.0)
        weights = torch.nn.functional.dropout(weights, dropout_prob)
        return (weights @ values).to(query.dtype)
