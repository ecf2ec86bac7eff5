"""The block tables of FlexAttention against the dense mask; the kernel itself where there is a GPU."""

import pytest
import torch

from longspan.ops import attend
from longspan.ops.attend.call import slots_of_mask
from longspan.ops.attend.flex import BLOCK, block_mask_of
from longspan.ops.attend.reference import dense_mask
from longspan.patterns import (
    Blocks,
    Causal,
    DrawnBlocks,
    First,
    Fixed,
    Full,
    PerHead,
    PlannedBlocks,
    PooledWindow,
    RandomBlocks,
    Strided,
    Window,
)

PATTERNS = [
    Full(),
    Causal(),
    Window(150, 40),
    Window(30, 30, 5),
    First(2),
    Blocks(100),
    Strided(7) & Causal(),
    Fixed(64, 8),
    RandomBlocks(64, 2, 1),
    DrawnBlocks(64, 2, 1),
    PerHead([Window(10, 10), DrawnBlocks(30, 2) | Blocks(30), PlannedBlocks(16, 3)]),
    PooledWindow(200, 180, 5, 4),
    Window(20, 0) | First(1),
    PerHead([Window(10, 10), Window(20, 20, 3), Full()]),
]


def dense_of(block_mask, batch, heads, queries, keys):
    """What a kernel that trusts the tables computes: of absent blocks nothing, of full ones all, else the predicate."""
    seen = torch.zeros(batch, heads, queries, keys, dtype=torch.bool)
    query, key = torch.arange(queries)[:, None], torch.arange(keys)[None, :]

    def entries(counts, indices, b, h, row):
        if counts is None:
            return []
        b, h = min(b, counts.shape[0] - 1), min(h, counts.shape[1] - 1)
        return indices[b, h, row, : int(counts[b, h, row])].tolist()

    for b in range(batch):
        for h in range(heads):
            exact = block_mask.mask_mod(torch.tensor(b), torch.tensor(h), query, key).expand(queries, keys)
            for row in range(-(-queries // BLOCK)):
                rows = slice(row * BLOCK, (row + 1) * BLOCK)
                for column in entries(block_mask.kv_num_blocks, block_mask.kv_indices, b, h, row):
                    columns = slice(column * BLOCK, (column + 1) * BLOCK)
                    seen[b, h, rows, columns] = exact[rows, columns]
                for column in entries(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, b, h, row):
                    seen[b, h, rows, column * BLOCK : (column + 1) * BLOCK] = True
    return seen


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize(
    ("queries", "keys", "offset", "with_globals"),
    [(389, 389, 0, False), (389, 389, 0, True), (5, 300, 295, False), (300, 131, 0, False)],
)
@pytest.mark.parametrize("padded", [False, True])
def test_tables_hold_the_pattern(pattern, queries, keys, offset, with_globals, padded):
    generator = torch.Generator().manual_seed(0)
    key_mask = torch.rand(2, keys, generator=generator) < 0.9 if padded else None
    marked = torch.rand(2, keys, generator=generator) < 0.01 if with_globals else None
    block_mask = block_mask_of(pattern, queries, keys, offset, torch.device("cpu"), key_mask, marked)
    expected = dense_mask(
        pattern,
        queries,
        keys,
        key_mask=key_mask,
        is_global=marked,
        query_offset=offset,
        device=torch.device("cpu"),
    )
    found = dense_of(block_mask, 2, 3, queries, keys)
    assert torch.equal(found, expected.expand_as(found))


@pytest.mark.gpu
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_flex_equals_reference_on_a_gpu(pattern, dtype):
    generator = torch.Generator(device="cuda").manual_seed(0)
    inputs = [
        torch.randn(2, 3, 389, 32, device="cuda", dtype=dtype, generator=generator).requires_grad_() for _ in range(3)
    ]
    key_mask = torch.arange(389, device="cuda")[None] < torch.tensor([[389], [240]], device="cuda")
    is_global = torch.zeros(2, 389, dtype=torch.bool, device="cuda")
    is_global[0, [0, 77]] = True
    results = []
    for backend in ("reference", "flex", "blocked"):
        output = attend(
            *inputs, pattern=pattern, key_mask=key_mask, globals=slots_of_mask(is_global, 2), backend=backend
        )
        upstream = torch.randn(output.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(1)).to(dtype)
        results.append((output, *torch.autograd.grad(output, inputs, upstream)))
    tolerance = 2e-2 if dtype == torch.bfloat16 else 2e-4
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance)
