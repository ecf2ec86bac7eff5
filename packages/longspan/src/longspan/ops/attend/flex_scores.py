"""FlexAttention's score modification: terms, and dropout by a hash of the pair's position.

A score of −∞ contributes to no sum. So dropout takes two passes, one over all pairs for the log-sum-exp, and one over
the kept pairs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from longspan.ops.attend.call import Call
from longspan.ops.attend.flex_predicates import captured
from longspan.ops.attend.terms import (
    Bias,
    ContentToPosition,
    GlobalKeyBias,
    PositionBias,
    PositionToContent,
    SoftSpan,
    Term,
)
from longspan.ops.runtime import full_precision
from longspan.patterns.random_blocks import hash_bits

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
Added = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
MOST_PRODUCTS = 1 << 30
"""Maximum precomputed products of tokens and table rows, over all content terms of a head."""
PRODUCTS_AT_ONCE = 1 << 29
"""Maximum products for a group of heads: two gigabytes."""
BITS = 31


def products_of(call: Call) -> int:
    """Returns the number of precomputed products of tokens and positions: linear in the length, times the rows of a
    table."""
    content = (term for term in call.terms if isinstance(term, ContentToPosition | PositionToContent))
    lengths = {ContentToPosition: call.query.shape[2], PositionToContent: call.key.shape[2]}
    return sum(call.query.shape[:2].numel() * lengths[type(term)] * term.table.shape[1] for term in content)


def score_mod_of(call: Call) -> ScoreMod | None:
    """Returns the function that adds the terms to the scaled score of each pair, those for near keys and
    `GlobalKeyBias` for global ones, which follow the keys of the text; `None` if there are none."""
    near = [_added(call, term) for term in call.terms if not isinstance(term, GlobalKeyBias)]
    global_biases = [term.values for term in call.terms if isinstance(term, GlobalKeyBias)]
    if not near and not global_biases:
        return None
    end = captured(call.key.shape[2], call.query.device)

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        keys = end[0 * b]
        for added in near:
            score = score + torch.where(kv_idx < keys, added(b, h, q_idx, torch.minimum(kv_idx, keys - 1)), 0.0)
        for values in global_biases:
            global_bias = values[b, h, q_idx, (kv_idx - keys).clamp(min=0)]
            score = score + torch.where(kv_idx < keys, 0.0, global_bias)
        return score

    return score_mod


def with_dropout(score_mod: ScoreMod | None, seed: Tensor, prob: float, heads: int) -> ScoreMod:
    """Adds −∞ for the pairs that dropout removes; `seed` is `(1,)` int64."""

    def dropped(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        score = score if score_mod is None else score_mod(score, b, h, q_idx, kv_idx)
        return torch.where(stays(seed, prob, b * heads + h, q_idx, kv_idx), score, -torch.inf)

    return dropped


def stays(seed: Tensor, prob: float, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Whether dropout keeps the weight of a pair, determined by its position: equal in the backward pass, and in any
    order."""
    row, query, key = (index.to(torch.int64) for index in (row, query, key))
    bits = hash_bits(seed[0 * row], 1) ^ hash_bits(row, 2)
    bits = hash_bits(hash_bits(bits + query, 3) ^ hash_bits(key, 4), 5)
    return bits >= int(prob * (1 << BITS))


def _added(call: Call, term: Term) -> Added:
    """Returns the function that computes a term's addition to the scaled score of a query and a near key."""
    if isinstance(term, Bias):
        values = term.values

        def bias(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
            places = (index if size > 1 else 0 * index for index, size in zip((b, h, query, key), sizes, strict=True))
            return values[tuple(places)]

        sizes = values.shape
        return bias
    if isinstance(term, SoftSpan):
        return _soft_span(call, term)
    assert isinstance(term, PositionBias | ContentToPosition | PositionToContent)
    apart, first, last = _apart_of(call), term.start, term.table.shape[1] - 1
    if isinstance(term, PositionBias):
        table = term.table

        def by_offset(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return table[h, (apart(query, key) - first).clamp(0, last)]

        return by_offset
    of_query, products, scale = isinstance(term, ContentToPosition), _products(call, term), call.scale

    def by_content(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        row = (apart(query, key) - first).clamp(0, last)
        return scale * products[b, h, query if of_query else key, row]

    return by_content


def _apart_of(call: Call) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns the function that computes the offset of a key from a query."""
    step, shifted, offset = call.step, call.query_offset != 0, captured(call.query_offset, call.query.device)

    def apart(query: Tensor, key: Tensor) -> Tensor:
        return (key - query - offset[0 * query] if shifted else key - query) * step

    return apart


def _products(call: Call, term: ContentToPosition | PositionToContent) -> Tensor:
    """Computes the products of every query or key with every row of a table, `(B, H, T or S, R)`, in float32."""
    content, table = call.query if isinstance(term, ContentToPosition) else call.key, term.table
    bias = term.query_bias if isinstance(term, ContentToPosition) else None
    with full_precision(content):
        if bias is None and content.is_cuda and content.dtype == table.dtype != torch.float32:
            # Tensor cores multiply in half precision and accumulate in float32, so that nothing is rounded.
            rows = table.expand(len(content), *table.shape).flatten(0, 1).mT
            products = torch.bmm(content.flatten(0, 1), rows, out_dtype=torch.float32)
            return products.unflatten(0, content.shape[:2])
        content = content.float() if bias is None else content.float() + bias[:, None].float()
        return content @ table.float().mT


def _soft_span(call: Call, term: SoftSpan) -> Added:
    span, ramp, apart = term.span, term.ramp, _apart_of(call)
    by_row, by_query = span.shape[0] > 1, span.shape[2] > 1

    def soft_span(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        own_span = span[b if by_row else 0 * b, h, query if by_query else 0 * query]
        share = (own_span.float() + ramp - apart(query, key).abs()) / ramp
        hidden = share <= 0  # the logarithm is never evaluated here, so that its gradient is not either
        return torch.where(hidden, -torch.inf, torch.where(hidden | (share > 1), 1.0, share).log())

    return soft_span
