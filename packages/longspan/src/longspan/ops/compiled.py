"""Functions that PyTorch's compiler turns into one GPU kernel.

PyTorch launches a kernel for every operation on tensors, each of which reads its inputs from memory and writes its
result. Steps between two products of matrices are limited by this traffic; compiled into one kernel they read their
inputs once and write only their result.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from longspan.ops.runtime import has_tangent, is_transforming

R = TypeVar("R")

PROGRAMS = 256
"""Maximum number of programs that PyTorch compiles for different dtypes and options; its own limit is 8 per
function."""
FEWEST = 1 << 21
"""Numbers of the largest tensor from which on `fused` compiles: below, a step takes about as long as its launch."""

_failed: set[Hashable] = set()
"""Functions that could not be compiled, so that it is not tried in every layer and step."""


def fused(function: Callable[..., R]) -> Callable[..., R]:
    """Runs a function as one kernel on CUDA if no gradient is recorded, and step by step everywhere else.

    It is compiled at its first call for large tensors of each dtype, which takes seconds; PyTorch keeps compiled
    programs on disk. In inference mode, float32 is not compiled, because short programs with the bundled models would
    wait for it. Where compilation fails, for example without a C compiler, a warning says so, and the steps are run one
    by one.

    Args:
        function: takes tensors, and hashable options, as positional arguments; returns tensors. It may not modify its
            arguments or read their values. Calls may name a tensor `like` whose size decides, where the result is
            larger than all arguments.
    """

    @wraps(function)
    def run(*args: Any, like: Tensor | None = None) -> R:
        if not is_fused(run, *args, like):
            return function(*args)
        try:
            with compiling(dynamic=True):
                plain = [arg.detach() if isinstance(arg, Tensor) else arg for arg in args]
                return compiled(function)(*plain)
        except failures() as error:
            _failed.add(function)
            name, reason = getattr(function, "__name__", "a function"), " ".join(str(error).split())[:200]
            warnings.warn(f"PyTorch cannot compile {name} ({reason}); its steps are run one by one", stacklevel=2)
            return function(*args)

    return run


def is_fused(function: Callable[..., Any], *args: Any) -> bool:
    """Whether a function wrapped by `fused` runs as one kernel for these arguments, for callers that have better steps:
    it is faster, and can be used."""
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    largest = max(tensors, key=Tensor.numel)
    return (
        function.__wrapped__ not in _failed  # pyright: ignore[reportFunctionMemberAccess]
        and largest.is_cuda
        and largest.numel() >= FEWEST
        and not (largest.dtype == torch.float32 and torch.is_inference_mode_enabled())
        and not torch.compiler.is_compiling()
        and not is_transforming()
        and not has_tangent(*tensors)
        and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
    )


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function compiled as one graph."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # raised by PyTorch's own code
        importlib.import_module("torch._inductor.compile_fx")
    return torch.compile(function, fullgraph=True)


@contextmanager
def compiling(*, dynamic: bool) -> Iterator[None]:
    """Sets limits of PyTorch's compiler within the context.

    Args:
        dynamic: whether lengths that changed between two calls become variables of one program. Other numbers are
            always part of a program.
    """
    from torch._dynamo import config

    limits: dict[str, Any] = {"recompile_limit": PROGRAMS, "accumulated_recompile_limit": 4 * PROGRAMS}
    with config.patch(specialize_int=True, automatic_dynamic_shapes=dynamic, **limits):
        yield


def failures() -> tuple[type[Exception], ...]:
    """Returns the exceptions that PyTorch raises where it cannot compile a function."""
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

    return TorchDynamoException, FailOnRecompileLimitHit
