"""The plain stack: one block after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from longspan.attention import Tokens
from longspan.stacks.base import Layers, Sizes, StackConfig
from longspan.stacks.block import Block, Kept


@dataclass(frozen=True, kw_only=True)
class SequentialConfig(StackConfig):
    """Every block reads what the one before it wrote (Vaswani et al. 2017, section 3.1)."""

    stack: ClassVar[str] = "sequential"

    @property
    def keeps_every_layer(self) -> bool:
        return True

    def build(self, block: Callable[[int], Block], layers: int, sizes: Sizes) -> Sequential:
        return Sequential(block(layer) for layer in range(layers))


class Sequential(Layers):
    """The module of `SequentialConfig`: a list of its blocks."""

    def forward(
        self,
        hidden: Tensor,
        tokens: Tokens,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        *tables: Tensor,
        kept: Sequence[Kept] | None = None,
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """`(B, T, E)` → `(B, T, E)`; arguments as in `Block.forward`.

        Args:
            kept: one state per block, each continued; `None` for none.
            seen: a list that is to receive the states before each block and after the last.
        """
        for layer, block in enumerate(self):
            if seen is not None:
                seen.append(hidden)
            state = None if kept is None else kept[layer]
            hidden = block(hidden, tokens, source, source_mask, *tables, past_key_values=state)
        if seen is not None:
            seen.append(hidden)
        return hidden
