"""Attention within a band by Triton, as an operator of PyTorch with all its gradients.

A band is what `Pattern.band` says: a window of tokens, or of pools that stand some tokens apart (Poolingformer, arXiv
2105.04371). It takes DeBERTa's two terms by offset (arXiv 2006.03654, equation 4), whose products with the tables are
made tile by tile. Global keys are a softmax of their own beside it, and both are put together by the logarithms of
their sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.ops.attend.call import Call, gather_slots, mask_of_slots, put_slots
from longspan.ops.attend.reference import column_terms, row_terms
from longspan.ops.attend.terms import Bias, ContentToPosition, GlobalKeyBias, OffsetTerm, PositionToContent
from longspan.ops.kernels.triton_backend import (
    block_of,
    bytes_of,
    heads_inside,
    kernels,
    launch,
    require_triton,
    triton_prefers,
    with_dense_rows,
)
from longspan.ops.runtime import full_precision
from longspan.ops.tiles.blocked_operator import attend_blocked
from longspan.patterns import Full

PROGRAMS = 256
"""About so many programs share the gradients of the tables, each with sums of its own."""


def triton_serves(call: Call) -> bool:
    """Whether `auto` is to compute a call here: it is preferred, and nothing of it is refused."""
    return triton_prefers(call.query, call.value) and not _refusal(call)


def attend_triton(call: Call) -> Tensor:
    """Attention `(B, H, T, Dv)` of a call whose pattern is a band.

    Raises:
        InputError: Triton is missing or does not run here, or the call has a pattern, a term or dropout that its
            kernels do not compute.
    """
    require_triton(call.query, call.value)
    if reason := _refusal(call):
        raise InputError(f"backend='triton' {reason}; use backend='blocked'")
    band, (tables, first), mask = call.pattern.band(), _tables(call), call.key_mask
    assert band is not None
    if call.slots is not None:
        near = ~mask_of_slots(call.slots, call.key.shape[2])
        mask = near if mask is None else near & mask
    numbers = (*band, first, call.query_offset)
    mixed, logs = banded_attention(
        call.query, call.key, call.value, mask, tables, *numbers, call.scale, call.slots is not None
    )
    return mixed if call.slots is None else _with_globals(call, mixed, logs)


def _refusal(call: Call) -> str:
    """Why the kernels do not compute a call; empty where they do."""
    band = call.pattern.band()
    if band is None:
        return f"serves windows and pooled windows, and pattern is {call.pattern}"
    if call.dropout_prob:
        return f"has no dropout, and dropout_prob={call.dropout_prob}"
    near = [term for term in call.terms if not isinstance(term, GlobalKeyBias)]
    kinds = [type(term).__name__ for term in near]
    if near and (sorted(kinds) != ["ContentToPosition", "PositionToContent"] or band.stride != 1):
        return f"serves ContentToPosition with PositionToContent and no other terms, and terms holds {kinds}"
    by_offset = [term for term in near if isinstance(term, OffsetTerm)]
    starts = {(term.start, term.table.shape[1]) for term in by_offset}
    if len(starts) > 1 or any(isinstance(term, ContentToPosition) and term.query_bias is not None for term in near):
        return "reads two tables of the same offsets, without a bias of queries"
    return ""


def _tables(call: Call) -> tuple[list[Tensor], int]:
    """The tables of keys and of queries of positions, in the type of the query, and the offset of their first row."""
    for to_position in call.terms:
        if isinstance(to_position, ContentToPosition):
            (of_position,) = (term for term in call.terms if isinstance(term, PositionToContent))
            tables = [to_position.table, of_position.table]
            return [table.to(call.query.dtype).contiguous() for table in tables], to_position.start
    return [], 0


def _with_globals(call: Call, mixed: Tensor, logs: Tensor) -> Tensor:
    """What queries gather from near keys, put together with what they gather from global keys; and global rows."""
    assert call.slots is not None
    wide = torch.float32
    with full_precision(mixed):
        key, value = (gather_slots(each, call.slots).to(wide) for each in (call.key, call.value))
        scores = (call.query.to(wide) @ key.mT) * call.scale
        columns = column_terms(call) if call.terms else None
        scores = scores if columns is None else scores + columns.to(wide)
        scores = scores.masked_fill((call.slots < 0)[:, None, None, :], -torch.inf)
        scores = torch.cat([logs[..., None], scores], dim=-1)
        seen = scores > -torch.inf
        weights = scores.masked_fill(~seen, torch.finfo(wide).min).softmax(-1) * seen
        result = (weights[..., :1] * mixed + weights[..., 1:] @ value).to(call.query.dtype)
    if not call.global_rows:
        return result
    bias = row_terms(call) if call.terms else None
    terms = () if bias is None else (Bias(bias),)
    rows = replace(call, query=gather_slots(call.query, call.slots), pattern=Full(), terms=terms, slots=None)
    return put_slots(result, attend_blocked(replace(rows, global_rows=False)), call.slots)


def tiles_of(kernel: str, width: int, value_width: int, dtype: torch.dtype, *, terms: bool) -> dict[str, int]:
    """Queries and keys of a kernel's tiles, and the warps that compute one: the largest that fit into registers, as
    `benchmarks/kernel_resources.py` reads them from the machine code."""
    most = max(block_of(width), block_of(value_width))
    size = 64 if most <= 64 else 32 if most <= 128 else 16
    if terms or dtype == torch.float32:
        size = min(size, 32)
    if terms and (dtype == torch.float32 or kernel == "tables"):
        size = 16
    queries = 32 if kernel == "keys" and size == 64 else size  # beside the sums of keys and of values
    warps = 8 if terms or queries < size else 4
    # Whether the next tile may be loaded ahead: operands of products by three halves fill the registers in float32.
    ahead = not (kernel == "tables" and dtype != torch.float32)
    if dtype == torch.float32 and not terms:
        ahead = kernel == "keys"
    return {"QUERIES": queries, "KEYS": size, "num_warps": warps, "num_stages": 2 if ahead else 1}


def _constants(
    kernel: str, query: Tensor, value: Tensor, mask: Tensor | None, tables: Sequence[Tensor]
) -> dict[str, Any]:
    """What a kernel is compiled for."""
    width, value_width = query.shape[3], value.shape[3]
    tiles = tiles_of(kernel, width, value_width, query.dtype, terms=bool(tables))
    widths = {"WIDTH": block_of(width), "VALUE_WIDTH": block_of(value_width)}
    # Three products of tensor cores give a product of float32 numbers its precision.
    return {**tiles, **widths, "HAS_MASK": mask is not None, "PRECISION": "tf32x3"}


def _sizes(query: Tensor, key: Tensor, value: Tensor, tables: list[Tensor], numbers: tuple[int, ...], scale: float):  # type: ignore[no-untyped-def]
    """What all kernels are told of a call, after its tensors; a band wider than the text is cut to it."""
    left, right, stride, first, offset = numbers
    (_, heads, queries, width), keys = query.shape, key.shape[2]
    most = queries + keys * stride + abs(offset)
    left, right = (max(-most, min(side, most)) for side in (left, right))
    rows = tables[0].shape[1] if tables else 1
    return heads, queries, keys, offset, left, right, first, rows, scale, width, value.shape[3]


SCHEMA = (
    "Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor[] tables, "
    "SymInt left, SymInt right, SymInt stride, SymInt first, SymInt offset, float scale, bool wide"
)


def _forward(query, key, value, mask, tables, left, right, stride, first, offset, scale, wide):  # type: ignore[no-untyped-def]
    """Attention of `(B, H, T, D)`, `(B, H, S, D)`, `(B, H, S, Dv)` within a band: `(B, H, T, Dv)`, and the logarithms
    of the sums of each softmax `(B, H, T)` in float32, −∞ where nothing is seen.

    Args:
        mask: `(B, S)` bool, True where a key may be seen.
        tables: none, or keys and queries of positions, `(H, R, D)` each.
        left, right, stride: key m stands at `m·stride`, and is seen from `left` behind to `right` ahead of a query.
        first: the offset that the first row of the tables stands for.
        offset: position of the first query.
        wide: whether the result is float32, since more is added to it, or else of the type of the query.
    """
    (batch, heads, queries, _), keys = query.shape, key.shape[2]
    mixed = heads_inside(query, queries, value.shape[3], torch.float32 if wide else query.dtype)
    logs = query.new_empty((batch, heads, queries), dtype=torch.float32)
    if not batch * heads * queries * keys:
        return mixed.zero_(), logs.fill_(-torch.inf)
    query, key, value = (with_dense_rows(each) for each in (query, key, value))
    sizes = _sizes(query, key, value, tables, (left, right, stride, first, offset), scale)
    constants = _constants("forward", query, value, mask, tables)
    launch(
        kernels("banded").banded_forward, (-(-queries // constants["QUERIES"]), batch * heads),
        query, key, value, bytes_of(mask, query), *(tables or (query, query)), mixed, logs, *sizes,
        *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *mixed.stride()[:3],
        STRIDE=stride, TERMS=bool(tables), **constants,
    )  # fmt: skip
    return mixed, logs


banded_attention = torch.library.custom_op(
    "longspan::banded_attention", _forward, mutates_args=(), schema=f"({SCHEMA}) -> (Tensor, Tensor)"
)


@banded_attention.register_fake
def _(query, key, value, *rest):  # type: ignore[no-untyped-def]
    dtype = torch.float32 if rest[-1] else query.dtype
    logs = query.new_empty(query.shape[:3], dtype=torch.float32)
    return heads_inside(query, query.shape[2], value.shape[3], dtype), logs


def _backward(  # type: ignore[no-untyped-def]
    grad, grad_logs, mixed, logs, query, key, value, mask, tables, left, right, stride, first, offset, scale, wide
):
    """The gradients of query, key, value and the tables."""
    (batch, heads, queries, _), keys = query.shape, key.shape[2]
    grads = [heads_inside(each, each.shape[2], each.shape[3], each.dtype) for each in (query, key, value)]
    if not batch * heads * queries * keys:
        return [*(each.zero_() for each in grads), *(torch.zeros_like(table) for table in tables)]
    query, key, value, grad = (_laid_out(each) for each in (query, key, value, grad.to(query.dtype)))
    sizes = _sizes(query, key, value, tables, (left, right, stride, first, offset), scale)
    means = torch.empty_like(logs)
    inputs = query, key, value, bytes_of(mask, query), *(tables or (query, query))
    places = *query.stride()[:3], *key.stride()[:3], *value.stride()[:3]
    options = {"STRIDE": stride, "TERMS": bool(tables)}
    constants = _constants("queries", query, value, mask, tables)
    launch(
        kernels("banded").banded_backward_queries, (-(-queries // constants["QUERIES"]), batch * heads),
        grad, grad_logs.contiguous(), *inputs, mixed, logs, means, grads[0],
        *sizes, *places, *mixed.stride()[:3], *grad.stride()[:3], **options, **constants,
    )  # fmt: skip
    constants = _constants("keys", query, value, mask, tables)
    launch(
        kernels("banded").banded_backward_keys, (-(-keys // constants["KEYS"]), batch * heads),
        grad, *inputs, logs, means, grads[1], grads[2], *sizes, *places, *grad.stride()[:3], **options, **constants,
    )  # fmt: skip
    if tables:
        constants = _constants("tables", query, value, mask, tables)
        grads += _table_gradients(grad, inputs, (logs, means), sizes, (*places, *grad.stride()[:3]), constants)
    return grads


def _table_gradients(grad, inputs, saved, sizes, places, constants):  # type: ignore[no-untyped-def]
    """The gradients of both tables: steps of the band overlap in rows, and are added up there."""
    tables, (heads, queries, _, _, left, right, first, rows, _, width, _) = inputs[4:6], sizes
    size, span = constants["QUERIES"], constants["QUERIES"] + constants["KEYS"]
    steps = -(-max(size + left + right, 1) // constants["KEYS"])
    blocks, programs = -(-queries // size), grad.shape[0] * heads
    apart = max(1, min(blocks, PROGRAMS // max(1, programs * steps)))
    each = -(-blocks // apart)
    parts = [grad.new_empty((grad.shape[0], heads, apart, steps * span, width), dtype=torch.float32) for _ in tables]
    launch(
        kernels("banded").banded_backward_tables, (steps, apart, programs),
        grad, *inputs, *saved, *parts, *sizes, each, *places, **constants,
    )  # fmt: skip
    step, place = torch.arange(steps, device=grad.device), torch.arange(span, device=grad.device)
    row = step[:, None] * constants["KEYS"] - left - first - (size - 1) + place
    row = row.clamp(0, rows - 1).flatten()
    totals = [part.new_zeros((heads, rows, width)).index_add_(1, row, part.sum((0, 2))) for part in parts]
    return [total.to(table.dtype) for total, table in zip(totals, tables, strict=True)]


banded_attention_backward = torch.library.custom_op(
    "longspan::banded_attention_backward",
    _backward,
    mutates_args=(),
    schema=f"(Tensor grad, Tensor grad_logs, Tensor mixed, Tensor logs, {SCHEMA}) -> Tensor[]",
)


@banded_attention_backward.register_fake
def _(grad, grad_logs, mixed, logs, query, key, value, mask, tables, *rest):  # type: ignore[no-untyped-def]
    inputs = [heads_inside(each, each.shape[2], each.shape[3], each.dtype) for each in (query, key, value)]
    return inputs + [torch.empty_like(table) for table in tables]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, mask, tables, *ctx.numbers = inputs
    ctx.save_for_backward(*output, query, key, value, mask, *tables)


def _gradients(ctx: Any, grad: Tensor, grad_logs: Tensor) -> tuple[Any, ...]:
    mixed, logs, query, key, value, mask, *tables = ctx.saved_tensors
    inputs = (mixed, logs, query, key, value, mask, tables)
    grads = banded_attention_backward(grad, grad_logs, *inputs, *ctx.numbers)
    return *grads[:3], None, list(grads[3:]), *([None] * 7)


banded_attention.register_autograd(_gradients, setup_context=_setup)


def _laid_out(tensor: Tensor) -> Tensor:
    """`(B, H, T, D)` as `heads_inside` lays it out, so that a gradient lies as its tensor does."""
    wanted = tensor.transpose(1, 2)
    return tensor if wanted.is_contiguous() else wanted.contiguous().transpose(1, 2)
