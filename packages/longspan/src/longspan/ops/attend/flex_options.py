"""Tile sizes and warps of the programs that Inductor writes for FlexAttention.

Inductor's defaults are for programs that read no tables. A mask or a term that reads one needs more registers than a
thread has, and the rest is spilled to memory: up to 18 kB for each thread. These options were found by compiling our
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
PROGRAMS: dict[tuple[str, int, int, str], dict[str, int]] = {
    ("half", 8, 32, "any"): {"bwd_BLOCK_N1": 64, "bwd_BLOCK_M2": 64},
    ("half", 8, 32, "products"): {"fwd_num_warps": 8, "fwd_num_stages": 1, "fwd_BLOCK_M": 64, "fwd_BLOCK_N": 32},
    ("half", 8, 64, "any"): {
        "fwd_num_warps": 8,
        "bwd_BLOCK_M1": 32,
        "bwd_BLOCK_N1": 64,
        "bwd_BLOCK_M2": 64,
        "bwd_BLOCK_N2": 32,
    },
    ("half", 8, 64, "products"): {
        "fwd_num_warps": 8,
        "fwd_num_stages": 1,
        "fwd_BLOCK_M": 64,
        "fwd_BLOCK_N": 64,
        "bwd_BLOCK_M1": 32,
        "bwd_BLOCK_N1": 64,
        "bwd_BLOCK_M2": 64,
        "bwd_BLOCK_N2": 32,
    },
    ("half", 8, 128, "any"): {"bwd_num_warps": 8},
    ("half", 8, 128, "products"): {"fwd_num_warps": 8, "fwd_num_stages": 1, "fwd_BLOCK_M": 32, "fwd_BLOCK_N": 32},
    ("half", 8, 256, "any"): {
        "bwd_num_warps": 8,
        "bwd_BLOCK_M1": 32,
        "bwd_BLOCK_N1": 32,
        "bwd_BLOCK_M2": 32,
        "bwd_BLOCK_N2": 32,
    },
    ("half", 8, 256, "products"): {"fwd_num_warps": 8, "fwd_num_stages": 1, "fwd_BLOCK_M": 32, "fwd_BLOCK_N": 32},
    ("half", 9, 32, "products"): {"fwd_num_warps": 8, "fwd_num_stages": 1, "fwd_BLOCK_M": 64, "fwd_BLOCK_N": 32},
    ("half", 9, 64, "any"): {"fwd_num_warps": 8},
    ("half", 9, 64, "products"): {"fwd_num_warps": 8, "fwd_num_stages": 1, "fwd_BLOCK_M": 64, "fwd_BLOCK_N": 64},
    ("half", 9, 128, "any"): {"bwd_BLOCK_M1": 32},
    ("half", 9, 128, "products"): {"fwd_num_warps": 8, "fwd_num_stages": 1, "fwd_BLOCK_M": 64, "fwd_BLOCK_N": 32},
    ("half", 9, 256, "any"): {"bwd_num_warps": 8, "bwd_BLOCK_M1": 32, "bwd_BLOCK_N1": 32, "bwd_BLOCK_N2": 32},
    ("half", 9, 256, "products"): {"fwd_num_warps": 8, "fwd_num_stages": 1, "fwd_BLOCK_M": 32, "fwd_BLOCK_N": 32},
    ("single", 8, 32, "any"): {"fwd_num_warps": 8, "fwd_BLOCK_M": 64, "fwd_BLOCK_N": 32, "bwd_num_stages": 2},
    ("single", 8, 64, "any"): {
        "fwd_num_warps": 8,
        "fwd_num_stages": 2,
        "fwd_BLOCK_M": 64,
        "fwd_BLOCK_N": 32,
        "bwd_num_warps": 2,
    },
    ("single", 8, 128, "any"): {"fwd_num_warps": 8, "fwd_BLOCK_M": 32, "fwd_BLOCK_N": 32, "bwd_num_stages": 2},
    ("single", 8, 256, "any"): {
        "fwd_num_warps": 8,
        "fwd_BLOCK_M": 32,
        "fwd_BLOCK_N": 16,
        "bwd_num_warps": 8,
        "bwd_num_stages": 2,
    },
    ("single", 9, 32, "any"): {"fwd_num_warps": 8, "fwd_BLOCK_M": 64, "fwd_BLOCK_N": 32, "bwd_num_stages": 2},
    ("single", 9, 64, "any"): {
        "fwd_num_warps": 8,
        "fwd_num_stages": 2,
        "fwd_BLOCK_M": 64,
        "fwd_BLOCK_N": 32,
        "bwd_num_warps": 2,
    },
    ("single", 9, 128, "any"): {"fwd_num_warps": 8, "bwd_num_stages": 2},
    ("single", 9, 256, "any"): {
        "fwd_num_warps": 8,
        "fwd_BLOCK_M": 32,
        "fwd_BLOCK_N": 16,
        "bwd_num_warps": 8,
        "bwd_num_stages": 2,
    },
}
"""Precision, compute capability (9 from Hopper on, 8 before), greatest width of the heads, what a program reads ("any"
where it has no row) → options. Without any, Inductor's defaults fit: in half precision, to a width of 32 on Hopper.

In single precision, products take registers instead of tensor cores; loading two blocks at a time, the backward program
of wide heads keeps fewer numbers in them than with one. Products of content and relative position are loaded for each
pair; loads of several blocks at a time would need 368 KiB of shared memory, of 227.

Nothing is spilled with Triton 3.6, which PyTorch 2.11 brings, and 3.9, except that 3.6 spills 12 bytes of `sparse` on
Hopper in half precision (heads of 64). Defaults spill up to 18 kB of each thread: in half precision 0.2 kB of the
backward program at a width of 128 on Hopper, 0.8 kB before, 3 and 5 kB at 256; in single precision 18 kB forward.

`python benchmarks/gpu.py --table` prints this table with the fastest options that were measured on a GPU.
"""
WIDTHS = (32, 64, 128, 256)
"""Of the rows: the first that is not less than the width of the heads serves them."""
ONE_BLOCK = {"num_stages": 1}
"""For programs that do not fit into the shared memory of the present GPU: one block of keys is loaded at a time."""
SHORT = 128
"""Fewer queries are served by another program, for decoding."""
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


def row_of(query: Tensor, reads: Reads) -> tuple[str, int, int, str]:
    """Returns the key of a program's options in `PROGRAMS`, without regard to whether there is such a row."""
    generation = 8 if torch.cuda.get_device_capability(query.device) < (9, 0) else 9
    width = next((width for width in WIDTHS if query.shape[-1] <= width), query.shape[-1])
    return "single" if query.dtype == torch.float32 else "half", generation, width, reads


def program_options(query: Tensor, reads: Reads = "positions") -> dict[str, Any]:
    """Returns the argument `kernel_options` of FlexAttention for these queries, if its default is not the best.

    Args:
        query: `(B, H, T, D)`.
        reads: what the mask and the scores read.
    """
    if not query.is_cuda or torch.version.hip or query.shape[2] < SHORT:
        return {}
    row = row_of(query, reads)
    options = PROGRAMS.get(row, PROGRAMS.get((*row[:-1], "any")))
    return {} if options is None else {"kernel_options": options}
