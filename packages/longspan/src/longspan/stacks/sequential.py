"""The layers of a stack, and the plain stack: one block after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from longspan.attention import Tokens
from longspan.attention.base import LayerState
from longspan.stacks.base import AuxOutput, Sizes, StackConfig, StackCost, StackOutput
from longspan.stacks.block import Block, BlockState, total_loss


@dataclass(frozen=True, kw_only=True)
class SequentialConfig(StackConfig):
    """Every block is applied to the output of the block before (Vaswani et al. 2017, section 3.1)."""

    stack: ClassVar[str] = "sequential"
    supports: ClassVar[frozenset[str]] = frozenset(
        {"losses", "memory_tokens", "packed", "ranges", "sharded", "structure"}
    )
    plain_blocks: ClassVar[bool] = True

    def costs(self, *, layers: int, tokens: int, width: int) -> StackCost:
        return StackCost()

    def build(self, block: Callable[[int], Block], layers: int, sizes: Sizes) -> Sequential:
        return Sequential(block(layer) for layer in range(layers))


class Layers(nn.ModuleList):
    """A list of layers and their states between steps. Submodules that are not layers are not part of the list."""

    in_step: bool = False
    """Whether every process of a distributed run must call the same layers equally often, since weights are sharded
    (FSDP); set by `longspan.models.fsdp`.
    """
    divided: bool = False
    """Whether rows are sharded (sequence parallelism); set by `longspan.models.sequence_parallel`."""

    def __len__(self) -> int:
        return sum(name.isdigit() for name in self._modules)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter([self[layer] for layer in range(len(self))])

    @property
    def applied(self) -> list[Any]:
        """The blocks in the order of execution, with repetitions: a decoder has a state for each."""
        return list(self)

    @property
    def keeps_state(self) -> bool:
        """Whether every block of a causal stack has a state."""
        return all(block.attention.keeps_state for block in self.applied)

    def weights_loss(self) -> Tensor | None:
        """Returns the loss of the weights of all attention layers in training, each block's once."""
        return total_loss([module.weights_loss() for module in self.modules() if isinstance(module, Block)])

    def units(self) -> list[nn.Module]:
        """The modules that a sharded model may gather one at a time: their weights are only used by calling them."""
        return list(self)

    def new_state(self, step: int) -> LayerState:
        """Returns an empty state of the causal stack for one of the `applied` blocks, for its own sequence."""
        return self.applied[step].attention.new_state()


class Sequential(Layers):
    """The module of `SequentialConfig`: a list of its blocks."""

    def forward(
        self,
        hidden: Tensor,
        tokens: Tokens,
        *given: Tensor | None,
        layers: range | None = None,
        block_states: Sequence[BlockState] | None = None,
        output_hidden_states: bool = False,
    ) -> StackOutput:
        """Maps `(B, T, E)` to states `(B, T, E)`.

        Args:
            hidden: as in `Block.forward`, like the tokens.
            tokens: their properties.
            *given: further arguments of blocks: the source, its mask, and the tables that layers share.
            layers: indices of the blocks; `None` means all.
            block_states: one state per block, each continued; `None` for none.
            output_hidden_states: also return the states before each block and after the last.
        """
        all_hidden_states, losses = [hidden], []
        for layer in range(len(self)) if layers is None else layers:
            state = None if block_states is None else block_states[layer]
            block: Any = self[layer]
            if self.training:
                losses.append(block.attention_loss(hidden, tokens))
            hidden = block(hidden, tokens, *given, layer_past=state)
            if output_hidden_states:
                all_hidden_states.append(hidden)
        states = tuple(all_hidden_states) if output_hidden_states else None
        return StackOutput(hidden, states, aux=AuxOutput(loss=total_loss(losses) if losses else None))
