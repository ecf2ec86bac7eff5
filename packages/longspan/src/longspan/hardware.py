"""GPUs with their published specifications, for plans without the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from longspan.errors import InputError
from longspan.settings import show


@dataclass(frozen=True, kw_only=True)
class AttentionRates:
    """What attention reaches of a GPU's published rates.

    Attributes:
        full, flex: fractions of the FLOP/s that PyTorch's fused attention and FlexAttention's compiled kernel reach.
        window_bandwidth: fraction of the bandwidth that FlashAttention 2 reaches within a window.
    """

    full: float
    flex: float
    window_bandwidth: float


@dataclass(frozen=True, kw_only=True)
class Device:
    """Published specifications of a GPU.

    Attributes:
        name: full name.
        memory: bytes.
        bandwidth: memory bandwidth in bytes per second.
        flops: dtype → FLOP/s of dense matrix products with float32 accumulation. For float32 this is its own rate, not
            TF32's, which PyTorch disables by default.
        attention: what attention reaches of these rates.
        source: source of the numbers.
        reported: names under which PyTorch reports devices with these FLOP/s.
    """

    name: str
    memory: int
    bandwidth: float
    flops: Mapping[str, float]
    attention: AttentionRates
    source: str
    reported: tuple[str, ...] = ()


AMPERE = AttentionRates(full=0.6, flex=0.54, window_bandwidth=0.8)
"""As the model assumes for matrix products and copies; for FlexAttention 0.9 of that, as it is published at 90 % of
FlashAttention 2 forward on an A100 (He et al. 2024, https://pytorch.org/blog/flexattention/)."""
HOPPER = AttentionRates(full=0.475, flex=0.35, window_bandwidth=0.1)
"""Full attention: 13.2 PFLOP in 28.1 ms on an H200 in bfloat16 (`sdpa` in `benchmarks/results/gpu.md`).

FlexAttention: 348.5 of 989.4 TFLOP/s are published, forward without a mask, 16 heads of 64 over 16,384 tokens
(https://github.com/pytorch/pytorch/pull/137036): Triton uses less of Hopper than FlashAttention 3 does.

Windows: 1.01 ms on the H200 (`window`: 65,536 tokens, 12 heads of 64, 128 tokens to each side, in bfloat16), of which
77 GFLOP take 0.16 ms at the rate of full attention. The remainder, for 0.41 GB, is a tenth of the bandwidth: a tile of
queries waits for its few keys."""


def _rates(half: float, single: float) -> Mapping[str, float]:
    """Converts TFLOP/s of half precision and of float32."""
    return MappingProxyType({"float32": single * 1e12, "float16": half * 1e12, "bfloat16": half * 1e12})


DEVICES: dict[str, Device] = {
    "h100": Device(
        name="NVIDIA H100 SXM5 80 GB",
        memory=80 * 10**9,
        bandwidth=3.35e12,
        flops=_rates(989.4, 66.9),
        attention=HOPPER,
        source="NVIDIA H100 Tensor Core GPU datasheet; NVIDIA H100 Tensor Core GPU Architecture (2022), table 2",
        reported=("NVIDIA H100 80GB HBM3",),
    ),
    "h200": Device(
        name="NVIDIA H200 SXM 141 GB",
        memory=141 * 10**9,
        bandwidth=4.8e12,
        flops=_rates(989.4, 66.9),
        attention=HOPPER,
        source="NVIDIA H200 Tensor Core GPU datasheet",
        reported=("NVIDIA H200",),
    ),
    "a100": Device(
        name="NVIDIA A100 SXM4 80 GB",
        memory=80 * 10**9,
        bandwidth=2.039e12,
        flops=_rates(312.0, 19.5),
        attention=AMPERE,
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
        attention=AMPERE,
        source="NVIDIA L4 Tensor Core GPU datasheet, half of its value with sparsity",
        reported=("NVIDIA L4",),
    ),
    "rtx4090": Device(
        name="NVIDIA GeForce RTX 4090 24 GB",
        memory=24 * 10**9,
        bandwidth=1.008e12,
        flops=_rates(165.2, 82.6),
        attention=AMPERE,
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
