"""States of a fixed size, for a static cache: one compiled graph of a step serves every length of the text.

A graph that reads as many keys as there are is another one for every length. Here a step reads all places of a buffer,
and a mask says which of them hold something; where the next token goes is a tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin, StaticLayer

from longspan.attention.parts.state import WindowLayer
from longspan.attention.parts.tokens import Tokens
from longspan.errors import InputError


def reads_in_order(attention: Any) -> bool:
    """Whether a step reads keys and values in the order of the text, where distances count, for which they are copied;
    else where they stand in the buffer, which holds what a token sees and nothing else."""
    if attention.has_positions or attention.state_kind is None:
        return True
    if attention.state_kind == "keys":
        return False
    return attention.pattern.heads is not None or attention.pattern.reach().step != 1


def one_step(attention: Any, key: Tensor, value: Tensor, tokens: Tokens, state: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Append the keys and values `(B, H, 1, D)` of one token to a `FixedLayer`; as `FixedLayer.step`."""
    assert tokens.mask is not None
    return state.step(key, value, tokens.mask, in_order=reads_in_order(attention))


class FixedLayer(StaticLayer):
    """Keys and values of a text of at most so many tokens, or of those of it within reach of a window.

    Position p stands at place p mod R of the R places, so that a window overwrites what no token sees any more.

    Args:
        tokens: the most that the text may have.
        reach: how many past positions a later token can still see; `None` for all.

    Attributes:
        cumulative_length: how many positions were written, an int64 scalar tensor.
    """

    def __init__(self, tokens: int, reach: int | None = None) -> None:
        super().__init__(tokens if reach is None else min(reach + 1, tokens))
        self.tokens, self.reach = tokens, reach

    @classmethod
    def like(cls, layer: CacheLayerMixin, tokens: int) -> FixedLayer:
        """What keeps the same as a layer that grows, or that of a window, with room for so many tokens."""
        return cls(tokens, layer.reach if isinstance(layer, WindowLayer) else None)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append new `(B, H, T, D)` keys and values; return those within reach, in the order of the text, and these.

        Raises:
            InputError: more than there is room for.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        past, new = int(self.cumulative_length), key_states.shape[2]
        if past + new > self.tokens:
            raise InputError(
                f"cache has room for {self.tokens} tokens, and {new} more would make {past + new}; give a "
                "StaticCache of a larger max_cache_len"
            )
        self.cumulative_length.add_(new)
        size, first = self.max_cache_len, 0 if self.reach is None else max(0, past - self.reach)
        both = (self.keys, key_states), (self.values, value_states)
        if past + new <= size:
            for held, states in both:
                held[:, :, past : past + new] = states
            return self.keys[:, :, first : past + new], self.values[:, :, first : past + new]
        device, kept = self.keys.device, min(new, size)
        before = torch.arange(first, past, device=device) % size
        places = torch.arange(past + new - kept, past + new, device=device) % size
        key, value = (torch.cat([held.index_select(2, before), states], 2) for held, states in both)
        for held, states in both:
            held.index_copy_(2, places, states[:, :, new - kept :])
        return key, value

    def step(
        self, key_states: Tensor, value_states: Tensor, mask: Tensor, *, in_order: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Append one token, `(B, H, 1, D)`, without a look at how many there are; return keys and values of all R
        places `(B, H, R, D)` and which of them hold a real token, `(B, R)` bool.

        Args:
            key_states, value_states: of the token.
            mask: `(B, tokens)` bool, True where a token is real, the new one being the last, as in
                `Tokens(in_buffer=True)`.
            in_order: whether places are to be in the order of the text, the new token's the last, for which they are
                copied; else they stay where they are.
        """
        assert self.keys is not None
        assert self.values is not None
        size, length = self.max_cache_len, mask.shape[1]
        position = self.cumulative_length.clone()
        place, places = position.view(1) % size, torch.arange(size, device=mask.device)
        self.keys.index_copy_(2, place, key_states)
        self.values.index_copy_(2, place, value_states)
        self.cumulative_length.add_(1)
        if in_order:
            order = (position + 1 + places) % size
            return self.keys.index_select(2, order), self.values.index_select(2, order), mask[:, length - size :]
        age = (position - places) % size
        return self.keys, self.values, mask.index_select(1, length - 1 - age)

    def get_max_length(self) -> int:
        """The most tokens that the text may have."""
        return self.tokens


def text_at_end(written: Tensor, mask: Tensor | None, tokens: int, rows: int) -> Tensor:
    """The mask `(B, tokens)` bool of a text whose next token is the last of so many places, nothing being before its
    first; as `Tokens(in_buffer=True)` takes it.

    Args:
        written: how many tokens come before this one, an int64 scalar tensor.
        mask: `(B, S)` bool over the text from its first token on, this one included; what is behind that is not read;
            `None` where every token is real.
        tokens: the most that the text may have.
        rows: B.
    """
    position = torch.arange(tokens, device=written.device) + (written + 1 - tokens)
    there = (position >= 0)[None]
    if mask is None:
        return there.expand(rows, -1)
    return there & mask.index_select(1, position.clamp(min=0))
