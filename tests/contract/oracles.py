"""Dense layers, from weights of every query on every key: what each mechanism's output and gradients must equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from longspan.attention import Tokens
from longspan.ops.reference import dense_weights


def gathered(module: Any, hidden: Tensor, tokens: Tokens, weights: Tensor) -> Tensor:
    """Dense weights times values, `(B, T, E)`; global queries may have values of their own."""
    context = weights.to(hidden.dtype) @ module.split_heads(module.value(hidden))
    is_global = tokens.global_mask(hidden.shape[1])
    if is_global is not None and hasattr(module, "global_value"):
        rows = weights.to(hidden.dtype) @ module.split_heads(module.global_value(hidden))
        context = torch.where(is_global[:, None, :, None], rows, context)
    return module.merge_heads(context)


def one_level(module: Any, hidden: Tensor, tokens: Tokens) -> Tensor:
    """Values weighed by `weights`, then the output projection."""
    return module.output(gathered(module, hidden, tokens, module.weights(hidden, tokens)))


def two_levels(module: Any, hidden: Tensor, tokens: Tokens) -> Tensor:
    """Poolingformer's `(Y + Z) W_o`, arXiv 2105.04371, every window and every pool by itself."""
    first = gathered(module, hidden, tokens, module.weights(hidden, tokens, level=1))
    return module.output(first + second_level(module, first, tokens.mask) if module.config.has_pools else first)


def second_level(module: Any, first: Tensor, mask: Tensor | None) -> Tensor:
    """Every query over every pool whose whole kernel is in its window: `(B, T, E)`."""
    levels, length = module.config, first.shape[1]
    real = torch.ones(first.shape[:2], dtype=torch.bool) if mask is None else mask
    centres = torch.arange(0, length, levels.stride if levels.windows == "shared" else 1)
    taps = centres[:, None] + torch.arange(levels.kernel) - levels.kernel // 2
    inside, taps = (taps >= 0) & (taps < length), taps.clamp(0, length - 1)
    valid = (inside & real[:, taps])[:, None, :, :, None]
    valid = valid | ~valid.any(3, keepdim=True)  # a pool without a real token is hidden below

    def pools(name: str) -> Tensor:
        vectors = module.split_heads(module.second_level(name)(first))
        tapped = vectors[:, :, taps]
        if levels.pooling == "max":
            return tapped.masked_fill(~valid, -torch.inf).amax(3)
        scores = torch.zeros_like(tapped[..., :1])
        if levels.pooling == "ldconv":
            scores = (vectors[:, :, centres] @ getattr(module, f"pool_{name}_weight").transpose(1, 2))[..., None]
        return (scores.masked_fill(~valid, -torch.inf).softmax(3) * tapped).sum(3)

    offset, (left, right) = centres - torch.arange(length)[:, None], levels.centre_reach
    seen = (offset >= -left) & (offset <= right)
    if levels.windows == "per_query":
        seen = seen & ((offset + left) % levels.stride == 0)
    query = module.split_heads(module.second_level("query")(first))
    seen = seen & real[:, None, None, centres] & real[:, None, :, None]
    weights = dense_weights(query, pools("key"), seen, scale=module.head_width**-0.5)
    return module.merge_heads(weights.to(first.dtype) @ pools("value"))


def with_ends(module: Any, hidden: Tensor, tokens: Tokens) -> Tensor:
    """BigBird's layer, in which more tokens are global than those that are marked."""
    return one_level(module, hidden, module.with_ends(hidden, tokens))


ORACLES: dict[str, Callable[[Any, Tensor, Tokens], Tensor]] = {
    "poolingformer": two_levels,
    "fusion": two_levels,
    "bigbird": with_ends,
}
"""Mechanism → its dense layer, where that is more than `one_level`."""


def oracle(module: Any, hidden: Tensor, tokens: Tokens) -> Tensor:
    """The mechanism's dense layer: `(B, T, E)` → `(B, T, E)`."""
    return ORACLES.get(module.config.mechanism, one_level)(module, hidden, tokens)
