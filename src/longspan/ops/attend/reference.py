"""The dense reference of `attend`: obvious, quadratic, any dtype, any device. Every fast path is tested against it."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.ops.attend.call import Call
from longspan.ops.attend.dense_terms import dense_terms
from longspan.ops.attend.lengths import shown_to_rows
from longspan.ops.attend.slots import mask_of_slots
from longspan.patterns import Pattern


def full_precision(tensor: Tensor) -> torch.autocast:
    """A context in which autocast leaves matrix products in the type of their inputs."""
    return torch.autocast(tensor.device.type, enabled=False)


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
    if pattern.reads_length:
        seen = shown_to_rows(pattern, key_mask, keys, device).visible(query_index, key_index)
        seen = seen.transpose(0, 1) if pattern.heads else seen[:, None]
    else:
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

    `softmax(scale·QKᵀ + bias)` over the visible keys (Vaswani et al. 2017, eq. 1), computed in at least float32; a bias
    of −∞ hides a key.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    with full_precision(query):
        scores = torch.matmul(query.to(wide), key.to(wide).transpose(-1, -2)) * scale
    if bias is not None:
        scores = scores + bias.to(wide)
        seen = seen & (bias != -torch.inf)
    scores = scores.masked_fill(~seen, torch.finfo(wide).min)
    return torch.softmax(scores, dim=-1).masked_fill(~seen, 0.0)


def attend_reference(call: Call) -> Tensor:
    """Dense attention."""
    query, queries, keys = call.query, call.query.shape[2], call.key.shape[2]
    seen = dense_mask(
        call.pattern,
        queries,
        keys,
        key_mask=call.key_mask,
        is_global=None if call.slots is None else mask_of_slots(call.slots, keys),
        query_offset=call.query_offset,
        global_rows=call.global_rows,
        device=query.device,
    )
    weights = dense_weights(query, call.key, seen, scale=call.scale, bias=dense_terms(call))
    weights = torch.nn.functional.dropout(weights, call.dropout_prob)
    with full_precision(query):
        return torch.matmul(weights, call.value.to(weights.dtype)).to(query.dtype)
