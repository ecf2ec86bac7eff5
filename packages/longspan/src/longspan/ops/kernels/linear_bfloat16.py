"""Linear attention in bfloat16 on a GPU, where memory is what it costs: features are stored in half precision, and all
that is added up is added in float32.

What `longspan.ops.kernels.linear` computes; steps between products are one kernel each, forward and backward. Every
key's value is followed by ones, whose sums divide; so many that rows stay aligned. Sums before a chunk are one product
of what all chunks add with a triangle of ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from longspan.ops.compiled import fused
from longspan.ops.runtime import cached

ONES = 8
"""Columns of ones behind a value: tensor cores want rows of a multiple of 16 bytes."""
CHUNK = 128
"""Queries and keys of a chunk, within which scores are made."""
CHUNKS = 512
"""Chunks whose running sums are one product, of as many operations as it has pairs of chunks."""
SUMMED = 1024
"""Keys of a product that sums up without order: its results are rounded, and added up in float32."""


def attend_bfloat16(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool,
    key_mask: Tensor | None,
    sums: Tensor | None,
    dropout_prob: float,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """`longspan.ops.kernels.linear.attend_linear` of features in bfloat16; the sums are float32."""
    kept = F.dropout(value.new_ones(*value.shape[:3], 1), dropout_prob) if dropout_prob else None
    width, start = value.shape[-1], None if sums is None else _with_all_ones(sums)
    value = _WithOnes.apply(value, key_mask, kept)  # pyright: ignore[reportAssignmentType]
    if causal:
        mixed, after = _continued(query, key, value, start)
    else:
        after: Any = _Summed.apply(key, value)
        after = after if start is None else after + start
        mixed = _Read.apply(query, after)
    return _Divided.apply(mixed, width, epsilon), after[..., : width + 1]  # pyright: ignore[reportReturnType]


class _WithOnes(torch.autograd.Function):
    """Values `(B, H, T, D)` times `kept` `(B, H, T, 1)`, with ones behind them, `(B, H, T, D + ONES)`; 0 for keys that
    are not `real` `(B, T)`.

    A key that is hidden adds nothing where its value and its ones are 0, which are fewer numbers than its features.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, real: Tensor | None, kept: Tensor | None) -> Tensor:
        ctx.save_for_backward(real, kept)
        return _with_ones(value, real, kept)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore
        return _without_ones(grad, *ctx.saved_tensors), None, None


@fused
def _with_ones(value: Tensor, real: Tensor | None, kept: Tensor | None) -> Tensor:
    value = value if kept is None else value * kept
    value = torch.cat([value, value.new_ones(()).expand(*value.shape[:3], ONES)], dim=-1)
    return value if real is None else value.masked_fill(~real[:, None, :, None], 0)


@fused
def _without_ones(grad: Tensor, real: Tensor | None, kept: Tensor | None) -> Tensor:
    """The gradient of values, tokens before heads in memory, as projections read it."""
    grad = grad[..., :-ONES]
    grad = grad if kept is None else grad * kept
    grad = grad if real is None else grad.masked_fill(~real[:, None, :, None], 0)
    return _tokens_first(grad)


