"""How blocks are put together, one way per file: a frozen configuration and an `nn.Module` that lists its blocks.

`STACKS` lists them by name, and `stack_config` reads a name or plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longspan.settings import from_spec
from longspan.stacks.base import StackConfig
from longspan.stacks.sequential import SequentialConfig

__all__ = ["STACKS", "SequentialConfig", "StackConfig", "stack_config"]

STACKS: dict[str, type[StackConfig]] = {"sequential": SequentialConfig}
"""Name → configuration, whose `build(block, layers)` makes the module."""


def stack_config(spec: str | Mapping[str, Any] | StackConfig) -> StackConfig:
    """Turn a stack's name, plain data with its name under `"stack"`, or a configuration into a configuration.

    Raises:
        InputError: an unknown stack or option, or a value out of range.
    """
    return from_spec(STACKS, "stack", spec, "stack")
