"""The options of a window around each token and global tokens, and what follows from them without any weight."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from longspan.attention.answers import Lengthening, Reach
from longspan.attention.base import AttentionConfig
from longspan.settings import Whole


@dataclass(frozen=True, kw_only=True)
class WindowedConfig(AttentionConfig):
    """Base of mechanisms whose first level is a window with global tokens.

    Attributes:
        left_tokens, right_tokens: how many tokens a token looks at on each side, itself not counted.
        separate_global_projections: global queries have projections of their own.
    """

    left_tokens: Whole = 256
    right_tokens: Whole = 256
    separate_global_projections: bool = True

    @property
    def widest_window(self) -> int | None:
        """How many tokens a window may reach to each side; `None` means any number."""
        return None

    @property
    def dilations(self) -> tuple[int, ...]:
        """Distance between neighbours of the window, one for all heads or one per head."""
        return (1,)

    def reach(self) -> Reach:
        furthest = max(self.dilations)
        left, right = self.left_tokens * furthest, self.right_tokens * furthest
        return Reach(left=left, right=right, dilations=self.dilations)

    def lengthening(self, tokens: int = 1) -> Lengthening:
        dense = tokens <= 1 or set(self.dilations) == {1}
        covers = dense and min(self.left_tokens, self.right_tokens) >= tokens - 1
        side = tokens if self.widest_window is None else min(tokens, self.widest_window)
        wide = replace(self, left_tokens=max(self.left_tokens, side), right_tokens=max(self.right_tokens, side))
        return replace(super().lengthening(tokens), covers=covers, widened=wide)

    def scores_per_token(self, length: int, *, global_tokens: int = 0, causal: bool = False) -> float:
        """Edges are counted. With globals, every query sees them and they see every key; a global inside a window
        counts for both."""
        left, right = self.left_tokens, 0 if causal else self.right_tokens
        most = (length + 1) / 2 if causal else float(length)
        pairs = [pairs_within(length, -left * step, right * step, step) for step in self.dilations]
        return sum(min(most, count / max(length, 1) + 2 * global_tokens) for count in pairs) / len(pairs)

    def depends_on(self, needed: Tensor, *, is_global: Tensor | None = None, causal: bool = False) -> Tensor:
        return needed | self.window_of(needed, is_global=is_global, causal=causal)

    def window_of(self, needed: Tensor, *, is_global: Tensor | None = None, causal: bool = False) -> Tensor:
        """Tokens that the `needed` queries see in the window and by globals, `(T,)` bool all."""
        seen = torch.zeros_like(needed)
        right = 0 if causal else self.right_tokens
        for step in self.dilations:
            seen |= shifted(needed, -self.left_tokens * step, right * step, step)
        if is_global is not None:
            seen |= is_global & needed.any()
            seen |= (needed & is_global).any()
        return seen


def pairs_within(length: int, low: int, high: int, step: int = 1) -> int:
    """How many pairs of so many tokens are `low`, `low + step`, … `high` apart: a sum of `length − |offset|`, each side
    of 0 as the arithmetic series that it is, so that the cost does not grow with the window."""
    offsets = range(low, high + 1, step)
    bounds = 1 - length, 0, length
    first, zero, end = (min(max(-((low - bound) // step), 0), len(offsets)) for bound in bounds)
    sides = offsets[first:zero], offsets[zero:end]
    return sum(length * len(side) - abs(side[0] + side[-1]) * len(side) // 2 for side in sides if side)


def shifted(tokens: Tensor, low: int, high: int, step: int = 1) -> Tensor:
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
