"""The blocked backend as one PyTorch operator, opaque to `torch.compile` and `torch.export`, with its gradient.

It prepares what the tiles of `longspan.ops.blocked` do not know: heads with patterns of their own, dilation, and the
rows of global tokens, which are a call of their own. A pattern travels as its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longspan.ops import blocked
from longspan.ops.call import Call
from longspan.ops.chunk_masks import Problem
from longspan.ops.dense_terms import column_terms, row_terms
from longspan.ops.eager import run
from longspan.ops.slots import gather_slots, mask_of_slots, put_slots
from longspan.ops.terms import Bias, GlobalKeyBias, Term, of_heads, pack, unpack
from longspan.patterns import Blocks, Both, Causal, Full, Pattern, Strided, Window, parse
from longspan.patterns.text import text_of

ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor[] terms, Tensor? key_mask, Tensor? slots, Tensor? seed, "
    "str kinds, SymInt[] offsets, str pattern, float scale, float dropout_prob"
)
"""What the operator takes: a call without global rows, its terms as `longspan.ops.terms.pack` gives them; `offsets` are
the position of the first query, then what the first row of each term stands for."""


def attend_blocked(call: Call) -> Tensor:
    """Attention over the tiles of the pattern, in linear memory."""
    columns = column_terms(call)
    terms = [_near(term) for term in call.terms if not isinstance(term, GlobalKeyBias)]
    terms += [] if columns is None else [GlobalKeyBias(columns)]
    result = _operate(call, call.query, terms, call.slots, text_of(call.pattern), call.query_offset)
    if not call.global_rows or call.slots is None:
        return result
    bias = row_terms(call)
    rows = gather_slots(call.query, call.slots)
    rows = _operate(call, rows, [] if bias is None else [Bias(bias)], None, text_of(Full()), 0)
    return put_slots(result, rows, call.slots)


def _near(term: Term) -> Term:
    """The term for keys that are not global: what concerns global keys comes as one bias."""
    return Bias(term.values, globals=False) if isinstance(term, Bias) else term


def _operate(
    call: Call, query: Tensor, terms: Sequence[Term], slots: Tensor | None, pattern: str, query_offset: int
) -> Tensor:
    seed = torch.randint(2**62, (), dtype=torch.int64) if call.dropout_prob else None
    tensors, kinds, firsts = pack(terms)
    options = (kinds, [query_offset, *firsts], pattern, call.scale, call.dropout_prob)
    inputs = (query, call.key, call.value, tensors, call.key_mask, slots, seed)
    return run(blocked_attention, blocked_kernel, *inputs, *options)


def blocked_kernel(*arguments) -> Tensor:  # type: ignore[no-untyped-def]
    """`(B, H, T, D)`, `(B, H, S, D)`, `(B, H, S, Dv)` → `(B, H, T, Dv)`; the arguments are `ARGUMENTS`."""
    problem = _problem(*arguments)
    query, value = problem.query, problem.value
    result = query.new_zeros(*query.shape[:-1], value.shape[-1])
    if query.numel() and value.shape[2]:
        for heads, part in _by_heads(problem.pattern, query.shape[1]):
            result[:, heads] = _forward_heads(_heads_only(problem, heads, part))
    return result


blocked_attention = torch.library.custom_op(
    "longspan::blocked_attention", blocked_kernel, mutates_args=(), schema=f"({ARGUMENTS}) -> Tensor"
)


@blocked_attention.register_fake
def _(query, key, value, *rest):  # type: ignore[no-untyped-def]
    return query.new_empty(*query.shape[:-1], value.shape[-1])


def _backward_kernel(grad: Tensor, wanted: list[bool], *arguments) -> list[Tensor]:  # type: ignore[no-untyped-def]
    """Gradients with respect to query, key, value, and the tensors of the terms that are wanted (else empty)."""
    problem = _problem(*arguments)
    inputs, terms = arguments[:3], arguments[3]
    grads = [torch.zeros_like(tensor, memory_format=torch.contiguous_format) for tensor in inputs]
    grads += [torch.zeros_like(each) if need else each.new_empty(0) for each, need in zip(terms, wanted, strict=True)]
    if not problem.query.numel() or not problem.value.shape[2]:
        return grads
    for heads, part in _by_heads(problem.pattern, problem.query.shape[1]):
        found = _backward_heads(_heads_only(problem, heads, part), grad[:, heads], wanted)
        axes = [1, 1, 1, *(term.head_axis for term in problem.terms for _ in term.tensors)]
        for total, each, axis in zip(grads, found, axes, strict=True):
            if total.numel():
                total[of_heads(total, heads, axis)] += each
    return grads


blocked_attention_backward = torch.library.custom_op(
    "longspan::blocked_attention_backward",
    _backward_kernel,
    mutates_args=(),
    schema=f"(Tensor grad, bool[] wanted, {ARGUMENTS}) -> Tensor[]",
)


@blocked_attention_backward.register_fake
def _(grad, wanted, query, key, value, terms, *rest):  # type: ignore[no-untyped-def]
    # Contiguous, as the operator itself returns them: compiled code relies on the strides that are promised here.
    found = [tensor.new_empty(tensor.shape) for tensor in (query, key, value)]
    return found + [each.new_empty(each.shape if need else 0) for each, need in zip(terms, wanted, strict=True)]


def _setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
    query, key, value, terms, *masks = inputs[:7]
    ctx.save_for_backward(query, key, value, *masks, *terms)
    ctx.options = inputs[7:]


def _gradient(ctx, grad):  # type: ignore[no-untyped-def]
    query, key, value, *rest = ctx.saved_tensors  # gradient checkpointing gives them once
    wanted = list(ctx.needs_input_grad[3])
    inputs = (query, key, value, rest[3:], *rest[:3])
    found = blocked_attention_backward(grad.contiguous(), wanted, *inputs, *ctx.options)
    terms = [each if need else None for each, need in zip(found[3:], wanted, strict=True)]
    return *found[:3], terms, *([None] * 8)


blocked_attention.register_autograd(_gradient, setup_context=_setup_context)


def _problem(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: list[Tensor],
    key_mask: Tensor | None,
    slots: Tensor | None,
    seed: Tensor | None,
    kinds: str,
    offsets: list[int],
    pattern: str,
    scale: float,
    dropout_prob: float,
) -> Problem:
    """`ARGUMENTS` as a problem; global keys leave the mask of near keys, so that they count once."""
    if key_mask is not None and not key_mask.is_cuda and bool(key_mask.all()):
        key_mask = None  # nothing is padded; on a GPU the question would cost more than the answer saves
    if slots is not None:
        near = ~mask_of_slots(slots, key.shape[2])
        key_mask = near if key_mask is None else near & key_mask
    return Problem(
        query,
        key,
        value,
        parse(pattern),
        scale,
        unpack(terms, kinds, offsets[1:]),
        key_mask,
        slots,
        query_offset=offsets[0],
        dropout_prob=dropout_prob,
        seed=0 if seed is None else int(seed),
    )


def _by_heads(pattern: Pattern, heads: int) -> list[tuple[list[int] | slice, Pattern]]:
    """The heads that share each pattern."""
    if pattern.heads is None:
        return [(slice(None), pattern)]
    shared: dict[Pattern, list[int]] = {}
    for index in range(heads):
        shared.setdefault(pattern.head(index), []).append(index)
    return [(indices, part) for part, indices in shared.items()]


def _heads_only(problem: Problem, heads: list[int] | slice, pattern: Pattern) -> Problem:
    """The same problem for some heads; each set of heads draws its own dropout."""
    if isinstance(heads, slice):
        return problem
    terms = tuple(term.of_heads(heads) for term in problem.terms)
    query, key, value = (tensor[:, heads] for tensor in (problem.query, problem.key, problem.value))
    seed = problem.seed + heads[0] * 1_000_003
    return replace(problem, query=query, key=key, value=value, pattern=pattern, terms=terms, seed=seed)


def _forward_heads(problem: Problem) -> Tensor:
    folded = _fold(problem)
    if folded is None:
        return blocked.forward(problem)
    return blocked.forward(folded.problem).index_select(2, folded.inverse)


def _backward_heads(problem: Problem, grad: Tensor, wanted: Sequence[bool]) -> list[Tensor]:
    folded = _fold(problem)
    if folded is None:
        return blocked.backward(problem, grad, wanted)
    moved = grad.index_select(2, folded.order) * folded.real[:, None]
    grads = blocked.backward(folded.problem, moved, wanted)
    # What stands at places is moved back; tables have none.
    placed = [True] * 3 + [isinstance(term, GlobalKeyBias) for term in problem.terms for _ in term.tensors]
    return [
        each.index_select(2, folded.inverse) if back and each.numel() else each
        for each, back in zip(grads, placed, strict=True)
    ]


@dataclass(frozen=True)
class _Folded:
    """A problem whose positions are reordered so that one residue class follows the other.

    Attributes:
        order: the position that stands at each place.
        inverse: the place of each position.
        real: `(places,)` bool, False where a class was filled up.
    """

    problem: Problem
    order: Tensor
    inverse: Tensor
    real: Tensor


def _fold(problem: Problem) -> _Folded | None:
    """Turn dilation and strides into contiguous windows and blocks, where queries and keys are the same positions."""
    length, pattern = problem.query.shape[2], problem.pattern
    biased = any(isinstance(term, Bias) for term in problem.terms)
    if biased or problem.query_offset or length != problem.key.shape[2]:
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
    step, classes = classes, min(classes, max(1, length))
    each = -(-length // classes)
    place = torch.arange(classes * each, device=problem.query.device)
    source = place % each * classes + place // each
    position = torch.arange(length, device=place.device)
    real, order, inverse = (
        source < length,
        source.clamp(max=length - 1),
        position % classes * each + position // classes,
    )
    folded = replace(
        problem,
        pattern=(plain & Causal() if causal else plain) & Blocks(each),
        step=step,
        **_moved(problem, order, inverse, real),
    )
    return _Folded(folded, order, inverse, real)


def _moved(problem: Problem, order: Tensor, inverse: Tensor, real: Tensor) -> dict[str, object]:
    """The parts of a problem that stand at places, in another order."""
    names = ("query", "key", "value")
    moved: dict[str, object] = {name: getattr(problem, name).index_select(2, order) for name in names}
    mask, slots = real.expand(problem.query.shape[0], -1), problem.slots
    moved["key_mask"] = mask if problem.key_mask is None else mask & problem.key_mask[:, order]
    moved["slots"] = None if slots is None else torch.where(slots < 0, slots, inverse[slots.clamp(min=0)])
    moved["terms"] = tuple(
        GlobalKeyBias(term.values.index_select(2, order)) if isinstance(term, GlobalKeyBias) else term
        for term in problem.terms
    )
    return moved
