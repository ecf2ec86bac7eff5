"""The kernels that Inductor makes of functions of `longspan.ops.compiled.fused`, for a GPU that is not there.

    kernels = fused_kernels(function, queries, 4, capability=(9, 0))

Nothing is launched. Needs the package `triton`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from flex_programs import CUDA, KERNEL, CompiledError, inductor_without_device
from longspan.ops.compiled import compiling

OPERATOR = re.compile(r"^ +(?:\w+ = )?((?:extern_kernels|torch\.ops|aten)\.\w.*)$", re.MULTILINE)
"""A line of Inductor's module that calls an operator."""


def fused_kernels(function: Callable[..., Any], *args: Any, capability: tuple[int, int] = (9, 0)) -> list[str]:
    """Returns the source of every kernel, and the call of every operator that Inductor does not compile itself.

    Args:
        args: tensors of any device, of which only the shapes, strides and dtypes are used, and options.
    """
    sources: list[str] = []
    with inductor_without_device(capability, [], sources), FakeTensorMode(), torch.no_grad():
        given = [_on_device(arg) if isinstance(arg, Tensor) else arg for arg in args]
        torch._dynamo.reset()
        with suppress(CompiledError), compiling(dynamic=True):
            torch.compile(getattr(function, "__wrapped__", function), fullgraph=True)(*given)
        torch._dynamo.reset()
    (source,) = sources
    return [code for _, code in KERNEL.findall(source)] + OPERATOR.findall(source)


def _on_device(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=CUDA)
