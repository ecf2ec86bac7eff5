"""The universal stack: one block, applied step after step with the same weights, for as long as a position needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from longspan.attention import Tokens
from longspan.errors import InputError
from longspan.settings import Range
from longspan.stacks.base import Aside, Besides, Layers, Sizes, StackConfig
from longspan.stacks.block import Block, Kept
from longspan.stacks.halting import Accumulation, HaltingUnit, Pondering, places_of
from longspan.stacks.signals import PositionSignal, Signals, StepSignal

GATHERED = 0.8
"""The largest share of running places for which gathering them is worth the copies."""


@dataclass(frozen=True, kw_only=True)
class UniversalConfig(StackConfig):
    """One block, `num_hidden_layers` times (Dehghani et al. 2019, "Universal Transformers", arXiv 1807.03819).

    Attributes:
        shared_blocks: how many blocks take turns; the paper has one.
        position_signal: what tells a token's place at every step: "sinusoidal", as in the paper, or "none".
        step_signal: what tells the step: "sinusoidal" (paper), "learned" (the published code), or "none".
        signal_scale: the signals' amplitude: 1 in the paper, whose token embeddings have unit variance.
        halting: "none", every position takes every step; or "adaptive", each until its halting unit stops it.
        threshold: a position stops at the step with which its probabilities exceed this: 1 − ε of the paper.
        ponder_weight: of the mean number of steps, with the last one's remainder, in the training loss.
        freeze_halted: whether others see a position that has stopped as it is given out, at all later steps; False
            lets its state go on for their eyes, as the published code does.
        force_remainder: whether a position that still runs at the last step has what is left of its weight there, so
            that weights add up to 1; False leaves it out, as the published code does.
        accumulation: how the states of the steps become one: "paper", `o ← w·s + (1 − w)·o`; or "sum", `o ← o + w·s`,
            the weighted mean of Graves 2016.
        decoder_positions: what tells a decoder beside an encoder its places in a model whose `position_embedding` is
            "none": "signals", these alone, as it tells the encoder; or "table", a learned table besides, as up to
            version 0.2. Without `position_signal` there is a table in any case.
    """

    stack: ClassVar[str] = "universal"
    earlier_defaults: ClassVar[Mapping[str, Any]] = {"decoder_positions": "table"}

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
    decoder_positions: Literal["signals", "table"] = "signals"

    @property
    def reports(self) -> bool:
        return self.halting == "adaptive"

    @property
    def adds_positions(self) -> bool:
        return self.position_signal != "none"

    @property
    def decoder_table(self) -> bool:
        return self.decoder_positions == "table" or not self.adds_positions

    def besides(self, *, layers: int, tokens: int, width: int) -> Besides:
        """A step is a block. Positions that stop by themselves keep, of each step, its state and the output so far."""
        return Besides(readers=layers, states=2 * tokens * width) if self.reports else Besides()

    def check_model(self, config: Any) -> None:
        """Refuse layers that differ where they are one block, and more blocks than steps."""
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
            found = [attention(step) for step in range(steps)]
            for step in range(self.shared_blocks, steps):
                same = step % self.shared_blocks
                if found[step] != found[same]:
                    raise InputError(
                        f"{field} of layer {step} differs from that of layer {same}, but stack 'universal' has one "
                        "block for both; give them the same"
                    )

    def build(self, block: Callable[[int], Block], layers: int, sizes: Sizes) -> Universal:
        return Universal([block(layer) for layer in range(min(self.shared_blocks, layers))], self, layers, sizes)


class Universal(Layers):
    """The module of `UniversalConfig`.

    Attributes:
        skips: whether inference leaves out what has stopped; False computes it all the same, with equal results.
    """

    def __init__(self, blocks: list[Block], config: UniversalConfig, steps: int, sizes: Sizes) -> None:
        super().__init__(blocks)
        self.config, self.steps, self.skips = config, steps, True
        self.signals = Signals(
            sizes.width, steps, step=config.step_signal, position=config.position_signal, scale=config.signal_scale
        )
        self.halting = HaltingUnit(sizes.width) if config.reports else None

    @property
    def applied(self) -> list[Any]:
        """The blocks in the order in which they run."""
        blocks = list(self)
        return [blocks[step % len(blocks)] for step in range(self.steps)]

    def forward(
        self,
        hidden: Tensor,
        tokens: Tokens,
        *given: Tensor | None,
        kept: Sequence[Kept] | None = None,
        seen: list[Tensor] | None = None,
        aside: Aside | None = None,
    ) -> Tensor:
        """`(B, T, E)` → `(B, T, E)`; arguments as in `Sequential.forward`, with one state per step.

        `aside` receives the ponder times and their cost, where positions stop by themselves.
        """
        places = self.signals.of_places(tokens, hidden.shape[1], kept, hidden)
        run = Run(self.applied, self.signals, tokens, given, kept, places)
        if self.halting is not None and self.steps:
            return self._pondered(run, hidden, seen, aside)
        for step in range(self.steps):
            if seen is not None:
                seen.append(hidden)
            hidden = run.all(step, run.signalled(step, hidden))
        if seen is not None:
            seen.append(hidden)
        return hidden

    def _pondered(self, run: Run, hidden: Tensor, seen: list[Tensor] | None, aside: Aside | None) -> Tensor:
        """The steps of positions that stop by themselves; arguments as in `forward`.

        The state of one that has stopped is its output from then on, without signals, so that its keys and values are
        those of every later step too. Whether all have stopped is looked at, so that the rest costs nothing; a compiled
        or exported program, which cannot look, goes through all steps.
        """
        assert self.halting is not None
        config, real = self.config, run.real(hidden)
        state, frozen = hidden, config.freeze_halted
        ponder = Pondering(hidden, real, threshold=config.threshold, accumulation=config.accumulation)
        for step in range(self.steps):
            if seen is not None:
                seen.append(state)
            if step and not torch.compiler.is_compiling() and not bool(ponder.running.any()):
                if run.kept is None:
                    continue
                if frozen:
                    run.only_remember(step, state)
                    continue
            before = ponder.running
            given = run.signalled(step, state)
            given = torch.where(before[..., None], given, state) if frozen else given
            stops = self.halting(given)
            last = step == self.steps - 1 and config.force_remainder
            weight = ponder.weigh(stops, all_stop=last)
            new = self._stepped(run, step, given, before)
            ponder.add(new, weight)
            state = new
            if frozen:
                state = torch.where(ponder.running[..., None], new, torch.where(real[..., None], ponder.output, hidden))
        if seen is not None:
            seen.append(ponder.output)
        if aside is not None:
            aside.ponder_times = ponder.updates
            aside.loss = config.ponder_weight * ponder.cost()
        return ponder.output

    def _stepped(self, run: Run, step: int, given: Tensor, running: Tensor) -> Tensor:
        """The states after a step, `(B, T, E)`; what does not run may be anything finite."""
        looks = self.skips and self.config.freeze_halted and not torch.compiler.is_compiling()
        if not looks or self.training or torch.is_grad_enabled():
            return run.all(step, given)
        places = places_of(running)
        if places.shape[1] > GATHERED * given.shape[1]:
            return run.all(step, given)
        found = run.some(step, given, places)
        # A row with fewer running places than others brings some that have stopped, whose new states nobody reads.
        return given.scatter(1, places[..., None].expand_as(found), found)


@dataclass(frozen=True, eq=False)
class Run:
    """One call of a universal stack: what is the same at every step."""

    blocks: list[Any]
    signals: Signals
    tokens: Tokens
    given: tuple[Tensor | None, ...]
    kept: Sequence[Kept] | None
    places: Tensor | None
    """Signals of the places, `(1 or B, T, E)`."""

    def signalled(self, step: int, hidden: Tensor) -> Tensor:
        """The states with the signals of a step."""
        signal = self.signals.at(step, self.places, hidden)
        return hidden if signal is None else hidden + signal

    def real(self, hidden: Tensor) -> Tensor:
        """`(B, T)` bool, the new tokens that are no padding."""
        mask = self.tokens.last_mask(hidden.shape[1])
        return torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device) if mask is None else mask

    def all(self, step: int, hidden: Tensor) -> Tensor:
        """The block on every place."""
        return self.blocks[step](hidden, self.tokens, *self.given, past_key_values=self._kept(step))

    def some(self, step: int, hidden: Tensor, places: Tensor) -> Tensor:
        """The block on some places `(B, Q)`, which see all: `(B, Q, E)`."""
        return self.blocks[step].forward_at(places, hidden, self.tokens, *self.given, past_key_values=self._kept(step))

    def only_remember(self, step: int, hidden: Tensor) -> None:
        """Take the states into what a step keeps, for tokens that are still to come."""
        self.some(step, hidden, torch.empty(len(hidden), 0, dtype=torch.int64, device=hidden.device))

    def _kept(self, step: int) -> Kept | None:
        return None if self.kept is None else self.kept[step]
