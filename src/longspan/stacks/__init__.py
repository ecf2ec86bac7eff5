"""How blocks are put together, one way per file: a frozen configuration and an `nn.Module` that lists its blocks.

`STACKS` lists them by name, and `stack_config` reads a name or plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longspan.settings import from_spec
from longspan.stacks.base import AuxOutput, Sizes, Source, StackConfig, StackOutput, StackReads, StackReturns
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
    "StarConfig",
    "TopDownConfig",
    "UniversalConfig",
    "stack_config",
]

_KINDS: tuple[type[StackConfig], ...] = (
    SequentialConfig,
    ReversibleConfig,
    RecurrentConfig,
    UniversalConfig,
    DecomposedConfig,
    StarConfig,
    TopDownConfig,
    BinaryPartitionConfig,
)
STACKS: dict[str, type[StackConfig]] = {kind.stack: kind for kind in _KINDS}
"""Name → configuration, whose `build(block, layers, sizes)` makes the module."""


def stack_config(spec: str | Mapping[str, Any] | StackConfig) -> StackConfig:
    """Turn a stack's name, plain data with its name under `"stack"`, or a configuration into a configuration.

    Raises:
        InputError: an unknown stack or option, or a value out of range.
    """
    return from_spec(STACKS, "stack", spec, "stack")
