"""Locality-sensitive hashing of directions by random rotations: near vectors share a bucket, distant ones seldom do.

`h(x) = argmax([xR; −xR])`, the nearest of b directions, with another rotation R for every round (Andoni et al. 2015;
Kitaev et al. 2020, arXiv 2001.04451, section 2). Many buckets are composed of two hashes, `h₁ + b₁·h₂`, with fewer
directions each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from longspan.ops.attend.reference import full_precision

MOST_PER_HASH = 128
"""Maximum buckets of one hash; more are the product of two."""
MOST_BUCKETS = MOST_PER_HASH**2
NOWHERE = -1
"""The bucket of padding."""
PIECE = 1 << 18
"""Number of products that fit into the cache."""
EPSILON = 1e-6
"""Added to the mean square of a vector before it is normalised."""


def draw_rotations(heads: int, rounds: int, width: int, generator: torch.Generator | None = None) -> Tensor:
    """Returns random directions for any number of buckets, `(H, R, 2, D, 64)`, standard normal; fewer buckets use the
    first ones."""
    return torch.randn(heads, rounds, 2, width, MOST_PER_HASH // 2, generator=generator, device="cpu")


@torch.library.custom_op("longspan::seeded_normals", mutates_args=())
def seeded_normals(like: Tensor, seed: int, shape: Sequence[int]) -> Tensor:
    """Returns normal numbers of the dtype and device of `like`, equal to `torch.manual_seed` and `torch.randn`, without
    changing torch's global generator. An operator, because compiled graphs do not support generators."""
    generator = torch.Generator(like.device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)


@seeded_normals.register_fake
def _(like: Tensor, seed: int, shape: Sequence[int]) -> Tensor:
    return like.new_empty(shape)


def even_share(count: Tensor, size: int) -> Tensor:
    """Returns the number of buckets that hold `size` of `count` tokens on average: 1 for up to `size` tokens, otherwise
    even."""
    halves = torch.div(count + 2 * size - 1, 2 * size, rounding_mode="floor")
    return torch.where(count <= size, 1, (2 * halves).clamp(max=MOST_BUCKETS))


def most_buckets(count: int, exact: bool) -> int:
    """Returns an upper bound on the buckets of `split` for up to `count` buckets, by arithmetic alone; `exact` for up
    to 128."""
    return count if exact and count <= MOST_PER_HASH else count + count // 4 + 8


