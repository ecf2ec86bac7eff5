"""What every stack is: a configuration that puts blocks together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from longspan.attention.base import LayerState
from longspan.attention.config import AttentionConfig
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
    """

    width: int
    heads: int = 1
    eps: float = 1e-5
    attention_dropout: float = 0.0
    causal: bool = False


@dataclass(kw_only=True)
class Aside:
    """What a stack hands to its model beside the states.

    Attributes:
        loss: a scalar that joins the loss of a model in training; every model adds it, whatever it is.
        ponder_times: `(B, T)` float32, the steps that each position took; 0 for padding.
    """

    loss: Tensor | None = None
    ponder_times: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Besides:
    """What a stack needs besides the blocks of its model, for one text.

    Attributes:
        layers: blocks of its own: the mechanism of each, and how many tokens it reads.
        readers: how many of the model's blocks, the last ones, read more than their own sequence.
        saved: numbers that each of these saves for the backward pass, for that.
        states: those besides that mixed precision keeps in float32.
        multiply_adds: that each of these does for that.
        working: numbers that are there for a moment.
    """

    layers: tuple[tuple[AttentionConfig, int], ...] = ()
    readers: int = 0
    saved: int = 0
    states: int = 0
    multiply_adds: int = 0
    working: int = 0


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """Base of every stack's configuration: frozen, keyword-only, every field with a default."""

    stack: ClassVar[str]
    """The key under which `STACKS` lists it."""
    causal: ClassVar[bool] = True
    """Whether it serves models that write, whose tokens see only those before them."""
    bidirectional: ClassVar[bool] = True
    """Whether it serves models that read, whose tokens see those before and after them."""
    endless: ClassVar[bool] = False
    """Whether a text goes on in it for ever, so that only a table of positions bounds its length."""
    summarizes: ClassVar[bool] = False
    """Whether it sums every row up in one vector, and takes a list `summary` that is to receive these."""

    plain_blocks: ClassVar[bool] = False
    """Whether its blocks are those of a plain stack, so that it can start from the weights of one; what it has besides
    starts anew."""

    unused: ClassVar[Mapping[str, str]] = {}
    """Fields of a model that mean nothing in this stack, and are refused, each with the reason: how the clause goes on
    behind the stack's name."""

    earlier_defaults: ClassVar[Mapping[str, Any]] = {}
    """As in `AttentionConfig`: what options left out of a folder stood for up to version 0.2."""

    def __post_init__(self) -> None:
        """Refuse what is not of its field's type, or outside its limits."""
        check(self)

    def besides(self, *, layers: int, tokens: int, width: int) -> Besides | None:
        """What so many layers over a text of T tokens need besides a block each; `None` where memory cannot be counted
        block by block, since training does not keep what each computes until it comes back to it."""
        return None

    @property
    def carries(self) -> bool:
        """Whether what its layers keep of one segment of a text goes on to the next, in training too."""
        return False

    @property
    def brings_attention(self) -> bool:
        """Whether it has attention of its own, so that the mechanisms of the model say nothing."""
        return "attention" in self.unused

    @property
    def normalizes(self) -> bool:
        """Whether its output needs no LayerNorm behind it, which a pre-normalised model has otherwise."""
        return False

    @property
    def drops_output(self) -> bool:
        """Whether training drops elements of its output too, with the model's `dropout`, as of each branch."""
        return False

    @property
    def reports(self) -> bool:
        """Whether it takes an `aside`, an `Aside` that is to receive more than states."""
        return False

    @property
    def adds_positions(self) -> bool:
        """Whether it tells tokens their places itself, by `Tokens.places` or else counting the real ones."""
        return False

    @property
    def decoder_table(self) -> bool:
        """Whether a decoder beside an encoder learns a table of positions where `position_embedding` is "none"."""
        return not self.of_decoder.adds_positions

    @property
    def parts(self) -> bool:
        """Whether it has to know where the second part of each row begins, by `Tokens.border`."""
        return False

    @property
    def restarts(self) -> bool:
        """Whether the second part's positions are counted from 0 again."""
        return False

    def first_joint(self, layers: int) -> int:
        """The first of so many layers that reads whole rows."""
        return 0

    @property
    def weighs(self) -> bool:
        """Whether it asks how important each token is, by `Tokens.importance`."""
        return False

    @property
    def of_decoder(self) -> StackConfig:
        """The stack of a decoder beside an encoder that has this one."""
        return self

    @property
    def streams(self) -> int:
        """How many times as wide as the model its output is."""
        return 1

    def lengthened(self, tokens: int) -> StackConfig:
        """The same for texts of up to so many tokens, where it has tables that are too short for them."""
        return self

    def check_model(self, config: Any) -> None:
        """Raise `InputError` for fields of a model that do not go with this stack."""

    def build(self, block: Callable[..., Block], layers: int, sizes: Sizes) -> Layers:
        """Make the module, called as `Sequential` is, of `layers` blocks that `block(layer)` makes.

        `block` takes options by name, too: a `mechanism` instead of the layer's own, and what reads a source, as
        `cross_attention` and `norm_before_sum` of `Block`.
        """
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the stack's name first; `stack_config` reverses it."""
        return {"stack": self.stack, **asdict(self)}


class Layers(nn.ModuleList):
    """A list of layers and what each keeps between steps. There may be parts beside them that are none: these neither
    count nor come up among them."""

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

    def new_state(self, step: int) -> LayerState:
        """What a causal stack keeps between steps for one of the `applied`, of its own sequence, still empty."""
        return self.applied[step].attention.new_state()
