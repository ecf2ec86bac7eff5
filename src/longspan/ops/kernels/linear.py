"""Linear attention: features in place of the softmax, so that one sum over the keys serves every query.

`y_i = φ(q_i) Σ_j φ(k_j)ᵀ v_j / (φ(q_i) · Σ_j φ(k_j) + ε)`, where j runs over all real keys, or in the causal form over
those up to i (Katharopoulos et al. 2020, arXiv 2006.16236, sections 3.2 and 3.3). The operator takes the features as
they are; here stands the map of that paper, in `longspan.ops.kernels.random_features` the one that approximates the
softmax.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.reference import full_precision
from longspan.ops.kernels.causal_sums import continued
from longspan.ops.runtime import has_tangent, is_transforming


def elu_features(tensor: Tensor) -> Tensor:
    """`φ(x) = elu(x) + 1`, in at least float32, and above 0 for every x whose exponential is: adding 1 to `exp(x) − 1`
    would round it away."""
    wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
    if torch.compiler.is_compiling() or is_transforming() or has_tangent(tensor):
        return wide.relu() + wide.clamp(max=0).exp()
    return _EluFeatures.apply(wide)  # pyright: ignore[reportReturnType]


class _EluFeatures(torch.autograd.Function):
    """The same; its derivative is φ up to 1, so that nothing but φ is kept."""

    @staticmethod
    def forward(ctx: Any, wide: Tensor) -> Tensor:
        features = wide.clamp(max=0).exp_().add_(wide.relu())
        ctx.save_for_backward(features)
        return features

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore
        return ctx.saved_tensors[0].clamp(max=1) * grad


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
    with full_precision(query):
        products = query @ key.mT
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
        sums: what an earlier call returned, which this one continues.
        dropout_prob: probability of dropping a key's weight, here for all queries of a head at once, since no weight is
            ever made; what is left is scaled up, and the denominator keeps them all.
        epsilon: as in `linear_weights`, the dense reference.

    Returns:
        The outputs `(B, H, T, D)`, and `Σ_j φ(k_j)ᵀ [v_j, 1]` over all keys so far, `(B, H, F, D + 1)` in at least
        float32.
    """
    with full_precision(query):
        if key_mask is not None:
            key = key.masked_fill(~key_mask[:, None, :, None], 0)
        wide = value.to(key.dtype)
        ones = torch.ones_like(wide[..., :1])
        if dropout_prob:
            wide = wide * F.dropout(ones, dropout_prob)
        if causal:
            mixed, sums = continued(query, key, torch.cat([wide, ones], dim=-1), sums)
        else:  # positive numbers, which a sum adds up with less error than a product with ones
            sums = torch.cat([key.mT @ wide, key.sum(2)[..., None]], dim=-1)
            mixed = query @ sums
        return (mixed[..., :-1] / _divisor(mixed[..., -1:], epsilon)).to(value.dtype), sums


def _divisor(total: Tensor, epsilon: float) -> Tensor:
    """What a sum of weights divides by: 1 where there is no weight at all, so that nothing becomes 0 / 0."""
    total = total + epsilon
    return total.masked_fill(total == 0, 1)
