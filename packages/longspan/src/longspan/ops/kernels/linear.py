"""Linear attention: features in place of the softmax, so that one sum over the keys serves every query.

`y_i = φ(q_i) Σ_j φ(k_j)ᵀ v_j / (φ(q_i) · Σ_j φ(k_j) + ε)`, where j runs over all real keys, or in the causal form over
those up to i (Katharopoulos et al. 2020, arXiv 2006.16236, sections 3.2 and 3.3). The operator takes the features as
they are; here stands the map of that paper, in `longspan.ops.kernels.random_features` the one that approximates the
softmax.

The causal sums `Σ_{j ≤ i} (q_i · k_j) v_j` are made in chunks: within a chunk by scores, everything before it by a
running sum. Chunks are computed a piece at a time, so many that what is made of them stays in the cache of the
processor; backward makes each piece again, so that no scores are saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops import compiled
from longspan.ops.attend.reference import full_precision
from longspan.ops.compiled import fused
from longspan.ops.kernels.linear_bfloat16 import attend_bfloat16
from longspan.ops.runtime import SIZES, gradients_in_steps, has_tangent, is_transforming, keeps_bfloat16

CHUNK = 64
"""Queries and keys of a chunk, within which scores are made; with many features twice as many, since their sums would
else take more memory than the scores."""
WHOLE = 1024
"""Up to so many tokens the steps of pieces cost more than the cache saves."""


def elu(tensor: Tensor) -> Tensor:
    """`φ(x) = elu(x) + 1`, above 0 for every x whose exponential is: adding 1 to `exp(x) − 1` would round it away."""
    return tensor.relu() + tensor.clamp(max=0).exp()


def elu_features(tensor: Tensor) -> Tensor:
    """`φ(x) = elu(x) + 1`, in at least float32 but where `keeps_bfloat16`."""
    wide = tensor if keeps_bfloat16(tensor) else tensor.to(torch.promote_types(tensor.dtype, torch.float32))
    if torch.compiler.is_compiling() or is_transforming() or has_tangent(tensor):
        return elu(wide)
    return _EluFeatures.apply(wide)  # pyright: ignore[reportReturnType]


class _EluFeatures(torch.autograd.Function):
    """The same, rounded once; its derivative is φ up to 1, so that nothing but φ is kept."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        heads_first = keeps_bfloat16(tensor)  # in memory, for products of chunks
        if tensor.is_cuda and tensor.numel() >= compiled.FEWEST:
            features = _features(tensor, heads_first)
        else:
            above = tensor.clamp(min=0).add_(1)
            features = tensor.new_empty(tensor.shape) if heads_first else above
            # The gradient that `elu` passes on of `max(x, 0) + 1`: that above 0, and `exp(x)` times 1 below it.
            torch.ops.aten.elu_backward.grad_input(above, 1, 1, 1, False, tensor, grad_input=features)
        ctx.tokens_first = tensor.ndim == 4 and tensor.transpose(1, 2).is_contiguous()
        ctx.save_for_backward(features)
        return features

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore
        return _features_gradient(ctx.saved_tensors[0], grad, ctx.tokens_first)


@fused
def _features(tensor: Tensor, heads_first: bool) -> Tensor:
    return elu(tensor).contiguous() if heads_first else elu(tensor)


@fused
def _features_gradient(features: Tensor, grad: Tensor, tokens_first: bool) -> Tensor:
    """In the memory layout of the input, so that a projection reads it in place."""
    slopes = features.clamp(max=1) * grad
    return slopes.transpose(1, 2).contiguous().transpose(1, 2) if tokens_first else slopes


