"""Attention over the highest scores of each query: scores of all pairs, some queries at a time, never stored.

The selection depends on the scores alone, so that the backward pass recomputes it. Scores, softmax and sums are float32
or wider.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.reference import full_precision
from longspan.ops.runtime import SIZES, dropout_factors, register_gradient, run, seeded, softmax_gradient

ROUNDING = 32
"""Scores tie if they differ by at most this number of rounding units of the largest score that the norms of the query
and the keys allow. The scores of the same two tokens differ by some of these units if a matrix product has another
shape: in decoding steps, with padding, in a batch."""
MOST_PARTS = 10**6
"""A fraction is rounded to the nearest one with a denominator up to this, so that 0.6 is exactly 3/5."""


@dataclass(frozen=True)
class Budget:
    """Number of keys a query keeps, of the n visible ones: `max(top_k, ⌈top_fraction·n⌉)`.

    Attributes:
        top_k: minimum number, or all if there are fewer.
        top_fraction: fraction of the visible keys.
        local: half of the budget, rounded down, is reserved for the nearest keys: preceding ones, or equally on both
            sides.
    """

    top_k: int
    top_fraction: float = 0.0
    local: bool = False

    def of(self, visible: Tensor) -> Tensor:
        """Returns the number of kept keys, in integer arithmetic: ⌈0.6·25⌉ in float32 is 16."""
        share = Fraction(self.top_fraction).limit_denominator(MOST_PARTS)
        parts = share.denominator
        return ((visible * share.numerator + parts - 1) // parts).clamp(min=self.top_k)

    def most(self, visible: int) -> int:
        """`of` for an int."""
        return max(self.top_k, math.ceil(Fraction(self.top_fraction).limit_denominator(MOST_PARTS) * visible))


def attend_top(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    budget: Budget,
    *,
    causal: bool,
    key_mask: Tensor | None = None,
    dropout_prob: float = 0.0,
) -> Tensor:
    """Computes softmax attention of each query over its highest-scoring keys.

    `softmax(M(QKᵀ/√D)) V`, where M replaces every score below the k-th largest of its row by −∞, after padding and
    future keys are masked (Zhao et al. 2019, arXiv 1912.11637, section 2.2). Scores that tie with the k-th are all
    kept; a tie is a difference of at most `ROUNDING`·ε·‖q‖·max‖k‖/√D over the visible keys, with the ε of float32 or
    wider. Gradients flow through the kept scores.

    Args:
        query: `(B, H, T, D)`, the last T of S positions.
        key, value: `(B, H, S, D)`.
        budget: number of kept keys.
        causal: whether later keys are hidden.
        key_mask: `(B, S)` bool, True where a key is real; neighbours are counted among these.
        dropout_prob: probability of dropping an attention weight.

    Returns:
        `(B, H, T, D)`; zeros for a query that sees nothing.
    """
    seed = torch.randint(2**62, (), dtype=torch.int64) if dropout_prob else None
    options = (budget.top_k, budget.top_fraction, budget.local, causal, dropout_prob)
    return run(top_attention, _forward, query, key, value, key_mask, seed, *options)


def top_weights(query: Tensor, key: Tensor, budget: Budget, *, causal: bool, key_mask: Tensor | None = None) -> Tensor:
    """Dense reference: the weights of `attend_top`, `(B, H, T, S)`, row by row from the definition."""
    wide = torch.promote_types(query.dtype, torch.float32)
    with full_precision(query):
        scores = query.to(wide) @ key.to(wide).transpose(-1, -2) * query.shape[-1] ** -0.5
    (batch, heads, queries, keys), place = scores.shape, _places(key, key_mask)
    real = torch.ones(batch, keys, dtype=torch.bool, device=key.device) if key_mask is None else key_mask
    visible = real[:, None, None, :].expand(batch, 1, queries, keys)
    if causal:
        visible = visible & torch.ones_like(visible).tril(keys - queries)
    count = budget.of(visible.sum(-1, keepdim=True))
    near = _near(place[:, keys - queries :], place, count[:, 0], budget, causal)[:, None] & visible
    far = scores.masked_fill(~visible | near, -math.inf)
    left = (count - near.sum(-1, keepdim=True)).clamp(min=0).expand(batch, heads, queries, 1)
    ordered = F.pad(far.sort(-1, descending=True).values, (1, 0), value=math.inf)
    lowest = ordered.gather(-1, left.clamp(max=keys))
    lengths = key.to(scores.dtype).norm(dim=-1)[:, :, None].masked_fill(~visible, 0.0)
    longest = F.pad(lengths, (1, 0)).amax(-1, keepdim=True)
    highest = visible & (near | (far >= lowest - _margin(query.to(scores.dtype), longest)))
    scores = scores.masked_fill(~highest, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, -1).masked_fill(~highest, 0.0)


def _margin(query: Tensor, longest: Tensor) -> Tensor:
    """Returns the largest difference of tied scores, `(…, T, 1)`, for queries `(…, T, D)`, from the norms of their
    longest keys."""
    unit = torch.finfo(query.dtype).eps * query.shape[-1] ** -0.5
    return ROUNDING * unit * query.norm(dim=-1, keepdim=True) * longest


def _places(key: Tensor, key_mask: Tensor | None) -> Tensor:
    """Returns the index of each token among the real ones, `(B, S)`."""
    if key_mask is None:
        return torch.arange(key.shape[2], device=key.device).expand(key.shape[0], -1)
    return key_mask.cumsum(1) - 1


def _near(own: Tensor, place: Tensor, count: Tensor, budget: Budget, causal: bool) -> Tensor:
    """Returns the nearest keys, `(B, T, S)` bool, of queries at indices `own` `(B, T)` that keep `count` `(B, T, 1)`
    keys."""
    half, own, place = count // 2 if budget.local else count * 0, own[:, :, None], place[:, None]
    before, after = (half - 1, 0) if causal else (half // 2, (half - 1) // 2)  # an empty range for a half of 0
    return (place >= own - before) & (place <= own + after)


@dataclass(frozen=True)
class _Problem:
    """The arguments of one pass, with heads flattened into the batch: `(N, T, D)`, `(N, S, D)`, `(N, S, D)`, masks `(N,
    S)`; indices of keys `(N, S)` and queries `(N, T)`, and the number of kept keys, `(N, T, 1)`."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    margin: Tensor
    place: Tensor
    own: Tensor
    count: Tensor
    seed: int
    budget: Budget
    causal: bool
    dropout_prob: float

    @staticmethod
    def of(query, key, value, key_mask, seed, top_k, top_fraction, local, causal, dropout_prob) -> _Problem:  # type: ignore[no-untyped-def]
        """Creates the problem from the arguments of the operator."""
        wide, heads = torch.promote_types(query.dtype, torch.float32), query.shape[1]
        place = _places(key, key_mask).repeat_interleave(heads, 0)
        whole = key_mask is None or (not key_mask.is_cuda and bool(key_mask.all()))
        mask = None if whole or key_mask is None else key_mask.repeat_interleave(heads, 0)
        query, key, value = (tensor.to(wide).flatten(0, 1) for tensor in (query, key, value))
        budget, number = Budget(top_k, top_fraction, local), 0 if seed is None else int(seed)
        lengths = key.norm(dim=-1) if mask is None else key.norm(dim=-1).masked_fill(~mask, 0.0)
        if causal:
            longest = lengths.cummax(1).values[:, key.shape[1] - query.shape[1] :]
        else:
            longest = F.pad(lengths, (1, 0)).amax(1, keepdim=True)
        margin = _margin(query, longest[..., None])
        own = place[:, key.shape[1] - query.shape[1] :]
        # Indices count real tokens, so the last visible one gives their number.
        visible = own + 1 if causal or not key.shape[1] else place[:, -1:].expand_as(own) + 1
        count = budget.of(visible)[:, :, None]
        return _Problem(query, key, value, mask, margin, place, own, count, number, budget, causal, dropout_prob)

    def chunks(self) -> Iterator[_Chunk]:
        """Yields slices of heads and queries."""
        (rows, queries), keys = self.query.shape[:2], self.key.shape[1]
        budget = max(1, SIZES[self.query.is_cuda].top_scores // keys)
        heads = max(1, min(rows, budget // min(queries, 64)))
        step, number = max(1, budget // heads), 0
        for head in range(0, rows, heads):
            for first in range(0, queries, step):
                last = min(first + step, queries)
                last_key = keys - queries + last if self.causal else keys  # no query sees later keys
                yield _Chunk(slice(head, head + heads), slice(first, last), slice(0, last_key), number)
                number += 1

    def weights(self, chunk: _Chunk) -> Tensor:
        """Returns the weights of the queries of a chunk for its keys, before dropout."""
        keys = self.key[chunk.heads, chunk.keys]
        scores = torch.bmm(self.query[chunk.heads, chunk.queries], keys.transpose(1, 2))
        scores.mul_(self.query.shape[-1] ** -0.5)
        own, count = self.own[chunk.heads, chunk.queries], self.count[chunk.heads, chunk.queries]
        mask = None if self.mask is None else self.mask[chunk.heads, chunk.keys]
        if self.causal:
            later = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device)
            scores.masked_fill_(later.triu_(1 + scores.shape[2] - scores.shape[1]), -math.inf)
        if mask is not None:
            scores.masked_fill_(~mask[:, None], -math.inf)
        margin = self.margin[chunk.heads, chunk.queries]
        self._keep_highest(scores, margin, count, own, self.place[chunk.heads, chunk.keys], mask)
        weights = torch.softmax(scores, -1, out=scores)
        return weights if mask is None else weights.nan_to_num_(0.0)

    def _keep_highest(
        self, scores: Tensor, margin: Tensor, count: Tensor, own: Tensor, place: Tensor, mask: Tensor | None
    ) -> None:
        """Sets to −∞ the scores of keys that are not kept.

        Queries at indices `own` `(n, T)` keep `count` `(n, T, 1)` of the keys at indices `place` `(n, S)` that are real
        in `mask` `(n, S)`, and those within `margin` `(n, T, 1)` of the last kept one.
        """
        budget, keys = self.budget, scores.shape[2]
        near, far = None, scores
        if budget.local:
            near = _near(own, place, count, budget, self.causal)
            near = near if mask is None else near & mask[:, None]  # later tokens are further away than any near one
            far, count = scores.masked_fill(near, -math.inf), count - near.sum(-1, keepdim=True)
        if count.is_cuda:  # reading it would synchronise in every chunk
            most, least = budget.most(keys), budget.top_k
        else:
            most, least = int(count.max()), int(count.min())
        if most >= keys and least >= keys:
            return
        highest = far.topk(min(most, keys), dim=-1).values
        lowest = highest.gather(-1, (count.clamp(max=highest.shape[-1]) - 1).clamp(min=0))
        lowest = lowest.masked_fill(count > keys, -math.inf).masked_fill_(count < 1, math.inf)
        dropped = far < lowest - margin
        scores.masked_fill_(dropped if near is None else dropped & ~near, -math.inf)

    def dropout(self, weights: Tensor, chunk: _Chunk) -> Tensor | None:
        """Returns the dropout factors of a chunk, 1/(1 − p) or 0, reproducible from the seed and the chunk."""
        if not self.dropout_prob:
            return None
        return dropout_factors(weights, self.dropout_prob, seeded(self.seed, chunk.number, weights.device))


@dataclass(frozen=True)
class _Chunk:
    heads: slice
    queries: slice
    keys: slice
    number: int


def _forward(query: Tensor, *rest) -> Tensor:  # type: ignore[no-untyped-def]
    problem = _Problem.of(query, *rest)
    result = torch.zeros_like(problem.query, memory_format=torch.contiguous_format)
    if problem.query.numel() and problem.key.numel():
        with full_precision(query):
            for chunk in problem.chunks():
                weights = problem.weights(chunk)
                dropout = problem.dropout(weights, chunk)
                weights = weights if dropout is None else weights.mul_(dropout)
                result[chunk.heads, chunk.queries] = weights @ problem.value[chunk.heads, chunk.keys]
                del weights, dropout  # free memory before the next chunk
    return result.view(query.shape).to(query.dtype)


def _backward(grad: Tensor, query: Tensor, *rest) -> list[Tensor]:  # type: ignore[no-untyped-def]
    """Returns the gradients of query, key and value."""
    problem = _Problem.of(query, *rest)
    upstream = grad.to(problem.query.dtype).flatten(0, 1)
    grads = [torch.zeros_like(tensor) for tensor in (problem.query, problem.key, problem.value)]
    if problem.query.numel() and problem.key.numel():
        with full_precision(query):
            for chunk in problem.chunks():
                _backward_chunk(problem, chunk, upstream, grads)
    inputs = (query, *rest[:2])
    return [tensor.view(like.shape).to(like.dtype).contiguous() for tensor, like in zip(grads, inputs, strict=True)]


def _backward_chunk(problem: _Problem, chunk: _Chunk, upstream: Tensor, grads: list[Tensor]) -> None:
    """Adds the contribution of a chunk to the gradients of queries, keys and values.

    With weights P, outputs O = PV: dV = PᵀdO, dP = dO Vᵀ, dS = P∘(dP − rowsum(P∘dP)), dQ = dS K, dK = dSᵀQ.
    """
    heads, rows, keys = chunk.heads, chunk.queries, chunk.keys
    weights, own = problem.weights(chunk), upstream[heads, rows]
    dropout = problem.dropout(weights, chunk)
    scores, used = softmax_gradient(own @ problem.value[heads, keys].transpose(1, 2), weights, dropout)
    grads[2][heads, keys] += used.transpose(1, 2) @ own
    scores.mul_(problem.query.shape[-1] ** -0.5)
    grads[0][heads, rows] = scores @ problem.key[heads, keys]
    grads[1][heads, keys] += scores.transpose(1, 2) @ problem.query[heads, rows]


ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? key_mask, Tensor? seed, int top_k, float top_fraction, "
    "bool local, bool causal, float dropout_prob"
)
"""The schema of the operator, which is opaque to `torch.compile` and `torch.export`."""

top_attention = torch.library.custom_op(
    "longspan::top_attention", _forward, mutates_args=(), schema=f"({ARGUMENTS}) -> Tensor"
)
top_attention_backward = torch.library.custom_op(
    "longspan::top_attention_backward", _backward, mutates_args=(), schema=f"(Tensor grad, {ARGUMENTS}) -> Tensor[]"
)


@top_attention.register_fake
def _(query, *rest):  # type: ignore[no-untyped-def]
    return query.new_empty(query.shape)


@top_attention_backward.register_fake
def _(grad, query, key, value, *rest):  # type: ignore[no-untyped-def]
    return [tensor.new_empty(tensor.shape) for tensor in (query, key, value)]


register_gradient(top_attention, top_attention_backward, tensors=5)
