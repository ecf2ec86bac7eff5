"""Functions of `longspan.ops.compiled.fused`: Inductor makes one kernel of each, without a product of matrices."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="needs the package triton; `make programs` installs it beside the environment")

from fused_programs import fused_kernels
from longspan.ops.tiles import band

pytestmark = [pytest.mark.slow, pytest.mark.variant, pytest.mark.filterwarnings("ignore")]  # of PyTorch and Triton


def window(columns: int, slots: int = 0, prob: float = 0.0, *, slopes: bool = False) -> tuple[Any, ...]:
    """Returns the arguments of the passes of `longspan.ops.tiles.band`: two heads and 320 queries, all kinds of
    terms."""
    (batch, heads, tiles, size), width = (1, 2, 5, band.SIZE), columns + 63
    stride = (width + slots + 63 if slots else width) + 1

    def near(dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty(batch * heads * tiles, size, width, dtype=dtype)
        view = tensor.as_strided((len(tensor), size, columns), (size * width, width + 1, 1))
        return view.unflatten(0, (batch, heads, tiles))

    def far(dtype: torch.dtype) -> torch.Tensor | None:
        return torch.empty(batch, heads, tiles, size, slots, dtype=dtype) if slots else None

    rows, table = tiles * size, columns + 7
    tensors = (
        near(torch.float32),
        torch.empty(batch, heads, rows, table),
        torch.empty(batch, heads, rows, table),
        torch.empty(heads, columns),
        far(torch.float32),
        torch.empty(batch, heads, rows, slots) if slots else None,
        torch.ones(batch, rows + columns, dtype=torch.bool),
        torch.ones(batch, slots, dtype=torch.bool) if slots else None,
        torch.zeros(batch, heads, tiles, size, 1, dtype=torch.int64) if prob else None,
        torch.zeros(stride, dtype=torch.int64) if prob else None,
    )
    options = (width, stride, 0, -2, 3, 0.125, prob, torch.bfloat16)
    return (*((near(torch.bfloat16), far(torch.bfloat16)) if slopes else ()), *tensors, *options)


CASES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "weights of a window": (band.window_weights, window(257)),
    "weights of a wide window": (band.window_weights, window(1025)),
    "weights of a window beside global keys, with dropout": (band.window_weights, window(169, 5, 0.1)),
    "slopes of a window": (band.window_slopes, window(257, slopes=True)),
    "slopes of a wide window": (band.window_slopes, window(1025, slopes=True)),
    "slopes of a window beside global keys, with dropout": (band.window_slopes, window(169, 5, 0.1, slopes=True)),
}
"""Name → function and arguments."""


@pytest.mark.parametrize("name", CASES)
def test_it_is_one_kernel(name):
    function, arguments = CASES[name]
    (kernel,) = fused_kernels(function, *arguments, capability=(9, 0))
    assert "@triton.jit" in kernel
    assert "tl.dot" not in kernel
