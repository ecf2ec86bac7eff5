"""How blocks are put together, one way per file: a frozen configuration and an `nn.Module` that lists its blocks.

`STACKS` lists them by name, and `stack_config` reads a name or plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longspan.settings import from_spec
from longspan.stacks.base import Sizes, StackConfig
from longspan.stacks.recurrent import RecurrentConfig
from longspan.stacks.reversible import ReversibleConfig
from longspan.stacks.sequential import SequentialConfig
from longspan.stacks.star import StarConfig

__all__ = [
    "STACKS",
    "RecurrentConfig",
    "ReversibleConfig",
    "SequentialConfig",
    "Sizes",
    "StackConfig",
    "StarConfig",
    "stack_config",
]

_KINDS: tuple[type[StackConfig], ...] = (SequentialConfig, ReversibleConfig, RecurrentConfig, StarConfig)
STACKS: dict[str, type[StackConfig]] = {kind.stack: kind for kind in _KINDS}
"""Name → configuration, whose `build(block, layers, sizes)` makes the module."""


def stack_config(spec: str | Mapping[str, Any] | StackConfig) -> StackConfig:
    """Turn a stack's name, plain data with its name under `"stack"`, or a configuration into a configuration.

    Raises:
        InputError: an unknown stack or option, or a value out of range.
    """
    return from_spec(STACKS, "stack", spec, "stack")
