"""A memory before the text: causal attention to the states of earlier segments.

The stack `recurrent` passes the last inputs of each layer. Any causal mechanism attends to these before the new ones. A
mechanism whose pattern depends on distance alone (`OffsetAttention`) projects only those within reach, or continues
from keys and values, and can limit the distance or compress the memory by content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longspan.attention.base import Attention, without_weight_gradient
from longspan.attention.parts.sinusoidal_relative import ANY, OffsetAttention, each_head
from longspan.attention.parts.tokens import Tokens
from longspan.attention.support import check_support
from longspan.errors import InputError
from longspan.ops.attend import attend
from longspan.patterns import Full, Pattern, PerHead, Window

if TYPE_CHECKING:
    from longspan.attention.base import LayerState


def new_memory(attention: Attention, tokens: int) -> LayerState | None:
    """Returns a state for the keys and values of the last `tokens` positions, or fewer if the pattern reaches fewer;
    `None` if outputs depend on more than keys and values, so that the memory must hold hidden states.
    """
    if not isinstance(attention, OffsetAttention):
        return None
    from longspan.attention.parts.state import WindowLayer

    return WindowLayer(min(tokens, -attention.shown_offsets[0]))


def needed_states(attention: Attention, tokens: int) -> int:
    """Returns how many of the last `tokens` states later tokens may still need."""
    if not isinstance(attention, OffsetAttention):
        return tokens
    return min(tokens, attention.growth - attention.shown_offsets[0])


def forward_behind(attention: Attention, past: Tensor, hidden: Tensor, tokens: Tokens) -> Tensor:
    """Computes outputs `(B, T, E)` of the last T of M + T positions of a causal mechanism.

    For sharded rows, every process has the same M positions, all real, before whole rows, and its own part of the T.

    Args:
        attention: the mechanism.
        past: `(B, M, E)`; only keys and values are computed of these if the pattern depends on distance alone.
        hidden: `(B, T, E)`.
        tokens: properties of all M + T positions; for sharded rows, of the T alone.
    """
    if tokens.shards is not None:
        from longspan.attention.features.sharded import forward_sharded_behind

        return forward_sharded_behind(attention, past, hidden, tokens)
    if isinstance(attention, OffsetAttention):
        return attention.forward_from(past, hidden, tokens)
    return attention(torch.cat([past.to(hidden.dtype), hidden], dim=1), tokens)[:, past.shape[1] :]


def keys_and_values(attention: OffsetAttention, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Projects `(B, M, E)` to keys and values `(B, H, M, D)`, as stored in a `new_memory`."""
    return attention.heads_of(attention.key, hidden), attention.heads_of(attention.value, hidden)


def content_context(attention: OffsetAttention, hidden: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
    """Computes attention of `(B, T, E)` to `(B, M, E)` by content alone, `(B, H, T, D)`: without positions, order,
    dropout, or gradients of the layer's weights. `mask` is `(B, M)` bool, True for a valid state.
    """
    query, key, value = (
        attention.split_heads(without_weight_gradient(layer, states))
        for layer, states in ((attention.query, hidden), (attention.key, memory), (attention.value, memory))
    )
    return attend(query, key, value, pattern=Full(), key_mask=mask)


def limit_keys(attention: Attention, tokens: int) -> None:
    """Limits every query from now on to the last `tokens` positions, including its own.

    Raises:
        InputError: the mechanism is not causal, its pattern does not depend on distance alone, or no key would be left.
    """
    check_support(attention.config, "same_length", causal=attention.causal)
    assert isinstance(attention, OffsetAttention)
    if tokens <= attention.nearest:
        raise InputError(
            f"limit_keys={tokens} leaves a token that does not see itself no key; give at least 2, or sees_itself=True"
        )
    whole = attention.make_pattern()
    limited = [_limited(head, tokens) for head in each_head(whole)]
    attention.pattern = PerHead(limited) if whole.heads else limited[0]


def _limited(pattern: Pattern, tokens: int) -> Pattern:
    """Returns the causal pattern limited to the last `tokens` positions, including the query's own."""
    first, last, step = pattern.reach()
    if step is not None and first >= -ANY:
        return Window(min(-first, tokens - 1) // step, last // step, step)
    return Window(tokens - 1, 0) if pattern.is_causal else pattern & Window(tokens - 1, 0)
