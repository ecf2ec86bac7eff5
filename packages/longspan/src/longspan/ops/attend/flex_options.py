"""Tile sizes and warps of the programs that Inductor writes for FlexAttention.

Inductor's default on NVIDIA's data-centre GPUs is a tile of 128 queries with 4 warps. A score or a predicate that reads
a captured table then needs more registers than a thread has, and the rest is spilled to memory: 1 to 7 kB for each
thread, for several of our mechanisms (counted by compiling them, `tests/ops/test_flex_programs.py`). With 8 warps each
thread holds half as many scores, and nothing is spilled. Backward programs have 8 warps by default.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

TABLES = {"fwd_num_warps": 8}
"""For programs that read captured tables, which ours are but for plain windows."""
PRODUCTS = {"fwd_num_warps": 8, "fwd_num_stages": 1, "fwd_BLOCK_M": 128, "fwd_BLOCK_N": 64}
"""For terms of content and relative position. Their tables of products are loaded for each pair; loads of several
blocks at a time would need 368 KiB of shared memory, of 227."""
ONE_BLOCK = {"num_stages": 1}
"""For programs that do not fit into the shared memory of the present GPU: one block of keys is loaded at a time."""


WIDTH, SHORT = 64, 128
"""Width of heads whose default has 4 warps for such a large tile; wider ones have 8 or a smaller tile. Fewer queries
than `SHORT` are served by another program, for decoding."""


def program_options(query: Tensor, *, products: bool = False) -> dict[str, Any]:
    """Returns the argument `kernel_options` of FlexAttention for these queries, if its default is not the best.

    Args:
        query: `(B, H, T, D)`.
        products: whether the scores read products of content and relative position.
    """
    if not query.is_cuda or query.shape[2] < SHORT:
        return {}
    if products:
        return {"kernel_options": PRODUCTS}
    return {"kernel_options": TABLES} if query.shape[-1] == WIDTH else {}
