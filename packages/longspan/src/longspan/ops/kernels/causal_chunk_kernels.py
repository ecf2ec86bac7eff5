"""Triton kernels of causal linear attention in chunks; `longspan.ops.kernels.causal_chunks` calls them.

Within a chunk every pair of a query and an earlier key is a product; all before it is one sum of `kᵀ v` over keys
(Katharopoulos et al. 2020, arXiv 2006.16236, section 3.2; in chunks: Hua et al. 2022, arXiv 2202.10447, section 3.3).
Chunks are computed at once, each by programs of its own, between two sums over chunks.

Letters: F features, D channels of a value, and one column more, of ones, which adds up the weights.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportCallIssue=false
# What a kernel is given are numbers and pointers of Triton, whatever the types of its language say.
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile(start, place, stride, column, many, width):
    """A tile of rows in float32, zeros beyond their number and width."""
    inside = (place < many)[:, None] & (column < width)[None, :]
    places = start + place.to(tl.int64)[:, None] * stride + column[None, :]
    return tl.load(places, mask=inside, other=0).to(tl.float32)


@triton.jit
def chunk_sums(
    key, value, ones, sums, ones_sums,
    length, features, width, key_s, key_t, value_s, value_t, chunks,
    HAS_ONES: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr, FEATURES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """What a chunk adds: `Σ kᵀ v`, `(F, D)`, and `Σ kᵀ o`, `(F,)`, of numbers o beside each value, or of ones."""
    row, chunk = tl.program_id(2).to(tl.int64), tl.program_id(0)
    blocks = tl.cdiv(features, FEATURES)
    feature = (tl.program_id(1) % blocks) * FEATURES + tl.arange(0, FEATURES)
    column = (tl.program_id(1) // blocks) * WIDTH + tl.arange(0, WIDTH)
    place = chunk * CHUNK + tl.arange(0, CHUNK)
    k = _tile(key + row * key_s, place, key_t, feature, length, features)
    v = _tile(value + row * value_s, place, value_t, column, length, width)
    added = tl.dot(tl.trans(k), v, input_precision=PRECISION)
    part = (row * chunks + chunk) * features
    inside = feature < features
    places = sums + (part + feature)[:, None] * width + column[None, :]
    tl.store(places, added, mask=inside[:, None] & (column < width)[None, :])
    if tl.program_id(1) < blocks:
        if HAS_ONES:
            k *= tl.load(ones + row * length + place, mask=place < length, other=0.0)[:, None]
        tl.store(ones_sums + part + feature, tl.sum(k, 0), mask=inside)


@triton.jit
def chunk_outputs(
    query, key, value, before, ones_before, mixed, total,
    length, features, width, query_s, query_t, key_s, key_t, value_s, value_t, mixed_s, mixed_t, chunks,
    PRECISION: tl.constexpr, CHUNK: tl.constexpr, FEATURES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """What the queries of a chunk gather, `(chunk, D)`, and the sum of their weights, `(chunk,)`."""
    row, chunk = tl.program_id(2).to(tl.int64), tl.program_id(0)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    place = chunk * CHUNK + tl.arange(0, CHUNK)
    part = (row * chunks + chunk) * features
    scores = tl.zeros((CHUNK, CHUNK), tl.float32)
    out = tl.zeros((CHUNK, WIDTH), tl.float32)
    weights = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, features, FEATURES):
        feature = start + tl.arange(0, FEATURES)
        q = _tile(query + row * query_s, place, query_t, feature, length, features)
        k = _tile(key + row * key_s, place, key_t, feature, length, features)
        scores += tl.dot(q, tl.trans(k), input_precision=PRECISION)
        sums = _tile(before + part * width, feature, width, column, features, width)
        out += tl.dot(q, sums, input_precision=PRECISION)
        ones = tl.load(ones_before + part + feature, mask=feature < features, other=0.0)
        weights += tl.sum(q * ones[None, :], 1)
    scores = tl.where(place[:, None] >= place[None, :], scores, 0.0)
    v = _tile(value + row * value_s, place, value_t, column, length, width)
    out += tl.dot(scores, v, input_precision=PRECISION)
    places = mixed + row * mixed_s + place.to(tl.int64)[:, None] * mixed_t + column[None, :]
    tl.store(places, out, mask=(place < length)[:, None] & (column < width)[None, :])
    if tl.program_id(1) == 0:
        tl.store(total + row * length + place, weights + tl.sum(scores, 1), mask=place < length)


@triton.jit
def chunk_feature_gradients(
    grad, grad_total, query, key, value, before, ones_before, after, ones_after, query_grad, key_grad,
    length, features, width, grad_s, grad_t, query_s, query_t, key_s, key_t, value_s, value_t, chunks,
    PRECISION: tl.constexpr, CHUNK: tl.constexpr, FEATURES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradients of some features of a chunk's queries and keys, `(chunk, F)` both, contiguous."""
    row, chunk = tl.program_id(2).to(tl.int64), tl.program_id(0)
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    place = chunk * CHUNK + tl.arange(0, CHUNK)
    part = (row * chunks + chunk) * features
    slopes = tl.zeros((CHUNK, CHUNK), tl.float32)
    to_query = tl.zeros((CHUNK, FEATURES), tl.float32)
    to_key = tl.zeros((CHUNK, FEATURES), tl.float32)
    for start in range(0, width, WIDTH):
        column = start + tl.arange(0, WIDTH)
        slope = _tile(grad + row * grad_s, place, grad_t, column, length, width)
        v = _tile(value + row * value_s, place, value_t, column, length, width)
        slopes += tl.dot(slope, tl.trans(v), input_precision=PRECISION)
        sums = _tile(before + part * width, feature, width, column, features, width)
        to_query += tl.dot(slope, tl.trans(sums), input_precision=PRECISION)
        sums = _tile(after + part * width, feature, width, column, features, width)
        to_key += tl.dot(v, tl.trans(sums), input_precision=PRECISION)
    ones = tl.load(grad_total + row * length + place, mask=place < length, other=0.0)
    slopes = tl.where(place[:, None] >= place[None, :], slopes + ones[:, None], 0.0)
    q = _tile(query + row * query_s, place, query_t, feature, length, features)
    k = _tile(key + row * key_s, place, key_t, feature, length, features)
    inside = feature < features
    sums = tl.load(ones_before + part + feature, mask=inside, other=0.0)
    to_query += tl.dot(slopes, k, input_precision=PRECISION) + ones[:, None] * sums[None, :]
    sums = tl.load(ones_after + part + feature, mask=inside, other=0.0)
    to_key += tl.dot(tl.trans(slopes), q, input_precision=PRECISION) + sums[None, :]
    places = (row * length + place)[:, None] * features + feature[None, :]
    here = (place < length)[:, None] & inside[None, :]
    tl.store(query_grad + places, to_query, mask=here)
    tl.store(key_grad + places, to_key, mask=here)


