"""Attention within buckets as one PyTorch operator, opaque to `torch.compile` and `torch.export`, with its gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from longspan.ops.runtime import run
from longspan.ops.sorted import hashed_tiles
from longspan.ops.sorted.hashed_units import Chunks

ARGUMENTS = (
    "Tensor query, Tensor? key, Tensor value, Tensor ids, Tensor? seed, SymInt most, int size, int before, int after, "
    "bool causal, float scale, bool once, float dropout_prob"
)


def attend_units(
    query: Tensor, key: Tensor | None, value: Tensor, ids: Tensor, chunks: Chunks, *, most: int, dropout_prob: float
) -> Tensor:
    """`(B, H, T, D)` → `(B, H, T, D)`, in time that grows with what is seen; see `longspan.ops.sorted.hashed`."""
    query, value = (each.transpose(1, 2).contiguous() for each in (query, value))
    key = None if key is None else key.transpose(1, 2).contiguous()
    seed = torch.randint(2**62, (), dtype=torch.int64) if dropout_prob else None
    shape = (chunks.size, chunks.before, chunks.after, chunks.causal, chunks.scale, chunks.once)
    return run(hashed_attention, _kernel, query, key, value, ids, seed, most, *shape, dropout_prob)[0].transpose(1, 2)


def _kernel(query, key, value, ids, seed, most, size, before, after, causal, scale, once, dropout_prob):  # type: ignore[no-untyped-def]
    """Contexts `(B, T, H, D)` and the logarithms of sums `(B·T·H,)`."""
    chunks = Chunks(size=size, before=before, after=after, causal=causal, scale=scale, once=once, shared=key is None)
    return hashed_tiles.forward(query, key, value, ids, chunks, most, dropout_prob, _number(seed))


def _number(seed: Tensor | None) -> int:
    return 0 if seed is None else int(seed)


hashed_attention = torch.library.custom_op(
    "longspan::hashed_attention", _kernel, mutates_args=(), schema=f"({ARGUMENTS}) -> (Tensor, Tensor)"
)


@hashed_attention.register_fake
def _(query, key, value, ids, *rest):  # type: ignore[no-untyped-def]
    wide = torch.promote_types(query.dtype, torch.float32)
    return value.new_empty(value.shape), query.new_empty(query[..., 0].numel(), dtype=wide)


def _backward_kernel(
    grad, output, logs, query, key, value, ids, seed, most, size, before, after, causal, scale, once, dropout_prob
):  # type: ignore[no-untyped-def]
    """The gradients of query, value and key; without a key an empty one."""
    chunks = Chunks(size=size, before=before, after=after, causal=causal, scale=scale, once=once, shared=key is None)
    return hashed_tiles.backward(grad, output, logs, query, key, value, ids, chunks, most, dropout_prob, _number(seed))


hashed_attention_backward = torch.library.custom_op(
    "longspan::hashed_attention_backward",
    _backward_kernel,
    mutates_args=(),
    schema=f"(Tensor grad, Tensor output, Tensor logs, {ARGUMENTS}) -> (Tensor, Tensor, Tensor)",
)


@hashed_attention_backward.register_fake
def _(grad, output, logs, query, key, value, *rest):  # type: ignore[no-untyped-def]
    return query.new_empty(query.shape), value.new_empty(value.shape), query.new_empty(() if key is None else key.shape)


def _setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
    query, key, value, ids, seed, *ctx.options = inputs
    ctx.save_for_backward(*output, query, key, value, ids, seed)
    ctx.mark_non_differentiable(output[1])


def _gradient(ctx, grad, _):  # type: ignore[no-untyped-def]
    to_query, to_value, to_key = hashed_attention_backward(grad.contiguous(), *ctx.saved_tensors, *ctx.options)
    key = ctx.saved_tensors[3]
    return to_query, None if key is None else to_key, to_value, *([None] * (2 + len(ctx.options)))


hashed_attention.register_autograd(_gradient, setup_context=_setup_context)
