"""The kernels that Inductor makes of fused functions: one each, without operators that it does not compile itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from longspan.ops.tiles import pooling_fused

pytest.importorskip("triton", reason="needs the package triton; `make programs` installs it beside the environment")

from fused_programs import fused_kernels

pytestmark = [pytest.mark.slow, pytest.mark.variant, pytest.mark.filterwarnings("ignore")]  # of PyTorch and Triton

LENGTH, HEADS, WIDTH = 65_537, 12, 64


def hidden(length: int, width: int = WIDTH, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(1, length, HEADS, width, dtype=dtype)


def pooling_cases(
    kernel: int, stride: int, mask: Tensor | None
) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Every fused function of pooling, with arguments."""
    slots = -(-LENGTH // stride)
    tokens, grad, weight = hidden(LENGTH), hidden(slots), torch.empty(HEADS, kernel, WIDTH)
    shares, winner = torch.empty(1, slots, 2 * kernel, HEADS), hidden(slots, dtype=torch.uint8)
    taps, size = (mask, kernel, stride), (LENGTH, kernel, stride)
    return {
        "ldconv": (pooling_fused.ldconv, (tokens, weight, *taps)),
        "mean": (pooling_fused.mean, (tokens, None, *taps)),
        "max": (pooling_fused.maximum, (tokens, None, *taps)),
        "slopes": (pooling_fused.slopes, (grad, tokens, weight, *taps)),
        "spread": (pooling_fused.spread, (grad, shares, weight, *size)),
        "spread_mean": (pooling_fused.spread_mean, (grad, mask, *size)),
        "winners": (pooling_fused.winners, (tokens, *taps)),
        "spread_winners": (pooling_fused.spread_winners, (grad, winner, *size)),
    }


@pytest.mark.parametrize("name", pooling_cases(1, 1, None))
@pytest.mark.parametrize(
    ("kernel", "stride", "padded"), [(5, 4, False), (3, 5, True), (pooling_fused.MOST_TAPS, 7, True)]
)
def test_a_step_of_pooling_is_one_kernel(name: str, kernel: int, stride: int, padded: bool) -> None:
    mask = torch.ones(1, LENGTH, dtype=torch.bool) if padded else None
    function, arguments = pooling_cases(kernel, stride, mask)[name]
    kernels = fused_kernels(function, *arguments)
    assert len(kernels) == 1
    assert "@triton.jit" in kernels[0]
