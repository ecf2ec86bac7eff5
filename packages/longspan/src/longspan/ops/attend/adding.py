"""Short inputs with terms, with PyTorch's kernel: the terms are summed into an additive mask."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.call import Call, mask_of_slots
from longspan.ops.attend.dense import mask_of_pattern
from longspan.ops.attend.reference import at_slots, slot_biases
from longspan.ops.attend.terms import Bias, ContentToPosition, GlobalKeyBias, PositionBias
from longspan.ops.runtime import full_precision

ADDED_SCORES = 1 << 20
"""Up to this many scores in total, terms are computed for all pairs at once; with more, such tensors exceed the cache
and tiles are faster."""
ADDED_COST = 1.5
"""Cost of a pair with terms, in pairs of the dense kernel without."""


def adding_serves(call: Call) -> bool:
    """Whether `attend_adding` supports a call: a short input on a CPU whose terms are biases and content terms by query
    and offset."""
    if call.query.device.type != "cpu" or not 0 < call.query.shape[:3].numel() * call.key.shape[2] <= ADDED_SCORES:
        return False
    kinds = (ContentToPosition, PositionBias, Bias, GlobalKeyBias)
    near: list[Any] = [term for term in call.terms if not isinstance(term, GlobalKeyBias)]
    if not near or not all(isinstance(term, kinds) for term in call.terms):
        return False
    if call.pattern.heads or call.query.shape[2] < 2:
        return False
    return call.slots is None or not (call.global_rows or any(term.globals for term in near))


def adding_cost(call: Call) -> float:
    """Returns the cost of `attend_adding` per head, in scores of the dense kernel."""
    return ADDED_COST * call.query.shape[2] * call.key.shape[2]


def attend_adding(call: Call) -> Tensor:
    """Computes attention of a short input with the dense kernel and the sum of the terms as additive mask."""
    query, slots, key_mask = call.query, call.slots, call.key_mask
    wide = torch.promote_types(query.dtype, torch.float32)
    sizes = (query.shape[2], call.key.shape[2], call.query_offset)
    mask, visible, some_empty = mask_of_pattern(call.pattern, (), False, *sizes, wide, query.device)
    is_global = None if slots is None else mask_of_slots(slots, sizes[1])[:, None, None]
    with full_precision(query):
        biases = [term.values.to(wide) for term in call.terms if isinstance(term, Bias)]
        added = _numbers_by_offset(call, wide)
        if is_global is not None:  # none of these terms applies to global keys
            added, visible = added * (~is_global).to(wide), visible | is_global
            biases = [values.masked_fill(is_global, 0) for values in biases]
            biases += [at_slots(call, values).to(wide) for values in slot_biases(call)]
        added = sum(biases, added)
        if slots is not None or key_mask is not None:
            visible = visible if key_mask is None else visible & key_mask[:, None, None]
            mask = torch.zeros(visible.shape, dtype=wide, device=query.device).masked_fill_(~visible, -math.inf)
        added = added if mask is None else added + mask
        empty = None
        if biases or slots is not None or key_mask is not None or some_empty:
            # A query that sees nothing is computed over all keys, then set to zero.
            empty = added.detach().amax(-1, keepdim=True) == -math.inf
            added = added.masked_fill(empty, 0) if bool(empty.any()) else added
        inputs = [tensor.to(wide) for tensor in (query, call.key, call.value)]
        options: dict[str, Any] = {"attn_mask": added, "dropout_p": call.dropout_prob, "scale": call.scale}
        context = F.scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], **options)
    return (context if empty is None else context * ~empty).to(query.dtype)


def _numbers_by_offset(call: Call, wide: torch.dtype) -> Tensor:
    """Returns the sum of the offset terms for the scaled scores, `(B or 1, H, T, S)`; a single 0 if there are none.

    The numbers of each query form a row by offset, mostly copies of the table's end rows; each row is then shifted by
    one relative to the previous row. So nothing is gathered by pair.
    """
    queries, keys = call.query.shape[2], call.key.shape[2]
    lowest, count = 1 - queries - call.query_offset, queries + keys - 1
    tables: dict[tuple[int, int], Tensor] = {}  # tables with equal ends are added first
    for term in call.terms:
        if isinstance(term, ContentToPosition):
            content = call.query.to(wide)
            content = content if term.query_bias is None else content + term.query_bias[:, None].to(wide)
            numbers = content @ (call.scale * term.table.to(wide)).transpose(1, 2)
        elif isinstance(term, PositionBias):
            numbers = term.table[None, :, None].to(wide)
        else:
            continue
        place = term.start, numbers.shape[-1]
        tables[place] = tables[place] + numbers if place in tables else numbers
    rows = []
    for (start, size), numbers in tables.items():
        left, right = (min(max(more, 0), count) for more in (start - lowest, lowest + count - start - size))
        table = numbers[..., max(lowest - start, 0) :][..., : count - left - right]
        ends = ((numbers[..., :1], left), (numbers[..., -1:], right))
        before, after = (end.expand(*numbers.shape[:-1], more) for end, more in ends)
        rows.append(torch.cat([before, table, after], -1))
    if not rows:
        return call.query.new_zeros(1, dtype=wide)
    flat = sum(rows[1:], rows[0]).expand(-1, -1, queries, -1).flatten(2)[..., queries - 1 :]
    return flat[..., : queries * (count - 1)].unflatten(2, (queries, count - 1))[..., :keys]
