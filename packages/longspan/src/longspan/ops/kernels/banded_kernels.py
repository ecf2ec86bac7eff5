"""Triton kernels of attention within a band; `longspan.ops.kernels.banded` calls them.

Query i stands at `p = i + offset` and sees the keys m, each at `m·STRIDE`, with `−left ≤ m·STRIDE − p ≤ right`. Scores
are recomputed on the way back from the logarithms of their sums, as in FlashAttention (Dao 2023, arXiv 2307.08691).

Terms by offset read rows `r = m − p − first` of two tables (DeBERTa, arXiv 2006.03654, equation 4). Those of a tile of
QUERIES × KEYS are QUERIES + KEYS − 1 consecutive rows: one product makes them for all queries of the tile, and a gather
along its rows shifts each to its place, so that nothing by pair or by offset ever leaves the processor.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportCallIssue=false
# What a kernel is given are numbers and pointers of Triton, whatever the types of its language say.
from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _rows(start, place, stride, channel, many, width):
    """A tile of rows, zeros beyond `many` of them and beyond their width."""
    inside = ((place >= 0) & (place < many))[:, None] & (channel < width)[None, :]
    return tl.load(start + place.to(tl.int64)[:, None] * stride + channel[None, :], mask=inside, other=0)


@triton.jit
def _table(table, head, first_row, channel, rows, width, COUNT: tl.constexpr):
    """COUNT consecutive rows of a head's table from `first_row` on, the end rows in place of those beyond."""
    row = tl.minimum(tl.maximum(first_row + tl.arange(0, COUNT), 0), rows - 1)
    start = table + head * rows * width
    return tl.load(start + row[:, None] * width + channel[None, :], mask=(channel < width)[None, :], other=0)


@triton.jit
def _visible(mask, batch, query, key, offset, left, right, queries, keys, STRIDE: tl.constexpr, HAS_MASK: tl.constexpr):
    """Which pairs of a tile see each other."""
    ahead = key[None, :] * STRIDE - (query[:, None] + offset)
    real = (key >= 0) & (key < keys)
    if HAS_MASK:
        real &= tl.load(mask + batch * keys + key, mask=real, other=0) != 0
    return (ahead >= -left) & (ahead <= right) & real[None, :] & (query < queries)[:, None]


