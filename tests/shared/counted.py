"""Work that is counted, since a clock measures the machine and its load: lines of Python here, the rest by `Work`."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from longspan.planning.counting import Work

__all__ = ["Work", "exponent", "lines_run"]


def lines_run(function: Callable[..., object], *arguments: Any) -> int:
    """How many lines of Python a call runs, a loop's as often as it goes round; what C does by itself is not seen.

    An input on which C would take the square of its length belongs beside it: one so long that the test would not end.
    """
    lines = 0

    def seen(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return seen

    before = sys.gettrace()
    sys.settrace(seen)
    try:
        function(*arguments)
    finally:
        sys.settrace(before)
    return lines


def exponent(small: float, large: float, times: float) -> float:
    """By which power of its input work has grown that was `small`, and is `large` for an input `times` as large."""
    return math.log(large / small) / math.log(times)
