"""Tile sizes and warps of the programs that Inductor writes for FlexAttention.

Inductor's defaults are for programs that read no tables. A mask or a term that reads one needs more registers than a
thread has, and the rest is spilled to memory: up to 15 kB for each thread. These options were found by compiling our
programs for sm_80 and sm_90 (`make programs`): with them nothing is spilled, and shared memory suffices.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from longspan.ops.runtime import constant_in_graphs

Reads = Literal["positions", "tables", "buckets", "products"]
"""What the mask and the scores of a program read: positions alone, tables (padding, global tokens, patterns of heads,
terms), codes of buckets, or products of content and relative position in addition."""
PROGRAMS: dict[tuple[str, int, str], dict[str, int]] = {
    ("half", 8, "any"): {
        "fwd_num_warps": 8,
        "bwd_BLOCK_M1": 32,
        "bwd_BLOCK_N1": 64,
        "bwd_BLOCK_M2": 64,
        "bwd_BLOCK_N2": 32,
    },
    ("half", 8, "products"): {
        "fwd_num_warps": 8,
        "fwd_num_stages": 1,
        "fwd_BLOCK_M": 128,
        "fwd_BLOCK_N": 64,
        "bwd_BLOCK_M1": 32,
        "bwd_BLOCK_N1": 64,
        "bwd_BLOCK_M2": 64,
        "bwd_BLOCK_N2": 32,
    },
    ("half", 9, "any"): {"fwd_num_warps": 8},
    ("half", 9, "products"): {"fwd_num_warps": 8, "fwd_num_stages": 1, "fwd_BLOCK_M": 128, "fwd_BLOCK_N": 64},
    ("single", 8, "any"): {"fwd_num_warps": 8, "fwd_BLOCK_M": 64, "fwd_BLOCK_N": 32, "bwd_num_warps": 2},
    ("single", 9, "any"): {"fwd_num_warps": 8, "fwd_BLOCK_M": 64, "fwd_BLOCK_N": 32, "bwd_num_warps": 2},
}
"""Precision, compute capability (9 from Hopper on, 8 before), what a program reads ("any" where it has no row) →
options. In single precision, products take registers instead of tensor cores. Products of content and relative position
are loaded for each pair; loads of several blocks at a time would need 368 KiB of shared memory, of 227.

`python benchmarks/gpu.py --table` prints this table with the fastest options that were measured on a GPU.
"""
ONE_BLOCK = {"num_stages": 1}
"""For programs that do not fit into the shared memory of the present GPU: one block of keys is loaded at a time."""
WIDTH, SHORT = 64, 128
"""Width of heads that these options are for; wider ones have smaller tiles by default. Fewer queries than `SHORT` are
served by another program, for decoding."""
SPEED_ON_WINDOWS = {8: 0.9, 9: 2.9, 10: 2.9, 12: 0.9}
"""Speed of FlexAttention on windows, relative to PyTorch's FlashAttention 2, by major compute capability.

0.9 is published for an A100 (https://pytorch.org/blog/flexattention/). FlashAttention 2 uses little of Hopper: of a
window of 128 tokens to each side it computed 76 TFLOP/s on an H200, and FlexAttention's published number is 224.
Blackwell has not been measured: its data-centre devices (10) are taken to be like Hopper, the others (12) like Ampere.
"""


@constant_in_graphs
def is_faster_on_windows(device: torch.device) -> bool:
    """Whether FlexAttention is faster on windows than PyTorch's FlashAttention 2 on this CUDA device."""
    return SPEED_ON_WINDOWS.get(torch.cuda.get_device_capability(device)[0], 1.0) > 1.0


def row_of(query: Tensor, reads: Reads) -> tuple[str, int, str]:
    """Returns the key of a program's options in `PROGRAMS`, without regard to whether there is such a row."""
    generation = 8 if torch.cuda.get_device_capability(query.device) < (9, 0) else 9
    return "single" if query.dtype == torch.float32 else "half", generation, reads


def program_options(query: Tensor, reads: Reads = "positions") -> dict[str, Any]:
    """Returns the argument `kernel_options` of FlexAttention for these queries, if its default is not the best.

    Args:
        query: `(B, H, T, D)`.
        reads: what the mask and the scores read.
    """
    if not query.is_cuda or torch.version.hip or query.shape[2] < SHORT or query.shape[-1] != WIDTH:
        return {}
    row = row_of(query, reads)
    return {"kernel_options": PROGRAMS[row if row in PROGRAMS else (*row[:2], "any")]}
