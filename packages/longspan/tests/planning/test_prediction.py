"""The model of a GPU: numbers worked by hand, and timings that others have published."""

from __future__ import annotations

import math

import pytest

from longspan.errors import InputError
from longspan.hardware import DEVICES, device_of
from longspan.planning.prediction import (
    LAUNCH,
    SYNCHRONISATION,
    Kernel,
    Launches,
    predicted_seconds,
    running_seconds,
)

H100, A100 = DEVICES["h100"], DEVICES["a100"]
ROWS, HEADS, TOKENS, WIDTH = 4, 16, 16_384, 64
"""Of the published timings."""


def published(window: int | None, kind: str) -> Kernel:
    """Attention over these sizes; behind a window, of the blocks of 128 keys that a block of 128 queries visits."""
    each = TOKENS if window is None else window + 128
    edge = 0 if window is None else 128 * 128 * sum(range(1, window // 128 + 1))
    pairs = ROWS * HEADS * (TOKENS * each - edge)
    queries = ROWS * HEADS * TOKENS
    moved = 4 * queries * WIDTH * 2  # queries, keys, values and the result, in bfloat16
    return Kernel(bytes=moved, flops=4 * WIDTH * pairs, kind=kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kernel", "milliseconds"),
    [
        # FlashAttention-3 and FlexAttention compiled, forward, bfloat16, (4, 16, 16384, 64) on an H100; the window is
        # of 512 tokens before each query. D. Guessous, https://github.com/pytorch/pytorch/pull/137036, 2024-10-29.
        (published(None, "attention"), 8.779),
        (published(512, "attention"), 0.5816),
        (published(512, "flex"), 0.7678),
    ],
    ids=["FlashAttention full", "FlashAttention window", "flex sliding window"],
)
def test_published_timings_are_met_within_thirty_percent(kernel: Kernel, milliseconds: float) -> None:
    assert abs(predicted_seconds([kernel], H100) * 1e3 / milliseconds - 1) < 0.3


def test_a_full_attention_by_hand() -> None:
    """4·B·H·T²·D operations at 60 % of 989.4 TFLOP/s, and four tensors of B·H·T·D numbers at 80 % of 3.35 TB/s."""
    products = 4 * ROWS * HEADS * TOKENS**2 * WIDTH / (0.6 * 989.4e12)
    moved = 4 * ROWS * HEADS * TOKENS * WIDTH * 2 / (0.8 * 3.35e12)
    assert math.isclose(predicted_seconds([published(None, "attention")], H100), products + moved)
    assert math.isclose(products + moved, 7.41e-3 + 0.20e-3, rel_tol=1e-2)


def test_kernels_by_hand() -> None:
    copy = Kernel(bytes=2 * 10**9)
    assert math.isclose(running_seconds(copy, A100), 2e9 / (0.8 * 2.039e12))
    product = Kernel(bytes=2 * 10**9, flops=10**12)
    assert math.isclose(running_seconds(product, A100), 1e12 / (0.6 * 312e12))
    single = Kernel(flops=10**12, dtype="float32")
    assert math.isclose(running_seconds(single, A100), 1e12 / (0.6 * 19.5e12))
    small = Kernel(bytes=1000)
    work = Launches(kernels=(copy, product, *[small] * 100), synchronisations=3)
    expected = running_seconds(copy, A100) + running_seconds(product, A100) + 100 * LAUNCH + 3 * SYNCHRONISATION
    assert math.isclose(work.seconds(A100), expected)
    assert Launches().seconds(A100) == 0


def test_flex_is_slower_than_what_is_written_by_hand() -> None:
    for device in DEVICES.values():
        flash, flex = (predicted_seconds([published(512, kind)], device) for kind in ("attention", "flex"))
        assert flash < flex < 2 * flash


def test_an_unknown_device_names_the_known_ones() -> None:
    assert device_of("l4").memory == 24 * 10**9
    with pytest.raises(InputError, match=r"--device is 'b300'.*choose one of h100, h200, a100, l4, rtx4090"):
        device_of("b300")
