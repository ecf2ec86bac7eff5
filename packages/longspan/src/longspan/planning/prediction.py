"""Predicted time on a GPU, from the launches, bytes and FLOPs of a computation and the device's specifications.

The model is simple, and its constants are fixed, not fitted to this library. A kernel takes the maximum of the time for
its bytes and for its products (Williams et al. 2009, "Roofline"); fused attention takes their sum, because a tile of
queries is read before its products and written after them, with few products in between under a window. No kernel takes
less than its launch. `tests/planning/test_prediction.py` compares the model with published timings.
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
"""Fraction of the published FLOP/s that matrix products and hand-written attention reach."""

Kind = Literal["plain", "attention", "flex"]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """The work of one launch.

    Attributes:
        name: name of the operator.
        bytes: bytes read and written.
        flops: FLOPs of matrix products.
        dtype: dtype of the operands.
        kind: fused attention, compiled FlexAttention, or anything else.
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
    share = device.flex_share if kernel.kind == "flex" else FLOPS_SHARE
    products = kernel.flops / (share * device.flops[kernel.dtype]) if kernel.flops else 0.0
    moved = kernel.bytes / (BANDWIDTH_SHARE * device.bandwidth)
    return max(products, moved) if kernel.kind == "plain" else products + moved
