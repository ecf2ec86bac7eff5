"""Signals of the universal stack: which position and which step it is, added anew at every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from longspan.attention import Tokens
from longspan.ops.sinusoids import interleaved_sinusoids
from longspan.stacks.block import Kept

StepSignal = Literal["learned", "sinusoidal", "none"]
PositionSignal = Literal["sinusoidal", "none"]


class Signals(nn.Module):
    """`P^t[i, 2j] = sin(i / 10000^(2j/E)) + sin(t / 10000^(2j/E))`, cosines at 2j + 1, or a learned vector for each t.

    Dehghani et al. 2019, equation 4: i is the place of a token, counted from 0, t the step, counted from 1.
    """

    def __init__(self, width: int, steps: int, *, step: StepSignal, position: PositionSignal, scale: float) -> None:
        super().__init__()
        self.width, self.scale = width, scale
        self.step, self.position = step, position
        self.table = nn.Embedding(steps, width) if step == "learned" else None

    def of_places(self, tokens: Tokens, count: int, kept: Sequence[Kept] | None, like: Tensor) -> Tensor | None:
        """`(1 or B, T, E)` of the last `count` places, which are the same at every step; `None` for none."""
        if self.position == "none":
            return None
        return self._waves(token_places(tokens, count, kept, like.device), like)

    def at(self, step: int, places: Tensor | None, like: Tensor) -> Tensor | None:
        """What is added to every state at a step, counted from 0; `None` for nothing."""
        if self.table is not None:
            found = self.table.weight[step].to(like.dtype)
        elif self.step == "sinusoidal":
            found = self._waves(torch.full((), step + 1, device=like.device), like)
        else:
            return places
        return found if places is None else places + found

    def _waves(self, number: Tensor, like: Tensor) -> Tensor:
        """`(…)` numbers → `(…, E)`, sines and cosines in turn, in the type of `like`."""
        return (self.scale * interleaved_sinusoids(number, self.width, like.dtype)).to(like.dtype)


def token_places(tokens: Tokens, count: int, kept: Sequence[Kept] | None, device: torch.device) -> Tensor:
    """`(1 or B, T)` int64: where each of the last `count` tokens stands among the real ones of its text, from 0."""
    if tokens.places is not None:
        return tokens.places
    if tokens.mask is not None:
        return (tokens.mask.cumsum(1) - 1).clamp(min=0)[:, tokens.mask.shape[1] - count :]
    first = int(kept[0].own.get_seq_length()) if kept else 0
    return torch.arange(first, first + count, device=device)[None]
