"""What every stack says of itself, and what it returns: a configuration that puts blocks together, and its output."""

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
    """The numbers of a model by which a stack makes layers of its own.

    Attributes:
        width: model width E.
        heads: number of heads H.
        eps: ε of the LayerNorms.
        attention_dropout: probability of dropping an attention weight in training.
        causal: whether the stack writes: no token may depend on a later one.
        source: whether it writes beside an encoder, whose states it reads.
        inner: width of feed-forward layers; `None` means four times the model's.
        activation_function: of feed-forward layers, by its transformers name.
        dropout: of each branch.
        activation_dropout: inside feed-forward layers.
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
    """What some stacks return beside the states.

    Attributes:
        loss: a scalar that joins the loss of a model in training; every model adds it, whatever it is.
        ponder_times: `(B, T)` float32, the steps that each position took; 0 for padding.
    """

    loss: Tensor | None = None
    ponder_times: Tensor | None = None


class Source(NamedTuple):
    """What a decoder beside an encoder reads instead of the states of its tokens.

    Attributes:
        states: `(B, S, E)`.
        mask: `(B, S)` bool, which of them there are.
    """

    states: Tensor
    mask: Tensor


class StackOutput(NamedTuple):
    """What the layers of a stack make of a batch.

    Attributes:
        states: `(B, T, E)` after the last block, or `(B, T, 2E)` of a stack with two `streams`.
        all_hidden_states: those before each block and after the last; `None` where nobody asked for them.
        summary: `(B, E)`, one vector for each row, of stacks that return a `summary`.
        aux: of stacks that return `aux`; empty otherwise.
        source: of stacks that return a `source`, where they read.
        memory: `(B, M, E)`, the final states of a memory in front of the text, which the others then leave out.
    """

    states: Tensor
    all_hidden_states: tuple[Tensor, ...] | None = None
    summary: Tensor | None = None
    aux: AuxOutput = AuxOutput()
    source: Source | None = None
    memory: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class StackReads:
    """What a stack asks of the tokens of a model, besides their states and mask.

    Attributes:
        adds_positions: it tells tokens their places itself, by `Tokens.places` or else counting the real ones.
        parts: it has to know where the second part of each row begins, by `Tokens.border`.
        restarts_positions: the positions of the second part are counted from 0 again.
        importance: how important each token is, by `Tokens.importance`.
        unbounded: texts may have any length, bounded only by a table of positions.
    """

    adds_positions: bool = False
    parts: bool = False
    restarts_positions: bool = False
    importance: bool = False
    unbounded: bool = False


@dataclass(frozen=True, kw_only=True)
class StackReturns:
    """What a stack returns.

    Attributes:
        streams: how many times as wide as the model its states are.
        normalized: no LayerNorm is needed behind it, which a pre-normalised model has otherwise.
        dropout: training drops elements of its states too, with the model's `dropout`, as of each branch.
        summary: `StackOutput.summary`, one vector for each row.
        aux: `StackOutput.aux`.
        source: `StackOutput.source`, which a decoder beside the encoder reads instead of the states of its tokens.
        keeps_memory: what its layers keep of one segment of a text goes on to the next, in training too.
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
    """What a stack needs besides the blocks of its model, for one text.

    Attributes:
        layers: blocks of its own: the mechanism of each, and how many tokens it reads.
        readers: how many of the model's blocks, the last ones, read more than their own sequence.
        saved_activations: numbers that each of these keeps for the backward pass, for that.
        states: those besides that mixed precision keeps in float32.
        multiply_adds: that each of these does for that.
        working: numbers that are there for a moment.
    """

    layers: tuple[tuple[AttentionConfig, int], ...] = ()
    readers: int = 0
    saved_activations: int = 0
    states: int = 0
    multiply_adds: int = 0
    working: int = 0


