"""CUDA's attention kernels for `fake_cuda`: the same results, computed on the CPU.

PyTorch's kernels are operators that exist only for CUDA; FlexAttention is a custom operator defined here, whose mask is
passed by number. All functions take and return plain tensors; tensors on `meta` give tensors on `meta`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from counted import FLOPS

aten = torch.ops.aten


def scores_of(query: Tensor, key: Tensor, bias: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    """Returns scores `(B, H, T, S)`, float32 or wider."""
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(wide) @ key.to(wide).mT * scale
    scores = scores if bias is None else scores + bias
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return scores


def _drawn(like: Tensor, prob: float, seed: Tensor | int) -> Tensor | float:
    """Returns dropout factors, reproducible from the seed."""
    if not prob:
        return 1.0
    generator = torch.Generator().manual_seed(int(seed))
    return torch.empty_like(like).bernoulli_(1 - prob, generator=generator).div_(1 - prob)


def _mixed(scores: Tensor, value: Tensor, prob: float = 0.0, seed: Tensor | int = 0) -> Tensor:
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    weights = weights * _drawn(weights, prob, seed)
    return (weights @ value.to(weights.dtype)).to(value.dtype)


def _gradients(
    grad: Tensor, scores: Tensor, query: Tensor, key: Tensor, value: Tensor, scale: float, prob: float, seed: Any
) -> tuple[Tensor, ...]:
    """Returns the gradients of query, key, value and scores."""
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    wide, drawn = weights.dtype, _drawn(weights, prob, seed)
    slopes = grad.to(wide) @ value.to(wide).mT * drawn
    slopes = weights * (slopes - (slopes * weights).sum(-1, keepdim=True))
    to_value = (weights * drawn).mT @ grad.to(wide)
    grads = slopes @ key.to(wide) * scale, slopes.mT @ query.to(wide) * scale, to_value, slopes
    return tuple(each.to(query.dtype) for each in grads)


def _forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, prob: float, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns contexts `(B, H, T, Dv)` in the memory layout of CUDA's kernels, tokens before heads; the log-sum-exp,
    which is not read here; and the seed of dropout."""
    batch, heads, length, depth = query.shape
    seed = torch.randint(2**31, ()) if prob else torch.zeros((), dtype=torch.int64)
    context = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
    if not query.is_meta:
        context.copy_(_mixed(scores_of(query, key, bias, causal, scale or depth**-0.5), value, prob, seed))
    return context, query.new_empty(query.shape[:-1], dtype=torch.float32), seed


def _backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Any, prob: float, causal: bool, scale: Any, seed: Any
) -> tuple[Tensor, ...]:
    if query.is_meta:
        inputs = tuple(torch.empty_like(each) for each in (query, key, value))
        return *inputs, query.new_empty(*query.shape[:-1], key.shape[2])
    scale = scale or query.shape[-1] ** -0.5
    return _gradients(grad, scores_of(query, key, bias, causal, scale), query, key, value, scale, prob, seed)


def _flash(query, key, value, prob=0.0, causal=False, debug=False, *, scale=None):  # type: ignore[no-untyped-def]
    context, logs, seed = _forward(query, key, value, None, prob, causal, scale)
    return context, logs, None, None, query.shape[2], key.shape[2], seed, torch.empty(0), torch.empty(0)


def _flash_backward(  # type: ignore[no-untyped-def]
    grad, query, key, value, out, logs, ends, other_ends, queries, keys, prob, causal, seed, offset, *, scale=None
):
    return _backward(grad, query, key, value, None, prob, causal, scale, seed)[:3]


def _efficient(query, key, value, bias, logged, prob=0.0, causal=False, *, scale=None):  # type: ignore[no-untyped-def]
    context, logs, seed = _forward(query, key, value, bias, prob, causal, scale)
    return context, logs, seed, torch.zeros((), dtype=torch.int64)


def _efficient_backward(  # type: ignore[no-untyped-def]
    grad, query, key, value, bias, out, logs, seed, offset, prob, wanted, causal=False, *, scale=None
):
    grads = _backward(grad, query, key, value, bias, prob, causal, scale, seed)
    return *grads[:3], grads[3] if wanted[3] else None


