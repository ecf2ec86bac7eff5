"""The dense reference of `attend`: plain, quadratic, any dtype, any device. Every fast path is tested against it.

The terms of a call are numbers added to its scaled scores: here for all pairs, and, for the blocked backend, for the
few pairs that involve a global token.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from longspan.ops.attend.call import Call, gather_slots, mask_of_slots, shown_to_rows
from longspan.ops.attend.terms import Bias, GlobalKeyBias, OffsetTerm, SoftSpan
from longspan.ops.runtime import full_precision
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
    """Returns the visible pairs, `(B or 1, H or 1, T, S)` bool: pattern, global tokens, then padding."""
    query_index = torch.arange(queries, device=device)[:, None] + query_offset
    key_index = torch.arange(keys, device=device)[None, :]
    if pattern.reads_length:
        visible = shown_to_rows(pattern, key_mask, keys, device).visible(query_index, key_index)
        visible = visible.transpose(0, 1) if pattern.heads else visible[:, None]
    else:
        visible = pattern.visible(query_index, key_index)
        visible = (visible if pattern.heads else visible[None])[None]
    if is_global is not None:
        visible = visible | is_global[:, None, None, :]
        if global_rows:
            visible = visible | is_global[:, None, :, None]
    if key_mask is not None:
        visible = visible & key_mask[:, None, None, :]
    return visible


def dense_weights(query: Tensor, key: Tensor, visible: Tensor, *, scale: float, bias: Tensor | None = None) -> Tensor:
    """Computes attention weights `(B, H, T, S)`: the softmax of the visible scores, zero in rows that see nothing.

    `softmax(scale·QKᵀ + bias)` over the visible keys (Vaswani et al. 2017, eq. 1), computed in float32 or wider; a bias
    of −∞ hides a key.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    with full_precision(query):
        scores = torch.matmul(query.to(wide), key.to(wide).transpose(-1, -2)) * scale
    if bias is not None:
        scores = scores + bias.to(wide)
        visible = visible & (bias != -torch.inf)
    scores = scores.masked_fill(~visible, torch.finfo(wide).min)
    return torch.softmax(scores, dim=-1).masked_fill(~visible, 0.0)


SHORT_SCORES = 1 << 18
"""Up to this many scores in total, relative positions train faster with autograd's dense steps than with tiles that
recompute them."""
REFERENCE_COST = 3.0
"""Cost of a pair, in pairs of PyTorch's dense kernel; higher than that of any other backend for all pairs."""


def trains_short(call: Call) -> bool:
    """Whether a call trains a short input with relative positions.

    Dropout counts as training even without gradients: reentrant checkpointing computes its first pass without them, and
    the second must drop the same weights.
    """
    if not call.has_offsets or call.query.is_cuda:
        return False
    learns = call.dropout_prob > 0 or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in call.tensors))
    return learns and call.query.shape[:3].numel() * call.key.shape[2] <= SHORT_SCORES


def reference_cost(call: Call) -> float:
    """Returns the cost of the reference per head, in scores of the dense kernel."""
    return REFERENCE_COST * call.query.shape[2] * call.key.shape[2]


def attend_reference(call: Call) -> Tensor:
    """Computes attention `(B, H, T, Dv)` of a call by its definition, in quadratic memory."""
    query, queries, keys = call.query, call.query.shape[2], call.key.shape[2]
    visible = dense_mask(
        call.pattern,
        queries,
        keys,
        key_mask=call.key_mask,
        is_global=None if call.slots is None else mask_of_slots(call.slots, keys),
        query_offset=call.query_offset,
        global_rows=call.global_rows,
        device=query.device,
    )
    weights = dense_weights(query, call.key, visible, scale=call.scale, bias=dense_terms(call))
    weights = torch.nn.functional.dropout(weights, call.dropout_prob)
    with full_precision(query):
        return torch.matmul(weights, call.value.to(weights.dtype)).to(query.dtype)


