"""The segment-recurrent stack: every layer also reads what went into it before, of the segments that came earlier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from longspan.attention import Tokens
from longspan.attention.base import LayerState
from longspan.errors import InputError
from longspan.settings import Whole
from longspan.stacks.base import AuxOutput, Sizes, StackConfig, StackCost, StackOutput, StackReads, StackReturns
from longspan.stacks.block import Block, BlockState, total_loss
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
    takes_losses: ClassVar[bool] = True
    unused: ClassVar[Mapping[str, str]] = {
        "decoder_layers": "which goes on with one text, and has no encoder beside it",
    }

    memory_tokens: Whole = 512
    same_length: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.same_length and not self.memory_tokens:
            raise InputError("same_length=True with memory_tokens=0 leaves no key to see; give a memory, or False")

    def reads(self) -> StackReads:
        return StackReads(unbounded=True)

    def returns(self) -> StackReturns:
        """With dropout, as the published code has it behind its last layer, before the output layer reads it."""
        return StackReturns(dropout=True, keeps_memory=self.memory_tokens > 0)

    def costs(self, *, layers: int, tokens: int, width: int) -> StackCost:
        """The memory, full: every layer keeps it, itself behind the segment as one tensor, and its keys and values."""
        memory = self.memory_tokens
        return StackCost(
            readers=layers,
            saved_activations=(tokens + 3 * memory) * width if memory else 0,
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

    def forward(
        self,
        hidden: Tensor,
        tokens: Tokens,
        *given: Tensor | None,
        layers: range | None = None,
        block_states: Sequence[BlockState] | None = None,
        output_hidden_states: bool = False,
    ) -> StackOutput:
        """As `Sequential.forward`; every layer reads behind its memory, to which its input is added.

        Raises:
            InputError: something is to learn from a state that holds keys and values.
        """
        if block_states is None:
            return super().forward(hidden, tokens, *given, layers=layers, output_hidden_states=output_hidden_states)
        from longspan.attention.parts.state import HiddenLayer

        all_hidden_states, losses = [hidden], []
        for layer in range(len(self)) if layers is None else layers:
            block: Any = self[layer]
            state = block_states[layer]
            memory: Any = state.own
            if self.training:
                losses.append(block.attention_loss(hidden, tokens))
            if isinstance(memory, HiddenLayer):
                past = 0 if memory.hidden is None else memory.hidden.shape[1]
                visible = replace(tokens, mask=tokens.last_mask(past + hidden.shape[1]))
                written = block(hidden, visible, *given, memory=memory.hidden)
                memory.limit = block.attention.needed_states(self.config.memory_tokens)
                memory.remember(hidden)
                hidden = written
            elif hidden.requires_grad and memory.get_seq_length():
                raise InputError(
                    "past_key_values holds keys and values, from which nothing can learn; begin the text with a new "
                    "cache, or go on under torch.no_grad()"
                )
            else:
                hidden = block(hidden, tokens, *given, past_key_values=state)
            if output_hidden_states:
                all_hidden_states.append(hidden)
        states = tuple(all_hidden_states) if output_hidden_states else None
        return StackOutput(hidden, states, aux=AuxOutput(loss=total_loss(losses) if losses else None))
