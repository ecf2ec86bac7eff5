"""Memory of a model, computed from its configuration before anything is allocated.

Weights, gradients and optimizer states are counted on a model on the meta device. The activations saved for training
are, per block, the residual stream, the inputs of its linear layers, the widest tensor of its feed-forward layer, and
the activations of its attention (`AttentionConfig.costs`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from longspan.models.fsdp import units
from longspan.models.work import Choice, layers_of_model, outputs_of, stack_cost, states_of
from longspan.planning.source import Planned

CONSTANT = 4 << 20
"""Bytes of working memory at any length: the buffers of a chunk of attention, and what libraries reserve."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes by purpose.

    Attributes:
        weights: weights of the model, and their copies by autocast.
        gradients: one for each weight.
        optimizer: optimizer states.
        buckets: gradient buckets of data-parallel processes with all weights.
        activations: tensors saved for the backward pass.
        working: temporary memory.
    """

    weights: int
    gradients: int = 0
    optimizer: int = 0
    buckets: int = 0
    activations: int = 0
    working: int = 0

    @property
    def peak(self) -> int:
        """Peak memory: activations are freed while gradients are created."""
        steps = max(self.activations + self.working, self.gradients + self.working // 2)
        return self.weights + self.optimizer + self.buckets + steps


@dataclass(frozen=True)
class Weights:
    """Numbers of weights: in total, of linear layers, of the largest FSDP unit, and outside of all units."""

    total: int
    linear: int
    unit: int
    outside: int


def weights_of(planned: Planned) -> Weights:
    """Counts the weights of a model on the meta device."""
    with torch.device("meta"):
        model = planned.model_class(planned.config)
    linear = sum(part.weight.numel() for part in model.modules() if isinstance(part, nn.Linear))
    total = sum(weight.numel() for weight in model.parameters())
    inside: dict[int, int] = {}
    largest = 0
    for unit in units(model):  # innermost first
        unit_weights = {id(weight): weight.numel() for weight in unit.parameters() if id(weight) not in inside}
        largest = max(largest, sum(unit_weights.values()))
        inside |= unit_weights
    return Weights(total, linear, largest, total - sum(inside.values()))


def memory_of(planned: Planned, choice: Choice, weights: Weights | None = None) -> Memory:
    """Returns the bytes of a training step, or of a forward pass.

    Args:
        planned: the model.
        choice: its tokens, batch and precision, and whether it trains.
        weights: an earlier result of `weights_of`; `None` counts them.

    Raises:
        InputError: the memory of the stack is not counted by block.
    """
    layers = _Layers(planned.config, choice_of_process(planned.config, choice))
    counted = weights or weights_of(planned)
    held, whole = choice.held(counted.total), counted.outside + counted.unit if choice.shard else 0
    if not choice.train:
        number = choice.number
        return Memory(weights=number * held, working=layers.widest_forward() + number * whole + CONSTANT)
    copied = 2 * counted.linear if choice.precision == "bfloat16" else 0
    return Memory(
        weights=4 * held + copied,
        gradients=4 * held,
        optimizer=int(4 * states_of(planned.optimizer) * held),
        buckets=4 * held if choice.processes > 1 and not choice.shard else 0,
        activations=layers.activations(),
        working=layers.widest_backward() + 2 * 4 * whole + CONSTANT,  # gathered weights have gathered gradients
    )


def choice_of_process(config: Any, choice: Choice) -> Choice:
    """Returns the choice for the part of each row in one process, including the widest halo of all layers."""
    if choice.sequence == 1:
        return choice
    part = math.ceil(choice.tokens / choice.sequence)
    halo = max((halo_of(config.layer_attention(layer)) for layer in range(config.num_hidden_layers)), default=0)
    return replace(choice, tokens=min(choice.tokens, part + halo), sequence=1)


def halo_of(spec: Any, *, causal: bool = False) -> int:
    """Returns the halo of a layer in tokens; 0 if it exchanges sums only."""
    reach = spec.reach()
    return 0 if reach.left is None or reach.right is None else reach.left + (0 if causal else reach.right)


class _Layers:
    """Bytes of a model's activations for a choice."""

    def __init__(self, config: Any, choice: Choice) -> None:
        self.config = config
        self.choice = choice
        self.number = choice.number
        self.width = config.hidden_size
        self.layers = layers_of_model(config, choice.tokens)
        self.stack_cost = stack_cost(config, choice.tokens)
        places = choice.tokens + config.num_memory_tokens
        self.places = choice.batch * places
        self.longest = choice.batch * max([places, *(length for _, length in self.stack_cost.layers)])

    def attention(self, spec: Any, length: int) -> int:
        """Returns the bytes of one layer of a mechanism over `length` tokens."""
        sizes = {"width": self.width, "heads": self.config.num_attention_heads}
        return self.number * self.choice.batch * spec.costs(length=length, **sizes).saved_activations

    def block(self, spec: Any, length: int) -> int:
        """Returns the bytes saved by a block: two states of the residual stream, the inputs of attention and
        feed-forward layer, and its widest tensor."""
        masks = 2 * self.width if self.config.dropout else 0
        residual = 2 * self.width * 4 + masks
        numbers = residual + self.number * (2 * self.width + self.config.intermediate_size)
        return self.choice.batch * length * numbers + self.attention(spec, length)

    def blocks(self) -> list[int]:
        """Returns the bytes saved by each block of the model, and by those of its stack."""
        cost, sizes = self.stack_cost, [self.block(*layer) for layer in self.layers]
        for reader in range(len(sizes) - cost.readers, len(sizes)):
            sizes[reader] += self.choice.batch * (self.number * cost.saved_activations + 4 * cost.states)
        return sizes + [self.block(*layer) for layer in cost.layers]

    def activations(self) -> int:
        """Returns the bytes of all blocks, the first and last norms, and the decoder; with checkpointing, of the input
        of each block and of one whole block."""
        states, blocks = 4 * self.places * self.width, self.blocks()
        whole = sum(blocks)
        if self.choice.checkpointing:
            lengths = sum(length for _, length in [*self.layers, *self.stack_cost.layers])
            whole = 4 * self.choice.batch * lengths * self.width + max(blocks, default=0)
        ends = (self.config.embedding_norm + (self.config.normalization == "pre")) * states
        return whole + ends + self.decoder()

    def decoder(self) -> int:
        """Returns the bytes of the decoder of an encoder-decoder: its blocks, with keys and values of the source in
        each; and the logits."""
        config, rows = self.config, self.choice.batch
        written = rows * self.choice.output_tokens
        if not config.decoder_layers:
            return 3 * 4 * outputs_of(self.config, self.choice) * config.vocab_size
        inner = config.decoder_intermediate_size or config.intermediate_size
        block = written * (3 * 4 * self.width + self.number * (3 * self.width + inner + 6 * self.width))
        compressed = config.compress_after is not None
        block += self.number * 2 * self.width * (rows * config.num_memory_tokens if compressed else self.longest)
        return config.decoder_layers * block + 3 * 4 * written * config.vocab_size

    def widest_forward(self) -> int:
        """Returns the largest number of bytes of a block in a forward pass, or of the logits."""
        inner, states = self.config.intermediate_size, self.number * self.longest
        feed_forward = states * (4 * self.width + 2 * inner)
        gathered = max((self.attention(*layer) for layer in [*self.layers, *self.stack_cost.layers]), default=0)
        attention, logits = gathered + states * 3 * self.width, outputs_of(self.config, self.choice)
        return max(feed_forward, attention, self.moment(), 4 * logits * self.config.vocab_size)

    def widest_backward(self) -> int:
        """Returns the bytes of the feed-forward layer's widest tensor, recomputed, and its gradient; or the temporary
        memory of the stack, at which time the blocks that read its result have saved nothing."""
        feed_forward = self.longest * self.number * 2 * self.config.intermediate_size
        blocks = self.blocks()
        absent = blocks[len(self.layers) - self.stack_cost.readers :]
        return max(feed_forward, self.moment() - (max(blocks, default=0) if self.choice.checkpointing else sum(absent)))

    def moment(self) -> int:
        """Returns the temporary memory of the stack."""
        return self.number * self.choice.batch * self.stack_cost.working


def other_choices(choice: Choice) -> list[Choice]:
    """Returns the same step in every precision, and in training with and without checkpointing."""
    plain = [replace(choice, precision=precision, checkpointing=False) for precision in ("float32", "bfloat16")]
    return plain + [replace(other, checkpointing=True) for other in plain] if choice.train else plain


def largest_batch(planned: Planned, choice: Choice, room: int, weights: Weights) -> int:
    """Returns the largest batch that fits into `room` bytes; 0 if none does."""

    def fits(batch: int) -> bool:
        return memory_of(planned, replace(choice, batch=batch), weights).peak <= room

    low, high = 0, 1
    while high <= 1 << 20 and fits(high):
        low, high = high, 2 * high
    return _last(fits, low, high)


def longest_row(planned: Planned, choice: Choice, room: int, weights: Weights) -> int:
    """Returns the largest number of tokens, below the chosen one, with which a single row fits into `room` bytes; 0 if
    none does."""

    def fits(tokens: int) -> bool:
        return memory_of(planned, replace(choice, tokens=tokens, batch=1), weights).peak <= room

    return _last(fits, 0, choice.tokens)


def _last(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Returns the last number in [`low`, `high`) that fits, by bisection; `low` is assumed to fit."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