STACK_FEATURES = {
    "structure": "Its blocks are given `Tokens.belongs_to` as it came.",
    "packed": "Everything but attention treats every token alike, so that a row may hold several documents.",
    "sharded": "It reads rows that are sharded between processes (`Tokens.shards`), if its attention does.",
    "losses": "`AuxOutput.loss` has what inputs of attention add to the loss.",
    "memory_tokens": "It treats every place alike, so that memory tokens (`num_memory_tokens`) can precede a text.",
    "ranges": "Its module runs some of its blocks alone, as `Sequential` does with `layers`.",
}
"""What a stack may support → what that means."""


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """Base of every stack's configuration: frozen, keyword-only, every field with a default.

    A new stack says its key, its fields and `build`. Everything else has a default and is said where that is not right.
    """

    stack: ClassVar[str]
    """The key under which `STACKS` lists it."""
    causal: ClassVar[bool] = True
    """Whether it serves models that write, whose tokens see only those before them."""
    bidirectional: ClassVar[bool] = True
    """Whether it serves models that read, whose tokens see those before and after them."""
    plain_blocks: ClassVar[bool] = False
    """Whether its blocks are those of a plain stack, so that it can start from the weights of one; what it has besides
    starts anew."""
    supports: ClassVar[frozenset[str]] = frozenset()
    """Keys of `STACK_FEATURES`: what it passes on to its attention, or does itself."""
    unused: ClassVar[Mapping[str, str]] = {}
    """Fields of a model that mean nothing in this stack, and are refused, each with the reason: how the clause goes on
    behind the stack's name. With `attention` among them the stack brings its own."""
    own_attention: ClassVar[type[AttentionConfig] | None] = None
    """The attention that it brings, where that counts its cost and can be compared with mechanisms; its options are
    those of the stack."""
    work_exponent: ClassVar[float] = 1.1
    """The most by which its work grows with the length of a text, as a power of the length, where it brings its own
    attention: 1.1 allows what is linear some overhead. Memory grows by no more than that in any case."""

    def __post_init__(self) -> None:
        """Refuse what is not of its field's type, or outside its limits."""
        check(self)

    def build(self, block: Callable[..., Block], layers: int, sizes: Sizes) -> nn.Module:
        """Make the module, a `longspan.stacks.sequential.Layers` called as `Sequential` is, of `layers` blocks that
        `block(layer)` makes.

        `block` takes options by name, too: a `mechanism` instead of the layer's own, and what reads a source, as
        `cross_attention` and `norm_before_sum` of `Block`.
        """
        raise NotImplementedError

    def check_model(self, config: Any) -> None:
        """Raise `InputError` for fields of a model that do not go with this stack."""

    def refuse_globals(self, tokens: Tokens) -> None:
        """Raise `InputError` for global tokens, of stacks that say in `unused` why they take none."""
        if tokens.is_global is not None or tokens.global_slots is not None:
            reason = self.unused["global_tokens"]
            raise InputError(f"stack {self.stack!r} takes no global tokens: it is one {reason}; pass none")

    def reads(self) -> StackReads:
        """What it asks of the tokens."""
        return StackReads()

    def returns(self) -> StackReturns:
        """What it returns, beside states `(B, T, E)`."""
        return StackReturns()

    def costs(self, *, layers: int, tokens: int, width: int) -> StackCost | None:
        """What so many layers over a text of T tokens need besides a block each; `None` where memory cannot be counted
        block by block, since training does not keep what each computes until it comes back to it."""
        return None

    def sent(self, *, width: int, heads: int, processes: int, number: int, tokens: int = 0, passes: int = 1) -> int:
        """Bytes that a process in the middle sends for a layer, besides those of its attention, where so many processes
        read a part of each row of so many tokens: forward, perhaps again, and backward, which are the `passes`;
        `number` is the size of one number of its states."""
        return 0

    def first_joint(self, layers: int) -> int:
        """The first of so many layers that reads whole rows."""
        return 0

    def of_decoder(self) -> StackConfig:
        """The stack of a decoder beside an encoder that has this one."""
        return self

    def decoder_table(self) -> bool:
        """Whether a decoder beside an encoder learns a table of positions where `position_embedding` is "none"."""
        return not self.of_decoder().reads().adds_positions

    def lengthened(self, tokens: int) -> StackConfig:
        """The same for texts of up to so many tokens, where it has tables that are too short for them."""
        return self

    @property
    def brings_attention(self) -> bool:
        """Whether it has attention of its own, so that the mechanisms of the model say nothing."""
        return "attention" in self.unused

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the stack's name first; `stack_config` reverses it."""
        return {"stack": self.stack, **asdict(self)}
