"""The blocked backend as one PyTorch operator, opaque to `torch.compile` and `torch.export`, with its gradient.

It handles what the tiles of `longspan.ops.tiles.blocked` do not support: patterns per head, dilation, and the rows of
global tokens, which are a separate call. A pattern is passed as its text where the operator requires one: for
gradients, where text and pattern are looked up in tables, and in compiled graphs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from longspan.ops.attend.call import Call, by_length, gather_slots, joined, put_slots
from longspan.ops.attend.reference import column_terms, row_terms, trains_short
from longspan.ops.attend.terms import Bias, GlobalKeyBias, Term, of_heads, pack, unpack
from longspan.ops.runtime import cached
from longspan.ops.tiles.blocked import near_keys
from longspan.ops.tiles.layout import best_layout, least_cost
from longspan.ops.tiles.split import Apart, has_sets, split
from longspan.patterns import Full, Pattern, parse
from longspan.patterns.text import known_text_of, text_of

ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor[] terms, Tensor? key_mask, Tensor? slots, Tensor? seed, "
    "str kinds, SymInt[] offsets, str pattern, float scale, float dropout_prob"
)
"""Schema of the operator: a call without global rows, with terms packed by `longspan.ops.attend.terms.pack`. `offsets`
are the position of the first query, then the offset of the first row of each term's table."""


SCORE_COST, TILE_COST, APART_COST, CALL_COST = 1.4, 180, 500, 40_000
"""Cost of tiles in pairs of the dense kernel: per score, per query with one or two sets of keys, and per call; fitted
to windows and two-set patterns of 256 to 1,024 tokens."""
MIXED_COST = 1 / 0.3
"""The cost per score where heads have separate tiles, or with global keys and rows."""


def blocked_cost(call: Call) -> float:
    """Returns the cost of tiles per head, in pairs of the dense kernel."""
    if call.terms and trains_short(call):
        return math.inf  # tiles would recompute what autograd keeps
    queries, keys = call.query.shape[2], call.key.shape[2]
    sizes = (call.pattern, queries, keys, call.query_offset)
    if not call.terms and ((call.pattern.heads or 1) > 1 or call.slots is not None):
        extra = call.global_keys * (queries + call.global_rows * keys)
        return MIXED_COST * (_tiles_of_heads(*sizes) + extra)
    scores = best_layout(*sizes, call.query.device).scores
    if call.terms:
        return SCORE_COST * (scores + call.global_keys * queries) + TILE_COST * queries
    fixed = APART_COST if call.pattern.near_far() and call.is_square else TILE_COST
    return SCORE_COST * scores + fixed * queries + CALL_COST


@cached
def _tiles_of_heads(pattern: Pattern, queries: int, keys: int, query_offset: int) -> float:
    """Returns the average cost of a head's tiles."""
    patterns = [pattern.head(index) for index in range(pattern.heads or 1)]
    costs = {head_pattern: least_cost(head_pattern, queries, keys, query_offset) for head_pattern in set(patterns)}
    return sum(costs[head_pattern] for head_pattern in patterns) / len(patterns)


def attend_blocked(call: Call, forward: Callable[[Call], Tensor] | None = None) -> Tensor:
    """Computes attention `(B, H, T, Dv)` of a call over the tiles of its pattern, in linear memory, with gradients.

    Args:
        forward: computes the forward pass instead of tiles, without global rows, in a call without dropout.
    """
    columns = column_terms(call) if call.terms and call.slots is not None else None
    # Biases of global keys are merged into one; the other terms are for near keys.
    near = [term for term in call.terms if not isinstance(term, GlobalKeyBias)]
    terms: list[Term] = [Bias(term.values, globals=False) if isinstance(term, Bias) else term for term in near]
    terms += [] if columns is None else [GlobalKeyBias(columns)]
    if forward is None:
        result = _operate(call, call.query, terms, call.slots, call.pattern, call.query_offset)
    else:
        tensors, kinds, firsts = pack(terms)
        options = (kinds, [call.query_offset, *firsts], known_text_of(call.pattern), call.scale, 0.0)
        masks = (call.key_mask, call.slots, None)
        result = _ByTiles.apply(forward, options, call.query, call.key, call.value, *masks, *tensors)
    if not call.global_rows or call.slots is None:
        return result
    bias = row_terms(call) if call.terms else None
    rows = gather_slots(call.query, call.slots)
    rows = _operate(call, rows, [] if bias is None else [Bias(bias)], None, Full(), 0)
    return put_slots(result, rows, call.slots)


