"""Invertible sums: one step of a reversible stack, and the autograd function that rebuilds inputs from outputs.

A step maps two streams `(older, newer)` to `(newer, older + branch(newer))`. So `older` is the sum minus
`branch(newer)`, and nothing of a step needs to be saved but its random state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from longspan.attention import Tokens
from longspan.ops.attend.reference import full_precision
from longspan.stacks.block import Block, BlockState, clamp_half

Streams = tuple[Tensor, Tensor]
"""Both `(B, T, E)`: the stream that was written before, and the one written last."""


# Not frozen: torch 2.11 cannot call an instance of a frozen class that it created while tracing.
@dataclass(eq=False)
class Step:
    """One branch of a block, as a function of its input stream and of other tensors with gradients.

    Attributes:
        block: the block of the branch.
        branch: the name of the branch.
        tokens: without shared tables, which are passed as tensors.
        source_mask: mask of the source, which is passed as a tensor.
        has_source: whether the first of the other tensors is a source.
        state: the state that the branch continues, if any.
        dtype: the dtype of the branch's input.
    """

    block: Block
    branch: Literal["attention", "cross_attention", "feed_forward"]
    tokens: Tokens
    source_mask: Tensor | None
    has_source: bool
    state: BlockState | None
    dtype: torch.dtype

    def __call__(self, newer: Tensor, *given: Tensor) -> Tensor:
        """Returns the sum's second term, `(B, T, E)`; `given` are the source, if there is one, and the tables.

        Computes a branch of a pre-normalised `Block.forward`.
        """
        block, (norm, module) = self.block, self._modules()
        source, tables = (given[0], given[1:]) if self.has_source else (None, given)
        own_state, source_state = self.state or (None, None)
        read = newer.to(self.dtype)
        read = norm(clamp_half(read) if read.dtype == torch.float16 else read)
        if self.branch == "feed_forward":
            return block.dropout(module(read))
        if self.branch == "cross_attention":
            return block.dropout(module(read, source, self.source_mask, source_state))
        tokens = replace(self.tokens, relative=tables) if tables else self.tokens
        with full_precision(read) if block.float32_attention else nullcontext():
            attended = module(read.float() if block.float32_attention else read, tokens, own_state)
        return block.dropout(attended)

    def learned(self) -> list[nn.Parameter]:
        """Returns the weights with gradients."""
        return [weight for module in self._modules() for weight in module.parameters() if weight.requires_grad]

    def _modules(self) -> tuple[nn.Module, nn.Module]:
        """Returns the norm, and the layer after it."""
        return getattr(self.block, f"{self.branch}_norm"), getattr(self.block, self.branch)


def steps_of(
    block: Block,
    tokens: Tokens,
    source: Tensor | None,
    source_mask: Tensor | None,
    state: BlockState | None,
    dtype: torch.dtype,
) -> list[Step]:
    """Returns the steps of a block in order; arguments as in `Block.forward` and `Step`."""
    reads_source = block.cross_attention is not None and source is not None
    branches = ("attention", "cross_attention", "feed_forward") if reads_source else ("attention", "feed_forward")
    return [Step(block, branch, tokens, source_mask, source is not None, state, dtype) for branch in branches]


class Surroundings:
    """The current state of random numbers and autocast, to recompute something exactly.

    Args:
        device: the device of the streams.
        before: those of the step before, which share memory if nothing was drawn since.
    """

    def __init__(self, device: torch.device, before: Surroundings | None = None) -> None:
        self.device = device
        accelerated = device.type not in ("cpu", "meta")
        self.module = torch.get_device_module(device) if accelerated else None
        self.random = [torch.get_rng_state()]
        if self.module:
            self.random.append(self.module.get_rng_state(device))
        # A state on the CPU has 5 kB: steps between which nothing is drawn share one.
        if before is not None and all(map(torch.equal, self.random, before.random)):
            self.random = before.random
        self.autocasts = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            for kind in dict.fromkeys(("cpu", device.type))
            if torch.amp.is_autocast_available(kind)
        ]

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Restores autocast without its cache: weights that were cast while a step was computed without gradients have
        none, and would be used in steps that need them.
        """
        with ExitStack() as stack:
            for kind, dtype, enabled in self.autocasts:
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False))
            yield

    @contextmanager
    def again(self) -> Iterator[None]:
        """Restores random numbers and autocast of the first pass; the current random state is restored afterwards."""
        devices = [self.device] if self.module else []
        with torch.random.fork_rng(devices, device_type=self.device.type if devices else "cuda"), self.autocast():
            torch.set_rng_state(self.random[0])
            if self.module:
                self.module.set_rng_state(self.random[1], self.device)
            yield


