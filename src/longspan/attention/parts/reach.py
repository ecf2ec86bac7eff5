"""Receptive fields: which tokens of the input one token depends on after each layer of a stack of mechanisms.

Computed from the configurations alone, exactly and in time linear in the length: no weight and no T × T tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from longspan.attention import AttentionConfig, attention_config
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
        # Row `top` goes from layer `top` down to the input, each layer adding what its outputs depend on.
        needed = own
        for config in reversed(configs[:top]):
            needed = config.depends_on(needed, is_global=is_global)
        rows.append(needed)
    return torch.stack(rows)


def reach(layers: Sequence[Layer], *, length: int, token: int) -> list[tuple[int, int]]:
    """How many tokens to the left and to the right a token's state reaches before the first layer, and after each.

    Without global tokens; arguments and errors as in `receptive_field`. Choose a length that the stack cannot span,
    or the result is the distance to the ends of the text.
    """
    field = receptive_field(layers, length=length, token=token)
    first, last = field.int().argmax(1), length - 1 - field.flip(1).int().argmax(1)
    return [(token - left, right - token) for left, right in zip(first.tolist(), last.tolist(), strict=True)]
