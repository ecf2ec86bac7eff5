"""Predicted time on a GPU, from the launches, bytes and FLOPs of a computation and the device's specifications.

The model is simple, and its constants are fixed, not fitted to this library. A kernel takes the maximum of the time for
its bytes and for its products (Williams et al. 2009, "Roofline"); fused attention takes their sum, because a tile of
queries is read before its products and written after them, with few products in between under a window. No kernel takes
less than its launch. `tests/planning/test_prediction.py` compares the model with published timings.

Eight rows of `benchmarks/results/gpu.jsonl`, measured on an H200, can be compared: `sdpa`, `window`, `full`,
`longformer` and `linear`, of which the first two gave constants of the device. Measured over predicted is 1.01 in the
median and 1.64 at worst; with one share of FLOP/s and of bandwidth for every kernel it was 1.58, and 4.28 at worst
(`window`). `full` and `longformer` are met within 2 %, in training too; `linear` takes 1.53 and 1.64 times what is
predicted. The others ran programs of FlexAttention that spilled, or did not fit, and whose options have changed.

Products with few tiles have no rule. A weight gradient of 768 × 768 has 36 tiles of 128 × 128 for 132 multiprocessors;
if that limited it, `longformer` would train in 6.9 ms instead of 5.5, and 5.41 were measured. `linear` has products of
12 tiles: a share of 12 / 132 would explain 0.58 of the 0.60 ms that are missing forward, and 1.2 of 2.5 ms in training.
Elementwise kernels at 0.45 of the assumed bandwidth would explain both, and no row separates the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from longspan.hardware import Device

LAUNCH = 6e-6
"""Seconds of a launch in eager mode: Python, the dispatcher and the driver."""
SYNCHRONISATION = 20e-6
"""Seconds for which the device is idle while the host reads a result and launches again."""
BANDWIDTH_SHARE = 0.8
"""Fraction of the published bandwidth that kernels reach."""
FLOPS_SHARE = 0.6
"""Fraction of the published FLOP/s that matrix products reach; that of attention depends on the device."""

Kind = Literal["plain", "attention", "window", "flex"]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """The work of one launch.

    Attributes:
        name: name of the operator.
        bytes: bytes read and written.
        flops: FLOPs of matrix products.
        dtype: dtype of the operands.
        kind: fused attention, FlashAttention 2 within a window, compiled FlexAttention, or anything else.
    """

    name: str = ""
    bytes: float = 0.0
    flops: float = 0.0
    dtype: str = "bfloat16"
    kind: Kind = "plain"


@dataclass(frozen=True, kw_only=True)
class Launches:
    """The work of a computation on a device.

    Attributes:
        kernels: one for each launch, in order.
        synchronisations: number of times the host waits for the device.
        peak: peak bytes of its tensors, in addition to those that existed before.
    """

    kernels: tuple[Kernel, ...] = ()
    synchronisations: int = 0
    peak: int = 0

    def seconds(self, device: Device) -> float:
        """Returns the predicted seconds on a device."""
        return predicted_seconds(self.kernels, device) + SYNCHRONISATION * self.synchronisations


def predicted_seconds(kernels: Iterable[Kernel], device: Device) -> float:
    """Returns the predicted seconds of these kernels in sequence."""
    return sum(max(LAUNCH, running_seconds(kernel, device)) for kernel in kernels)


def running_seconds(kernel: Kernel, device: Device) -> float:
    """Returns the predicted seconds of a kernel, without its launch."""
    rates = device.attention
    share = {"plain": FLOPS_SHARE, "flex": rates.flex}.get(kernel.kind, rates.full)
    products = kernel.flops / (share * device.flops[kernel.dtype]) if kernel.flops else 0.0
    bandwidth = rates.window_bandwidth if kernel.kind == "window" else BANDWIDTH_SHARE
    moved = kernel.bytes / (bandwidth * device.bandwidth)
    return max(products, moved) if kernel.kind == "plain" else products + moved