class Taken(NamedTuple):
    """A computed step, with its trained weights."""

    step: Step
    weights: list[nn.Parameter]
    surroundings: Surroundings

    def again(self, newer: Tensor, given: list[Tensor]) -> Tensor:
        """Recomputes the term that the step added.

        Raises:
            RuntimeError: its weights have been replaced by other tensors, so that gradients would silently be wrong.
        """
        weights = self.step.learned()
        if len(weights) != len(self.weights) or any(a is not b for a, b in zip(weights, self.weights, strict=True)):
            raise RuntimeError(
                "weights of a reversible stack were exchanged between forward and backward, as by "
                "torch.func.functional_call; set its recompute to False"
            )
        with self.surroundings.again():
            return self.step(newer, *given)


class Trail:
    """The computed steps, and how many of them were undone.

    Args:
        given: the source and the tables that every step uses.
    """

    def __init__(self, given: list[Tensor]) -> None:
        # Not the tensors themselves: a graph that references itself would never be freed.
        self.given = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in given]
        self.steps: list[Taken] = []
        self.end: tuple[int, Tensor, Tensor] | None = None
        self.at: tuple[int, Tensor, Tensor] | None = None

    def take(self, given: list[Tensor], step: Step, older: Tensor, newer: Tensor) -> Tensor:
        """Returns the sum `(B, T, E)` of a step."""
        before = self.steps[-1].surroundings if self.steps else None
        taken = Taken(step, step.learned(), Surroundings(newer.device, before))
        self.steps.append(taken)
        written: Any = Rebuilt.apply(self, len(self.steps) - 1, older, newer, *given, *taken.weights)
        return written

    def finish(self, older: Tensor, newer: Tensor) -> None:
        """Saves the last two streams, from which all others are rebuilt."""
        self.end = (len(self.steps), older.detach(), newer.detach())
        self.versions = older._version, newer._version

    def back_to(self, level: int) -> Streams:
        """Returns the two streams before step `level`, `(B, T, E)` each, rebuilt from the end without gradient.

        Raises:
            RuntimeError: a stream was changed in place since `finish`.
        """
        assert self.end is not None
        if self.at is None or self.at[0] < level:  # the first time, or in another backward pass
            if (self.end[1]._version, self.end[2]._version) != self.versions:
                raise RuntimeError("a stream of the reversible stack was changed in place, so it cannot be taken back")
            self.at = self.end
        while self.at[0] > level:  # steps without gradients
            number, newer, written = self.at
            with torch.no_grad():
                older = written - self.steps[number - 1].again(newer, self.given)
            self.at = (number - 1, older, newer)
        return self.at[1:]

    def undo(self, number: int, gradient: Tensor, sources: tuple[Tensor, ...]) -> list[Tensor | None]:
        """Undoes one step: returns the gradients of its input stream, of the given tensors and of its weights."""
        newer, written = self.back_to(number + 1)
        read = newer.detach().requires_grad_()
        with torch.enable_grad():
            added = self.steps[number].again(read, self.given)
        self.at = (number, written - added.detach(), newer)
        wanted = [read, *self.given, *sources[len(self.given) :]]
        gradients: list[Tensor | None] = [None] * len(wanted)
        places = [place for place, tensor in enumerate(wanted) if tensor.requires_grad and added.requires_grad]
        if places:
            chosen = [wanted[place] for place in places]
            computed = torch.autograd.grad(added, chosen, gradient.to(added.dtype), allow_unused=True)
            for place, gradient_of_source in zip(places, computed, strict=True):
                gradients[place] = gradient_of_source
        return gradients


class Rebuilt(torch.autograd.Function):
    """`older + step(newer)`, which saves nothing but what all steps share."""

    @staticmethod
    def forward(ctx: Any, trail: Trail, number: int, older: Tensor, newer: Tensor, *sources: Tensor) -> Tensor:
        """`sources` are the given tensors and the step's weights, as arguments so that they receive gradients."""
        ctx.trail, ctx.number = trail, number
        ctx.save_for_backward(*sources)
        taken = trail.steps[number]
        with taken.surroundings.autocast():
            return older + taken.step(newer, *sources[: len(trail.given)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The gradient of the sum is that of `older`."""
        return None, None, gradient, *ctx.trail.undo(ctx.number, gradient, ctx.saved_tensors)