@triton.jit
def chunk_value_gradients(
    grad, query, key, after, value_grad,
    length, features, width, grad_s, grad_t, query_s, query_t, key_s, key_t, value_s, value_t, chunks,
    PRECISION: tl.constexpr, CHUNK: tl.constexpr, FEATURES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradients of some channels of a chunk's values, `(chunk, D)`."""
    row, chunk = tl.program_id(2).to(tl.int64), tl.program_id(0)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    place = chunk * CHUNK + tl.arange(0, CHUNK)
    part = (row * chunks + chunk) * features
    scores = tl.zeros((CHUNK, CHUNK), tl.float32)
    out = tl.zeros((CHUNK, WIDTH), tl.float32)
    for start in range(0, features, FEATURES):
        feature = start + tl.arange(0, FEATURES)
        q = _tile(query + row * query_s, place, query_t, feature, length, features)
        k = _tile(key + row * key_s, place, key_t, feature, length, features)
        scores += tl.dot(k, tl.trans(q), input_precision=PRECISION)
        sums = _tile(after + part * width, feature, width, column, features, width)
        out += tl.dot(k, sums, input_precision=PRECISION)
    scores = tl.where(place[:, None] <= place[None, :], scores, 0.0)
    slope = _tile(grad + row * grad_s, place, grad_t, column, length, width)
    out += tl.dot(scores, slope, input_precision=PRECISION)
    places = value_grad + row * value_s + place.to(tl.int64)[:, None] * value_t + column[None, :]
    tl.store(places, out, mask=(place < length)[:, None] & (column < width)[None, :])
