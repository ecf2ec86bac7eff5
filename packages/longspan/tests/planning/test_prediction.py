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

H100, H200, A100 = DEVICES["h100"], DEVICES["h200"], DEVICES["a100"]
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
    """4·B·H·T²·D operations at 47.5 % of 989.4 TFLOP/s, and four tensors of B·H·T·D numbers at 80 % of 3.35 TB/s."""
    products = 4 * ROWS * HEADS * TOKENS**2 * WIDTH / (0.475 * 989.4e12)
    moved = 4 * ROWS * HEADS * TOKENS * WIDTH * 2 / (0.8 * 3.35e12)
    assert math.isclose(predicted_seconds([published(None, "attention")], H100), products + moved)
    assert math.isclose(products + moved, 9.36e-3 + 0.20e-3, rel_tol=1e-2)


def bare(window: int | None, *, backward: bool = False) -> Kernel:
    """Attention of 12 heads of 64 over 65,536 tokens, in bfloat16, with `window` tokens to each side: a tile of 128
    queries visits `window` keys before it and as many after it, fewer at both ends of the text. The backward pass has
    five products for two, and reads and writes twice as many tensors."""
    tokens, tile = 65_536, 128
    outside = 0 if window is None else 2 * sum(range(tile, window + 1, tile)) * tile
    pairs = 12 * (tokens * (tokens if window is None else tile + 2 * window) - outside)
    flops, moved = 4 * 64 * pairs, 4 * 12 * tokens * 64 * 2
    if backward:
        flops, moved = 2.5 * flops, 2 * moved
    return Kernel(bytes=moved, flops=flops, kind="attention" if window is None else "window")


def test_a_window_by_hand() -> None:
    """77.2 GFLOP at 47.5 % of 989.4 TFLOP/s, and 402.7 MB at a tenth of 4.8 TB/s; on Ampere as full attention."""
    kernel = bare(128)
    assert math.isclose(kernel.flops, 77.2e9, rel_tol=1e-3)
    assert math.isclose(kernel.bytes, 402.7e6, rel_tol=1e-3)
    assert math.isclose(predicted_seconds([kernel], H200), 0.1643e-3 + 0.8389e-3, rel_tol=1e-3)
    full = Kernel(bytes=kernel.bytes, flops=kernel.flops, kind="attention")
    assert predicted_seconds([kernel], A100) == predicted_seconds([full], A100)
    assert predicted_seconds([kernel], H200) > 3 * predicted_seconds([full], H200)


PROJECTION = Kernel(bytes=203e6, flops=2 * 65_536 * 768**2)
PASSES = {"forward": (4, 1), "training": (12, 2)}
"""Products of four projections, and passes through attention. Sums and copies of training take 0.41 ms besides."""


@pytest.mark.parametrize(
    ("window", "work", "milliseconds"),
    [
        # benchmarks/results/gpu.md: one layer of width 768 in bfloat16 on an H200, `full` and `longformer`.
        *((None, "forward", 28.5), (None, "training", 101.0)),
        *((256, "forward", 1.65), (256, "training", 5.41)),
    ],
)
def test_layers_measured_on_an_h200_are_met_within_five_percent(
    window: int | None, work: str, milliseconds: float
) -> None:
    products, passes = PASSES[work]
    kernels = [PROJECTION] * products + [bare(window), bare(window, backward=True)][:passes]
    seconds = predicted_seconds(kernels, H200) + (0.41e-3 if work == "training" else 0)
    assert abs(seconds * 1e3 / milliseconds - 1) < 0.05


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
