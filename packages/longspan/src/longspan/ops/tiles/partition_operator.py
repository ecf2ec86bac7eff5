"""Attention over a binary tree of spans as one PyTorch operator: tokens read surrounding nodes, spans read their
tokens.

Tokens are processed in chunks, each with the nodes that any of its tokens reads; spans level by level, by a softmax
over each segment. The backward pass recomputes the weights, so that memory is linear in the length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from longspan.ops.attend.reference import full_precision
from longspan.ops.runtime import (
    SIZES,
    dropout_factors,
    needs_reference,
    register_gradient,
    run,
    seeded,
    softmax_gradient,
)
from longspan.ops.tiles.partition import Partition, level_count


def attend_partition(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor,
    tree: Partition,
    *,
    counts: Tensor | None = None,
    dropout_prob: float = 0.0,
) -> Tensor:
    """Computes `softmax((q·k + q·a_label) / √D) v` over the nodes that each node reads: `(B, H, N, D)` → `(B, H, N,
    D)`.

    A token reads itself and the nodes of `Partition.windows`; a span reads its tokens. All edges into a span share one
    label, which adds a constant to its scores and so has no effect.

    Args:
        query, key, value: `(B, H, N, D)`, nodes in the order of the tree.
        table: `(labels, D)`, the vectors a.
        tree: the tree over the tokens of the longest row.
        counts: `(B,)` int64, tokens of each row, at its start; `None` means all.
        dropout_prob: probability of dropping an attention weight.

    Returns:
        Zeros for spans that do not exist in a row, and finite values for padding tokens.
    """
    if needs_reference(query, key, value, table):
        return attend_partition_reference(query, key, value, table, tree, counts=counts, dropout_prob=dropout_prob)
    seed = torch.randint(2**62, (), dtype=torch.int64) if dropout_prob else None
    options = (tree.tokens, tree.levels, tree.neighbours, tree.clip, tree.causal, tree.spare, dropout_prob)
    return run(partition_attention, _forward, query, key, value, table, counts, seed, *options)


def attend_partition_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor,
    tree: Partition,
    *,
    counts: Tensor | None = None,
    dropout_prob: float = 0.0,
) -> Tensor:
    """The same over a matrix of all pairs of nodes; for short texts, transforms, and programs that leave PyTorch."""
    wide = torch.promote_types(query.dtype, torch.float32)
    labels = dense_labels(tree, query.device)
    with full_precision(query):
        scaled = query.to(wide) * query.shape[-1] ** -0.5
        biases = functional.pad(scaled @ table.to(wide)[tree.label_rows(query.device)].T, (0, 1))
        scores = scaled @ key.to(wide).transpose(-1, -2)
        scores = scores + biases.gather(-1, labels.expand(scores.shape))
        seen = labels < tree.unread
        if counts is not None:
            _, starts = tree.node_starts(query.device)
            own = torch.eye(tree.nodes, dtype=torch.bool, device=query.device)
            seen = seen & ((starts < counts[:, None])[:, None, None, :] | own)
        scores = scores.masked_fill(~seen, torch.finfo(wide).min)
        weights = functional.dropout(scores.softmax(-1).masked_fill(~seen, 0), dropout_prob)
        return (weights @ value.to(wide)).to(value.dtype)


def dense_labels(tree: Partition, device: torch.device) -> Tensor:
    """Returns the label of the edge from each node to each reader, `(N, N)` int64, readers first, as in
    `Partition.windows`; 0 for edges into spans, where labels have no effect."""
    numbers, labels, _ = tree.windows(0, 1, tree.tokens, device)
    level, start = tree.node_starts(device)
    # A node may occur twice among those that tokens read; the smaller label belongs to an edge.
    dense = torch.full((tree.tokens, tree.nodes), tree.unread, dtype=torch.int64, device=device)
    dense = dense.scatter_reduce(1, numbers.expand(tree.tokens, -1), labels[0], "amin")
    token = torch.arange(tree.nodes, device=device)
    covered = (token >= start[:, None]) & (token < (start + (1 << level))[:, None]) & (token < tree.tokens)
    return torch.cat([dense, torch.where(covered, 0, tree.unread)[tree.tokens :]])


@dataclass(frozen=True)
class _Chunk:
    """Several chunks of tokens, those from `first` on, `(n, size)`, and what they read, as returned by
    `Partition.windows`."""

    first: int
    count: int
    size: int
    numbers: Tensor
    labels: Tensor
    begins: Tensor
    number: int

    def rows(self, hidden: Tensor) -> Tensor:
        """Returns the tokens of `(B, H, N, D)`, `(B, H, n, size, D)`."""
        last = self.first + self.count * self.size
        return hidden[:, :, self.first : last].unflatten(2, (self.count, self.size))

    def columns(self, hidden: Tensor) -> Tensor:
        """Returns the nodes that they read, `(B, H, n, C, D)`."""
        return hidden.index_select(2, self.numbers.flatten()).unflatten(2, tuple(self.numbers.shape))


@dataclass(frozen=True)
class _Segments:
    """Spans of one level, starting at index `first`, and their tokens, starting at `token`, `size` of each."""

    first: int
    count: int
    token: int
    size: int
    number: int

    def spans(self, hidden: Tensor) -> Tensor:
        """Returns the spans of `(B, H, N, D)`, `(B, H, m, D)`."""
        return hidden[:, :, self.first : self.first + self.count]

    def tokens(self, hidden: Tensor) -> Tensor:
        """Returns the tokens of `(B, H, N, D)`, `(B, H, m, size, D)`."""
        return hidden[:, :, self.token : self.token + self.count * self.size].unflatten(2, (self.count, self.size))


class _Problem:
    """The arguments of one pass, in float32 or wider, with scaled queries."""

    def __init__(  # type: ignore[no-untyped-def]
        self, query, key, value, table, counts, seed, tokens, levels, neighbours, clip, causal, spare, dropout_prob
    ) -> None:
        wide = torch.promote_types(query.dtype, torch.float32)
        self.scale = query.shape[-1] ** -0.5
        self.query = query.to(wide) * self.scale
        self.key, self.value, self.table = key.to(wide), value.to(wide), table.to(wide)
        self.counts = counts
        self.seed = 0 if seed is None else int(seed)
        self.dropout_prob = dropout_prob
        self.tree = Partition(tokens, levels, neighbours, clip, causal, spare)
        self.label_rows = self.tree.label_rows(query.device)
        self.used = self.table[self.label_rows]

    def chunks(self) -> Iterator[_Chunk]:
        """Yields the tokens in chunks about as long as a level has neighbours, several at once if they are short."""
        tree, device, number = self.tree, self.query.device, 0
        reach = tree.neighbours
        size = max(16, min(128, 1 << (reach - 1).bit_length()))
        columns = 4 * size + (1 if tree.causal else 2) * reach * level_count(tree.tokens // reach)
        most = SIZES[self.query.is_cuda].tree_scores
        together = max(1, most // (self.query.shape[0] * self.query.shape[1] * size * columns))
        many = max(together, most // (size * columns))
        whole = tree.tokens // size
        groups = [(first * size, min(many, whole - first), size) for first in range(0, whole, many)]
        rest = [(whole * size, 1, tree.tokens - whole * size)] if tree.tokens > whole * size else []
        for first, count, length in groups + rest:
            numbers, labels, begins = tree.windows(first, count, length, device)
            for start in range(0, count, together):
                part = slice(start, min(start + together, count))
                yield _Chunk(
                    first + start * length, part.stop - start, length, numbers[part], labels[part], begins[part], number
                )
                number += 1

    def segments(self) -> Iterator[_Segments]:
        """Yields the spans of every level above the tokens: the full ones, then the partial one."""
        tree = self.tree
        for level in range(1, tree.levels):
            size, first, number = 1 << level, tree.offsets[level], -2 * level
            whole, rest = divmod(tree.tokens, size)
            if whole:
                yield _Segments(first, whole, 0, size, number)
            if rest:
                yield _Segments(first + whole, 1, whole * size, rest, number - 1)

    def weights(self, chunk: _Chunk, query: Tensor, keys: Tensor) -> Tensor:
        """Returns the weights of the tokens of a chunk for surrounding nodes, `(B, H, n, size, C)`, before dropout."""
        biases = functional.pad(query @ self.used.T, (0, 1), value=-math.inf)
        scores = query @ keys.transpose(-1, -2)
        scores += biases.gather(-1, chunk.labels.expand(scores.shape))
        if self.counts is not None:
            beyond = chunk.begins >= self.counts[:, None, None]
            scores.masked_fill_((beyond[:, :, None, :] & (chunk.labels > 0))[:, None], -math.inf)
        return torch.softmax(scores, -1)

    def segment_weights(self, segments: _Segments, query: Tensor, keys: Tensor) -> Tensor:
        """Returns the weights of spans `(B, H, m, D)` for their tokens, `(B, H, m, size)`, before dropout."""
        scores = _dots(query, keys)
        if self.counts is None:
            return torch.softmax(scores, -1)
        last = segments.token + segments.count * segments.size
        token = torch.arange(segments.token, last, device=query.device).view(segments.count, segments.size)
        beyond = (token >= self.counts[:, None, None])[:, None]
        scores.masked_fill_(beyond, torch.finfo(scores.dtype).min)
        return torch.softmax(scores, -1).masked_fill_(beyond, 0)

    def dropout(self, weights: Tensor, number: int) -> Tensor | None:
        """Returns dropout factors of part `number` of the work, reproducible in the backward pass."""
        if not self.dropout_prob:
            return None
        return dropout_factors(weights, self.dropout_prob, seeded(self.seed, number, weights.device))


def _dots(single: Tensor, several: Tensor) -> Tensor:
    """`(B, H, m, D)` and `(B, H, m, s, D)` → dot products, `(B, H, m, s)`."""
    return (single[..., None, :] * several).sum(-1)


def _mixed(weights: Tensor, several: Tensor) -> Tensor:
    """`(B, H, m, s)` and `(B, H, m, s, D)` → weighted sums over s, `(B, H, m, D)`."""
    return (weights[..., None] * several).sum(-2)


def _forward(query: Tensor, key: Tensor, value: Tensor, *rest) -> Tensor:  # type: ignore[no-untyped-def]
    problem = _Problem(query, key, value, *rest)
    result = torch.zeros_like(problem.value, memory_format=torch.contiguous_format)
    with full_precision(query):
        for chunk in problem.chunks() if query.numel() else ():
            weights = problem.weights(chunk, chunk.rows(problem.query), chunk.columns(problem.key))
            dropout = problem.dropout(weights, chunk.number)
            weights = weights if dropout is None else weights.mul_(dropout)
            chunk.rows(result).copy_(weights @ chunk.columns(problem.value))
        for segments in problem.segments() if query.numel() else ():
            weights = problem.segment_weights(segments, segments.spans(problem.query), segments.tokens(problem.key))
            dropout = problem.dropout(weights, segments.number)
            weights = weights if dropout is None else weights.mul_(dropout)
            segments.spans(result).copy_(_mixed(weights, segments.tokens(problem.value)))
    return result.to(value.dtype)


def _backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, table: Tensor, *rest) -> list[Tensor]:  # type: ignore[no-untyped-def]
    """Returns the gradients of queries, keys, values and the table.

    With weights P, outputs O = PV: dV = PᵀdO, dP = dO Vᵀ, dS = P∘(dP − rowsum(P∘dP)), dQ = dS K, dK = dSᵀQ, and with
    dB, the sums of dS over edges of equal label: dQ += dB a, da = dBᵀQ.
    """
    problem = _Problem(query, key, value, table, *rest)
    upstream = grad.to(problem.query.dtype)
    grads = [
        torch.zeros_like(tensor, memory_format=torch.contiguous_format)
        for tensor in (problem.query, problem.key, problem.value, problem.table)
    ]
    with full_precision(query):
        for chunk in problem.chunks() if query.numel() else ():
            _backward_chunk(problem, chunk, upstream, grads)
        for each in problem.segments() if query.numel() else ():
            _backward_segments(problem, each, upstream, grads)
    grads[0].mul_(problem.scale)
    inputs = (query, key, value, table)
    return [each.to(like.dtype) for each, like in zip(grads, inputs, strict=True)]


def _backward_chunk(problem: _Problem, chunk: _Chunk, upstream: Tensor, grads: list[Tensor]) -> None:
    """Adds the contribution of some chunks of tokens to the gradients."""
    query, keys, grad = chunk.rows(problem.query), chunk.columns(problem.key), chunk.rows(upstream)
    weights = problem.weights(chunk, query, keys)
    dropout = problem.dropout(weights, chunk.number)
    slopes, used = softmax_gradient(grad @ chunk.columns(problem.value).transpose(-1, -2), weights, dropout)
    numbers = chunk.numbers.flatten()
    grads[2].index_add_(2, numbers, (used.transpose(-1, -2) @ grad).flatten(2, 3))
    by_label = slopes.new_zeros(*slopes.shape[:-1], len(problem.used) + 1)
    by_label.scatter_add_(-1, chunk.labels.expand(slopes.shape), slopes)
    by_label = by_label[..., :-1]
    chunk.rows(grads[0]).add_(slopes @ keys).add_(by_label @ problem.used)
    grads[1].index_add_(2, numbers, (slopes.transpose(-1, -2) @ query).flatten(2, 3))
    grads[3].index_add_(0, problem.label_rows, by_label.flatten(0, -2).T @ query.flatten(0, -2))


def _backward_segments(problem: _Problem, segments: _Segments, upstream: Tensor, grads: list[Tensor]) -> None:
    """Adds the contribution of the spans of a level to the gradients."""
    query, keys, values, grad = (
        segments.spans(problem.query),
        segments.tokens(problem.key),
        segments.tokens(problem.value),
        segments.spans(upstream),
    )
    weights = problem.segment_weights(segments, query, keys)
    dropout = problem.dropout(weights, segments.number)
    slopes, used = softmax_gradient(_dots(grad, values), weights, dropout)
    segments.tokens(grads[2]).addcmul_(used[..., None], grad[..., None, :])
    segments.spans(grads[0]).add_(_mixed(slopes, keys))
    segments.tokens(grads[1]).addcmul_(slopes[..., None], query[..., None, :])


ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor table, Tensor? counts, Tensor? seed, SymInt tokens, int levels, "
    "int neighbours, int clip, bool causal, int spare, float dropout_prob"
)
"""The schema of the operator, which is opaque to `torch.compile` and `torch.export`."""

partition_attention = torch.library.custom_op(
    "longspan::partition_attention", _forward, mutates_args=(), schema=f"({ARGUMENTS}) -> Tensor"
)
partition_attention_backward = torch.library.custom_op(
    "longspan::partition_attention_backward",
    _backward,
    mutates_args=(),
    schema=f"(Tensor grad, {ARGUMENTS}) -> Tensor[]",
)


@partition_attention.register_fake
def _(query, key, value, *rest):  # type: ignore[no-untyped-def]
    return value.new_empty(value.shape)


@partition_attention_backward.register_fake
def _(grad, query, key, value, table, *rest):  # type: ignore[no-untyped-def]
    return [tensor.new_empty(tensor.shape) for tensor in (query, key, value, table)]


register_gradient(partition_attention, partition_attention_backward, tensors=6)
