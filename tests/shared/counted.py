"""Work that is counted, since a clock measures the machine and its load: lines of Python, operators, FLOPs, bytes."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

INDEXED = re.compile(r"aten::(_?index|gather|scatter|embedding$|masked_select)")
"""Operators whose first tensor is a table of which they read or write some rows."""

FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FUSED_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
"""Full attention on a processor, whose FLOPs PyTorch does not count."""


class Work(TorchDispatchMode):
    """What a computation does: `operations`, `flops` of the products of matrices, and `bytes` that are read or written.

    Our own operators are opened: what counts is what they do inside. A view moves nothing. What looks up rows of a
    table reads those rows, and not the table; what changes some rows of a tensor in place writes those.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.flops = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "longspan":
            with self:
                return OPDEFS[func._schema.name]._init_fn(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func.is_view:
            return result
        self.operations += 1
        if (count := flop_registry.get(func._overloadpacket)) is not None:
            self.flops += count(*args, **(kwargs or {}), out_val=result)
        elif func._overloadpacket == FUSED:
            self.flops += sdpa_flop_count(*(tensor.shape for tensor in args[:3]))
        elif func._overloadpacket == FUSED_BACKWARD:
            self.flops += sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4]))
        given = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)]
        made = [tensor for tensor in tree_leaves(result) if isinstance(tensor, Tensor)]
        if INDEXED.match(func.name()):
            given, made = given[1:], [tensor for tensor in made if tensor is not given[0]]
        self.bytes += sum(tensor.nbytes for tensor in (*given, *made))
        return result


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
