"""States of a fixed size for a static cache: one compiled graph of a step serves every length of the text.

A step attends to all places of a buffer; a mask marks the used ones, and the place of the next token is a tensor. With
a growing number of keys, every length would need another graph.
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
    """Whether a step needs keys and values in the order of the text (for distances), for which they are copied.
    Otherwise it uses them in the order of the buffer, which holds only visible tokens.
    """
    if attention.has_positions or attention.state_kind is None:
        return True
    if attention.state_kind == "keys":
        return False
    return attention.pattern.heads is not None or attention.pattern.reach().step != 1


def one_step(attention: Any, key: Tensor, value: Tensor, tokens: Tokens, state: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Appends the keys and values `(B, H, 1, D)` of one token to a `FixedLayer`; returns as `FixedLayer.step`."""
    assert tokens.mask is not None
    return state.step(key, value, tokens.mask, in_order=reads_in_order(attention))


class FixedLayer(StaticLayer):
    """Keys and values of a text of at most `tokens` tokens, or of those within reach of a window.

    Position p is stored at p mod R of R places, so that a window overwrites tokens that are out of reach.

    Args:
        tokens: the most tokens of the text.
        reach: how many past positions a later token can attend to; `None` for all.

    Attributes:
        cumulative_length: the number of positions written so far, an int64 scalar tensor.
    """

    def __init__(self, tokens: int, reach: int | None = None) -> None:
        super().__init__(tokens if reach is None else min(reach + 1, tokens))
        self.tokens, self.reach = tokens, reach

    @classmethod
    def like(cls, layer: CacheLayerMixin, tokens: int) -> FixedLayer:
        """Returns a layer with `tokens` places that stores the same as a growing layer or a window's."""
        return cls(tokens, layer.reach if isinstance(layer, WindowLayer) else None)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Appends new `(B, H, T, D)` keys and values; returns those within reach, in the order of the text,
        followed by these.

        Raises:
            InputError: the layer is full.
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
        """Appends one token, `(B, H, 1, D)`, without reading the length. Returns keys and values of all R places `(B,
        H, R, D)` and the mask of real tokens among them, `(B, R)` bool.

        Args:
            key_states, value_states: keys and values of the token.
            mask: `(B, tokens)` bool, True for real tokens, the new one last, as in `Tokens(in_buffer=True)`.
            in_order: whether to copy the places into the order of the text, the new token last; otherwise they are
                returned as stored.
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
        """Returns the most tokens of the text."""
        return self.tokens


def text_at_end(written: Tensor, mask: Tensor | None, tokens: int, rows: int) -> Tensor:
    """Returns the mask `(B, tokens)` bool of a text whose next token is at the last place, False before its first
    token, as expected by `Tokens(in_buffer=True)`.

    Args:
        written: the number of tokens before this one, an int64 scalar tensor.
        mask: `(B, S)` bool over the text from its first token on, including this one; later entries are ignored. `None`
            if every token is real.
        tokens: the most tokens of the text.
        rows: the batch size B.
    """
    position = torch.arange(tokens, device=written.device) + (written + 1 - tokens)
    there = (position >= 0)[None]
    if mask is None:
        return there.expand(rows, -1)
    return there & mask.index_select(1, position.clamp(min=0))
