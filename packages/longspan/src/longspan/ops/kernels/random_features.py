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


# In bfloat16 on a GPU: exponents are float32, features are not. One product gives the exponents whole: what depends on
# the direction alone, and on the token alone, are columns of its factors, in three parts of 8 bits each.


def _scaled(directions: Tensor, like: Tensor, hyperbolic: bool) -> Tensor:
    """Directions by `D^¼`, `(F, D)`, in the type of the tokens."""
    directions = torch.cat([directions, -directions]) if hyperbolic else directions
    return (directions * like.shape[-1] ** -0.25).to(like.dtype)


def _in_three(numbers: Tensor) -> list[Tensor]:
    """Numbers in float32 as three in bfloat16 whose sum they are, `(…, 1)` each."""
    first = numbers.to(torch.bfloat16)
    second = (numbers := numbers - first).to(torch.bfloat16)
    return [first[..., None], second[..., None], (numbers - second).to(torch.bfloat16)[..., None]]


def _products(tensor: Tensor, scaled: Tensor, sign: int, of_tokens: Tensor | None = None) -> Tensor:
    """`ω·x′ ± ‖ω‖²/2`, and what is `of_tokens` `(B, T, H)`, in float32: `(B, T, H, F)`."""
    halves = _in_three(scaled.float().square().sum(-1) * (sign / 2 * scaled.shape[-1] ** 0.5))
    ones = tensor.new_ones(())
    rows = tensor.transpose(1, 2)
    # Eight columns more keep rows aligned.
    given = [ones.expand(*rows.shape[:3], 1)] * 3 if of_tokens is None else _in_three(of_tokens)
    rows = torch.cat([rows, ones.expand(*rows.shape[:3], 3), *given, ones.expand(*rows.shape[:3], 2)], dim=-1)
    columns = [scaled, *halves, scaled.new_full((len(scaled), 3), float(of_tokens is not None))]
    factors = torch.cat([*columns, scaled.new_zeros(len(scaled), 2)], dim=-1)
    flat = rows.flatten(0, 2)
    return torch.mm(flat, factors.mT, out_dtype=torch.float32).view(*rows.shape[:3], len(scaled))


class _NarrowQueryFeatures(torch.autograd.Function):
    """`query_features` by their sum; heads come first in memory."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, scaled: Tensor) -> Tensor:
        features = query.new_empty(*query.shape[:3], len(scaled))
        features.copy_(torch.softmax(_products(query, scaled, 1), -1).transpose(1, 2))
        ctx.save_for_backward(features, scaled)
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore
        features, scaled = ctx.saved_tensors
        return torch._softmax_backward_data(grad, features, -1, features.dtype) @ scaled, None


class _NarrowKeyFeatures(torch.autograd.Function):
    """`key_features`; heads come first in memory."""

    @staticmethod
    def forward(ctx: Any, key: Tensor, scaled: Tensor) -> Tensor:
        scale = key.shape[-1] ** -0.5
        norms = torch.linalg.vector_norm(key.transpose(1, 2), dim=-1, dtype=torch.float32)
        exponents = _products(key, scaled, -1, norms.square_().mul_(-scale / 2).add_(TOP))
        features = key.new_empty(*key.shape[:3], len(scaled))
        torch.exp(exponents.transpose(1, 2), out=features)
        ctx.save_for_backward(key, features, scaled)
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore
        key, features, scaled = ctx.saved_tensors
        slopes = grad * features
        return slopes @ scaled - slopes.sum(-1, keepdim=True) * key * key.shape[-1] ** -0.5, None