def _operate(
    call: Call, query: Tensor, terms: Sequence[Term], slots: Tensor | None, pattern: Pattern, query_offset: int
) -> Tensor:
    """Computes some queries with the operator, or directly with its kernel if there are neither gradients nor a
    graph."""
    seed = torch.randint(2**62, (), dtype=torch.int64) if call.dropout_prob else None
    compiling = torch.compiler.is_compiling()
    if not (compiling or torch.is_grad_enabled()):
        unpacked = unpack(*pack(terms)) if terms else ()
        options = {"query_offset": query_offset, "seed": 0 if seed is None else int(seed)}
        return _computed(
            replace(call, query=query, pattern=pattern, terms=unpacked, slots=slots, global_rows=False, **options)
        )
    tensors, kinds, firsts = pack(terms)
    inputs = (query, call.key, call.value, tensors, call.key_mask, slots, seed)
    text = text_of(pattern) if compiling else known_text_of(pattern)
    options = (kinds, [query_offset, *firsts], text, call.scale, call.dropout_prob)
    if not compiling and not terms and has_sets(call.pattern):
        return attention_with_logs(*inputs, *options)[0]
    return blocked_attention(*inputs, *options)


def blocked_kernel(*arguments) -> Tensor:  # type: ignore[no-untyped-def]
    """`(B, H, T, D)`, `(B, H, S, D)`, `(B, H, S, Dv)` → `(B, H, T, Dv)`; the arguments are `ARGUMENTS`."""
    # Tokens before heads in memory, as the operator declares and the output projection reads them.
    return _computed(call_of(*arguments)).transpose(1, 2).contiguous().transpose(1, 2)


def _computed(call: Call) -> Tensor:
    return joined(_near_parts(call), _output)


def _near_parts(call: Call) -> list[tuple[Tensor | None, Call]]:
    """Splits the call into rows of one pattern, with masks of near keys."""
    return [(rows, near_keys(part)) for rows, part in by_length(call)]


def _output(call: Call) -> Tensor:
    """Computes `blocked_kernel` for rows of one pattern."""
    query, value = call.query, call.value
    if not query.shape[:3].numel() or not value.shape[2]:
        return query.new_zeros(*query.shape[:-1], value.shape[-1])
    parts = [(heads, part.output()) for heads, part in split(call)]
    if len(parts) == 1:
        return parts[0][1]
    result = query.new_empty(*query.shape[:-1], value.shape[-1])
    for heads, output in parts:
        result[:, heads] = output
    return result


def _kernel_with_logs(*arguments) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
    """As `blocked_kernel`, and returns the log-sum-exp `(B, H, T, 1)` where sets of keys are computed separately,
    otherwise zeros."""
    ((_, call),) = _near_parts(call_of(*arguments))
    query, value = call.query, call.value
    result = query.new_zeros(*query.shape[:-1], value.shape[-1])
    logs = query.new_zeros(*query.shape[:-1], 1, dtype=torch.promote_types(query.dtype, torch.float32))
    for heads, part in split(call) if query.shape[:3].numel() and value.shape[2] else []:
        if isinstance(part, Apart):
            result[:, heads], logs[:, heads] = part.output_with_logs()
        else:
            result[:, heads] = part.output()
    return result, logs


attention_with_logs = torch.library.custom_op(
    "longspan::attention_with_logs", _kernel_with_logs, mutates_args=(), schema=f"({ARGUMENTS}) -> (Tensor, Tensor)"
)
"""Used in training with separate sets of keys: the saved results need not be recomputed in the backward pass."""


@attention_with_logs.register_fake
def _(query, key, value, *rest):  # type: ignore[no-untyped-def]
    logs = query.new_empty(*query.shape[:-1], 1, dtype=torch.promote_types(query.dtype, torch.float32))
    return query.new_empty(*query.shape[:-1], value.shape[-1]), logs


blocked_attention = torch.library.custom_op(
    "longspan::blocked_attention", blocked_kernel, mutates_args=(), schema=f"({ARGUMENTS}) -> Tensor"
)


@blocked_attention.register_fake
def _(query, key, value, *rest):  # type: ignore[no-untyped-def]
    batch, heads, queries, _ = query.shape
    return query.new_empty(batch, queries, heads, value.shape[-1]).transpose(1, 2)


def _backward_kernel(  # type: ignore[no-untyped-def]
    grad: Tensor, saved: list[Tensor], wanted: list[bool], *arguments
) -> list[Tensor]:
    """Returns the gradients of query, key, value, and the wanted tensors of the terms (otherwise empty); `saved` is the
    result and its log-sum-exp, or empty."""
    whole = call_of(*arguments)
    parts = _near_parts(whole)
    if len(parts) == 1:
        return _part_gradients(parts[0][1], grad, saved, wanted)
    grads = _zeros(wanted, *arguments)
    terms = [term.has_rows for term in whole.terms for _ in term.tensors]
    for rows, call in parts:
        assert rows is not None
        grad_rows, saved_rows = grad.index_select(0, rows), [tensor.index_select(0, rows) for tensor in saved]
        part = _part_gradients(call, grad_rows, saved_rows, wanted)
        for total, grad_part, by_row in zip(grads, part, [True] * 3 + terms, strict=True):
            if total.numel():
                _ = total.index_add_(0, rows, grad_part) if by_row and len(total) > 1 else total.add_(grad_part)
    return grads


