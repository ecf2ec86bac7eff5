"""The blocked backend as one PyTorch operator, opaque to `torch.compile` and `torch.export`, with its gradient.

It prepares what the tiles of `longspan.ops.blocked` do not know: heads with patterns of their own, dilation, and the
rows of global tokens. A pattern travels as its text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longspan.ops import blocked
from longspan.ops.tile_memory import gather_slots
from longspan.ops.chunk_masks import Problem
from longspan.ops.reference import mask_of_slots
from longspan.patterns import Blocks, Both, Causal, Full, Pattern, Strided, Window, parse


def blocked_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    slots: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    pattern: str,
    scale: float,
    dropout_prob: float,
    query_offset: int,
    global_rows: bool,
) -> Tensor:
    """`(B, H, T, D)`, `(B, H, S, D)`, `(B, H, S, Dv)` → `(B, H, T, Dv)`; see `longspan.attend` for the arguments."""
    call = _prepare(query, key, value, key_mask, slots, bias, seed, scale, dropout_prob, query_offset, global_rows)
    result = query.new_zeros(*query.shape[:-1], value.shape[-1])
    if not query.numel() or not key.numel():
        return result
    for heads, part in _by_heads(parse(pattern), query.shape[1]):
        result[:, heads] = _forward_heads(call.heads_only(heads), part)
    return result


blocked_attention = torch.library.custom_op("longspan::blocked_attention", blocked_kernel, mutates_args=())


@blocked_attention.register_fake
def _(query, key, value, key_mask, slots, bias, seed, pattern, scale, dropout_prob, query_offset, global_rows):  # type: ignore[no-untyped-def]
    return query.new_empty(*query.shape[:-1], value.shape[-1])


@torch.library.custom_op("longspan::blocked_attention_backward", mutates_args=())
def blocked_attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    slots: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    pattern: str,
    scale: float,
    dropout_prob: float,
    query_offset: int,
    global_rows: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `blocked_attention` with respect to query, key and value."""
    call = _prepare(query, key, value, key_mask, slots, bias, seed, scale, dropout_prob, query_offset, global_rows)
    grads = tuple(torch.zeros_like(tensor, memory_format=torch.contiguous_format) for tensor in (query, key, value))
    if not query.numel() or not key.numel():
        return grads[0], grads[1], grads[2]
    for heads, part in _by_heads(parse(pattern), query.shape[1]):
        found = _backward_heads(grad[:, heads], call.heads_only(heads), part)
        for total, each in zip(grads, found, strict=True):
            total[:, heads] = each
    return grads[0], grads[1], grads[2]


@blocked_attention_backward.register_fake
def _(grad, query, key, value, key_mask, slots, bias, seed, pattern, scale, dropout_prob, query_offset, global_rows):  # type: ignore[no-untyped-def]
    # Contiguous, as the operator itself returns them: compiled code relies on the strides that are promised here.
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs[:7])
    ctx.options = inputs[7:]


def _gradient(ctx, grad):  # type: ignore[no-untyped-def]
    grads = blocked_attention_backward(grad.contiguous(), *ctx.saved_tensors, *ctx.options)
    return *grads, *([None] * 9)


blocked_attention.register_autograd(_gradient, setup_context=_setup_context)


@dataclass(frozen=True)
class _Call:
    """One call, or a part of it: some heads, or its positions in another order."""

    query: Tensor
    key: Tensor
    value: Tensor
    key_mask: Tensor | None
    slots: Tensor | None
    query_offset: int
    global_rows: bool
    problem: Problem

    def heads_only(self, heads: list[int] | slice) -> _Call:
        """The same call for some heads; each set of heads draws its own dropout."""
        if isinstance(heads, slice):
            return self
        bias = self.problem.bias
        if bias is not None and bias.shape[1] > 1:
            bias = bias[:, heads]
        problem = replace(self.problem, bias=bias, seed=self.problem.seed + heads[0] * 1_000_003)
        query, key, value = (tensor[:, heads] for tensor in (self.query, self.key, self.value))
        return replace(self, query=query, key=key, value=value, problem=problem)

    def rows_problem(self) -> Problem:
        """The problem of the global rows: every real key, no columns beside."""
        assert self.slots is not None
        bias = self.problem.bias
        if bias is not None and bias.shape[2] > 1:
            bias = bias.expand(self.slots.shape[0], -1, -1, -1)
            index = self.slots.clamp(min=0)[:, None, :, None].expand(-1, bias.shape[1], -1, bias.shape[3])
            bias = torch.gather(bias, 2, index)
        return replace(self.problem, key_mask=self.key_mask, slots=None, bias=bias, seed=self.problem.seed + 500_009)


