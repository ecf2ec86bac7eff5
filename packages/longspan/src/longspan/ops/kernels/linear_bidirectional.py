"""Bidirectional linear attention with `φ(x) = elu(x) + 1` in bfloat16 on a GPU, where memory traffic is what it costs.

The sums over the keys are complete before the first query is read, so a query's features are divided by
`n_i = φ(q_i)·z + ε` before the product with the sums `S = Σ_j φ(k_j)ᵀ v_j`, `z = Σ_j φ(k_j)`, not after it:
`y_i = w_i S` with `w_i = φ(q_i) / n_i`. Five kernels read or write tensors of the size of the input: they make
`φ(k)`, `z`, `S`, `w` and `y`.

With `∂` for gradients and `r_i = ∂w_i · w_i`, where `∂w_i = ∂y_i Sᵀ`:

    ∂S = Σ_i w_iᵀ ∂y_i        ∂φ(q_i) = (∂w_i − r_i z) / n_i
    ∂z = −Σ_i r_i w_i         ∂φ(k_j) = v_j ∂Sᵀ + ∂z         ∂v_j = φ(k_j) ∂S

Tensors are `(B, T, H, ·)`, tokens before heads, as projections write and read them. Products of heads read them in
place: a sum over tokens is a sum over products of every `count`-th token, whose heads and offsets are one dimension of
memory.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops import compiled
from longspan.ops.compiled import fused
from longspan.ops.kernels.linear import attend_linear, elu, elu_features
from longspan.ops.runtime import full_precision, gradients_in_steps, keeps_bfloat16

KEYS = 1024
"""Keys of a product that sums up, at least: fewer products would leave a large GPU idle."""
LONG = 1 << 23
"""Numbers of a text from which on, in a batch, launches for each text take less time than copies with heads first."""
PARTS = 8
"""Sums of single numbers in place of each such product: they have no other dimension to divide between processors."""


def attend_elu(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
    """Computes `attend_linear` of the `elu_features` of queries and keys `(B, H, T, D)`, with its options.

    Returns:
        The outputs `(B, H, T, D)`, and the sums; `None` for long bidirectional inputs in bfloat16 on a GPU, which no
        later call continues.
    """
    batch, heads, length, _ = query.shape
    long = keeps_bfloat16(query) and query.numel() >= batch * (compiled.FEWEST if batch == 1 else LONG)
    continues = options["causal"] or options.get("sums") is not None
    if continues or not long or not query.dtype == key.dtype == value.dtype:
        return attend_linear(elu_features(query), elu_features(key), value, **options)
    prob, epsilon = options.get("dropout_prob", 0.0), options.get("epsilon", 0.0)
    kept = F.dropout(value.new_ones(batch, length, heads, 1), prob) if prob else None
    mixed = _Bidirectional.apply(query, key, value, options.get("key_mask"), kept, epsilon)
    return mixed, None  # pyright: ignore[reportReturnType]


class _Bidirectional(torch.autograd.Function):
    """The outputs `(B, H, T, D)` of queries, keys and values of this shape.

    `real` `(B, T)` bool marks the keys that exist, `kept` `(B, T, H, 1)` has the factors of dropout.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, real: Tensor | None, kept: Tensor | None, epsilon: float
    ) -> Tensor:
        rows = [tensor.transpose(1, 2).contiguous() for tensor in (query, key, value)]
        length = query.shape[2]
        # A power of two: each is a program of its own.
        ctx.count, ctx.epsilon = 1 << max(0, (length // KEYS).bit_length() - 1), epsilon
        with full_precision(query):
            features = _keys(rows[1], real, kept)
            total = _parts_of_total(rows[1], real, PARTS * ctx.count).sum(1)
            sums = _summed(features, rows[2], ctx.count).to(query.dtype)
            weights = _weights(rows[0], total, epsilon)
            context = _products(weights, sums)
        ctx.save_for_backward(query, key, value, real, kept, features, total, sums)
        return context.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        query, key, value, real, kept, features, total, sums = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient is to be differentiated again

            def steps(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                wide = value.float() if kept is None else value.float() * kept.transpose(1, 2)
                found = elu_features(query.float()), elu_features(key.float())
                mixed, _ = attend_linear(*found, wide, causal=False, key_mask=real, epsilon=ctx.epsilon)
                return mixed.to(value.dtype)

            return *gradients_in_steps(steps, (query, key, value), grad), None, None, None
        slope = grad.transpose(1, 2).contiguous()
        rows = [tensor.transpose(1, 2).contiguous() for tensor in (query, key, value)]
        with full_precision(query):
            # Weights are made again, which takes less than a hundredth of the time, and not kept from the forward pass.
            to_query, weights, shares = _query_gradient(rows[0], _products(slope, sums.mT), total, ctx.epsilon)
            to_total = _parts_of_shares(weights, shares, PARTS * ctx.count).sum(1)
            to_sums = _summed(weights, slope, ctx.count).to(query.dtype)
            del weights
            to_value = _products(features, to_sums)
            to_features = _products(rows[2], to_sums.mT)
            to_key = _key_gradient(rows[1], to_features, to_total, real, kept)
        return *(each.transpose(1, 2) for each in (to_query, to_key, to_value)), None, None, None


@fused
def _keys(key: Tensor, real: Tensor | None, kept: Tensor | None) -> Tensor:
    """Features of keys `(B, T, H, F)`, 0 where they are not real, times `kept`."""
    features = _real(elu(key.float()), real)
    return (features if kept is None else features * kept).to(key.dtype)


@fused
def _parts_of_total(key: Tensor, real: Tensor | None, count: int) -> Tensor:
    """The sum of the features of every `count`-th key, `(B, count, H, F)` in float32; nothing that dropout changes."""
    return _parts(_real(elu(key.float()), real), count)


def _real(tensor: Tensor, real: Tensor | None) -> Tensor:
    return tensor if real is None else tensor.masked_fill(~real[:, :, None, None], 0)


def _parts(tensor: Tensor, count: int) -> Tensor:
    """The sum of every `count`-th token of `(B, T, ·, ·)`, `(B, count, ·, ·)`."""
    extra = -tensor.shape[1] % count
    tensor = F.pad(tensor, (0, 0, 0, 0, 0, extra)) if extra else tensor
    return tensor.unflatten(1, (-1, count)).sum(1)


def _divisor(features: Tensor, total: Tensor, epsilon: float) -> Tensor:
    """`n` of features `(B, T, H, F)` and `z` `(B, H, F)`; 1 where no key is real."""
    divisor = (features * total[:, None]).sum(-1, keepdim=True) + epsilon
    return divisor if epsilon > 0 else divisor.masked_fill(divisor == 0, 1)  # features are never below 0


@fused
def _weights(query: Tensor, total: Tensor, epsilon: float) -> Tensor:
    """`w` `(B, T, H, F)`."""
    features = elu(query.float())
    return (features / _divisor(features, total, epsilon)).to(query.dtype)


@fused
def _query_gradient(query: Tensor, slopes: Tensor, total: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of queries for `slopes`, the gradient of `w`; `w`; and `r` `(B, T, H, 1)` in float32."""
    features = elu(query.float())
    divisor = _divisor(features, total, epsilon)
    shares = (slopes.float() * features).sum(-1, keepdim=True) / divisor
    to_features = (slopes.float() - shares * total[:, None]) / divisor
    return (to_features * features.clamp(max=1)).to(query.dtype), (features / divisor).to(query.dtype), shares


@fused
def _parts_of_shares(weights: Tensor, shares: Tensor, count: int) -> Tensor:
    """`−Σ r w` over every `count`-th token, `(B, count, H, F)` in float32."""
    return _parts(weights.float() * -shares, count)


@fused
def _key_gradient(key: Tensor, slopes: Tensor, to_total: Tensor, real: Tensor | None, kept: Tensor | None) -> Tensor:
    """The gradient of keys for `slopes` `v ∂Sᵀ`."""
    to_features = slopes.float() if kept is None else slopes.float() * kept
    grad = (to_features + to_total[:, None]) * elu(key.float()).clamp(max=1)
    return _real(grad, real).to(key.dtype)


def _products(rows: Tensor, matrices: Tensor) -> Tensor:
    """`(B, T, H, K) @ (B, H, K, N)` → `(B, T, H, N)`, a text at a time."""
    out = rows.new_empty(*rows.shape[:3], matrices.shape[-1])
    for text, matrix, result in zip(rows, matrices, out, strict=True):
        torch.bmm(text.transpose(0, 1), matrix, out=result.transpose(0, 1))
    return out


def _summed(left: Tensor, right: Tensor, count: int) -> Tensor:
    """`Σ_t left_tᵀ right_t` of `(B, T, H, F)` and `(B, T, H, D)`, `(B, H, F, D)` in float32, a text at a time."""
    whole = right.shape[1] - right.shape[1] % count
    sums = []
    for keys, values in zip(left, right, strict=True):
        total = _product(keys[:whole], values[:whole], count)
        sums.append(total + _product(keys[whole:], values[whole:], 1) if whole < len(values) else total)
    return sums[0][None] if len(sums) == 1 else torch.stack(sums)


def _product(left: Tensor, right: Tensor, count: int) -> Tensor:
    """`Σ_t left_tᵀ right_t` of `(T, H, F)` and `(T, H, D)`, T a multiple of `count`, `(H, F, D)` in float32."""
    keys, values = (tensor.unflatten(0, (-1, count)).flatten(1, 2) for tensor in (left, right))
    parts = torch.bmm(keys.permute(1, 2, 0), values.transpose(0, 1), out_dtype=torch.float32)
    return parts.unflatten(0, (count, -1)).sum(0) if count > 1 else parts
