"""How long a GPU will take: from what a computation launches, moves and multiplies, and what the device publishes.

The model is simple, and its numbers are fixed: nothing is fitted to this library. A kernel takes as long as its bytes
or its products need, whichever is more (Williams et al. 2009, "Roofline"); in fused attention both, one after the
other, since a tile of queries is read before its products and written after them, and behind a window there are few
products between. No kernel takes less than what it costs to launch one. Published timings against which the model is
held stand in `tests/planning/test_prediction.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from longspan.planning.devices import Device

LAUNCH = 6e-6
"""Seconds of a launch in eager mode: Python, the dispatcher and the driver."""
SYNCHRONISATION = 20e-6
"""Seconds for which the device is idle when the host waits for what it computed, and launches anew."""
BANDWIDTH_SHARE = 0.8
"""Of the published bandwidth, what kernels reach."""
FLOPS_SHARE = 0.6
"""Of the published operations a second, what products of matrices and attention written by hand reach."""

Kind = Literal["plain", "attention", "flex"]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """What one launch does.

    Attributes:
        name: of the operator.
        bytes: read and written.
        flops: operations in products of matrices.
        dtype: type of what is multiplied.
        kind: fused attention, one that FlexAttention compiled, or anything else.
    """

    name: str = ""
    bytes: float = 0.0
    flops: float = 0.0
    dtype: str = "bfloat16"
    kind: Kind = "plain"


@dataclass(frozen=True, kw_only=True)
class Launches:
    """What a computation asks of a device.

    Attributes:
        kernels: one for each launch, in order.
        synchronisations: how often the host waits for the device.
        peak: bytes that its tensors take at most at once, beyond those that were there before.
    """

    kernels: tuple[Kernel, ...] = ()
    synchronisations: int = 0
    peak: int = 0

    def seconds(self, device: Device) -> float:
        """How long a device will take, predicted."""
        return predicted_seconds(self.kernels, device) + SYNCHRONISATION * self.synchronisations


def predicted_seconds(kernels: Iterable[Kernel], device: Device) -> float:
    """How long a device will take for these kernels, one after the other."""
    return sum(max(LAUNCH, running_seconds(kernel, device)) for kernel in kernels)


def running_seconds(kernel: Kernel, device: Device) -> float:
    """How long a kernel runs on a device once it is launched."""
    share = device.flex_share if kernel.kind == "flex" else FLOPS_SHARE
    products = kernel.flops / (share * device.flops[kernel.dtype]) if kernel.flops else 0.0
    moved = kernel.bytes / (BANDWIDTH_SHARE * device.bandwidth)
    return max(products, moved) if kernel.kind == "plain" else products + moved
