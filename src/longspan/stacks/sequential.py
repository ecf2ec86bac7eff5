"""The plain stack: one block after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from longspan.attention import Tokens
from longspan.stacks.base import Besides, Layers, Sizes, StackConfig
from longspan.stacks.block import Block, Kept


@dataclass(frozen=True, kw_only=True)
class SequentialConfig(StackConfig):
    """Every block reads what the one before it wrote (Vaswani et al. 2017, section 3.1)."""

    stack: ClassVar[str] = "sequential"
    plain_blocks: ClassVar[bool] = True

    def besides(self, *, layers: int, tokens: int, width: int) -> Besides:
        return Besides()

    def build(self, block: Callable[[int], Block], layers: int, sizes: Sizes) -> Sequential:
        return Sequential(block(layer) for layer in range(layers))


class Sequential(Layers):
    """The module of `SequentialConfig`: a list of its blocks."""

    def forward(
        self,
        hidden: Tensor,
        tokens: Tokens,
        *given: Tensor | None,
        kept: Sequence[Kept] | None = None,
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """`(B, T, E)` → `(B, T, E)`.

        Args:
            hidden: as in `Block.forward`, like the tokens.
            tokens: what is known of them.
            *given: what else blocks are given: the source, its mask, and the tables that layers share.
            kept: one state per block, each continued; `None` for none.
            seen: a list that is to receive the states before each block and after the last.
        """
        return self.through(range(len(self)), hidden, tokens, *given, kept=kept, seen=seen)

    def through(
        self,
        layers: range,
        hidden: Tensor,
        tokens: Tokens,
        *given: Tensor | None,
        kept: Sequence[Kept] | None = None,
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """Through some of the layers, as `forward` through all."""
        for layer in layers:
            if seen is not None:
                seen.append(hidden)
            state = None if kept is None else kept[layer]
            hidden = self.through_block(self[layer], hidden, tokens, *given, kept=state)
        if seen is not None:
            seen.append(hidden)
        return hidden

    def through_block(
        self, block: Any, hidden: Tensor, tokens: Tokens, *given: Tensor | None, kept: Kept | None = None
    ) -> Tensor:
        """Through one block, which goes on with its state; what a stack does around each of its blocks goes here."""
        return block(hidden, tokens, *given, past_key_values=kept)