def dense_terms(call: Call) -> Tensor | None:
    """Returns the sum of all terms, broadcastable to `(B, H, T, S)`; `None` if there are none."""
    place = torch.arange(call.query.shape[2], device=call.query.device)[None] + call.query_offset
    near = _sum(call, [_offset_scores(call, False, call.query, place), *_biases(call, False)])
    if near is not None and call.slots is not None:
        is_global = mask_of_slots(call.slots, call.key.shape[2])[:, None]
        near = near.masked_fill(is_global[:, :, None, :], 0)
        near = near.masked_fill(is_global[:, :, :, None], 0) if call.global_rows else near
    everywhere = _sum(call, [_offset_scores(call, True, call.query, place), *_biases(call, True)])
    return _sum(call, [near, everywhere, *(at_slots(call, values) for values in slot_biases(call))])


def row_terms(call: Call) -> Tensor | None:
    """Returns the additive terms of global rows, `(B or 1, H or 1, G or 1, S or 1)`."""
    assert call.slots is not None
    scores = [_offset_scores(call, True, gather_slots(call.query, call.slots), call.slots.clamp(min=0))]
    for values in _biases(call, True):
        spread = values.expand(call.slots.shape[0], -1, -1, -1)
        scores.append(values if values.shape[2] == 1 else gather_slots(spread, call.slots))
    scores += [at_slots(call, gather_slots(values, call.slots)) for values in slot_biases(call)]
    return _sum(call, scores)


def column_terms(call: Call) -> Tensor | None:
    """Returns the additive terms of global keys, `(B, H, T, G)`; 0 in unused slots."""
    if call.slots is None:
        return None
    place = torch.arange(call.query.shape[2], device=call.query.device)[None]
    slots, key = call.slots.clamp(min=0), gather_slots(call.key, call.slots)
    scores = [_offset_scores(call, True, call.query, place, key, slots), *slot_biases(call)]
    for values in _biases(call, True):
        spread = values.expand(slots.shape[0], -1, -1, call.key.shape[2])
        scores.append(spread.gather(3, slots[:, None, None].expand(*spread.shape[:3], -1)))
    total = _sum(call, scores)
    if total is None:
        return None
    return total.expand(*call.query.shape[:3], -1).masked_fill((call.slots < 0)[:, None, None], 0)


def _biases(call: Call, globals: bool) -> list[Tensor]:
    """Returns the biases that apply to global keys and rows, or those that do not."""
    return [term.values for term in call.terms if isinstance(term, Bias) and term.globals == globals]


def slot_biases(call: Call) -> list[Tensor]:
    return [term.values for term in call.terms if isinstance(term, GlobalKeyBias)] if call.slots is not None else []


def _offset_scores(
    call: Call,
    globals: bool,
    query: Tensor,
    query_place: Tensor,
    key: Tensor | None = None,
    key_place: Tensor | None = None,
) -> Tensor | None:
    """Returns the sum of the offset terms, including spans, that apply to global keys and rows, or of those that do
    not, for queries and keys at their positions `(B or 1, …)`; by default all keys."""
    terms = [term for term in call.terms if isinstance(term, OffsetTerm | SoftSpan) and term.globals == globals]
    key = call.key if key is None else key
    key_place = torch.arange(key.shape[2], device=key.device)[None] if key_place is None else key_place
    offset = key_place[:, None, :] - query_place[:, :, None]
    factors = [call.scale if isinstance(term, OffsetTerm) and term.content else 1.0 for term in terms]
    return _sum(call, [term.dense(query, key, offset) * by for term, by in zip(terms, factors, strict=True)])


def at_slots(call: Call, values: Tensor) -> Tensor:
    """Scatters numbers of global keys `(B, H, Q, G)` to all keys `(B, H, Q, S)`; unused slots are dropped."""
    assert call.slots is not None
    length = call.key.shape[2]
    index = torch.where(call.slots < 0, length, call.slots)[:, None, None].expand(values.shape)
    return values.new_zeros(*values.shape[:3], length + 1).scatter(-1, index, values)[..., :length]


def _sum(call: Call, parts: Iterable[Tensor | None]) -> Tensor | None:
    """Returns the sum of the parts that are not `None`, in float32 or wider."""
    wide = torch.promote_types(call.query.dtype, torch.float32)
    total: Tensor | None = None
    for part in parts:
        if part is not None:
            total = part.to(wide) if total is None else total + part.to(wide)
    return total
