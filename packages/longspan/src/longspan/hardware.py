"""GPUs with their published specifications, for plans without the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from longspan.errors import InputError
from longspan.settings import show


@dataclass(frozen=True, kw_only=True)
class Device:
    """Published specifications of a GPU.

    Attributes:
        name: full name.
        memory: bytes.
        bandwidth: memory bandwidth in bytes per second.
        flops: dtype → FLOP/s of dense matrix products with float32 accumulation. For float32 this is its own rate, not
            TF32's, which PyTorch disables by default.
        flex_share: fraction of these FLOP/s that FlexAttention's compiled kernel reaches.
        source: source of the numbers.
        reported: names under which PyTorch reports devices with these FLOP/s.
    """

    name: str
    memory: int
    bandwidth: float
    flops: Mapping[str, float]
    flex_share: float
    source: str
    reported: tuple[str, ...] = ()


AMPERE_FLEX = 0.54
"""0.9 of the rate of a hand-written kernel, for which the model assumes 0.6: FlexAttention is published at 90 % of
FlashAttention-2 forward on an A100 (He et al. 2024, https://pytorch.org/blog/flexattention/)."""
HOPPER_FLEX = 0.35
"""Published: 348.5 of 989.4 TFLOP/s, forward without a mask, 16 heads of 64 over 16,384 tokens
(https://github.com/pytorch/pytorch/pull/137036): Triton uses less of Hopper than FlashAttention-3 does."""


def _rates(half: float, single: float) -> Mapping[str, float]:
    """Converts TFLOP/s of half precision and of float32."""
    return MappingProxyType({"float32": single * 1e12, "float16": half * 1e12, "bfloat16": half * 1e12})


DEVICES: dict[str, Device] = {
    "h100": Device(
        name="NVIDIA H100 SXM5 80 GB",
        memory=80 * 10**9,
        bandwidth=3.35e12,
        flops=_rates(989.4, 66.9),
        flex_share=HOPPER_FLEX,
        source="NVIDIA H100 Tensor Core GPU datasheet; NVIDIA H100 Tensor Core GPU Architecture (2022), table 2",
        reported=("NVIDIA H100 80GB HBM3",),
    ),
    "h200": Device(
        name="NVIDIA H200 SXM 141 GB",
        memory=141 * 10**9,
        bandwidth=4.8e12,
        flops=_rates(989.4, 66.9),
        flex_share=HOPPER_FLEX,
        source="NVIDIA H200 Tensor Core GPU datasheet",
        reported=("NVIDIA H200",),
    ),
    "a100": Device(
        name="NVIDIA A100 SXM4 80 GB",
        memory=80 * 10**9,
        bandwidth=2.039e12,
        flops=_rates(312.0, 19.5),
        flex_share=AMPERE_FLEX,
        source="NVIDIA A100 Tensor Core GPU datasheet",
        reported=(
            *("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"),
            *("NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"),
        ),
    ),
    "l4": Device(
        name="NVIDIA L4 24 GB",
        memory=24 * 10**9,
        bandwidth=3.0e11,
        flops=_rates(121.0, 30.3),
        flex_share=AMPERE_FLEX,
        source="NVIDIA L4 Tensor Core GPU datasheet, half of its value with sparsity",
        reported=("NVIDIA L4",),
    ),
    "rtx4090": Device(
        name="NVIDIA GeForce RTX 4090 24 GB",
        memory=24 * 10**9,
        bandwidth=1.008e12,
        flops=_rates(165.2, 82.6),
        flex_share=AMPERE_FLEX,
        source="NVIDIA Ada GPU Architecture (2022), appendix A, dense with sums in float32",
        reported=("NVIDIA GeForce RTX 4090",),
    ),
}
"""Name on the command line → device."""


def device_of(name: str) -> Device:
    """Returns the device of this name.

    Raises:
        InputError: it is not in the table; the message lists those that are.
    """
    if name not in DEVICES:
        raise InputError(
            f"--device is {show(name)}, whose numbers are not known here; choose one of {', '.join(DEVICES)}, or give "
            "--device-memory alone for a plan of memory"
        )
    return DEVICES[name]
