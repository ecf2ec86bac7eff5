"""The reversible stack: two streams, whose inputs are rebuilt from their outputs, so that training saves
none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from longspan.attention import Tokens
from longspan.attention.base import projected
from longspan.errors import InputError
from longspan.ops.runtime import needs_reference
from longspan.stacks.base import Sizes, StackConfig, StackOutput, StackReturns
from longspan.stacks.block import Block, BlockState
from longspan.stacks.rebuilding import Step, Streams, Trail, steps_of
from longspan.stacks.sequential import Layers


@dataclass(frozen=True, kw_only=True)
class ReversibleConfig(StackConfig):
    """Two streams: `Y1 = X1 + Attention(LN(X2))`, `Y2 = X2 + FeedForward(LN(Y1))` (Kitaev et al. 2020, "Reformer",
    arXiv 2001.04451, section 3; Gomez et al. 2017, arXiv 1707.04585).

    Attributes:
        join: how both streams are combined at the end: "concat", a LayerNorm over their concatenation and a linear
            layer back to the model's width; "both", that LayerNorm alone, as published, so that states are 2E wide,
            also for heads; or "average", which has no weights.
    """

    stack: ClassVar[str] = "reversible"
    supports: ClassVar[frozenset[str]] = frozenset({"memory_tokens", "structure"})

    join: Literal["concat", "both", "average"] = "concat"

    def returns(self) -> StackReturns:
        return StackReturns(streams=2 if self.join == "both" else 1, normalized=self.join != "average")

    def check_model(self, config: Any) -> None:
        """Raises `InputError` for post-normalisation, which cannot be inverted, and for a decoder with both streams."""
        if config.normalization != "pre":
            raise InputError(
                f"normalization={config.normalization!r} does not go with stack 'reversible', which takes its sums "
                "back, and cannot once they are normalised; set it to 'pre'"
            )
        if self.join == "both" and config.decoder_layers:
            raise InputError(
                f"stack.join='both' gives states of twice the width, which decoder_layers={config.decoder_layers} do "
                "not read; choose 'concat' or 'average'"
            )

    def build(self, block: Callable[[int], Block], layers: int, sizes: Sizes) -> Reversible:
        return Reversible([block(layer) for layer in range(layers)], self, sizes)


class Reversible(Layers):
    """The module of `ReversibleConfig`.

    Every branch of a block reads the stream that was written last, and its output is added to the other one. Training
    saves only the last two streams: the backward pass subtracts each branch from the sum, from the last to the first,
    and recomputes what its gradients need. Streams are in float32 at least, so that this loses nothing.

    Attributes:
        recompute: False saves every activation instead, with the same gradients.
    """

    _rebuilding: ClassVar[Any] = None
    """`_keeping_none` outside of any compiled graph."""

    def __init__(self, blocks: list[Block], config: ReversibleConfig, sizes: Sizes) -> None:
        super().__init__(blocks)
        self.recompute = True
        if Reversible._rebuilding is None:  # created here, since it imports PyTorch's whole compiler
            reason = "a reversible stack recomputes its activations, which a graph cannot express"
            Reversible._rebuilding = torch.compiler.disable(Reversible._keeping_none, reason=reason)
        self.join_norm = nn.LayerNorm(2 * sizes.width, eps=sizes.eps) if config.join != "average" else None
        self.join = nn.Linear(2 * sizes.width, sizes.width) if config.join == "concat" else None

    def units(self) -> list[nn.Module]:
        """The stack as one unit: it calls the branches of its blocks, again in the backward pass."""
        return [self]

    def forward(
        self,
        hidden: Tensor,
        tokens: Tokens,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        *tables: Tensor,
        block_states: Sequence[BlockState] | None = None,
        output_hidden_states: bool = False,
    ) -> StackOutput:
        """Maps `(B, T, E)` to states `(B, T, E)`, or `(B, T, 2E)` of both streams; arguments as in
        `Sequential.forward`.

        Layer states change as they are used, so that with them every activation is saved. Hidden states are the mean of
        both streams before each block, and the output.
        """
        inputs_of_steps = [tensor for tensor in (source, *tables) if tensor is not None]
        stored = block_states is not None or not self.recompute or not torch.is_grad_enabled()
        stored = stored or torch.compiler.is_exporting() or needs_reference(hidden, *inputs_of_steps)
        all_hidden_states: list[Tensor] | None = [] if output_hidden_states else None
        run: Any = self._keeping_all if stored else self._rebuilding
        older, newer = run(inputs_of_steps, hidden, tokens, source, source_mask, block_states, all_hidden_states)
        joined = self._joined(older, newer, hidden)
        return StackOutput(joined, None if all_hidden_states is None else (*all_hidden_states, joined))

    def _keeping_all(self, given: list[Tensor], *inputs: Any) -> Streams:
        """Returns the last two streams by plain sums; autograd saves every activation."""
        return self._streams(lambda step, older, newer: older + step(newer, *given), *inputs)

    def _keeping_none(self, given: list[Tensor], *inputs: Any) -> Streams:
        """Returns the last two streams, from which the backward pass rebuilds all others."""
        trail = Trail(given)
        streams = self._streams(partial(trail.take, given), *inputs)
        trail.finish(*streams)
        return streams

    def _streams(
        self,
        take: Callable[[Step, Tensor, Tensor], Tensor],
        hidden: Tensor,
        tokens: Tokens,
        source: Tensor | None,
        source_mask: Tensor | None,
        block_states: Sequence[BlockState] | None,
        all_hidden_states: list[Tensor] | None,
    ) -> Streams:
        """Returns the last two streams, with sums computed by `take`; appends the states before each block
        to a list.
        """
        older = newer = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        for layer, block in enumerate(self):
            assert isinstance(block, Block)
            if all_hidden_states is not None:
                all_hidden_states.append(_mean(older, newer, hidden))
            state = None if block_states is None else block_states[layer]
            for step in steps_of(block, tokens, source, source_mask, state, hidden.dtype):
                older, newer = newer, take(step, older, newer)
        return older, newer

    def _joined(self, older: Tensor, newer: Tensor, hidden: Tensor) -> Tensor:
        """Combines both streams to one state, in the dtype of `hidden`."""
        if self.join_norm is None:
            return _mean(older, newer, hidden)
        both = self.join_norm(torch.cat([older, newer], dim=-1).to(hidden.dtype))
        return both if self.join is None else projected(self.join, both)


def _mean(older: Tensor, newer: Tensor, hidden: Tensor) -> Tensor:
    """Returns the mean of both streams, in the dtype of `hidden`."""
    return ((older + newer) / 2).to(hidden.dtype)
