"""Base classes of the stacks: the configuration, which combines blocks, and the output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from longspan.attention.config import AttentionConfig
from longspan.attention.parts.tokens import Tokens
from longspan.errors import InputError
from longspan.settings import check
from longspan.stacks.block import Block


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of the model for the layers that a stack creates.

    Attributes:
        width: model width E.
        heads: number of heads H.
        eps: ε of the LayerNorms.
        attention_dropout: probability of dropping an attention weight in training.
        causal: whether the stack is causal: no token may depend on a later one.
        source: whether it is a decoder with cross-attention to an encoder.
        inner: width of feed-forward layers; `None` means four times the model's.
        activation_function: activation of feed-forward layers, by its transformers name.
        dropout: dropout probability of each branch.
        activation_dropout: dropout probability inside feed-forward layers.
    """

    width: int
    heads: int = 1
    eps: float = 1e-5
    attention_dropout: float = 0.0
    causal: bool = False
    source: bool = False
    inner: int | None = None
    activation_function: str = "relu"
    dropout: float = 0.0
    activation_dropout: float = 0.0


class AuxOutput(NamedTuple):
    """Further outputs of some stacks.

    Attributes:
        loss: a scalar that every model adds to its loss in training.
        ponder_times: `(B, T)` float32, the number of steps of each position; 0 for padding.
    """

    loss: Tensor | None = None
    ponder_times: Tensor | None = None


class Source(NamedTuple):
    """States for a decoder's cross-attention that replace those of the encoder's tokens.

    Attributes:
        states: `(B, S, E)`.
        mask: `(B, S)` bool, True for valid states.
    """

    states: Tensor
    mask: Tensor


class StackOutput(NamedTuple):
    """The output of a stack for a batch.

    Attributes:
        states: `(B, T, E)` after the last block, or `(B, T, 2E)` of a stack with two `streams`.
        all_hidden_states: those before each block and after the last; `None` if not requested.
        summary: `(B, E)`, one vector for each row, of stacks that return a `summary`.
        aux: of stacks that return `aux`; empty otherwise.
        source: of bidirectional stacks that return a `source`.
        memory: `(B, M, E)`, the final states of memory tokens before the text, which the other fields exclude.
    """

    states: Tensor
    all_hidden_states: tuple[Tensor, ...] | None = None
    summary: Tensor | None = None
    aux: AuxOutput = AuxOutput()
    source: Source | None = None
    memory: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class StackReads:
    """Inputs that a stack needs besides states and mask.

    Attributes:
        adds_positions: the stack adds positions itself, from `StackTokens.places` or by counting the real tokens.
        parts: it needs the start of the second part of each row, `StackTokens.border`.
        restarts_positions: positions of the second part restart from 0.
        importance: it needs the importance of each token, `StackTokens.importance`.
        unbounded: texts may have any length, limited only by a table of positions.
    """

    adds_positions: bool = False
    parts: bool = False
    restarts_positions: bool = False
    importance: bool = False
    unbounded: bool = False


@dataclass(frozen=True, kw_only=True)
class StackReturns:
    """Properties of a stack's output.

    Attributes:
        streams: the width of its states, as a multiple of the model's.
        normalized: no LayerNorm is needed after it, which a pre-normalised model has otherwise.
        dropout: training applies the model's `dropout` to its states, as to each branch.
        summary: `StackOutput.summary`, one vector for each row.
        aux: `StackOutput.aux`.
        source: `StackOutput.source`, which replaces the states of the encoder's tokens in a decoder's cross-attention.
        keeps_memory: the state of one segment of a text is passed to the next, in training too.
    """

    streams: int = 1
    normalized: bool = False
    dropout: bool = False
    summary: bool = False
    aux: bool = False
    source: bool = False
    keeps_memory: bool = False


@dataclass(frozen=True, kw_only=True)
class StackCost:
    """The cost of a stack besides the blocks of its model, for one text.

    Attributes:
        layers: further blocks: the mechanism of each, and its number of tokens.
        readers: how many of the model's blocks, the last ones, attend to more than their own sequence.
        saved_activations: numbers that each of these saves for the backward pass in addition.
        states: further numbers that mixed precision saves in float32.
        multiply_adds: further multiply-adds of each of these.
        working: temporary numbers.
    """

    layers: tuple[tuple[AttentionConfig, int], ...] = ()
    readers: int = 0
    saved_activations: int = 0
    states: int = 0
    multiply_adds: int = 0
    working: int = 0


