"""The layers of a stack, and the plain way through them: one block after the other."""

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
    """Every block reads what the one before it wrote (Vaswani et al. 2017, section 3.1)."""

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
    """A list of layers and what each keeps between steps. There may be parts beside them that are none: these neither
    count nor come up among them."""

    in_step: bool = False
    """Whether every process of a distributed run has to call the same layers equally often, since each holds a part of
    their weights; `longspan.models.fsdp` says so."""
    divided: bool = False
    """Whether rows are divided between processes; `longspan.models.sequence_parallel` says so."""

    def __len__(self) -> int:
        return sum(name.isdigit() for name in self._modules)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter([self[layer] for layer in range(len(self))])

    @property
    def applied(self) -> list[Any]:
        """The blocks in the order in which they run, each as often as it does: a decoder keeps a state for each."""
        return list(self)

    @property
    def keeps_state(self) -> bool:
        """Whether every block of a causal stack has a state that the next step continues."""
        return all(block.attention.keeps_state for block in self.applied)

    def weights_loss(self) -> Tensor | None:
        """What the weights of all attention add to the loss in training, each block's once."""
        return total_loss([module.weights_loss() for module in self.modules() if isinstance(module, Block)])

    def units(self) -> list[nn.Module]:
        """The modules that a sharded model may gather one at a time: nothing of the stack uses weights in one of them
        but by calling it."""
        return list(self)

    def new_state(self, step: int) -> LayerState:
        """What a causal stack keeps between steps for one of the `applied`, of its own sequence, still empty."""
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
        """`(B, T, E)` → states `(B, T, E)`.

        Args:
            hidden: as in `Block.forward`, like the tokens.
            tokens: what is known of them.
            *given: what else blocks are given: the source, its mask, and the tables that layers share.
            layers: which blocks; `None` means all.
            block_states: one state per block, each continued; `None` for none.
            output_hidden_states: return the states before each block and after the last, too.
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
