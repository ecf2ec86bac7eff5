"""The segment-recurrent stack: every layer also reads what went into it before, of the segments that came earlier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from longspan.attention import Tokens
from longspan.attention.base import LayerState
from longspan.errors import InputError
from longspan.settings import Whole
from longspan.stacks.base import Besides, Sizes, StackConfig
from longspan.stacks.block import Block, Kept
from longspan.stacks.sequential import Sequential


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(StackConfig):
    """Segments that follow one another: layer n of segment τ computes `h_n = Block(h_{n-1}, [SG(m_{n-1}) ∘ h_{n-1}])`
    (Dai et al. 2019, "Transformer-XL", arXiv 1901.02860, section 3.2).

    Letters: h_{n-1} the layer's input, whose T positions are queries, keys and values; m_{n-1} its memory, the last M
    inputs of this layer, which are keys and values only; SG no gradient; ∘ one behind the other.

    Attributes:
        memory_tokens: how many positions every layer remembers (code: `mem_len`); a model may be given another number
            after training.
        same_length: every query sees as many keys: the last `memory_tokens`, itself included, instead of more the
            later it stands in its segment. For mechanisms that choose keys by their distance.
    """

    stack: ClassVar[str] = "recurrent"
    bidirectional: ClassVar[bool] = False
    endless: ClassVar[bool] = True
    unused: ClassVar[Mapping[str, str]] = {
        "decoder_layers": "which goes on with one text, and has no encoder beside it",
    }

    memory_tokens: Whole = 512
    same_length: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.same_length and not self.memory_tokens:
            raise InputError("same_length=True with memory_tokens=0 leaves no key to see; give a memory, or False")

    @property
    def carries(self) -> bool:
        return self.memory_tokens > 0

    @property
    def drops_output(self) -> bool:
        """As the published code does behind its last layer, before the output layer reads it."""
        return True

    def besides(self, *, layers: int, tokens: int, width: int) -> Besides:
        """The memory, full: every layer keeps it, itself behind the segment as one tensor, and its keys and values."""
        memory = self.memory_tokens
        return Besides(
            readers=layers,
            saved=(tokens + 3 * memory) * width if memory else 0,
            states=memory * width,
            multiply_adds=2 * memory * width * (width + tokens),
        )

    def build(self, block: Callable[[int], Block], layers: int, sizes: Sizes) -> Recurrent:
        if not sizes.causal:
            raise InputError(
                "stack 'recurrent' cannot encode: it goes on with a text from segment to segment, whose later part an "
                "encoder would have to know; use LongspanForCausalLM, or another stack"
            )
        return Recurrent([block(layer) for layer in range(layers)], self)


class Recurrent(Sequential):
    """The module of `RecurrentConfig`: a list of its blocks, whose segment stands behind those that the states
    remember. Without states that are kept it is `Sequential`.

    Where something learns, a state holds the inputs of its layer, so that the projections of keys and values learn from
    the memory, and the memory itself does not. Elsewhere it holds keys and values, if the mechanism can continue those
    (`Attention.memory_state`), which is the same without projecting the memory again for every segment.
    """

    def __init__(self, blocks: list[Block], config: RecurrentConfig) -> None:
        super().__init__(blocks)
        self.config = config
        for block in blocks if config.same_length else ():
            block.attention.limit_keys(config.memory_tokens)

    @property
    def keeps_state(self) -> bool:
        """Always: whatever a mechanism keeps by itself, its inputs can be read again."""
        return True

    def new_state(self, step: int) -> LayerState:
        from longspan.attention.parts.state import HiddenLayer

        block: Any = self[step]
        learns = torch.is_grad_enabled() or self.training
        state = None if learns else block.attention.memory_state(self.config.memory_tokens)
        return HiddenLayer(self.config.memory_tokens) if state is None else state

    def through_block(
        self, block: Any, hidden: Tensor, tokens: Tokens, *given: Tensor | None, kept: Kept | None = None
    ) -> Tensor:
        """One layer behind its memory, to which its input is added.

        Raises:
            InputError: something is to learn from a state that holds keys and values.
        """
        if kept is None or not _holds_hidden(kept.own):
            if kept is not None and hidden.requires_grad and kept.own.get_seq_length():
                raise InputError(
                    "past_key_values holds keys and values, from which nothing can learn; begin the text with a new "
                    "cache, or go on under torch.no_grad()"
                )
            return super().through_block(block, hidden, tokens, *given, kept=kept)
        state: Any = kept.own
        memory = state.hidden
        past = 0 if memory is None else memory.shape[1]
        tokens = replace(tokens, mask=tokens.last_mask(past + hidden.shape[1]))
        written = block(hidden, tokens, *given, memory=memory)
        state.remember(hidden)
        return written


def _holds_hidden(state: LayerState) -> bool:
    from longspan.attention.parts.state import HiddenLayer

    return isinstance(state, HiddenLayer)