STACK_FEATURES = {
    "structure": "It passes `Tokens.belongs_to` to its blocks unchanged.",
    "packed": "Everything but attention is computed for each token separately, so that a row "
    "may hold several documents.",
    "sharded": "It reads rows that are sharded between processes (`Tokens.shards`), if its attention does.",
    "losses": "`AuxOutput.loss` has what inputs of attention add to the loss.",
    "memory_tokens": "It treats every place alike, so that memory tokens (`num_memory_tokens`) can precede a text.",
    "ranges": "Its module runs some of its blocks alone, as `Sequential` does with `layers`.",
}
"""Optional features of stacks → their descriptions."""


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """Base class of the configurations: frozen, keyword-only, every field with a default.

    A new stack defines its key, its fields and `build`. Override the other members only if their defaults are wrong.
    """

    stack: ClassVar[str]
    """The key in `STACKS`."""
    causal: ClassVar[bool] = True
    """Whether it serves causal models, whose tokens attend to earlier ones only."""
    bidirectional: ClassVar[bool] = True
    """Whether it serves bidirectional models."""
    plain_blocks: ClassVar[bool] = False
    """Whether its blocks are those of a plain stack, so that it can be initialised from one; other weights are new."""
    supports: ClassVar[frozenset[str]] = frozenset()
    """Keys of `STACK_FEATURES`: those that its attention or the stack itself supports."""
    unused: ClassVar[Mapping[str, str]] = {}
    """Fields of a model without effect in this stack, which raise an error, each with the reason as the clause after
    the stack's name. With `attention` among them the stack has its own.
    """
    own_attention: ClassVar[type[AttentionConfig] | None] = None
    """The stack's own attention, if it has a cost and can be compared with mechanisms; its options are the stack's."""
    work_exponent: ClassVar[float] = 1.1
    """The growth of the stack's own attention with the length of a text, as a power of the length: 1.1 allows linear
    ones some overhead. Memory grows by no more than that in any case.
    """

    def __post_init__(self) -> None:
        """Raises `InputError` if a value does not have its field's type, or is outside its limits."""
        check(self)

    def build(self, block: Callable[..., Block], layers: int, sizes: Sizes) -> nn.Module:
        """Builds the module, a `longspan.stacks.sequential.Layers` that is called like `Sequential`, of `layers` blocks
        made by `block(layer)`.

        `block` has further keyword arguments: a `mechanism` that replaces the layer's own, and `cross_attention` and
        `norm_before_sum` of `Block`.
        """
        raise NotImplementedError

    def check_model(self, config: Any) -> None:
        """Raises `InputError` for fields of a model that this stack does not support."""

    def refuse_globals(self, tokens: Tokens) -> None:
        """Raises `InputError` for global tokens, for stacks that give a reason in `unused`."""
        if tokens.is_global is not None or tokens.global_slots is not None:
            reason = self.unused["global_tokens"]
            raise InputError(f"stack {self.stack!r} takes no global tokens: it is one {reason}; pass none")

    def reads(self) -> StackReads:
        """Returns the inputs that the stack needs."""
        return StackReads()

    def returns(self) -> StackReturns:
        """Returns the properties of the output, besides states `(B, T, E)`."""
        return StackReturns()

    def costs(self, *, layers: int, tokens: int, width: int) -> StackCost | None:
        """Returns the cost of `layers` layers over a text of T tokens besides a block each; `None` if memory cannot be
        counted by block, since training does not save the activations of each.
        """
        return None

    def sent(self, *, width: int, heads: int, processes: int, number: int, tokens: int = 0, passes: int = 1) -> int:
        """Returns the bytes that a process sends for a layer, besides those of its attention, with sequence parallelism
        over `processes` for rows of `tokens`. `passes` counts forward, recomputation and backward; `number` is the size
        of one number of its states.
        """
        return 0

    def first_joint(self, layers: int) -> int:
        """Returns the first of `layers` layers that processes whole rows."""
        return 0

    def of_decoder(self) -> StackConfig:
        """Returns the stack of a decoder for an encoder with this stack."""
        return self

    def decoder_table(self) -> bool:
        """Whether a decoder for this encoder learns a table of positions if `position_embedding` is "none"."""
        return not self.of_decoder().reads().adds_positions

    def lengthened(self, tokens: int) -> StackConfig:
        """Returns the configuration for texts of up to `tokens` tokens, with longer tables if these are too short."""
        return self

    @property
    def brings_attention(self) -> bool:
        """Whether the stack has attention of its own, so that the mechanisms of the model have no effect."""
        return "attention" in self.unused

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data with the stack's name first; `stack_config` reverses it."""
        return {"stack": self.stack, **asdict(self)}
