"""Positive random features, by which linear attention approximates the softmax (FAVOR+).

`exp(q·k / √D) = E exp(ω·q′ − ‖q′‖²/2) exp(ω·k′ − ‖k′‖²/2)` over ω ~ N(0, I), with `x′ = x / D^¼`; a mean over drawn
directions ω takes the place of the expectation (Choromanski et al. 2021, arXiv 2009.14794, lemma 1). Orthogonal
directions err less than independent ones (section 2.4 there).

**Why nothing overflows.** Sums over keys serve all queries, so a key's features may be scaled by nothing that another
token decides: a maximum over keys would leak the future, and make padding and company count. But a direction's factor
moved from key to query, `exp(−‖ω‖²/2)`, completes the square:

    key    exp(ω·k′ − ‖k′‖²/2 − ‖ω‖²/2) = exp(−‖k′ − ω‖²/2)    at most 1, whatever the key
    query  exp(ω·q′ + ‖ω‖²/2 − its largest over ω)             at most 1; ‖q′‖²/2 cancels in the division
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from longspan.ops.compiled import fused
from longspan.ops.runtime import full_precision, keeps_bfloat16

TOP = 50.0
"""Exponent of the largest feature that a key can have: the sums of 2²⁴ keys still fit into float32."""
EPSILON = 1e-26
"""For the denominator, so that gradients stay finite where all keys that a query sees are longer than about 16·D^¼: far
below what shorter ones give, and still e²⁷ above what float32 can hold."""
RELU_FLOOR = 1e-3
"""What the published code adds to features of the ReLU kernel."""


def draw_directions(count: int, width: int, *, seed: int, draw: int = 0, orthogonal: bool = True) -> Tensor:
    """Directions `(count, width)` of the length and direction of N(0, I), in float64; equal arguments give equal ones.

    Orthogonal ones are so in blocks of `width`: rows of a random rotation, with lengths drawn anew.
    """
    # The generator reads 32 bits of its seed; an odd factor gives each of 2³² draws one of its own.
    generator = torch.Generator().manual_seed((seed + 0x9E3779B1 * draw) % 2**32)
    blocks = -(-count // width)
    gaussian = torch.randn(blocks, width, width, generator=generator, dtype=torch.float64, device="cpu")
    if not orthogonal:
        return gaussian.flatten(0, 1)[:count]
    rotation, upper = torch.linalg.qr(gaussian)
    # Without the signs, the rotations that a decomposition picks would not be uniform.
    rotation = rotation * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]
    lengths = torch.randn(blocks, width, width, generator=generator, dtype=torch.float64, device="cpu").norm(dim=-1)
    return (rotation.mT * lengths[..., None]).flatten(0, 1)[:count]


def query_features(query: Tensor, directions: Tensor, *, hyperbolic: bool = False) -> Tensor:
    """Features `(B, H, T, F)` of queries `(B, H, T, D)` for the softmax kernel, each query's largest being 1.

    Args:
        directions: `(F, D)`, or half as many for hyperbolic features.
        hyperbolic: each direction also serves the other way round.

    Where `keeps_bfloat16`, they are divided by their sum, which cancels like any other factor of a query.
    """
    if keeps_bfloat16(query) and not directions.requires_grad:
        return _NarrowQueryFeatures.apply(query, _scaled(directions, query, hyperbolic))  # pyright: ignore[reportReturnType]
    exponents, _ = _exponents(query, directions, hyperbolic, sign=1)
    return exponents.sub_(exponents.detach().amax(-1, keepdim=True)).exp_()


def key_features(key: Tensor, directions: Tensor, *, hyperbolic: bool = False) -> Tensor:
    """Features `(B, H, T, F)` of keys `(B, H, T, D)` for the softmax kernel: each depends on its key alone."""
    if keeps_bfloat16(key) and not directions.requires_grad:
        return _NarrowKeyFeatures.apply(key, _scaled(directions, key, hyperbolic))  # pyright: ignore[reportReturnType]
    exponents, half = _exponents(key, directions, hyperbolic, sign=-1)
    return exponents.sub_(half - TOP).exp_()


def relu_features(tensor: Tensor, directions: Tensor) -> Tensor:
    """`relu(ω·x / D^¼) + 10⁻³`, of queries and of keys `(…, D)`: the generalised kernel of section 2.2, which is no
    softmax. The division by `D^¼` is that of the published code."""
    scale = tensor.shape[-1] ** -0.25
    with full_precision(tensor):
        wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
        return (wide @ (directions.to(wide.dtype) * scale).mT).relu() + RELU_FLOOR


def _exponents(tensor: Tensor, directions: Tensor, hyperbolic: bool, *, sign: int) -> tuple[Tensor, Tensor]:
    """`ω·x′ ± ‖ω‖²/2` of every direction `(…, F)`, new memory that may be overwritten, and `‖x′‖²/2` `(…, 1)`.

    In at least float32; memory, not arithmetic, is what features cost, so x′ is never made.
    """
    with full_precision(tensor):
        wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
        directions = directions.to(wide.dtype)
        if hyperbolic:
            directions = torch.cat([directions, -directions])
        scale = tensor.shape[-1] ** -0.25
        exponents = F.linear(wide, directions * scale, sign / 2 * directions.square().sum(-1))
        return exponents, wide.square().sum(-1, keepdim=True) * (scale**2 / 2)


# In bfloat16 on a GPU: exponents are float32, features are not. A product writes `ω·x′`; one kernel adds what depends
# on the direction or the token alone, and writes features with heads first in memory, for products.


def _scaled(directions: Tensor, like: Tensor, hyperbolic: bool) -> Tensor:
    """Directions by `D^¼`, `(F, D)`, in the type of the tokens."""
    directions = torch.cat([directions, -directions]) if hyperbolic else directions
    return (directions * like.shape[-1] ** -0.25).to(like.dtype)


def _products(tensor: Tensor, scaled: Tensor) -> tuple[Tensor, Tensor]:
    """`ω·x′` `(B, T, H, F)`, and `‖ω‖ / D^¼` `(F,)`, in float32."""
    rows = tensor.transpose(1, 2)
    products = torch.mm(rows.flatten(0, 2), scaled.mT, out_dtype=torch.float32)
    return products.view(*rows.shape[:3], len(scaled)), _norms(scaled)


def _norms(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor, dim=-1, dtype=torch.float32)


def _gathered(slopes: Tensor, scaled: Tensor) -> Tensor:
    """The gradient of tokens `(B, T, H, D)` for that of `ω·x′`."""
    return torch.mm(slopes.flatten(0, 2), scaled).view(*slopes.shape[:3], -1)


class _NarrowQueryFeatures(torch.autograd.Function):
    """`query_features` by their sum."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, scaled: Tensor) -> Tensor:
        features = _query_exponentials(*_products(query, scaled), query.shape[-1] ** 0.5, query.dtype)
        ctx.save_for_backward(features, scaled)
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore
        features, scaled = ctx.saved_tensors
        return _gathered(_query_slopes(grad, features), scaled).transpose(1, 2), None


