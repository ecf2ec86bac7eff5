"""Receptive fields: which tokens of the input one token depends on after each layer of a stack of mechanisms.

Computed from the configurations alone, exactly and in time linear in the length: no weight and no T × T tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from longspan.attention import (
    AttentionConfig,
    FullConfig,
    LongformerConfig,
    PoolingformerConfig,
    attention_config,
)
from longspan.errors import InputError

Layer = str | Mapping[str, Any] | AttentionConfig


def receptive_field(layers: Sequence[Layer], *, length: int, token: int, is_global: Tensor | None = None) -> Tensor:
    """The tokens of the input that the state of `token` depends on after each layer: `(L + 1, T)` bool.

    Row l belongs to the state after the first l layers; row 0 is the token itself. Residual connections keep what a
    token had, and the feed-forward layers move nothing from token to token.

    Args:
        layers: one mechanism for each layer, lowest first, as `attention_config` takes them.
        length: tokens of the text, T.
        token: which token, 0 … T − 1.
        is_global: `(T,)` bool, True at the global tokens.

    Raises:
        InputError: a token outside the text, flags that do not cover it, or a mechanism without a known field.
    """
    if not 0 <= token < length:
        raise InputError(f"token={token} is not in a text of length={length}; choose one of 0 to {length - 1}")
    if is_global is not None and (is_global.dtype != torch.bool or is_global.shape != (length,)):
        raise InputError(f"is_global is {is_global.dtype} of shape {tuple(is_global.shape)}; give bool ({length},)")
    configs = [attention_config(layer) for layer in layers]
    own = torch.zeros(length, dtype=torch.bool)
    own[token] = True
    rows = [own]
    for top in range(1, len(configs) + 1):
        # What is below decides what the layer above can bring: each row walks down from its own top.
        needed = own
        for config in reversed(configs[:top]):
            needed = _below(config, needed, is_global)
        rows.append(needed)
    return torch.stack(rows)


def reach(layers: Sequence[Layer], *, length: int, token: int) -> list[tuple[int, int]]:
    """How many tokens to the left and to the right a token's state reaches before the first layer, and after each.

    Without global tokens; arguments and errors as in `receptive_field`. Choose a length that the stack cannot span,
    or the ends of the text are what is found.
    """
    field = receptive_field(layers, length=length, token=token)
    first, last = field.int().argmax(1), length - 1 - field.flip(1).int().argmax(1)
    return [(token - left, right - token) for left, right in zip(first.tolist(), last.tolist(), strict=True)]


def seen_tokens(config: AttentionConfig, token: int, length: int) -> tuple[Tensor, Tensor]:
    """What one query of a two-level layer attends to: `(T,)` bool tokens of level 1, `(T,)` bool centres of its pools.

    For a mechanism with one level the second is empty.
    """
    query = torch.zeros(length, dtype=torch.bool)
    query[token] = True
    return _level_one(config, query, None), _pool_centres(config, query)


def pooled_tokens(config: PoolingformerConfig, centres: Tensor) -> Tensor:
    """The tokens in the pools around these centres, `(T,)` bool both."""
    before = config.kernel // 2
    return _shifted(centres, -before, config.kernel - 1 - before)


def _below(config: AttentionConfig, needed: Tensor, is_global: Tensor | None) -> Tensor:
    """The inputs of one layer that the `needed` ones of its outputs depend on: `(T,)` bool both."""
    if _two_level(config):
        assert isinstance(config, PoolingformerConfig)
        # The second level reads the first level's outputs, so those of every token in its pools are needed too.
        needed = needed | pooled_tokens(config, _pool_centres(config, needed))
    return needed | _level_one(config, needed, is_global)


def _level_one(config: AttentionConfig, needed: Tensor, is_global: Tensor | None) -> Tensor:
    """Tokens that the `needed` queries see in the window and by globals."""
    if isinstance(config, FullConfig):
        return torch.full_like(needed, bool(needed.any()))
    if not isinstance(config, LongformerConfig | PoolingformerConfig):
        raise InputError(
            f"attention {config.mechanism!r} has no known receptive field; take full, longformer, poolingformer, fusion"
        )
    seen = torch.zeros_like(needed)
    dilations = getattr(config, "dilation", 1)
    for step in dilations if isinstance(dilations, tuple) else (dilations,):
        seen |= _shifted(needed, -config.left_tokens * step, config.right_tokens * step, step)
    if is_global is not None:
        seen |= is_global & needed.any()
        seen |= (needed & is_global).any()
    return seen


def _two_level(config: AttentionConfig) -> bool:
    return isinstance(config, PoolingformerConfig) and config.has_pools


def _pool_centres(config: AttentionConfig, needed: Tensor) -> Tensor:
    """Centres of the pools that the `needed` queries see, `(T,)` bool."""
    if not _two_level(config):
        return torch.zeros_like(needed)
    assert isinstance(config, PoolingformerConfig)
    left, right = config.centre_reach
    if config.windows == "per_query":
        return _shifted(needed, -left, right, config.stride)
    return _shifted(needed, -left, right) & (torch.arange(len(needed)) % config.stride == 0)


def _shifted(tokens: Tensor, low: int, high: int, step: int = 1) -> Tensor:
    """Every place `low`, `low + step`, … `high` away from a token of the set, `(T,)` bool; beyond the ends is nothing.

    Counts along each residue of the step are differences of a running sum, so that the cost does not grow with the
    width of the window.
    """
    length, width = len(tokens), (high - low) // step + 1
    if width < 1:
        return torch.zeros_like(tokens)
    lead, tail = max(low, 0), max(-low, 0)
    padded = F.pad(tokens.long(), (lead, tail))
    padded = F.pad(padded, (0, -len(padded) % step)).view(-1, step)
    total = padded.cumsum(0)
    total[width:] = total[width:] - padded.cumsum(0)[:-width]
    return (total.flatten() > 0)[tail : tail + length]
