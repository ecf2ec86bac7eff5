"""Combinations of blocks, one per file: a frozen configuration and an `nn.Module` with a list of its blocks.

`STACKS` lists them by name, and `stack_config` reads a name or plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from longspan.attention.parts.tokens import StackTokens
from longspan.imports import Table, late_names
from longspan.settings import from_spec
from longspan.stacks.base import AuxOutput, Sizes, Source, StackConfig, StackOutput, StackReads, StackReturns

if TYPE_CHECKING:
    from longspan.stacks.binary_partition import BinaryPartitionConfig
    from longspan.stacks.decomposed import DecomposedConfig
    from longspan.stacks.recurrent import RecurrentConfig
    from longspan.stacks.reversible import ReversibleConfig
    from longspan.stacks.sequential import SequentialConfig
    from longspan.stacks.star import StarConfig
    from longspan.stacks.top_down import TopDownConfig
    from longspan.stacks.universal import UniversalConfig

__all__ = [
    "STACKS",
    "AuxOutput",
    "BinaryPartitionConfig",
    "DecomposedConfig",
    "RecurrentConfig",
    "ReversibleConfig",
    "SequentialConfig",
    "Sizes",
    "Source",
    "StackConfig",
    "StackOutput",
    "StackReads",
    "StackReturns",
    "StackTokens",
    "StarConfig",
    "TopDownConfig",
    "UniversalConfig",
    "stack_config",
]

_PLACES = {
    "sequential": "longspan.stacks.sequential:SequentialConfig",
    "reversible": "longspan.stacks.reversible:ReversibleConfig",
    "recurrent": "longspan.stacks.recurrent:RecurrentConfig",
    "universal": "longspan.stacks.universal:UniversalConfig",
    "decomposed": "longspan.stacks.decomposed:DecomposedConfig",
    "star": "longspan.stacks.star:StarConfig",
    "top_down": "longspan.stacks.top_down:TopDownConfig",
    "binary_partition": "longspan.stacks.binary_partition:BinaryPartitionConfig",
}
STACKS: Table[type[StackConfig]] = Table("stacks", _PLACES)
"""Name → configuration, whose `build(block, layers, sizes)` creates the module; each is imported on first access."""

__getattr__ = late_names(__name__, _PLACES.values())


def stack_config(spec: str | Mapping[str, Any] | StackConfig) -> StackConfig:
    """Converts a stack's name, plain data with its name under `"stack"`, or a configuration to a configuration.

    Raises:
        InputError: an unknown stack or option, or a value out of range.
    """
    return spec if isinstance(spec, StackConfig) else from_spec(STACKS, "stack", spec, "stack")
