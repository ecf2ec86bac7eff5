"""When Triton computes: where `backend="triton"` is asked for, or within `prefer_triton()`.

`auto` does not choose these kernels by itself: they are proven against the dense reference in Triton's interpreter and
compiled for sm_80 and sm_90, but none has run on a device yet. Triton is optional; without it everything else serves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.imports import require
from longspan.ops.runtime import needs_reference

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 256
"""The widest head, or the most channels of a value, of which a tile fits into the memory of a multiprocessor."""


@dataclass
class Preference:
    """Whether `auto` takes the kernels of Triton where they serve; one for all threads, since gradient checkpointing
    computes again in those of autograd."""

    triton: bool = False


PREFERENCE = Preference()


@contextmanager
def prefer_triton() -> Iterator[None]:
    """Within it `backend="auto"` takes the kernels of Triton for what they serve, in all mechanisms, forward and back.

    With gradient checkpointing the backward pass belongs within it too, since it computes again.

    Raises:
        InputError: Triton is not installed.
    """
    _triton()
    before, PREFERENCE.triton = PREFERENCE.triton, True
    try:
        yield
    finally:
        PREFERENCE.triton = before


def triton_prefers(*tensors: Tensor, widest: int | None = WIDEST) -> bool:
    """Whether `auto` is to take a kernel of Triton for tensors of this device, type and width."""
    return PREFERENCE.triton and not _refusal(tensors, widest)


def require_triton(*tensors: Tensor, widest: int | None = WIDEST) -> None:
    """Raise unless Triton is installed, and computes on the device, in the type and at the width of these tensors."""
    if not torch.compiler.is_compiling():  # which cannot follow an import; `kernels` says it then
        _triton()
    if reason := _refusal(tensors, widest):
        raise InputError(f"backend='triton' {reason}; use backend='auto'")
    if needs_reference(*tensors):
        raise InputError(
            "backend='triton' has no forward-mode derivatives and none by torch.func, which are asked for; use "
            "backend='auto', or plain backward"
        )


def _triton() -> Any:
    return require("triton", extra="triton", purpose="backend='triton'")


def interpreted() -> bool:
    """Whether `TRITON_INTERPRET=1` makes Triton run its kernels on the processor, number by number, for tests."""
    return bool(_triton().knobs.runtime.interpret)


def _refusal(tensors: tuple[Tensor, ...], widest: int | None) -> str:
    """Why Triton does not compute with these tensors; empty where it does."""
    first = tensors[0]
    if not (first.is_cuda or torch.compiler.is_compiling() or interpreted()):
        return f"runs on CUDA only, and the input is on {first.device}"
    for tensor in tensors:
        if tensor.dtype not in DTYPES:
            return f"computes in float32, bfloat16 or float16, not in {tensor.dtype}"
        if tensor.dtype == torch.bfloat16 and tensor.is_cuda and (has := _capability(tensor)) < (8, 0):
            return f"computes bfloat16 from compute capability 8.0 on, and this GPU has {has[0]}.{has[1]}; give float16"
        if widest is not None and tensor.shape[-1] > widest:
            return f"serves up to {widest} channels, not {tensor.shape[-1]}"
    return ""


def _capability(tensor: Tensor) -> tuple[int, int]:
    return torch.cuda.get_device_capability(tensor.device)


def kernels(name: str) -> Any:
    """The module of this room that holds the kernels of that name."""
    _triton()
    return import_module(f"longspan.ops.kernels.{name}_kernels")


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Launch a kernel on the device of its first argument: Triton takes the current one, whatever tensors are on."""
    first = arguments[0]
    with torch.cuda.device(first.device) if first.is_cuda else nullcontext():
        kernel[grid](*arguments, **constants)


def block_of(width: int) -> int:
    """Channels of a tile: a power of two, and at least what a matrix product takes."""
    return max(16, 1 << max(width - 1, 0).bit_length())


def with_dense_rows(tensor: Tensor) -> Tensor:
    """The tensor, copied where the numbers of a row do not lie beside each other."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def heads_inside(like: Tensor, length: int, width: int, dtype: torch.dtype) -> Tensor:
    """`(B, H, length, width)`, uninitialised, laid out as `(B, length, H, width)`, as projections lay out heads."""
    return like.new_empty((like.shape[0], length, like.shape[1], width), dtype=dtype).transpose(1, 2)


def bytes_of(mask: Tensor | None, otherwise: Tensor) -> Tensor:
    """A mask as Triton reads it; where there is none, any pointer, which it does not read."""
    return otherwise if mask is None else mask.contiguous().view(torch.uint8)
