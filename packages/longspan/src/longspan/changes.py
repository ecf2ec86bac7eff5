"""Changes of plain data by dotted path, and the stages of an experiment, each of which changes the previous one.

```yaml stages:
  - {}                                                    # the recipe itself
  - {task.max_tokens: x2, optimisation.learning_rate: /2} # twice and half of the previous stage's values
  - {task.max_tokens: 23040}                              # everything else as in the previous stage
```

A path through a list applies to each of its entries, and a factor applies to every number below it: windows that differ
by layer are doubled by `model.attention.left_tokens: x2`, in whatever form they are written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from longspan.errors import InputError
from longspan.settings import show, show_key

STAGES = "stages"
_FACTOR = re.compile(r"([x/])\s*([0-9]+(?:\.[0-9]+)?)")


def assign(data: dict[str, Any], key: str, value: Any) -> None:
    """Sets the dotted `key` in nested mappings, creating missing sections.

    Raises:
        InputError: the path leads through a value that is not a mapping.
    """
    for holder, last in _places(data, key):
        holder[last] = value


def is_factor(value: Any) -> bool:
    """Whether a change multiplies or divides the previous value: `x2`, `/2`, `x1.5`."""
    return isinstance(value, str) and _FACTOR.fullmatch(value) is not None


def stages_of(recipe: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the plain recipe of each stage, without `stages` and `smoke`; only the recipe itself if it has no stages.

    Raises:
        InputError: an invalid change, with the number of its stage, counted from 0 as in a path.
    """
    current = {key: value for key, value in recipe.items() if key not in (STAGES, "smoke")}
    resolved = []
    stages: list[dict[str, Any]] = recipe.get(STAGES) or []
    for number, changes in enumerate(stages):
        current = deepcopy(current)
        for key, value in changes.items():
            try:
                (_multiply if is_factor(value) else assign)(current, key, value)
            except InputError as error:
                raise InputError(f"{STAGES}[{number}].{show_key(key)} cannot be changed: {error}") from None
        resolved.append(current)
    return resolved or [current]


def _places(data: dict[str, Any], key: str) -> list[tuple[dict[str, Any], str]]:
    """Returns the mappings that contain the last part of a key, and that part; missing sections are created."""
    *sections, last = key.split(".")
    holders = [data]
    for depth, section in enumerate(sections):
        holders = [inner for holder in holders for inner in _inner(holder, section, key, sections[: depth + 1])]
    return [(holder, last) for holder in holders]


def _inner(holder: dict[str, Any], section: str, key: str, path: list[str]) -> list[dict[str, Any]]:
    if holder.get(section) is None:
        holder[section] = {}
    value = holder[section]
    entries = value if isinstance(value, list) else [value]
    if not all(isinstance(entry, dict) for entry in entries):
        raise InputError(
            f"{show(key)} cannot be set, because {'.'.join(path)!r} is {show(value)} and not a mapping; give a mapping "
            "in its place"
        )
    return entries


def _multiply(data: dict[str, Any], key: str, value: str) -> None:
    """Multiplies or divides every number below the key."""
    match = _FACTOR.fullmatch(value)
    assert match is not None
    number = float(match[2])
    if not number:
        raise InputError(f"{value!r} is no factor; give one above 0")
    for holder, last in _places(data, key):
        if holder.get(last) is None:
            raise InputError(
                f"{value!r} is a factor, but the recipe has no number there; write the number into the recipe"
            )
        holder[last] = _scaled(holder[last], number if match[1] == "x" else 1 / number, value)


def _scaled(value: Any, factor: float, shown: str) -> Any:
    if isinstance(value, dict):
        return {name: _scaled(item, factor, shown) for name, item in value.items()}
    if isinstance(value, list):
        return [_scaled(item, factor, shown) for item in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{shown!r} is a factor, but {show(value)} is no number; give the new value itself")
    scaled = value * factor
    if isinstance(value, float):
        return scaled
    if abs(scaled - round(scaled)) > 1e-9 * max(1.0, abs(scaled)):
        raise InputError(f"{shown} of {value} is {scaled:g}, which is no whole number; give the new value itself")
    return round(scaled)
