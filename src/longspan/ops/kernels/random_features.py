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

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.reference import full_precision

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
    """
    exponents, _ = _exponents(query, directions, hyperbolic, sign=1)
    return exponents.sub_(exponents.detach().amax(-1, keepdim=True)).exp_()


def key_features(key: Tensor, directions: Tensor, *, hyperbolic: bool = False) -> Tensor:
    """Features `(B, H, T, F)` of keys `(B, H, T, D)` for the softmax kernel: each depends on its key alone."""
    exponents, half = _exponents(key, directions, hyperbolic, sign=-1)
    return exponents.sub_(half - TOP).exp_()


def relu_features(tensor: Tensor, directions: Tensor, *, normalized: bool = True) -> Tensor:
    """`relu(ω·x / D^¼) + 10⁻³`, of queries and of keys `(…, D)`: the generalised kernel of section 2.2, which is no
    softmax. The published code divides by `D^¼` too (`normalize_data`); otherwise features are `relu(ω·x) + 10⁻³`."""
    scale = tensor.shape[-1] ** -0.25 if normalized else 1.0
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
