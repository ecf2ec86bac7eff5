"""The kernels that Inductor makes of fused functions: one each, without operators that it does not compile itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from longspan.ops.kernels import linear, linear_bfloat16, linear_bidirectional, random_features
from longspan.ops.tiles import band, pooling_fused

pytest.importorskip("triton", reason="needs the package triton; `make programs` installs it beside the environment")

from fused_programs import fused_kernels

pytestmark = [pytest.mark.slow, pytest.mark.variant, pytest.mark.filterwarnings("ignore")]  # of PyTorch and Triton

HEADS, WIDTH, FEATURES, ONES = 12, 64, 268, linear_bfloat16.ONES
UNEVEN = 65_537
"""Tokens, of which the last tile has one."""


def tokens(length: int, width: int = WIDTH, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(1, length, HEADS, width, dtype=dtype)


def check_one_kernel(function: Callable[..., Any], *arguments: Any) -> None:
    kernels = fused_kernels(function, *arguments)
    assert len(kernels) == 1
    assert "@triton.jit" in kernels[0]
    assert "tl.dot" not in kernels[0]


def linear_cases(length: int, real: Tensor | None) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Every fused function of linear attention, with arguments."""
    rows, heads = tokens(length), torch.empty(1, HEADS, length, WIDTH, dtype=torch.bfloat16)
    narrow, single = tokens(length, 1), tokens(length, 1, torch.float32)
    kept = None if real is None else narrow
    total = torch.empty(1, HEADS, WIDTH)
    mixed = torch.empty(1, HEADS, length, WIDTH + ONES, dtype=torch.bfloat16)
    features = torch.empty(1, HEADS, length, FEATURES, dtype=torch.bfloat16)
    products, norms = tokens(length, FEATURES, torch.float32), torch.empty(FEATURES)
    by_head = None if kept is None else kept.transpose(1, 2)
    return {
        "keys": (linear_bidirectional._keys, (rows, real, kept)),
        "parts of the total": (linear_bidirectional._parts_of_total, (rows, real, 512)),
        "weights": (linear_bidirectional._weights, (rows, total, 1e-6)),
        "gradient of queries": (linear_bidirectional._query_gradient, (rows, rows, total, 0.0)),
        "parts of the shares": (linear_bidirectional._parts_of_shares, (rows, single, 512)),
        "gradient of keys": (linear_bidirectional._key_gradient, (rows, rows, total, real, kept)),
        "elu": (linear._features, (rows.transpose(1, 2), True)),
        "gradient of elu": (linear._features_gradient, (heads, heads, True)),
        "ones": (linear_bfloat16._with_ones, (rows.transpose(1, 2), real, by_head)),
        "without ones": (linear_bfloat16._without_ones, (mixed, real, by_head)),
        "means": (linear_bfloat16._divided, (mixed, WIDTH, 1e-6)),
        "gradient of means": (linear_bfloat16._divided_gradient, (rows.transpose(1, 2), mixed, WIDTH, 0.0)),
        "random features of queries": (
            random_features._query_exponentials,
            (products, norms, WIDTH**0.5, torch.bfloat16),
        ),
        "random features of keys": (
            random_features._key_exponentials,
            (products, norms, single[..., 0], WIDTH**0.5, torch.bfloat16),
        ),
        "slopes of queries": (random_features._query_slopes, (features, features)),
        "slopes of keys": (random_features._key_slopes, (features, features)),
        "shortened": (random_features._shortened, (rows, single, rows, WIDTH**-0.5)),
    }


@pytest.mark.parametrize("name", linear_cases(1, None))
@pytest.mark.parametrize(("length", "padded"), [(65_536, False), (10_007, True)])
def test_a_step_of_linear_attention_is_one_kernel(name: str, length: int, padded: bool) -> None:
    real = torch.ones(1, length, dtype=torch.bool) if padded else None
    function, arguments = linear_cases(length, real)[name]
    check_one_kernel(function, *arguments)


def pooling_cases(
    kernel: int, stride: int, mask: Tensor | None
) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Every fused function of pooling, with arguments."""
    slots = -(-UNEVEN // stride)
    hidden, grad, weight = tokens(UNEVEN), tokens(slots), torch.empty(HEADS, kernel, WIDTH)
    shares, winner = torch.empty(1, slots, 2 * kernel, HEADS), tokens(slots, dtype=torch.uint8)
    taps, size = (mask, kernel, stride), (UNEVEN, kernel, stride)
    return {
        "ldconv": (pooling_fused.ldconv, (hidden, weight, *taps)),
        "mean": (pooling_fused.mean, (hidden, None, *taps)),
        "max": (pooling_fused.maximum, (hidden, None, *taps)),
        "slopes": (pooling_fused.slopes, (grad, hidden, weight, *taps)),
        "spread": (pooling_fused.spread, (grad, shares, weight, *size)),
        "spread_mean": (pooling_fused.spread_mean, (grad, mask, *size)),
        "winners": (pooling_fused.winners, (hidden, *taps)),
        "spread_winners": (pooling_fused.spread_winners, (grad, winner, *size)),
    }


@pytest.mark.parametrize("name", pooling_cases(1, 1, None))
@pytest.mark.parametrize(
    ("kernel", "stride", "padded"), [(5, 4, False), (3, 5, True), (pooling_fused.MOST_TAPS, 7, True)]
)
def test_a_step_of_pooling_is_one_kernel(name: str, kernel: int, stride: int, padded: bool) -> None:
    mask = torch.ones(1, UNEVEN, dtype=torch.bool) if padded else None
    function, arguments = pooling_cases(kernel, stride, mask)[name]
    check_one_kernel(function, *arguments)


def window_arguments(columns: int, slots: int = 0, prob: float = 0.0, *, slopes: bool = False) -> tuple[Any, ...]:
    """Returns the arguments of the passes of `longspan.ops.tiles.band`: two heads and 320 queries, all kinds of
    terms."""
    (batch, heads, tiles, size), width = (1, 2, 5, band.SIZE), columns + 63
    stride = (width + slots + 63 if slots else width) + 1

    def near(dtype: torch.dtype) -> Tensor:
        tensor = torch.empty(batch * heads * tiles, size, width, dtype=dtype)
        view = tensor.as_strided((len(tensor), size, columns), (size * width, width + 1, 1))
        return view.unflatten(0, (batch, heads, tiles))

    def far(dtype: torch.dtype) -> Tensor | None:
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
    options = (width, stride, (0, -2, 3), 0.125, prob, torch.bfloat16)
    return (*((near(torch.bfloat16), far(torch.bfloat16)) if slopes else (None, None)), *tensors, *options)


WINDOW_CASES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "weights of a window": (band.window_pass, window_arguments(257)),
    "weights of a wide window": (band.window_pass, window_arguments(1025)),
    "weights of a window beside global keys, with dropout": (band.window_pass, window_arguments(169, 5, 0.1)),
    "slopes of a window": (band.window_pass, window_arguments(257, slopes=True)),
    "slopes of a wide window": (band.window_pass, window_arguments(1025, slopes=True)),
    "slopes of a window beside global keys, with dropout": (
        band.window_pass,
        window_arguments(169, 5, 0.1, slopes=True),
    ),
}
"""Name → function and arguments."""


@pytest.mark.parametrize("name", WINDOW_CASES)
def test_a_pass_of_a_window_is_one_kernel(name: str) -> None:
    function, arguments = WINDOW_CASES[name]
    check_one_kernel(function, *arguments)
