"""What every stack is: a configuration that puts blocks together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self

from torch import nn

from longspan.errors import InputError
from longspan.settings import check
from longspan.stacks.block import Block


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """Base of every stack's configuration: frozen, keyword-only, every field with a default."""

    stack: ClassVar[str]
    """The key under which `STACKS` lists it."""

    def __post_init__(self) -> None:
        """Refuse what is not of its field's type, or outside its limits."""
        check(self)

    def build(self, block: Callable[[int], Block], layers: int) -> nn.ModuleList:
        """Make the module, called as `Sequential` is, of `layers` blocks that `block(layer)` makes."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the stack's name first; `StackConfig.from_dict` reverses it."""
        return {"stack": self.stack, **asdict(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Build this configuration from plain data; unknown keys raise."""
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(data) - set(known) - {"stack"})
        if unknown:
            has = f"its options are {', '.join(known)}" if known else "it has no options"
            raise InputError(f"stack {cls.stack!r} has no option {unknown[0]!r}; {has}")
        return cls(**{name: value for name, value in data.items() if name != "stack"})