def linear_weights(
    query: Tensor, key: Tensor, *, causal: bool, key_mask: Tensor | None = None, epsilon: float = 0.0
) -> Tensor:
    """The dense reference: the weight `(B, H, T, S)` of every key for every query.

    Args:
        query: features `(B, H, T, F)`, none below 0.
        key: features `(B, H, S, F)`, none below 0.
        causal: a query sees the keys up to its own place; then T = S.
        key_mask: `(B, S)` bool, True where a key is real.
        epsilon: added to the denominator. A query without any real key gives zeros, whatever it is.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    with full_precision(query):
        products = query.to(wide) @ key.to(wide).mT
    if causal:
        products = products.tril()
    if key_mask is not None:
        products = products.masked_fill(~key_mask[:, None, None, :], 0)
    return products / _divisor(products.sum(-1, keepdim=True), epsilon)


def attend_linear(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool,
    key_mask: Tensor | None = None,
    sums: Tensor | None = None,
    dropout_prob: float = 0.0,
    epsilon: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Linear attention of features of queries and keys `(B, H, T, F)` over values `(B, H, T, D)`, in time and memory
    linear in T.

    Args:
        causal: a query sees the keys up to its own place, and those of `sums`.
        key_mask: `(B, T)` bool, True where a key is real.
        sums: what an earlier call returned, which this one continues; or those of keys elsewhere.
        dropout_prob: probability of dropping a key's weight, here for all queries of a head at once, since no weight is
            ever made; what is left is scaled up, and the denominator keeps them all.
        epsilon: as in `linear_weights`, the dense reference.

    Returns:
        The outputs `(B, H, T, D)`, and `Σ_j φ(k_j)ᵀ [v_j, 1]` over all keys so far, `(B, H, F, D + 1)` in at least
        float32.
    """
    with full_precision(query):
        if keeps_bfloat16(query):
            options: dict[str, Any] = {"key_mask": key_mask, "sums": sums, "dropout_prob": dropout_prob}
            return attend_bfloat16(query, key, value.to(query.dtype), causal=causal, epsilon=epsilon, **options)
        if key_mask is not None:
            key = key.masked_fill(~key_mask[:, None, :, None], 0)
        wide = value.to(key.dtype)
        ones = torch.ones_like(wide[..., :1])
        if dropout_prob:
            wide = wide * F.dropout(ones, dropout_prob)
        if causal:
            mixed, sums = continued(query, key, torch.cat([wide, ones], dim=-1), sums)
        else:  # positive numbers, which a sum adds up with less error than a product with ones
            own = torch.cat([key.mT @ wide, key.sum(2)[..., None]], dim=-1)
            sums = own if sums is None else sums + own
            mixed = query @ sums
        return (mixed[..., :-1] / _divisor(mixed[..., -1:], epsilon)).to(value.dtype), sums


def _divisor(total: Tensor, epsilon: float) -> Tensor:
    """What a sum of weights divides by: 1 where there is no weight at all, so that nothing becomes 0 / 0."""
    total = total + epsilon
    return total.masked_fill(total == 0, 1)


def continued(query: Tensor, key: Tensor, value: Tensor, sums: Tensor | None) -> tuple[Tensor, Tensor]:
    """What queries `(B, H, T, F)` gather of the values `(B, H, T, D)` up to their own place, and `Σ_j k_jᵀ v_j` after
    the last, `(B, H, F, D)`, both continuing the `sums` of an earlier call."""
    whole = torch.compiler.is_compiling() or query.shape[2] <= WHOLE
    if whole or is_transforming() or has_tangent(query, key, value, sums):
        return in_chunks(query, key, value, sums)
    if sums is None:
        sums = value.new_zeros(*key.shape[:2], key.shape[3], value.shape[3])
    return _Continued.apply(query, key, value, sums)  # pyright: ignore[reportReturnType]