def _packed_scores(query: Tensor, key: Tensor, ends: Tensor, scale: float, window: list[int]) -> Tensor:
    """Returns scores `(1, H, T, S)` of packed rows `(T, H, D)` with these ends: −∞ outside of the window."""
    place = torch.arange(len(query))
    row = torch.bucketize(place, ends[1:], right=True)
    offset = place - place[:, None]
    shown = (row == row[:, None]) & (offset >= -window[0]) & (offset <= window[1])
    query, key = (each.transpose(0, 1)[None] for each in (query, key))
    return scores_of(query, key, None, False, scale).masked_fill(~shown, -math.inf)


def _windowed(query, key, value, ends, key_ends, queries, keys, causal, scale, window, *options):  # type: ignore[no-untyped-def]
    context, logs = torch.empty_like(query), query.new_empty(query.shape[1::-1], dtype=torch.float32)
    if not query.is_meta:
        scores = _packed_scores(query, key, ends, scale or query.shape[-1] ** -0.5, window)
        context.copy_(_mixed(scores, value.transpose(0, 1)[None])[0].transpose(0, 1))
    return context, logs, query.new_empty(2, dtype=torch.int64)


def _windowed_backward(  # type: ignore[no-untyped-def]
    grad, query, key, value, out, logs, ends, key_ends, queries, keys, causal, state, scale, window
):
    if query.is_meta:
        return tuple(torch.empty_like(each) for each in (query, key, value))
    scale = scale or query.shape[-1] ** -0.5
    grad, *inputs = (each.transpose(0, 1)[None] for each in (grad, query, key, value))
    grads = _gradients(grad, _packed_scores(query, key, ends, scale, window), *inputs, scale, 0.0, 0)
    return tuple(each[0].transpose(0, 1) for each in grads[:3])


