"""Mechanisms that choose keys by their distance alone: whatever was before the first key that is there, is as if it had
never been. So a memory of their keys and values is as good as one of the states that these were made of."""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
from torch import Tensor

from longspan.attention.base import State
from longspan.attention.parts.projected import ProjectedAttention
from longspan.attention.parts.tokens import Tokens
from longspan.errors import InputError
from longspan.ops.tiles.term_tiles import bounds
from longspan.patterns import Pattern, PerHead, Window

ANY = sys.maxsize // 2
"""Offsets beyond this have no bound."""


class OffsetAttention(ProjectedAttention):
    """A mechanism whose pattern is a `Window`, one per head, `Causal` or `Full`; stands behind the class that says
    which, by `make_pattern`."""

    def make_pattern(self) -> Pattern:
        """What a query sees, from the configuration."""
        raise NotImplementedError

    @property
    def shown_offsets(self) -> tuple[int, int]:
        """The smallest and the largest offset j - i that the pattern shows; beyond `ANY` where nothing bounds them."""
        found = [bounds(each) for each in _each(self.pattern)]
        return min(low for low, _, _ in found), max(high for _, high, _ in found)

    def memory_state(self, tokens: int) -> State | None:
        """Keys and values of so many past positions, or of the fewer that the pattern reaches."""
        from longspan.attention.parts.state import WindowLayer

        return WindowLayer(min(tokens, -self.shown_offsets[0]))

    def behind(self, past: Tensor, hidden: Tensor, tokens: Tokens) -> Tensor:
        """Of the past only keys and values are made, and only as far as the pattern reaches."""
        from transformers.cache_utils import DynamicLayer

        first = 0 if torch.compiler.is_compiling() else max(0, past.shape[1] + self.shown_offsets[0])
        past, state = past[:, first:], DynamicLayer()
        state.update(self.split_heads(self.key(past)), self.split_heads(self.value(past)))
        return self(hidden, replace(tokens, mask=tokens.last_mask(past.shape[1] + hidden.shape[1])), state)

    def limit_keys(self, tokens: int) -> None:
        if not self.causal:
            raise InputError(f"limit_keys={tokens} is for causal forms; build the mechanism with causal=True")
        whole = self.make_pattern()
        limited = [_limited(each, tokens) for each in _each(whole)]
        self.pattern = PerHead(limited) if isinstance(whole, PerHead) else limited[0]


def _each(pattern: Pattern) -> tuple[Pattern, ...]:
    """The patterns of the heads, or the one of all."""
    return pattern.patterns if isinstance(pattern, PerHead) else (pattern,)


def _limited(pattern: Pattern, tokens: int) -> Pattern:
    """The causal pattern without what is further back than the last `tokens` positions, the query's own included."""
    if isinstance(pattern, Window):
        return replace(pattern, left=min(pattern.left, (tokens - 1) // pattern.dilation))
    return Window(tokens - 1, 0)