@fused
def _query_exponentials(products: Tensor, norms: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Features `(B, H, T, F)`."""
    return torch.softmax(products + norms.square() * (scale / 2), -1).to(dtype).transpose(1, 2).contiguous()


@fused
def _query_slopes(grad: Tensor, features: Tensor) -> Tensor:
    """The gradient of `ω·x′` `(B, T, H, F)` for that of features `(B, H, T, F)`."""
    wide = grad.float() * features
    slopes = wide - features * wide.sum(-1, keepdim=True)
    return slopes.to(grad.dtype).transpose(1, 2).contiguous()


class _NarrowKeyFeatures(torch.autograd.Function):
    """`key_features`."""

    @staticmethod
    def forward(ctx: Any, key: Tensor, scaled: Tensor) -> Tensor:
        norms = _norms(key.transpose(1, 2))
        features = _key_exponentials(*_products(key, scaled), norms, key.shape[-1] ** 0.5, key.dtype)
        ctx.save_for_backward(key, features, scaled)
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore
        key, features, scaled = ctx.saved_tensors
        slopes, total = _key_slopes(grad, features)
        gathered = _gathered(slopes, scaled)
        del slopes
        return _shortened(gathered, total, key.transpose(1, 2), key.shape[-1] ** -0.5).transpose(1, 2), None


@fused
def _key_exponentials(products: Tensor, norms: Tensor, lengths: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Features `(B, H, T, F)` of keys with the `lengths` `‖k‖` `(B, T, H)`."""
    constant = TOP - lengths.square()[..., None] / (2 * scale)
    exponents = products - norms.square() * (scale / 2) + constant
    return exponents.exp().to(dtype).transpose(1, 2).contiguous()


@fused
def _key_slopes(grad: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of exponents `(B, T, H, F)` for that of features `(B, H, T, F)`, and its sum over F in float32."""
    slopes = (grad.float() * features).transpose(1, 2)
    return slopes.to(grad.dtype).contiguous(), slopes.sum(-1, keepdim=True)


@fused
def _shortened(gathered: Tensor, total: Tensor, key: Tensor, scale: float) -> Tensor:
    """The gradient of keys `(B, T, H, D)`, whose longer ones have smaller features."""
    return (gathered - total * key * scale).to(key.dtype)
