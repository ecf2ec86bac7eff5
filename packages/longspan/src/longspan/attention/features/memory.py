"""A memory before the text: a causal mechanism over positions of which earlier segments left states.

The stack `recurrent` gives each layer the last inputs that went into it. Any causal mechanism reads these before the
new ones. A mechanism that chooses keys by their distance alone (`OffsetAttention`) projects only as much of them as it
reaches, or goes on from keys and values, and can limit the distance or compress the memory by content.
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
    """A state of the keys and values of the last so many positions, or of the fewer that the pattern reaches; `None`
    where outputs depend on more than these, so that only hidden states serve."""
    if not isinstance(attention, OffsetAttention):
        return None
    from longspan.attention.parts.state import WindowLayer

    return WindowLayer(min(tokens, -attention.shown_offsets[0]))


def needed_states(attention: Attention, tokens: int) -> int:
    """How many of the last so many states later tokens may still need."""
    if not isinstance(attention, OffsetAttention):
        return tokens
    return min(tokens, attention.growth - attention.shown_offsets[0])


def forward_behind(attention: Attention, past: Tensor, hidden: Tensor, tokens: Tokens) -> Tensor:
    """Outputs `(B, T, E)` of the last T of M + T positions of a causal mechanism.

    Of sharded rows every process has the same M positions before whole rows, all real, and the T are its own part.

    Args:
        attention: the mechanism.
        past: `(B, M, E)`, of which nothing but keys and values is computed where distance alone decides.
        hidden: `(B, T, E)`.
        tokens: what is known of all M + T positions; of sharded rows, of the T alone.
    """
    if not isinstance(attention, OffsetAttention):
        if tokens.shards is not None:
            from longspan.attention.features.sharded import through_the_first

            return through_the_first(attention, past, hidden, tokens)
        return attention(torch.cat([past.to(hidden.dtype), hidden], dim=1), tokens)[:, past.shape[1] :]
    if tokens.shards is not None:
        from longspan.attention.features.sharded import all_before

        past, tokens = all_before(attention, past, hidden, tokens)
    return attention.forward_from(past, hidden, tokens)


def keys_and_values(attention: OffsetAttention, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """`(B, M, E)` → keys and values `(B, H, M, D)`, as a `new_memory` holds them."""
    return attention.heads_of(attention.key, hidden), attention.heads_of(attention.value, hidden)


def content_context(attention: OffsetAttention, hidden: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
    """What `(B, T, E)` gather from `(B, M, E)` by content alone, `(B, H, T, D)`: without positions, order or dropout,
    and without gradient to the weights of the layer. `mask` is `(B, M)` bool, True where there is a state."""
    query, key, value = (
        attention.split_heads(without_weight_gradient(layer, states))
        for layer, states in ((attention.query, hidden), (attention.key, memory), (attention.value, memory))
    )
    return attend(query, key, value, pattern=Full(), key_mask=mask)


def limit_keys(attention: Attention, tokens: int) -> None:
    """From now on no query sees further back than the last so many positions, its own included.

    Raises:
        InputError: the mechanism is not causal, does not choose keys by their distance, or would see no key.
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
    """The causal pattern without what is further back than the last `tokens` positions, the query's own included."""
    first, last, step = pattern.reach()
    if step is not None and first >= -ANY:
        return Window(min(-first, tokens - 1) // step, last // step, step)
    return Window(tokens - 1, 0) if pattern.is_causal else pattern & Window(tokens - 1, 0)