def _packed_pairs(query: Tensor, ends: Tensor, length: int, window: list[int]) -> int:
    """Returns the pairs of all heads that FlashAttention computes: blocks of 128 queries with the surrounding blocks of
    keys."""
    blocks = range(0, length, 128)
    last = [min(length, min(length, each + 128) + window[1]) for each in blocks]
    first = [max(0, each - window[0]) for each in blocks]
    keys = sum(-(-end // 128) * 128 - start // 128 * 128 for start, end in zip(first, last, strict=True))
    return 128 * keys * query.shape[1] * (len(ends) - 1)


def _product(left: Tensor, right: Tensor, out_dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    """Matrix product of half-precision operands with a float32 result, which the CPU lacks."""
    multiply = aten.mm if left.ndim == 2 else aten.bmm
    if out_dtype is None:
        return multiply(left, right, **options)
    return multiply(left.to(out_dtype), right.to(out_dtype))


# FlexAttention as one operator.

Shown = Callable[[Tensor], Tensor]
"""Scores `(B, H, T, S)` → scores with additive terms, and −∞ where a mask hides a pair."""

FUSED: dict[int, Callable[..., list[Tensor]]] = {}
"""Functions that `fused` runs, by number."""
SHOWN: dict[int, Shown] = {}
"""Score functions of calls by number."""


def captured_by(function: Any) -> list[Tensor]:
    """Returns the tensors captured by a predicate or score function, and by functions in its closure, each once."""
    cells = [] if function is None else [cell.cell_contents for cell in function.__closure__ or ()]
    found: dict[int, Tensor] = {}
    for each in tree_leaves(cells):
        tensors = [each] if isinstance(each, Tensor) else captured_by(each) if isinstance(each, FunctionType) else []
        found |= {id(tensor): tensor for tensor in tensors}
    return list(found.values())


@torch.library.custom_op("longspan_fake::flex_forward", mutates_args=())
def flex_forward(
    query: Tensor, key: Tensor, value: Tensor, captured: Sequence[Tensor], number: int, pairs: int, scale: float
) -> tuple[Tensor, Tensor]:
    """FlexAttention over `pairs` pairs: `(B, H, T, D)`, `(B, H, S, D)`, `(B, H, S, Dv)` → `(B, H, T, Dv)` and the
    log-sum-exp of the scores, `(B, H, T)`. The `captured` tensors are also read."""
    scores = SHOWN[number](scores_of(query, key, None, False, scale))
    return _placed_like(query, value).copy_(_mixed(scores, value)), scores.logsumexp(-1)


@flex_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    return _placed_like(query, value), query.new_empty(query.shape[:-1], dtype=torch.float32)


def _placed_like(query: Tensor, value: Tensor) -> Tensor:
    """Allocates `(B, H, T, Dv)` with the dimension order of the query's memory, as FlexAttention does."""
    order = sorted(range(3), key=lambda dim: -query.stride(dim))
    shape = [query.shape[dim] for dim in order]
    return query.new_empty(*shape, value.shape[-1]).permute(*(order.index(dim) for dim in range(3)), 3)


@torch.library.custom_op("longspan_fake::flex_backward", mutates_args=())
def flex_backward(
    grad: Tensor,
    grad_logs: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    captured: Sequence[Tensor],
    number: int,
    pairs: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of query, key and value, for score functions that scale and add."""
    raw, shown = scores_of(query, key, None, False, scale), SHOWN[number]
    weights = torch.softmax(shown(raw), -1).nan_to_num(0.0)
    slopes = grad.to(weights.dtype) @ value.to(weights.dtype).mT
    slopes = slopes - (slopes * weights).sum(-1, keepdim=True)
    slopes = weights * (slopes if grad_logs is None else slopes + grad_logs[..., None])
    slopes = slopes * (shown(torch.ones_like(raw)) - shown(torch.zeros_like(raw))).nan_to_num(0.0) * scale
    grads = slopes @ key.to(slopes.dtype), slopes.mT @ query.to(slopes.dtype), weights.mT @ grad.to(slopes.dtype)
    return tuple(each.to(query.dtype) for each in grads)  # pyright: ignore[reportReturnType]


@flex_backward.register_fake
def _(grad: Tensor, grad_logs: Tensor | None, *inputs: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(each) for each in inputs[:3])


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.captured, *ctx.options = inputs[3:]
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, grad: Tensor | None, grad_logs: Tensor | None) -> tuple[Any, ...]:
    query, _, value = ctx.saved_tensors
    grad = query.new_zeros(*query.shape[:-1], value.shape[-1]) if grad is None else grad
    grads = flex_backward(grad, grad_logs, *ctx.saved_tensors, ctx.captured, *ctx.options)
    return *grads, [None] * len(ctx.captured), None, None, None


flex_forward.register_autograd(_gradient, setup_context=_save)


@torch.library.custom_op("longspan_fake::fused", mutates_args=())
def fused(tensors: Sequence[Tensor], number: int) -> list[Tensor]:
    """The function with this number in `FUSED`, as one kernel."""
    return FUSED[number](*tensors)


@fused.register_fake
def _(tensors: Sequence[Tensor], number: int) -> list[Tensor]:
    return FUSED[number](*tensors)


import_module("torch.nn.attention.varlen")
WINDOW, WINDOW_BACKWARD = torch.ops.torch_attn._varlen_attn, torch.ops.torch_attn._varlen_attn_backward
FLOPS[WINDOW] = lambda query, key, value, ends, key_ends, queries, keys, causal, scale, window, *_, **__: (
    4 * query.shape[-1] * _packed_pairs(query, ends, queries, window)
)
FLOPS[WINDOW_BACKWARD] = lambda grad, query, *given, **_: (
    10 * query.shape[-1] * _packed_pairs(query, given[4], given[6], given[11])
)
FLEX, FLEX_BACKWARD = torch.ops.longspan_fake.flex_forward, torch.ops.longspan_fake.flex_backward
FLOPS[FLEX] = lambda query, key, value, captured, number, pairs, scale: 2 * pairs * (query.shape[-1] + value.shape[-1])
FLOPS[FLEX_BACKWARD] = lambda grad, grad_logs, query, key, value, captured, number, pairs, scale: (
    2 * pairs * (3 * query.shape[-1] + 2 * value.shape[-1])
)

KERNELS: dict[Any, Callable[..., Any]] = {
    WINDOW: _windowed,
    WINDOW_BACKWARD: _windowed_backward,
    aten.mm: _product,
    aten.bmm: _product,
    aten._scaled_dot_product_flash_attention: _flash,
    aten._scaled_dot_product_flash_attention_backward: _flash_backward,
    aten._scaled_dot_product_efficient_attention: _efficient,
    aten._scaled_dot_product_efficient_attention_backward: _efficient_backward,
}
"""Operators that PyTorch has only for CUDA, with their CPU implementation."""
