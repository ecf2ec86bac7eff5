"""Causal linear attention in chunks by Triton, as an operator of PyTorch with all its gradients.

What `longspan.ops.kernels.linear` computes piece by piece, in two launches and a sum over chunks, whatever the length;
neither scores nor the sums of chunks are saved for the way back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longspan.ops.kernels.triton_backend import kernels, launch

CHUNK = 64
"""Queries and keys of a chunk."""
TILE: dict[str, Any] = {
    "CHUNK": CHUNK,
    "FEATURES": 32,
    "WIDTH": 32,
    "PRECISION": "tf32x3",
    "num_warps": 8,
    "num_stages": 1,
}
"""Features and channels of a tile. Features are float32, and three products of tensor cores keep them so."""


def _forward(query: Tensor, key: Tensor, value: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What queries `(B, H, T, F)` gather of the values `(B, H, T, D)` up to their own place, the sums of their weights
    `(B, H, T)`, and `Σ_j k_jᵀ [v_j, 1]` after the last, continuing the `sums` `(B, H, F, D + 1)`; float32 all."""
    mixed, total = _like(value), value.new_empty(value.shape[:3])
    if not key.numel() or not value.numel():
        return mixed.zero_(), total.zero_(), sums.clone()
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    before, last = _before(key, value, sums)
    sizes, chunks, rows = _sizes(key, value)
    launch(
        kernels("causal_chunk").chunk_outputs, (chunks, _blocks(value, TILE, "WIDTH"), rows),
        query, key, value, *before, mixed, total,
        *sizes, *_places(query), *_places(key), *_places(value), *_places(mixed), chunks, **TILE,
    )  # fmt: skip
    return mixed, total, last


causal_chunks = torch.library.custom_op("longspan::causal_chunks", _forward, mutates_args=())


@causal_chunks.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _like(value), value.new_empty(value.shape[:3]), torch.empty_like(sums)


def _backward(
    grad: Tensor, grad_total: Tensor, grad_sums: Tensor, query: Tensor, key: Tensor, value: Tensor, sums: Tensor
) -> list[Tensor]:
    """The gradients of query, key, value and sums."""
    grads = [_like(each) for each in (query, key, value)]
    if not key.numel() or not value.numel():
        return [*(each.zero_() for each in grads), grad_sums.clone()]
    query, key, value, grad = (each.contiguous() for each in (query, key, value, grad))
    grad_total = grad_total.contiguous()
    before, _ = _before(key, value, sums)
    after, first = _after(query, grad, grad_total, grad_sums)
    sizes, chunks, rows = _sizes(key, value)
    places = *_places(grad), *_places(query), *_places(key), *_places(value)
    narrow = TILE | {"FEATURES": 16}  # beside two sums it holds the gradients of all pairs of a chunk
    launch(
        kernels("causal_chunk").chunk_feature_gradients, (chunks, _blocks(key, narrow, "FEATURES"), rows),
        grad, grad_total, query, key, value, *before, *after, *grads[:2], *sizes, *places, chunks, **narrow,
    )  # fmt: skip
    launch(
        kernels("causal_chunk").chunk_value_gradients, (chunks, _blocks(value, TILE, "WIDTH"), rows),
        grad, query, key, after[0], grads[2], *sizes, *places, chunks, **TILE,
    )  # fmt: skip
    return [*grads, first]


causal_chunks_backward = torch.library.custom_op("longspan::causal_chunks_backward", _backward, mutates_args=())


@causal_chunks_backward.register_fake
def _(
    grad: Tensor, grad_total: Tensor, grad_sums: Tensor, query: Tensor, key: Tensor, value: Tensor, sums: Tensor
) -> list[Tensor]:
    return [*(_like(each) for each in (query, key, value)), torch.empty_like(grad_sums)]


def _setup(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
    return tuple(causal_chunks_backward(*grads, *ctx.saved_tensors))


causal_chunks.register_autograd(_gradients, setup_context=_setup)


def _like(tensor: Tensor) -> Tensor:
    return tensor.new_empty(tensor.shape)


def _sizes(key: Tensor, value: Tensor) -> tuple[tuple[int, int, int], int, int]:
    """Length, features and channels, then how many chunks and how many rows there are."""
    batch, heads, length, features = key.shape
    return (length, features, value.shape[3]), -(-length // CHUNK), batch * heads


def _places(tensor: Tensor) -> tuple[int, int]:
    """How far apart two rows lie, and two tokens, of a contiguous tensor, whose own strides of a single head mean
    nothing."""
    return tensor.shape[2] * tensor.shape[3], tensor.shape[3]


def _blocks(tensor: Tensor, tile: dict[str, Any], name: str) -> int:
    return -(-tensor.shape[3] // tile[name])


def _added(key: Tensor, value: Tensor, ones: Tensor | None) -> tuple[Tensor, Tensor]:
    """What each chunk adds to the sums, `(B, H, chunks, F, D)`, and to those of ones, `(B, H, chunks, F)`."""
    sizes, chunks, rows = _sizes(key, value)
    added = key.new_empty((*key.shape[:2], chunks, *sizes[1:]))
    ones_added = key.new_empty((*key.shape[:2], chunks, sizes[1]))
    blocks = _blocks(key, TILE, "FEATURES") * _blocks(value, TILE, "WIDTH")
    launch(
        kernels("causal_chunk").chunk_sums, (chunks, blocks, rows),
        key, value, key if ones is None else ones, added, ones_added,
        *sizes, *_places(key), *_places(value), chunks, HAS_ONES=ones is not None, **TILE,
    )  # fmt: skip
    return added, ones_added


def _before(key: Tensor, value: Tensor, sums: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """The sums before each chunk, and after the last."""
    (totals, ones), last = _running(sums, *_added(key, value, None))
    return (totals.contiguous(), ones.contiguous()), last


def _after(query: Tensor, grad: Tensor, grad_total: Tensor, grad_sums: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """The gradients of the sums that each chunk adds to: what later chunks ask; and of those before the first."""
    (totals, ones), first = _running(grad_sums, *(each.flip(2) for each in _added(query, grad, grad_total)))
    return (totals.flip(2), ones.flip(2)), first


def _running(sums: Tensor, added: Tensor, ones: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """The sums before each chunk, and after the last, from `sums` `(B, H, F, D + 1)` and what each chunk adds."""
    totals = torch.cat([sums[:, :, None, :, :-1], added], dim=2).cumsum(2)
    ones = torch.cat([sums[:, :, None, :, -1], ones], dim=2).cumsum(2)
    last = torch.cat([totals[:, :, -1], ones[:, :, -1, :, None]], dim=-1)
    return (totals[:, :, :-1], ones[:, :, :-1]), last