def _part_gradients(call: Call, grad: Tensor, saved: list[Tensor], wanted: list[bool]) -> list[Tensor]:
    """Computes `_backward_kernel` for rows of one pattern."""
    inputs = (call.query, call.key, call.value, [tensor for term in call.terms for tensor in term.tensors])
    parts = split(call) if call.query.shape[:3].numel() and call.value.shape[2] else []
    grads: list[Tensor] = []
    for heads, each in parts:
        part = each.gradients(grad[:, heads], wanted, (saved[0][:, heads], saved[1][:, heads]) if saved else None)
        if len(parts) == 1:
            return [each.contiguous() for each in part]
        grads = grads or _zeros(wanted, *inputs)
        for total, own in zip(grads[:3], part[:3], strict=True):
            total[:, heads] = own
        axes = [term.head_axis for term in call.terms for _ in term.tensors]
        for total, own, axis in zip(grads[3:], part[3:], axes, strict=True):
            if total.numel():
                total[of_heads(total, heads, axis)] += own
    return grads or _zeros(wanted, *inputs)


def _zeros(wanted: list[bool], query: Tensor, key: Tensor, value: Tensor, terms: list[Tensor], *_) -> list[Tensor]:  # type: ignore[no-untyped-def]
    """Returns zero gradients."""
    inputs = [torch.zeros_like(tensor, memory_format=torch.contiguous_format) for tensor in (query, key, value)]
    return inputs + [
        torch.zeros_like(tensor) if need else tensor.new_empty(0) for tensor, need in zip(terms, wanted, strict=True)
    ]


blocked_attention_backward = torch.library.custom_op(
    "longspan::blocked_attention_backward",
    _backward_kernel,
    mutates_args=(),
    schema=f"(Tensor grad, Tensor[] saved, bool[] wanted, {ARGUMENTS}) -> Tensor[]",
)


@blocked_attention_backward.register_fake
def _(grad, saved, wanted, query, key, value, terms, *rest):  # type: ignore[no-untyped-def]
    # Contiguous, as the operator returns them: compiled code relies on these strides.
    inputs = [tensor.new_empty(tensor.shape) for tensor in (query, key, value)]
    return inputs + [tensor.new_empty(tensor.shape if need else 0) for tensor, need in zip(terms, wanted, strict=True)]


def _setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
    query, key, value, terms, *masks = inputs[:7]
    ctx.save_for_backward(query, key, value, *masks, *terms)
    ctx.options = inputs[7:]


def _gradient(ctx, grad):  # type: ignore[no-untyped-def]
    return _gradients(ctx, grad, [], *ctx.saved_tensors)  # gradient checkpointing allows reading them once


def _setup_with_logs(ctx, inputs, output):  # type: ignore[no-untyped-def]
    query, key, value, terms, *masks = inputs[:7]
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*output, query, key, value, *masks, *terms)
    ctx.options = inputs[7:]


def _gradient_with_logs(ctx, grad, _):  # type: ignore[no-untyped-def]
    result, logs, *inputs = ctx.saved_tensors
    return _gradients(ctx, grad, [result, logs], *inputs)


def _gradients(ctx, grad, saved, query, key, value, *rest):  # type: ignore[no-untyped-def]
    wanted = list(ctx.needs_input_grad[3])
    inputs = (query, key, value, rest[3:], *rest[:3])
    grads = blocked_attention_backward(grad.contiguous(), saved, wanted, *inputs, *ctx.options)
    terms = [grad_term if need else None for grad_term, need in zip(grads[3:], wanted, strict=True)]
    return *grads[:3], terms, *([None] * 8)


blocked_attention.register_autograd(_gradient, setup_context=_setup_context)
attention_with_logs.register_autograd(_gradient_with_logs, setup_context=_setup_with_logs)


class _ByTiles(torch.autograd.Function):
    """A forward pass of another backend, with the gradients of `blocked_attention`."""

    @staticmethod
    def forward(ctx: Any, forward: Callable[[Call], Tensor], options: Any, *tensors: Any) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.options, ctx.needs_terms = options, ctx.needs_input_grad[8:]
        query, key, value, *masks = (None if tensor is None else tensor.detach() for tensor in tensors[:6])
        return forward(call_of(query, key, value, [tensor.detach() for tensor in tensors[6:]], *masks, *options))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, value, key_mask, slots, seed, *terms = ctx.saved_tensors
        wanted = list(ctx.needs_terms)
        inputs = (query, key, value, terms, key_mask, slots, seed)
        grads = blocked_attention_backward(grad.contiguous(), [], wanted, *inputs, *ctx.options)
        return (
            None,
            None,
            *grads[:3],
            None,
            None,
            None,
            *(each if need else None for each, need in zip(grads[3:], wanted, strict=True)),
        )


def call_of(query, key, value, terms, key_mask, slots, seed, kinds, offsets, pattern, scale, prob) -> Call:  # type: ignore[no-untyped-def]
    """Returns the call of these `ARGUMENTS`, with the pattern parsed from text."""
    unpacked, number = unpack(terms, kinds, offsets[1:]), 0 if seed is None else int(seed)
    return Call(query, key, value, parse(pattern), scale, unpacked, key_mask, slots, False, prob, offsets[0], number)
