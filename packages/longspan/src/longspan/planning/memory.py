"""How much memory a model will need: counted from its configuration, before anything of it is made.

Weights, gradients and the states of the optimizer are counted on a model without storage; what training saves of each
block is its residual states, the inputs of its linear layers, the widest tensor of its feed-forward layer, and what its
attention says of itself (`AttentionConfig.costs`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from longspan.errors import InputError
from longspan.models.fsdp import units
from longspan.planning.source import Planned
from longspan.settings import Count, check
from longspan.stacks import stack_config
from longspan.stacks.base import StackCost
from longspan.training.optimisation import STATES

Precision = Literal["float32", "bfloat16"]
CONSTANT = 4 << 20
"""Bytes of working memory whatever the length: the buffers of a chunk of attention, and what libraries set aside."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One way to run a model.

    Attributes:
        tokens: of each row, T.
        batch: rows, B.
        train: a step of training, or else a forward pass.
        precision: bfloat16 in training is autocast: the weights stay float32.
        checkpointing: compute each block again in the backward pass instead of saving its activations.
        output_tokens: that a decoder beside an encoder writes, or is taught.
        processes: that share the work; batch and memory are those of one.
        shard: divide weights, gradients and the optimizer's states between them.
        sequence: how many of them read each row together, a part of it each.
    """

    tokens: Count
    batch: Count = 1
    train: bool = False
    precision: Precision = "float32"
    checkpointing: bool = False
    output_tokens: Count = 256
    processes: Count = 1
    shard: bool = False
    sequence: Count = 1

    def __post_init__(self) -> None:
        check(self)

    @property
    def number(self) -> int:
        """Bytes of an activation."""
        return 2 if self.precision == "bfloat16" else 4

    def held(self, weights: int) -> int:
        """How many of the weights a process holds."""
        return -(-weights // self.processes) if self.shard else weights

    @property
    def words(self) -> str:
        """Precision and checkpointing in words, as rows of a plan are called."""
        return self.precision + (", checkpointing" if self.checkpointing else "")


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes, by what they are for.

    Attributes:
        weights: of the model, and what autocast copies of them.
        gradients: one for each weight.
        optimizer: its states.
        buckets: in which processes that hold all weights exchange gradients.
        activations: what the backward pass needs of the forward pass.
        working: what is there for a moment.
    """

    weights: int
    gradients: int = 0
    optimizer: int = 0
    buckets: int = 0
    activations: int = 0
    working: int = 0

    @property
    def peak(self) -> int:
        """The most that is there at once: activations go as gradients come."""
        steps = max(self.activations + self.working, self.gradients + self.working // 2)
        return self.weights + self.optimizer + self.buckets + steps


@dataclass(frozen=True)
class Weights:
    """How many weights a model has: all, those of linear layers, of the largest unit that processes gather at once, and
    those that belong to none."""

    total: int
    linear: int
    unit: int
    outside: int


def weights_of(planned: Planned) -> Weights:
    """How many weights a model has, counted on one without storage."""
    with torch.device("meta"):
        model = planned.model_class(planned.config)
    linear = sum(part.weight.numel() for part in model.modules() if isinstance(part, nn.Linear))
    total = sum(weight.numel() for weight in model.parameters())
    inside: dict[int, int] = {}
    largest = 0
    for unit in units(model):  # innermost first
        own = {id(weight): weight.numel() for weight in unit.parameters() if id(weight) not in inside}
        largest = max(largest, sum(own.values()))
        inside |= own
    return Weights(total, linear, largest, total - sum(inside.values()))


def memory_of(planned: Planned, choice: Choice, weights: Weights | None = None) -> Memory:
    """Bytes of a step of training, or of a forward pass.

    Args:
        planned: the model.
        choice: its tokens, batch and precision, and whether it trains.
        weights: as `weights_of` counted them before; `None` counts them.

    Raises:
        InputError: a stack whose memory is not counted block by block.
    """
    layers = _Layers(planned.config, choice_of_process(planned.config, choice))
    counted = weights or weights_of(planned)
    own, whole = choice.held(counted.total), counted.outside + counted.unit if choice.shard else 0
    if not choice.train:
        number = choice.number
        return Memory(weights=number * own, working=layers.widest_forward() + number * whole + CONSTANT)
    copied = 2 * counted.linear if choice.precision == "bfloat16" else 0
    return Memory(
        weights=4 * own + copied,
        gradients=4 * own,
        optimizer=STATES[planned.optimizer] * 4 * own,
        buckets=4 * own if choice.processes > 1 and not choice.shard else 0,
        activations=layers.activations(),
        working=layers.widest_backward() + 2 * 4 * whole + CONSTANT,  # of what is whole, the gradient is too
    )


def choice_of_process(config: Any, choice: Choice) -> Choice:
    """What one process reads of each row: its part, and the widest halo of all layers."""
    if choice.sequence == 1:
        return choice
    part = math.ceil(choice.tokens / choice.sequence)
    halo = max((halo_of(config.layer_attention(layer)) for layer in range(config.num_hidden_layers)), default=0)
    return replace(choice, tokens=min(choice.tokens, part + halo), sequence=1)


def halo_of(spec: Any, *, causal: bool = False) -> int:
    """How many tokens of its neighbours a part reads in a layer; 0 where it needs their sums alone."""
    reach = spec.reach()
    return 0 if reach.left is None or reach.right is None else reach.left + (0 if causal else reach.right)


def stack_cost(config: Any, tokens: int) -> StackCost:
    """What the stack of a model needs besides its blocks, for a text of T tokens, its memory included.

    Raises:
        InputError: a stack whose memory is not counted block by block.
    """
    sizes = {"layers": config.num_hidden_layers, "width": config.hidden_size}
    cost = stack_config(config.stack).costs(tokens=tokens + config.num_memory_tokens, **sizes)
    if cost is None:
        raise InputError(
            f"stack {config.stack['stack']!r} is not counted block by block, so there is no plan for it; measure a "
            "step with `longspan compare`, or plan the model with the stack 'sequential'"
        )
    return cost


def layers_of_model(config: Any, tokens: int) -> list[tuple[Any, int]]:
    """The mechanism of each block of a model, and how many places it reads of a text of T tokens: those of the memory
    too, or these alone; none where the stack brings layers of its own."""
    if stack_config(config.stack).brings_attention:
        return []
    memory, lower = config.num_memory_tokens, config.compress_after
    return [
        (config.layer_attention(layer), memory + (tokens if lower is None or layer < lower else 0))
        for layer in range(config.num_hidden_layers)
    ]


class _Layers:
    """Activations of a model, in bytes, for a choice."""

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
        """Of one layer of a mechanism over a text of so many tokens."""
        sizes = {"width": self.width, "heads": self.config.num_attention_heads}
        return self.number * self.choice.batch * spec.costs(length=length, **sizes).saved_activations

    def block(self, spec: Any, length: int) -> int:
        """Saved of a block: two residual states, the inputs of attention and feed-forward layer, its widest tensor."""
        masks = 2 * self.width if self.config.dropout else 0
        residual = 2 * self.width * 4 + masks
        numbers = residual + self.number * (2 * self.width + self.config.intermediate_size)
        return self.choice.batch * length * numbers + self.attention(spec, length)

    def blocks(self) -> list[int]:
        """Saved of each block of the model, and of those of its stack."""
        cost, sizes = self.stack_cost, [self.block(*each) for each in self.layers]
        for reader in range(len(sizes) - cost.readers, len(sizes)):
            sizes[reader] += self.choice.batch * (self.number * cost.saved_activations + 4 * cost.states)
        return sizes + [self.block(*each) for each in cost.layers]

    def activations(self) -> int:
        """Of all blocks, the inputs of the norms before and behind them, and the decoder; with checkpointing, the input
        of each block and one block whole."""
        states, blocks = 4 * self.places * self.width, self.blocks()
        whole = sum(blocks)
        if self.choice.checkpointing:
            lengths = sum(length for _, length in [*self.layers, *self.stack_cost.layers])
            whole = 4 * self.choice.batch * lengths * self.width + max(blocks, default=0)
        ends = (self.config.embedding_norm + (self.config.normalization == "pre")) * states
        return whole + ends + self.decoder()

    def decoder(self) -> int:
        """Of a decoder beside an encoder: its blocks, and keys and values of the source in each; and the logits."""
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
        """The most that a block holds at once in a forward pass, or the logits."""
        inner, states = self.config.intermediate_size, self.number * self.longest
        feed_forward = states * (4 * self.width + 2 * inner)
        gathered = max((self.attention(*layer) for layer in [*self.layers, *self.stack_cost.layers]), default=0)
        attention, logits = gathered + states * 3 * self.width, outputs_of(self.config, self.choice)
        return max(feed_forward, attention, self.moment(), 4 * logits * self.config.vocab_size)

    def widest_backward(self) -> int:
        """What is wide in a feed-forward layer, computed again, and its gradient; or what the stack holds for a moment,
        at which the blocks that read what it makes have saved nothing."""
        feed_forward = self.longest * self.number * 2 * self.config.intermediate_size
        blocks = self.blocks()
        absent = blocks[len(self.layers) - self.stack_cost.readers :]
        return max(feed_forward, self.moment() - (max(blocks, default=0) if self.choice.checkpointing else sum(absent)))

    def moment(self) -> int:
        """What the stack holds for a moment."""
        return self.number * self.choice.batch * self.stack_cost.working


def outputs_of(config: Any, choice: Choice) -> int:
    """Tokens that get logits over the vocabulary: all of them in models of language, none elsewhere."""
    head = config.head
    predicts = head is not None and head["head"] == "masked_lm"
    causal = any("CausalLM" in name for name in config.architectures or ())
    return choice.batch * choice.tokens if predicts or causal else 0


def other_choices(choice: Choice) -> list[Choice]:
    """The same step in every precision, and in training with and without checkpointing."""
    plain = [replace(choice, precision=one, checkpointing=False) for one in ("float32", "bfloat16")]
    return plain + [replace(one, checkpointing=True) for one in plain] if choice.train else plain


def largest_batch(planned: Planned, choice: Choice, room: int, weights: Weights) -> int:
    """The most rows whose step fits into so many bytes; 0 where not even one does."""

    def fits(batch: int) -> bool:
        return memory_of(planned, replace(choice, batch=batch), weights).peak <= room

    low, high = 0, 1
    while high <= 1 << 20 and fits(high):
        low, high = high, 2 * high
    return _last(fits, low, high)


def longest_row(planned: Planned, choice: Choice, room: int, weights: Weights) -> int:
    """The most tokens, fewer than were chosen, of which one row fits into so many bytes; 0 where not even one does."""

    def fits(tokens: int) -> bool:
        return memory_of(planned, replace(choice, tokens=tokens, batch=1), weights).peak <= room

    return _last(fits, 0, choice.tokens)


def _last(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The last number from `low` on, and below `high`, that fits; `low` is taken for granted."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
