"""Properties of the positions of a batch that stacks read, and mechanisms do not."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from longspan.attention.parts.tokens import Tokens, check_tensor


@dataclass(frozen=True, kw_only=True)
class StackTokens(Tokens):
    """`Tokens` with the further inputs of some stacks, which they name in `StackReads`.

    Attributes:
        places: `(1 or B, T)` int64, the position of each new token in its text, from 0, for stacks that add positions.
            `None` counts the real tokens of the mask.
        border: `(B,)` int64, the position at which the second part of each row begins, T for none, for stacks that
            process the parts separately.
        importance: `(B, T)`, the importance of each token, 0 or more, for stacks that weight tokens.
    """

    places: Tensor | None = None
    border: Tensor | None = None
    importance: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("places", "border", "importance"):
            check_tensor(name, getattr(self, name))

    @classmethod
    def of(cls, tokens: Tokens) -> StackTokens:
        """Returns tokens that may have been created for mechanisms alone, without further inputs then."""
        if isinstance(tokens, cls):
            return tokens
        return cls(**{field.name: getattr(tokens, field.name) for field in fields(tokens)})

    def text_places(self, count: int, device: torch.device, first: int = 0) -> Tensor:
        """Returns the positions of the last `count` tokens in their text, `(1 or B, T)` int64: `places`, or counted
        among the real tokens of the mask, or from `first` on if every token is real.
        """
        if self.places is not None:
            return self.places
        if self.mask is not None:
            return (self.mask.cumsum(1) - 1).clamp(min=0)[:, self.mask.shape[1] - count :]
        return torch.arange(first, first + count, device=device)[None]
