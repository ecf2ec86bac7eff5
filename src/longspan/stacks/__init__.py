"""How blocks are put together, one way per file: a frozen configuration and an `nn.Module` that lists its blocks.

`STACKS` lists them by name, and `stack_config` reads a name or plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from longspan.errors import InputError
from longspan.stacks.base import StackConfig
from longspan.stacks.sequential import SequentialConfig

__all__ = ["STACKS", "SequentialConfig", "StackConfig", "stack_config"]

STACKS: dict[str, type[StackConfig]] = {"sequential": SequentialConfig}
"""Name → configuration, whose `build(block, layers)` makes the module."""


def stack_config(spec: str | Mapping[str, Any] | StackConfig) -> StackConfig:
    """Turn a stack's name, plain data with its name under `"stack"`, or a configuration into a configuration.

    Raises:
        InputError: an unknown stack or option, a value out of range, or something else altogether.
    """
    if isinstance(spec, StackConfig):
        return spec
    if isinstance(spec, str):
        spec = {"stack": spec}
    if not isinstance(spec, Mapping) or not isinstance(spec.get("stack"), str):
        raise InputError(f"stack={spec!r} is no stack; give a name such as 'sequential', or {{'stack': 'sequential'}}")
    name = spec["stack"]
    if name not in STACKS:
        close = get_close_matches(name, STACKS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(STACKS)}"
        raise InputError(f"stack {name!r} is unknown; {hint}")
    return STACKS[name].from_dict(dict(spec))