def in_chunks(query: Tensor, key: Tensor, value: Tensor, sums: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same in steps that autograd and a compiler follow, all chunks at once: one sum per chunk is made."""
    length = query.shape[2]
    size = _chunk(query)
    if torch.compiler.is_compiling():  # one graph serves every length, but not both one chunk and several
        count = length // size + 2
    else:  # a single step needs no whole chunk
        size = max(1, min(size, length))
        count = max(1, (length + size - 1) // size)
    extra = count * size - length
    if torch.compiler.is_compiling() or extra:
        query, key, value = (F.pad(tensor, (0, 0, 0, extra)) for tensor in (query, key, value))
    # Unfolding, and padding back, where views and slices would hold an exported program to lengths of one kind.
    query, key, value = (tensor.unfold(2, size, size).mT for tensor in (query, key, value))
    added = key.mT @ value
    # The sums before each chunk, and after the last one.
    totals = F.pad(added, (0, 0, 0, 0, 1, 0)) if sums is None else torch.cat([sums[:, :, None], added], dim=2)
    totals = totals.cumsum(2)
    mixed = (query @ key.mT).tril_() @ value + query @ totals[:, :, :-1]
    # A view would keep the sums of every chunk.
    return F.pad(mixed.flatten(2, 3), (0, 0, 0, -extra)), totals[:, :, -1].clone()


def _chunk(query: Tensor) -> int:
    return CHUNK if query.shape[3] < 2 * CHUNK else 2 * CHUNK


def _pieces(query: Tensor, value: Tensor) -> Iterator[tuple[slice, int]]:
    """The places of every piece and the size of its chunks; what does not fill a chunk is a piece of its own."""
    batch, heads, length, features = query.shape
    size = _chunk(query)
    made = batch * heads * (size * (size + 2 * features + 2 * value.shape[3]) + features * value.shape[3])
    step = max(1, SIZES[query.is_cuda].causal_numbers // max(1, made)) * size
    whole = length - length % size
    for start in range(0, whole, step):
        yield slice(start, min(start + step, whole)), size
    if whole < length:
        yield slice(whole, length), length - whole


def _cut(piece: tuple[slice, int], *tensors: Tensor) -> list[Tensor]:
    """A piece of each `(B, H, T, ·)`, in chunks `(B, H, chunks, size, ·)`."""
    places, size = piece
    return [tensor[:, :, places].unflatten(2, (-1, size)) for tensor in tensors]


def _before(added: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """The sums before each chunk `(B, H, chunks, F, D)` of what each adds, and those after the last."""
    totals = torch.cat([sums[:, :, None], added], dim=2).cumsum(2)
    return totals[:, :, :-1], totals[:, :, -1]


def _after(asked: Tensor, later: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the sums that each chunk adds to: what later chunks ask, and that with this piece."""
    totals = torch.cat([later[:, :, None], asked.flip(2)], dim=2).cumsum(2)
    return totals[:, :, :-1].flip(2), totals[:, :, -1]


class _Continued(torch.autograd.Function):
    """Both results with their gradients, a piece at a time."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        mixed, starts = value.new_empty(value.shape), [sums]
        for piece in _pieces(query, value):
            part, keys, values, out = _cut(piece, query, key, value, mixed)
            before, last = _before(keys.mT @ values, starts[-1])
            torch.add((part @ keys.mT).tril_() @ values, part @ before, out=out)
            starts.append(last.clone())  # a view would keep the sums of every chunk
        ctx.save_for_backward(query, key, value, *starts[:-1] or [sums])
        return mixed, starts[-1].clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_sums: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        query, key, value, *starts = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient is to be differentiated again
            return gradients_in_steps(in_chunks, (query, key, value, starts[0]), (grad, grad_sums))
        grads = tuple(torch.empty_like(tensor) for tensor in (query, key, value))
        later = grad_sums
        for piece, start in reversed(list(zip(_pieces(query, value), starts, strict=False))):
            part, keys, values, slope = _cut(piece, query, key, value, grad)
            to_query, to_key, to_value = _cut(piece, *grads)
            before, _ = _before(keys.mT @ values, start)
            after, later = _after(part.mT @ slope, later)
            scores, slopes = (part @ keys.mT).tril_(), (slope @ values.mT).tril_()
            torch.add(slopes @ keys, slope @ before.mT, out=to_query)
            torch.add(slopes.mT @ part, values @ after.mT, out=to_key)
            torch.add(scores.mT @ slope, keys @ after, out=to_value)
        return *grads, later