def split(buckets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the bucket counts of the first and the second hash: two even numbers near the square root for more than
    128, otherwise all and 1."""
    many = buckets > MOST_PER_HASH
    first = 2 * torch.div(buckets.double().sqrt().ceil() + 1, 2, rounding_mode="floor").long()
    first = torch.where(many, first, buckets)
    second = 2 * torch.div(buckets + 2 * first - 1, 2 * first, rounding_mode="floor")
    return first, torch.where(many, second, 1)


@torch.no_grad()
def buckets_of(
    vectors: Tensor, rotations: Tensor, buckets: Tensor, most: int, key_mask: Tensor | None = None
) -> Tensor:
    """Returns the bucket of every vector in every round.

    Args:
        vectors: `(B, H, T, D)` of any length.
        rotations: `(H, R, 2, D, 64)`.
        buckets: number of buckets, `(B,)` or `(1,)` int64: 1, or an even number up to 16,384. On the CPU, if known
            there, no unnecessary directions are computed.
        most: an upper bound on them, known without synchronisation; up to 128, the second hash is skipped.
        key_mask: `(B, T)` bool, True where a token is real; padding gets bucket −1.

    Returns:
        `(B, H, R, T)` int64, below the product of `split(buckets)`.
    """
    if torch.compiler.is_compiling():
        first, second = split(buckets)
        ids = _nearest(vectors, rotations[:, :, 0].mT, first)
        ids = ids + first[:, None, None, None] * _nearest(vectors, rotations[:, :, 1].mT, second)
    elif most == 1:
        ids = torch.zeros(rotations.shape[:2] + vectors.shape[2:3], dtype=torch.int64, device=vectors.device)
        ids = ids.expand(len(vectors), -1, -1, -1)
    elif not vectors.numel():
        ids = torch.zeros_like(vectors[..., 0], dtype=torch.int64)[:, :, None].expand(-1, -1, rotations.shape[1], -1)
    else:
        ids = _by_pieces(vectors, rotations, buckets, most)
    return ids if key_mask is None else ids.masked_fill(~key_mask[:, None, None, :], NOWHERE)


def _by_pieces(vectors: Tensor, rotations: Tensor, buckets: Tensor, most: int) -> Tensor:
    """`buckets_of` for as many tokens at a time as fit into the cache, with no more directions than the buckets
    need."""
    first, second = split(buckets)
    if buckets.device.type == "cpu":
        columns, others = (max(1, int(counts.max()) // 2) for counts in (first, second))
        few, alike = int(second.max()) == 1, bool((buckets == buckets[0]).all())
        if vectors.device.type != "cpu":  # filled on the device, because a copy would synchronise
            first, second = (torch.full_like(part, int(part[0]), device=vectors.device) for part in (first, second))
            assert alike, "rows of unlike counts are known on the device alone"
    else:  # reading values would cost more than it saves
        few, alike = most <= MOST_PER_HASH, False
        columns = max(1, most // 2) if few else MOST_PER_HASH // 2
        others = min(MOST_PER_HASH // 2, math.isqrt(most) // 2 + 3)  # enough for the second hash of up to `most`
    heads, rounds = rotations.shape[:2]
    step = max(1, PIECE // max(1, len(vectors) * heads * rounds * max(columns, others)))
    if vectors.device.type != "cpu":
        step = max(1, vectors.shape[2])
    directions = [rotations[:, :, 0, :, :columns]] + ([] if few else [rotations[:, :, 1, :, :others]])
    directions = [counts.transpose(-1, -2).contiguous() for counts in directions]
    parts = []
    for part in vectors.split(step, 2):
        ids = _nearest(part, directions[0], first, alike)
        if not few:
            ids += first[:, None, None, None] * _nearest(part, directions[1], second, alike)
        parts.append(ids)
    return torch.cat(parts, -1)


def _nearest(vectors: Tensor, directions: Tensor, count: Tensor, alike: bool = False) -> Tensor:
    """Returns which of `count` directions `(H, R, C, D)`, half of them the negatives of the others, is nearest: `(B, H,
    R, T)`.

    With `alike`, C directions are used in every row. Tokens are the last dimension, because there are many.
    """
    wide, (rounds, columns) = torch.promote_types(vectors.dtype, torch.float32), directions.shape[1:3]
    with full_precision(vectors):
        along = directions.to(wide).flatten(1, 2) @ vectors.to(wide).mT
    along = along.unflatten(2, (rounds, columns))
    size, half = along.abs(), torch.div(count, 2, rounding_mode="floor")
    if not alike:
        left_out = torch.arange(columns, device=along.device)[:, None] >= half[:, None, None]
        size = size.masked_fill(left_out[:, None, None], -1)
    if torch.compiler.is_compiling() or size.is_cuda:
        nearest = size.argmax(3)
    else:
        # `argmax` in steps that are several times faster on a CPU: the first of those equal to the maximum.
        falling = torch.arange(columns, 0, -1, dtype=wide, device=along.device)[:, None]
        nearest = columns - size.eq_(size.amax(3, keepdim=True)).mul_(falling).amax(3).long()
        nearest.clamp_(max=columns - 1)  # for NaN, which equals nothing
    turned = along.gather(3, nearest[:, :, :, None])[:, :, :, 0] < 0
    return nearest + turned * half[:, None, None, None]


def published_factors(tokens: int, size: int, per_hash: int) -> tuple[int, ...]:
    """Returns the buckets of each hash for `tokens` in chunks of `size`, as transformers' default: the power of two up
    to twice the number of chunks, in two hashes if it exceeds `per_hash`."""
    power = max((2 * (tokens // size)).bit_length() - 1, 1)
    return (2**power,) if 2**power <= per_hash else (2 ** (power // 2), 2 ** (power - power // 2))


@torch.no_grad()
def published_buckets(
    vectors: Tensor, rotations: Tensor, factors: Sequence[int], key_mask: Tensor | None = None
) -> Tensor:
    """Returns the bucket of every vector in every round, `h₁ + b₁·(h₂ + b₂·…)`, with exactly the required rotations.

    Args:
        vectors: `(B, H, T, D)`.
        rotations: `(H, D, R, C)`, C = half the sum of the factors, the first hash first.
        factors: the buckets of each hash, even numbers.
        key_mask: `(B, T)` bool, True where a token is real; padding gets bucket −1.

    Returns:
        `(B, H, R, T)` int64, below the product of the factors.
    """
    with full_precision(vectors):
        along = torch.einsum("bhtd,hdrc->bhrtc", vectors, rotations.to(vectors.dtype))
    ids, below = torch.zeros((), dtype=torch.int64, device=vectors.device), 1
    for factor, part in zip(factors, along.split([factor // 2 for factor in factors], -1), strict=True):
        ids = ids + below * torch.cat([part, -part], -1).argmax(-1)
        below *= factor
    return ids if key_mask is None else ids.masked_fill(~key_mask[:, None, None, :], NOWHERE)