def _tokens_first(tensor: Tensor) -> Tensor:
    """The same `(B, H, T, ·)`, tokens before heads in memory."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def _with_all_ones(sums: Tensor) -> Tensor:
    """Sums `(B, H, F, D + 1)` with what stands in their last column in all columns of ones."""
    return torch.cat([sums, sums[..., -1:].expand(*sums.shape[:3], ONES - 1)], dim=-1)


class _Divided(torch.autograd.Function):
    """Sums of values and weights `(B, H, T, D + ONES)` as means `(B, H, T, D)`, tokens before heads in memory."""

    @staticmethod
    def forward(ctx: Any, mixed: Tensor, width: int, epsilon: float) -> Tensor:
        ctx.save_for_backward(mixed)
        ctx.options = width, epsilon
        return _divided(mixed, width, epsilon)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore
        return _divided_gradient(grad, *ctx.saved_tensors, *ctx.options), None, None


@fused
def _divided(mixed: Tensor, width: int, epsilon: float) -> Tensor:
    return _tokens_first(mixed[..., :width] / _divisor(mixed, width, epsilon))


def _divisor(mixed: Tensor, width: int, epsilon: float) -> Tensor:
    """The sum of weights `(B, H, T, 1)`; 1 where no key is real."""
    total = mixed[..., width : width + 1] + epsilon
    return total if epsilon > 0 else total.masked_fill(total == 0, 1)  # weights are never below 0


@fused
def _divided_gradient(grad: Tensor, mixed: Tensor, width: int, epsilon: float) -> Tensor:
    """That of the values is `∂y / n`, that of the sum of weights n `−∂y · y / n`."""
    total = _divisor(mixed, width, epsilon)
    grad = F.pad(grad, (0, ONES))  # of one width with the sums, so that a single kernel adds up and writes
    shares = (grad * mixed).sum(-1, keepdim=True) / total / total
    return (grad / total - F.pad(shares, (width, ONES - 1))).contiguous()


def _filled(tensor: Tensor, size: int) -> Tensor:
    """`(B, H, T, ·)` with so many rows of 0 behind it that T is a multiple of `size`."""
    extra = -tensor.shape[2] % size
    return F.pad(tensor, (0, 0, 0, extra)) if extra else tensor


def _summed(key: Tensor, value: Tensor) -> Tensor:
    """`Σ_j k_jᵀ v_j` `(B, H, F, D)` in float32."""
    size = max(1, min(SUMMED, key.shape[2]))
    key, value = (_filled(tensor, size).unflatten(2, (-1, size)) for tensor in (key, value))
    return (key.mT @ value).sum(2, dtype=torch.float32)


class _Summed(torch.autograd.Function):
    """`_summed` of keys and values; gradients have their memory layout."""

    @staticmethod
    def forward(ctx: Any, key: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(key, value)
        return _summed(key, value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore
        key, value = ctx.saved_tensors
        grad = grad.to(key.dtype)
        return value @ grad.mT, key @ grad


class _Read(torch.autograd.Function):
    """What queries `(B, H, T, F)` gather of sums in float32; the gradient of the sums is a sum of products, too."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, sums: Tensor) -> Tensor:
        ctx.save_for_backward(query, sums)
        return query @ sums.to(query.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore
        query, sums = ctx.saved_tensors
        return grad @ sums.to(query.dtype).mT, _summed(query, grad)


def _continued(query: Tensor, key: Tensor, value: Tensor, start: Tensor | None) -> tuple[Tensor, Tensor]:
    """What queries gather of the values up to their own place, and the sums after the last, in float32."""
    length = query.shape[2]
    size = max(1, min(CHUNK, length))
    query, key, value = (_filled(tensor, size) for tensor in (query, key, value))
    mixed, after = _Continued.apply(query, key, value, start, size)  # pyright: ignore[reportGeneralTypeIssues]
    return mixed[:, :, :length], after


def _pieces(length: int, size: int) -> Iterator[slice]:
    """The places of every so many chunks of `size` tokens."""
    for first in range(0, length, CHUNKS * size):
        yield slice(first, min(first + CHUNKS * size, length))


def _cut(piece: slice, size: int, *tensors: Tensor) -> list[Tensor]:
    """A piece of each `(B, H, T, ·)`, in chunks `(B·H·chunks, size, ·)`, in their memory where it lies together."""
    cut = [tensor[:, :, piece].unflatten(2, (-1, size)) for tensor in tensors]
    return [each.flatten(0, 2) if each.is_contiguous() else each.contiguous().flatten(0, 2) for each in cut]


def _before(added: Tensor, start: Tensor | None, *, backward: bool = False) -> Tensor:
    """The sums before each chunk of what the chunks `(B, H, chunks, F, D)` add, or behind it, with a `start`."""
    triangle = _triangle(added.shape[2], added.dtype, added.device)
    flat = added.flatten(0, 1).flatten(2)
    totals = torch.matmul(triangle.mT if backward else triangle, flat).view(added.shape)
    return totals if start is None else totals.add_(start[:, :, None])


@cached
def _triangle(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Ones below the diagonal."""
    return torch.ones(count, count, dtype=dtype, device=device).tril_(-1)


def _sums(added: Tensor, start: Tensor | None) -> Tensor:
    """What all chunks add, in float32, and a `start`."""
    total = added.sum(2, dtype=torch.float32)
    return total if start is None else total + start


class _Continued(torch.autograd.Function):
    """Both results with their gradients, a piece at a time; no scores and no sums of chunks are saved."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, start: Tensor | None, size: int
    ) -> tuple[Tensor, Tensor]:
        ctx.size, heads, parts, starts = size, query.shape[:2], [], []
        for piece in _pieces(query.shape[2], size):
            queries, keys, values = _cut(piece, size, query, key, value)
            added = torch.bmm(keys.mT, values).unflatten(0, (*heads, -1))
            before = _before(added, start).flatten(0, 2)
            scores = torch.bmm(queries, keys.mT).tril_()
            part = torch.bmm(scores, values)
            parts.append(part.baddbmm_(queries, before).view(*heads, -1, values.shape[-1]))
            starts.append(start)
            start = _sums(added, start)
        ctx.save_for_backward(query, key, value, *starts)
        if start is None:
            start = key.new_zeros(*key.shape[:2], key.shape[3], value.shape[3], dtype=torch.float32)
        mixed = value.new_empty(value.shape) if not parts else parts[0] if len(parts) == 1 else torch.cat(parts, 2)
        return mixed, start

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_sums: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        query, key, value, *starts = ctx.saved_tensors
        size, heads, later = ctx.size, query.shape[:2], grad_sums
        grads: list[list[Tensor]] = [[], [], []]
        for piece, start in reversed(list(zip(_pieces(query.shape[2], size), starts, strict=True))):
            queries, keys, values, slope = _cut(piece, size, query, key, value, grad)
            before = _before(torch.bmm(keys.mT, values).unflatten(0, (*heads, -1)), start).flatten(0, 2)
            asked = torch.bmm(queries.mT, slope).unflatten(0, (*heads, -1))
            after = _before(asked, later, backward=True).flatten(0, 2)
            later = _sums(asked, later)
            slopes = torch.bmm(slope, values.mT).tril_()
            to_query = torch.bmm(slopes, keys).baddbmm_(slope, before.mT)
            to_key = torch.bmm(slopes.mT, queries).baddbmm_(values, after.mT)
            scores = torch.bmm(queries, keys.mT, out=slopes).tril_()
            to_value = torch.bmm(scores.mT, slope).baddbmm_(keys, after)
            for row, each in zip(grads, (to_query, to_key, to_value), strict=True):
                row.insert(0, each.view(*heads, -1, each.shape[-1]))
        whole = [row[0] if len(row) == 1 else torch.cat(row, 2) for row in grads]
        return *whole, later if ctx.needs_input_grad[3] else None, None
