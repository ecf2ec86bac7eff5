"""The universal stack: one block, applied repeatedly with the same weights, as many steps as a position needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from longspan.attention import Tokens
from longspan.attention.parts.tokens import StackTokens
from longspan.errors import InputError
from longspan.ops.sinusoids import interleaved_sinusoids
from longspan.settings import Range
from longspan.stacks.base import AuxOutput, Sizes, StackConfig, StackCost, StackOutput, StackReads, StackReturns
from longspan.stacks.block import Block, BlockState
from longspan.stacks.halting import Accumulation, HaltingUnit, Pondering, places_of
from longspan.stacks.sequential import Layers

StepSignal = Literal["learned", "sinusoidal", "none"]
PositionSignal = Literal["sinusoidal", "none"]
GATHERED = 0.8
"""The largest share of running positions for which gathering them is worth the copies."""


@dataclass(frozen=True, kw_only=True)
class UniversalConfig(StackConfig):
    """One block, `num_hidden_layers` times (Dehghani et al. 2019, "Universal Transformers", arXiv 1807.03819).

    Attributes:
        shared_blocks: number of blocks that alternate; the paper has one.
        position_signal: the position signal at every step: "sinusoidal", as in the paper, or "none".
        step_signal: the step signal: "sinusoidal" (paper), "learned" (the published code), or "none".
        signal_scale: the signals' amplitude: 1 in the paper, whose token embeddings have unit variance.
        halting: "none", every position takes every step; or "adaptive", each until its halting unit stops it.
        threshold: a position halts at the step at which the sum of its probabilities exceeds this: 1 − ε of the paper.
        ponder_weight: weight of the ponder cost in the training loss: the mean number of steps and remainder.
        freeze_halted: whether other positions attend to the output of a halted one at all later steps; False keeps
            updating its state for them, as in the published code.
        force_remainder: whether a position that still runs at the last step gets the remaining weight there, so that
            weights sum to 1; False drops it, as in the published code.
        accumulation: how the states of the steps are combined: "paper", `o ← w·s + (1 − w)·o`; or "sum", `o ← o + w·s`,
            the weighted mean of Graves 2016.
    """

    stack: ClassVar[str] = "universal"
    supports: ClassVar[frozenset[str]] = frozenset({"memory_tokens", "structure"})

    shared_blocks: Annotated[int, Range(1, 1000)] = 1
    position_signal: PositionSignal = "sinusoidal"
    step_signal: StepSignal = "sinusoidal"
    signal_scale: Annotated[float, Range(above=0, maximum=1e3)] = 1.0
    halting: Literal["none", "adaptive"] = "none"
    threshold: Annotated[float, Range(above=0, maximum=1)] = 0.99
    ponder_weight: Annotated[float, Range(0, 1e3)] = 0.01
    freeze_halted: bool = True
    force_remainder: bool = True
    accumulation: Accumulation = "paper"

    def reads(self) -> StackReads:
        return StackReads(adds_positions=self.position_signal != "none")

    def returns(self) -> StackReturns:
        return StackReturns(aux=self.halting == "adaptive")

    def costs(self, *, layers: int, tokens: int, width: int) -> StackCost:
        """A step is a block. With adaptive halting, each step also saves its state and the output so far."""
        return StackCost(readers=layers, states=2 * tokens * width) if self.halting == "adaptive" else StackCost()

    def check_model(self, config: Any) -> None:
        """Raises `InputError` for layers that differ although they share a block, and for more blocks than steps."""
        sides = [("num_hidden_layers", "attention", config.layer_attention)]
        if config.decoder_layers:
            sides.append(("decoder_layers", "decoder_attention", config.decoder_layer_attention))
        for name, field, attention in sides:
            steps = getattr(config, name)
            if self.shared_blocks > steps:
                raise InputError(
                    f"stack.shared_blocks={self.shared_blocks} is more than {name}={steps}, which is the number of "
                    "steps; lower it"
                )
            mechanisms = [attention(step) for step in range(steps)]
            for step in range(self.shared_blocks, steps):
                same = step % self.shared_blocks
                if mechanisms[step] != mechanisms[same]:
                    raise InputError(
                        f"{field} of layer {step} differs from that of layer {same}, but stack 'universal' has one "
                        "block for both; give them the same"
                    )

    def build(self, block: Callable[[int], Block], layers: int, sizes: Sizes) -> Universal:
        return Universal([block(layer) for layer in range(min(self.shared_blocks, layers))], self, layers, sizes)


class Universal(Layers):
    """The module of `UniversalConfig`.

    Attributes:
        skips: whether inference skips halted positions; False computes them too, with equal results.
    """

    def __init__(self, blocks: list[Block], config: UniversalConfig, steps: int, sizes: Sizes) -> None:
        super().__init__(blocks)
        self.config, self.steps, self.skips = config, steps, True
        self.signals = Signals(
            sizes.width, steps, step=config.step_signal, position=config.position_signal, scale=config.signal_scale
        )
        self.halting = HaltingUnit(sizes.width) if config.halting == "adaptive" else None

    @property
    def applied(self) -> list[Any]:
        """The blocks in the order of execution."""
        blocks = list(self)
        return [blocks[step % len(blocks)] for step in range(self.steps)]

    def forward(
        self,
        hidden: Tensor,
        tokens: Tokens,
        *given: Tensor | None,
        block_states: Sequence[BlockState] | None = None,
        output_hidden_states: bool = False,
    ) -> StackOutput:
        """Maps `(B, T, E)` to states `(B, T, E)`; arguments as in `Sequential.forward`, with one state per step.

        With adaptive halting, `aux` has the ponder times and their cost.
        """
        places = self.signals.of_places(tokens, hidden.shape[1], block_states, hidden)
        run = Run(self.applied, self.signals, tokens, given, block_states, places)
        if self.halting is not None and self.steps:
            return self._pondered(run, hidden, output_hidden_states)
        all_hidden_states = [hidden]
        for step in range(self.steps):
            hidden = run.block(step, run.signalled(step, hidden))
            if output_hidden_states:
                all_hidden_states.append(hidden)
        return StackOutput(hidden, tuple(all_hidden_states) if output_hidden_states else None)

    def _pondered(self, run: Run, hidden: Tensor, output_hidden_states: bool) -> StackOutput:
        """Computes the steps with adaptive halting; arguments as in `forward`.

        A halted position's state is its output from then on, without signals, so that its keys and values are those of
        every later step too. Computation ends when all have halted; a compiled or exported program, which cannot check
        this, runs all steps.
        """
        assert self.halting is not None
        config, real = self.config, run.real(hidden)
        state, frozen = hidden, config.freeze_halted
        ponder = Pondering(hidden, real, threshold=config.threshold, accumulation=config.accumulation)
        all_hidden_states: list[Tensor] = []
        for step in range(self.steps):
            if output_hidden_states:
                all_hidden_states.append(state)
            if step and not torch.compiler.is_compiling() and not self._any_runs(ponder.running):
                if run.block_states is None:
                    continue
                if frozen:
                    run.only_remember(step, state)
                    continue
            before = ponder.running
            signalled = run.signalled(step, state)
            signalled = torch.where(before[..., None], signalled, state) if frozen else signalled
            stops = self.halting(signalled)
            last = step == self.steps - 1 and config.force_remainder
            weight = ponder.weigh(stops, all_stop=last)
            new = self._stepped(run, step, signalled, before)
            ponder.add(new, weight)
            state = new
            if frozen:
                state = torch.where(ponder.running[..., None], new, torch.where(real[..., None], ponder.output, hidden))
        return StackOutput(
            states=ponder.output,
            all_hidden_states=(*all_hidden_states, ponder.output) if output_hidden_states else None,
            aux=AuxOutput(loss=config.ponder_weight * ponder.cost(), ponder_times=ponder.updates),
        )

    def _any_runs(self, running: Tensor) -> bool:
        """Whether any position of this or another process has not halted; `running` is `(B, T)` bool."""
        any_runs = running.any()
        if self.in_step:
            any_runs = any_runs.int()
            torch.distributed.all_reduce(any_runs, torch.distributed.ReduceOp.MAX)
        return bool(any_runs)

    def _stepped(self, run: Run, step: int, given: Tensor, running: Tensor) -> Tensor:
        """Returns the states after a step, `(B, T, E)`; arbitrary finite values for halted positions."""
        looks = self.skips and self.config.freeze_halted and not torch.compiler.is_compiling()
        if not looks or self.training or torch.is_grad_enabled():
            return run.block(step, given)
        places = places_of(running)
        if places.shape[1] > GATHERED * given.shape[1]:
            return run.block(step, given)
        new = run.block(step, given, places=places)
        # Rows with fewer running positions are filled with halted ones, whose new states are not used.
        return given.scatter(1, places[..., None].expand_as(new), new)


@dataclass(frozen=True, eq=False)
class Run:
    """One call of a universal stack: what is the same at every step."""

    blocks: list[Any]
    signals: Signals
    tokens: Tokens
    given: tuple[Tensor | None, ...]
    block_states: Sequence[BlockState] | None
    places: Tensor | None
    """Position signals, `(1 or B, T, E)`."""

    def signalled(self, step: int, hidden: Tensor) -> Tensor:
        """Adds the signals of position and step, if any, to states `(B, T, E)`."""
        signal = self.signals.at(step, self.places, hidden)
        return hidden if signal is None else hidden + signal

    def real(self, hidden: Tensor) -> Tensor:
        """Returns the mask of the new tokens, `(B, T)` bool."""
        mask = self.tokens.last_mask(hidden.shape[1])
        return torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device) if mask is None else mask

    def block(self, step: int, hidden: Tensor, **places: Tensor) -> Tensor:
        """Applies the block of a step to all positions, or only to `places` `(B, Q)`, as in `Block.forward`."""
        state = None if self.block_states is None else self.block_states[step]
        return self.blocks[step](hidden, self.tokens, *self.given, layer_past=state, **places)

    def only_remember(self, step: int, hidden: Tensor) -> None:
        """Adds the states to the cache of a step, for later tokens."""
        self.block(step, hidden, places=torch.empty(len(hidden), 0, dtype=torch.int64, device=hidden.device))


class Signals(nn.Module):
    """`P^t[i, 2j] = sin(i / 10000^(2j/E)) + sin(t / 10000^(2j/E))`, cosines at 2j + 1, or a learned vector for each t.

    Dehghani et al. 2019, equation 4: i is the position of a token, from 0, t the step, from 1.
    """

    def __init__(self, width: int, steps: int, *, step: StepSignal, position: PositionSignal, scale: float) -> None:
        super().__init__()
        self.width, self.scale = width, scale
        self.step, self.position = step, position
        self.table = nn.Embedding(steps, width) if step == "learned" else None

    def of_places(
        self, tokens: Tokens, count: int, block_states: Sequence[BlockState] | None, like: Tensor
    ) -> Tensor | None:
        """Returns the signals of the last `count` positions, `(1 or B, T, E)`, for every step; `None` for none."""
        if self.position == "none":
            return None
        text = StackTokens.of(tokens)
        counted = text.places is not None or text.mask is not None
        first = 0 if counted or not block_states else int(block_states[0].own.get_seq_length())
        return self._waves(text.text_places(count, like.device, first), like)

    def at(self, step: int, places: Tensor | None, like: Tensor) -> Tensor | None:
        """Returns the signals that are added to every state at a step, counted from 0; `None` for none."""
        if self.table is not None:
            signal = self.table.weight[step].to(like.dtype)
        elif self.step == "sinusoidal":
            signal = self._waves(torch.full((), step + 1, device=like.device), like)
        else:
            return places
        return signal if places is None else places + signal

    def _waves(self, number: Tensor, like: Tensor) -> Tensor:
        """Returns alternating sines and cosines `(…, E)` of numbers `(…)`, in the dtype of `like`."""
        return (self.scale * interleaved_sinusoids(number, self.width, like.dtype)).to(like.dtype)