@triton.jit
def _scores(q, k, position_key, position_query, QUERIES: tl.constexpr, KEYS: tl.constexpr, TERMS: tl.constexpr,
            PRECISION: tl.constexpr):  # fmt: skip
    """Unscaled scores of a tile, with the products of tokens and positions where there are tables."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if TERMS:
        place, other = tl.arange(0, QUERIES), tl.arange(0, KEYS)
        by_offset = tl.dot(q, tl.trans(position_key), input_precision=PRECISION)
        scores += tl.gather(by_offset, other[None, :] - place[:, None] + (QUERIES - 1), 1)
        by_offset = tl.dot(k, tl.trans(position_query), input_precision=PRECISION)
        scores += tl.trans(tl.gather(by_offset, other[:, None] - place[None, :] + (QUERIES - 1), 1))
    return scores


@triton.jit
def _by_offset_of_queries(tile, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """A tile `(QUERIES, KEYS)` by query and row of the table, `(QUERIES, QUERIES + KEYS)`, 0 where no key stands."""
    row, place = tl.arange(0, QUERIES + KEYS), tl.arange(0, QUERIES)
    key = row[None, :] + place[:, None] - (QUERIES - 1)
    moved = tl.gather(tile, tl.minimum(tl.maximum(key, 0), KEYS - 1), 1)
    return tl.where((key >= 0) & (key < KEYS), moved, 0.0)


@triton.jit
def _by_offset_of_keys(tile, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """The same of a tile `(KEYS, QUERIES)` by key and row of the table, `(KEYS, QUERIES + KEYS)`."""
    row, place = tl.arange(0, QUERIES + KEYS), tl.arange(0, KEYS)
    query = place[:, None] + (QUERIES - 1) - row[None, :]
    moved = tl.gather(tile, tl.minimum(tl.maximum(query, 0), QUERIES - 1), 1)
    return tl.where((query >= 0) & (query < QUERIES), moved, 0.0)


@triton.jit
def _first_key(query, offset, left, STRIDE: tl.constexpr):
    return tl.maximum(query + offset - left + STRIDE - 1, 0) // STRIDE


@triton.jit
def _end_of_keys(last_query, offset, right, keys, STRIDE: tl.constexpr):
    return tl.minimum(tl.maximum(last_query + offset + right + STRIDE, 0) // STRIDE, keys)


@triton.jit
def banded_forward(
    query, key, value, mask, key_table, query_table, mixed, logs,
    heads, queries, keys, offset, left, right, first, rows, scale, width, value_width,
    query_b, query_h, query_t, key_b, key_h, key_t, value_b, value_h, value_t, mixed_b, mixed_h, mixed_t,
    STRIDE: tl.constexpr, HAS_MASK: tl.constexpr, TERMS: tl.constexpr, PRECISION: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """A block of queries of one head: what they gather, and the logarithms of the sums of their softmax."""
    row = tl.program_id(1).to(tl.int64)
    batch, head = row // heads, row % heads
    start = tl.program_id(0) * QUERIES
    place, channel, out = start + tl.arange(0, QUERIES), tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
    q = _rows(query + batch * query_b + head * query_h, place, query_t, channel, queries, width)
    key += batch * key_b + head * key_h
    value += batch * value_b + head * value_h
    top = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    sums = tl.zeros((QUERIES, VALUE_WIDTH), tl.float32)
    low = _first_key(start, offset, left, STRIDE)
    for at in range(low, _end_of_keys(start + QUERIES - 1, offset, right, keys, STRIDE), KEYS):
        other = at + tl.arange(0, KEYS)
        k = _rows(key, other, key_t, channel, keys, width)
        position_key, position_query = k, k
        if TERMS:
            first_row = at - start - offset - first - (QUERIES - 1)
            position_key = _table(key_table, head, first_row, channel, rows, width, QUERIES + KEYS)
            position_query = _table(query_table, head, first_row, channel, rows, width, QUERIES + KEYS)
        scores = _scores(q, k, position_key, position_query, QUERIES, KEYS, TERMS, PRECISION) * (scale * LOG2_E)
        seen = _visible(mask, batch, place, other, offset, left, right, queries, keys, STRIDE, HAS_MASK)
        scores = tl.where(seen, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        decay, weights = tl.exp2(top - shift), tl.exp2(scores - shift[:, None])
        v = _rows(value, other, value_t, out, keys, value_width)
        sums = sums * decay[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        total = total * decay + tl.sum(weights, 1)
        top = new_top
    divisor = tl.where(total == 0, 1.0, total)
    log = tl.where(total == 0, float("-inf"), (top + tl.log2(divisor)) / LOG2_E)
    tl.store(logs + row * queries + place, log, mask=place < queries)
    places = mixed + batch * mixed_b + head * mixed_h + place.to(tl.int64)[:, None] * mixed_t + out[None, :]
    here = (place < queries)[:, None] & (out < value_width)[None, :]
    tl.store(places, (sums / divisor[:, None]).to(mixed.dtype.element_ty), mask=here)


@triton.jit
def banded_backward_queries(
    grad, grad_logs, query, key, value, mask, key_table, query_table, mixed, logs, means, query_grad,
    heads, queries, keys, offset, left, right, first, rows, scale, width, value_width,
    query_b, query_h, query_t, key_b, key_h, key_t, value_b, value_h, value_t, mixed_b, mixed_h, mixed_t,
    grad_b, grad_h, grad_t,
    STRIDE: tl.constexpr, HAS_MASK: tl.constexpr, TERMS: tl.constexpr, PRECISION: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """A block of queries of one head: their gradients, and `means`, what the gradient of a weight is measured from:
    `Σ dY·Y` less the gradient of the logarithm. `query_grad` is laid out as `query`."""
    row = tl.program_id(1).to(tl.int64)
    batch, head = row // heads, row % heads
    start = tl.program_id(0) * QUERIES
    place, channel, out = start + tl.arange(0, QUERIES), tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
    q = _rows(query + batch * query_b + head * query_h, place, query_t, channel, queries, width)
    slope = _rows(grad + batch * grad_b + head * grad_h, place, grad_t, out, queries, value_width)
    y = _rows(mixed + batch * mixed_b + head * mixed_h, place, mixed_t, out, queries, value_width)
    here = place < queries
    log = tl.load(logs + row * queries + place, mask=here, other=float("-inf"))
    mean = tl.sum(slope.to(tl.float32) * y.to(tl.float32), 1)
    mean -= tl.load(grad_logs + row * queries + place, mask=here, other=0.0)
    tl.store(means + row * queries + place, mean, mask=here)
    log = tl.where(log == float("-inf"), float("inf"), log) * LOG2_E
    key += batch * key_b + head * key_h
    value += batch * value_b + head * value_h
    total = tl.zeros((QUERIES, WIDTH), tl.float32)
    low = _first_key(start, offset, left, STRIDE)
    for at in range(low, _end_of_keys(start + QUERIES - 1, offset, right, keys, STRIDE), KEYS):
        other = at + tl.arange(0, KEYS)
        k = _rows(key, other, key_t, channel, keys, width)
        position_key, position_query = k, k
        if TERMS:
            first_row = at - start - offset - first - (QUERIES - 1)
            position_key = _table(key_table, head, first_row, channel, rows, width, QUERIES + KEYS)
            position_query = _table(query_table, head, first_row, channel, rows, width, QUERIES + KEYS)
        scores = _scores(q, k, position_key, position_query, QUERIES, KEYS, TERMS, PRECISION) * (scale * LOG2_E)
        seen = _visible(mask, batch, place, other, offset, left, right, queries, keys, STRIDE, HAS_MASK)
        weights = tl.exp2(tl.where(seen, scores - log[:, None], float("-inf")))
        v = _rows(value, other, value_t, out, keys, value_width)
        slopes = weights * (tl.dot(slope, tl.trans(v), input_precision=PRECISION) - mean[:, None])
        total += tl.dot(slopes.to(k.dtype), k, input_precision=PRECISION)
        if TERMS:
            moved = _by_offset_of_queries(slopes, QUERIES, KEYS).to(k.dtype)
            total += tl.dot(moved, position_key, input_precision=PRECISION)
    places = query_grad + batch * query_b + head * query_h + place.to(tl.int64)[:, None] * query_t + channel[None, :]
    here = (place < queries)[:, None] & (channel < width)[None, :]
    tl.store(places, (total * scale).to(query_grad.dtype.element_ty), mask=here)


@triton.jit
def banded_backward_keys(
    grad, query, key, value, mask, key_table, query_table, logs, means, key_grad, value_grad,
    heads, queries, keys, offset, left, right, first, rows, scale, width, value_width,
    query_b, query_h, query_t, key_b, key_h, key_t, value_b, value_h, value_t, grad_b, grad_h, grad_t,
    STRIDE: tl.constexpr, HAS_MASK: tl.constexpr, TERMS: tl.constexpr, PRECISION: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """A block of keys of one head: their gradients and those of their values, laid out as `key` and `value`."""
    row = tl.program_id(1).to(tl.int64)
    batch, head = row // heads, row % heads
    start = tl.program_id(0) * KEYS
    other, channel, out = start + tl.arange(0, KEYS), tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
    k = _rows(key + batch * key_b + head * key_h, other, key_t, channel, keys, width)
    v = _rows(value + batch * value_b + head * value_h, other, value_t, out, keys, value_width)
    query += batch * query_b + head * query_h
    grad += batch * grad_b + head * grad_h
    total = tl.zeros((KEYS, WIDTH), tl.float32)
    value_total = tl.zeros((KEYS, VALUE_WIDTH), tl.float32)
    last = tl.minimum(start + KEYS, keys) - 1
    low = tl.maximum(start * STRIDE - right - offset, 0)
    for at in range(low, tl.minimum(last * STRIDE + left - offset + 1, queries), QUERIES):
        place = at + tl.arange(0, QUERIES)
        q = _rows(query, place, query_t, channel, queries, width)
        slope = _rows(grad, place, grad_t, out, queries, value_width)
        position_key, position_query = k, k
        if TERMS:
            first_row = start - at - offset - first - (QUERIES - 1)
            position_key = _table(key_table, head, first_row, channel, rows, width, QUERIES + KEYS)
            position_query = _table(query_table, head, first_row, channel, rows, width, QUERIES + KEYS)
        scores = _scores(q, k, position_key, position_query, QUERIES, KEYS, TERMS, PRECISION) * (scale * LOG2_E)
        log = tl.load(logs + row * queries + place, mask=place < queries, other=float("-inf"))
        log = tl.where(log == float("-inf"), float("inf"), log) * LOG2_E
        seen = _visible(mask, batch, place, other, offset, left, right, queries, keys, STRIDE, HAS_MASK)
        weights = tl.exp2(tl.where(seen, scores - log[:, None], float("-inf")))
        value_total += tl.dot(tl.trans(weights.to(v.dtype)), slope, input_precision=PRECISION)
        mean = tl.load(means + row * queries + place, mask=place < queries, other=0.0)
        slopes = weights * (tl.dot(slope, tl.trans(v), input_precision=PRECISION) - mean[:, None])
        turned = tl.trans(slopes)
        total += tl.dot(turned.to(q.dtype), q, input_precision=PRECISION)
        if TERMS:
            moved = _by_offset_of_keys(turned, QUERIES, KEYS).to(q.dtype)
            total += tl.dot(moved, position_query, input_precision=PRECISION)
    here = (other < keys)[:, None]
    places = key_grad + batch * key_b + head * key_h + other.to(tl.int64)[:, None] * key_t + channel[None, :]
    tl.store(places, (total * scale).to(key_grad.dtype.element_ty), mask=here & (channel < width)[None, :])
    places = value_grad + batch * value_b + head * value_h + other.to(tl.int64)[:, None] * value_t + out[None, :]
    tl.store(places, value_total.to(value_grad.dtype.element_ty), mask=here & (out < value_width)[None, :])


@triton.jit
def banded_backward_tables(
    grad, query, key, value, mask, key_table, query_table, logs, means, key_rows, query_rows,
    heads, queries, keys, offset, left, right, first, rows, scale, width, value_width, blocks,
    query_b, query_h, query_t, key_b, key_h, key_t, value_b, value_h, value_t, grad_b, grad_h, grad_t,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """One step of the band of one head, for some of its blocks of queries: every tile of that step reads the same rows
    of the tables, whose gradients `(QUERIES + KEYS, D)` are gathered here, `first_row` the first."""
    row = tl.program_id(2).to(tl.int64)
    batch, head = row // heads, row % heads
    step = tl.program_id(0)
    channel, out = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
    query += batch * query_b + head * query_h
    key += batch * key_b + head * key_h
    value += batch * value_b + head * value_h
    grad += batch * grad_b + head * grad_h
    first_row = step * KEYS - left - first - (QUERIES - 1)
    position_key = _table(key_table, head, first_row, channel, rows, width, QUERIES + KEYS)
    position_query = _table(query_table, head, first_row, channel, rows, width, QUERIES + KEYS)
    to_key = tl.zeros((QUERIES + KEYS, WIDTH), tl.float32)
    to_query = tl.zeros((QUERIES + KEYS, WIDTH), tl.float32)
    for block in range(tl.program_id(1) * blocks, (tl.program_id(1) + 1) * blocks):
        place = block * QUERIES + tl.arange(0, QUERIES)
        other = block * QUERIES + offset - left + step * KEYS + tl.arange(0, KEYS)
        q = _rows(query, place, query_t, channel, queries, width)
        k = _rows(key, other, key_t, channel, keys, width)
        scores = _scores(q, k, position_key, position_query, QUERIES, KEYS, True, PRECISION) * (scale * LOG2_E)
        log = tl.load(logs + row * queries + place, mask=place < queries, other=float("-inf"))
        log = tl.where(log == float("-inf"), float("inf"), log) * LOG2_E
        seen = _visible(mask, batch, place, other, offset, left, right, queries, keys, 1, HAS_MASK)
        weights = tl.exp2(tl.where(seen, scores - log[:, None], float("-inf")))
        v = _rows(value, other, value_t, out, keys, value_width)
        slope = _rows(grad, place, grad_t, out, queries, value_width)
        mean = tl.load(means + row * queries + place, mask=place < queries, other=0.0)
        slopes = weights * (tl.dot(slope, tl.trans(v), input_precision=PRECISION) - mean[:, None])
        moved = _by_offset_of_queries(slopes, QUERIES, KEYS).to(q.dtype)
        to_key += tl.dot(tl.trans(moved), q, input_precision=PRECISION)
        moved = _by_offset_of_keys(tl.trans(slopes), QUERIES, KEYS).to(k.dtype)
        to_query += tl.dot(tl.trans(moved), k, input_precision=PRECISION)
    part = (row * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(0) + step
    place = tl.arange(0, QUERIES + KEYS)
    to = part * (QUERIES + KEYS) * width + place[:, None] * width + channel[None, :]
    tl.store(key_rows + to, to_key * scale, mask=(channel < width)[None, :])
    tl.store(query_rows + to, to_query * scale, mask=(channel < width)[None, :])
