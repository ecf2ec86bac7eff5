"""What every stack is: a configuration that puts blocks together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from torch import nn

from longspan.attention.base import State
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
    """

    width: int
    heads: int = 1
    eps: float = 1e-5
    attention_dropout: float = 0.0
    causal: bool = False


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

    @property
    def carries(self) -> bool:
        """Whether what its layers keep of one segment of a text goes on to the next, in training too."""
        return False

    unused: ClassVar[Mapping[str, str]] = {}
    """Fields of a model that mean nothing in this stack, and are refused, each with the reason: how the clause goes on
    behind the stack's name."""

    def __post_init__(self) -> None:
        """Refuse what is not of its field's type, or outside its limits."""
        check(self)

    @property
    def brings_attention(self) -> bool:
        """Whether it has attention of its own, so that the mechanisms of the model say nothing."""
        return "attention" in self.unused

    @property
    def normalizes(self) -> bool:
        """Whether its output needs no LayerNorm behind it, which a pre-normalised model has otherwise."""
        return False

    @property
    def streams(self) -> int:
        """How many times as wide as the model its output is."""
        return 1

    def check_model(self, config: Any) -> None:
        """Raise `InputError` for fields of a model that do not go with this stack."""

    def build(self, block: Callable[[int], Block], layers: int, sizes: Sizes) -> Layers:
        """Make the module, called as `Sequential` is, of `layers` blocks that `block(layer)` makes."""
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
    def keeps_state(self) -> bool:
        """Whether every layer of a causal stack has a state that the next step continues."""
        attentions: list[Any] = [block.attention for block in self]
        return all(attention.keeps_state for attention in attentions)

    def new_state(self, layer: int) -> State:
        """What a layer of a causal stack keeps of its own sequence between steps, still empty."""
        block: Any = self[layer]
        return block.attention.new_state()

    def configure(self, config: StackConfig) -> None:
        """Take other options, without other weights.

        Raises:
            InputError: the stack has none that can change once it is built.
        """
        raise InputError(f"stack {config.stack!r} has no options that can change once it is built; build it anew")
