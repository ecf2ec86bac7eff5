"""Records with something wrong in them."""

from __future__ import annotations

import copy
from typing import Any


def changed(record: dict[str, Any], path: str, value: Any = ...) -> dict[str, Any]:
    """A copy with one value changed, or left out."""
    record = copy.deepcopy(record)
    *outer, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    target: Any = record
    for part in outer:
        target = target[part]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return record