def _prepare(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    slots: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    scale: float,
    dropout_prob: float,
    query_offset: int,
    global_rows: bool,
) -> _Call:
    """Gather the arguments of the operator; global keys leave the mask of near keys, so that they count once."""
    if key_mask is not None and not key_mask.is_cuda and bool(key_mask.all()):
        key_mask = None  # nothing is padded; on a GPU the question would cost more than the answer saves
    near_mask = key_mask
    if slots is not None:
        near = ~mask_of_slots(slots, key.shape[2])
        near_mask = near if key_mask is None else near & key_mask
    problem = Problem(scale, near_mask, slots, bias, dropout_prob, 0 if seed is None else int(seed))
    return _Call(query, key, value, key_mask, slots, query_offset, global_rows and slots is not None, problem)


def _by_heads(pattern: Pattern, heads: int) -> list[tuple[list[int] | slice, Pattern]]:
    """The heads that share each pattern."""
    if pattern.heads is None:
        return [(slice(None), pattern)]
    shared: dict[Pattern, list[int]] = {}
    for index in range(heads):
        shared.setdefault(pattern.head(index), []).append(index)
    return [(indices, part) for part, indices in shared.items()]


def _forward_heads(call: _Call, pattern: Pattern) -> Tensor:
    folded = _fold(call, pattern)
    if folded is not None:
        result = _forward_heads(folded.call, folded.pattern)
        return result.index_select(2, folded.inverse)
    result = blocked.forward(call.query, call.key, call.value, pattern, call.query_offset, call.problem)
    if call.global_rows and call.slots is not None:
        rows = gather_slots(call.query, call.slots)
        seen = blocked.forward(rows, call.key, call.value, Full(), 0, call.rows_problem())
        batch, slot = (call.slots >= 0).nonzero(as_tuple=True)
        result = result.clone()
        result[batch, :, call.slots[batch, slot]] = seen[batch, :, slot]
    return result


def _backward_heads(grad: Tensor, call: _Call, pattern: Pattern) -> tuple[Tensor, Tensor, Tensor]:
    folded = _fold(call, pattern)
    if folded is not None:
        moved = grad.index_select(2, folded.order) * folded.real[:, None]
        grads = _backward_heads(moved, folded.call, folded.pattern)
        return tuple(each.index_select(2, folded.inverse) for each in grads)  # type: ignore[return-value]
    if not call.global_rows or call.slots is None:
        return blocked.backward(grad, call.query, call.key, call.value, pattern, call.query_offset, call.problem)
    used = (call.slots >= 0)[:, None, :, None]
    local = grad * ~mask_of_slots(call.slots, grad.shape[2])[:, None, :, None]
    grads = blocked.backward(local, call.query, call.key, call.value, pattern, call.query_offset, call.problem)
    rows, grad_rows = gather_slots(call.query, call.slots), gather_slots(grad, call.slots) * used
    row_grads = blocked.backward(grad_rows, rows, call.key, call.value, Full(), 0, call.rows_problem())
    index = call.slots.clamp(min=0)[:, None, :, None].expand_as(rows)
    return grads[0].scatter_add(2, index, row_grads[0] * used), grads[1] + row_grads[1], grads[2] + row_grads[2]


class _Folded:
    """A call whose positions are reordered so that one residue class follows the other."""

    def __init__(self, call: _Call, pattern: Pattern, classes: int) -> None:
        length, device = call.query.shape[2], call.query.device
        each = -(-length // classes)
        place = torch.arange(classes * each, device=device)
        source = place % each * classes + place // each
        self.real = source < length
        self.order = source.clamp(max=length - 1)
        self.inverse = (
            torch.arange(length, device=device) % classes * each + torch.arange(length, device=device) // classes
        )
        self.pattern = pattern & Blocks(each)
        self.call = self._move(call)

    def _move(self, call: _Call) -> _Call:
        query, key, value = (tensor.index_select(2, self.order) for tensor in (call.query, call.key, call.value))
        real = self.real.expand(call.query.shape[0], -1)
        key_mask = real if call.key_mask is None else real & call.key_mask[:, self.order]
        near = real if call.problem.key_mask is None else real & call.problem.key_mask[:, self.order]
        slots = call.slots
        if slots is not None:
            slots = torch.where(slots < 0, slots, self.inverse[slots.clamp(min=0)])
        problem = replace(call.problem, key_mask=near, slots=slots)
        return replace(call, query=query, key=key, value=value, key_mask=key_mask, slots=slots, problem=problem)


def _fold(call: _Call, pattern: Pattern) -> _Folded | None:
    """Turn dilation and strides into contiguous windows and blocks, where queries and keys are the same positions."""
    if call.problem.bias is not None or call.query_offset or call.query.shape[2] != call.key.shape[2]:
        return None
    inner, causal = pattern, False
    if isinstance(pattern, Both) and pattern.second == Causal():
        inner, causal = pattern.first, True
    if isinstance(inner, Window) and inner.dilation > 1:
        plain, classes = Window(inner.left, inner.right), inner.dilation
    elif isinstance(inner, Strided) and inner.stride > 1:
        plain, classes = Full(), inner.stride
    else:
        return None
    classes = min(classes, max(1, call.query.shape[2]))
    return _Folded(call, plain & Causal() if causal else plain, classes)
