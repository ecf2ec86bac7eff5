"""Blockwise attention against a loop over its definition."""

from __future__ import annotations

import pytest
import torch

from longspan.attention import BlockwiseConfig, Tokens
from longspan.errors import InputError
from longspan.ops.attend.reference import dense_weights


def blocks_by_hand(length, blocks):
    """Block by block, as equal as can be."""
    edges = [number * length // blocks for number in range(blocks + 1)]
    return [number for number in range(blocks) for _ in range(edges[number], edges[number + 1])]


@pytest.mark.parametrize(
    ("options", "length", "blocks"),
    [
        ({"block_tokens": 5}, 3, 1),
        ({"block_tokens": 5}, 10, 2),
        ({"block_tokens": 5}, 11, 3),
        ({"block_tokens": 5}, 37, 8),
        ({"block_tokens": 100, "least_blocks": 3}, 11, 3),
        ({"block_tokens": 100, "least_blocks": 3}, 2, 2),
        ({"block_tokens": 100, "least_blocks": 3}, 12, 3),
    ],
)
@pytest.mark.parametrize("shifts", [(0, 1, 2), ()])
def test_every_block_sees_the_one_that_its_head_says(options, length, blocks, shifts):
    config = BlockwiseConfig(**options, shifts=shifts)
    module = config.build(width=9, heads=3).double()
    block = blocks_by_hand(length, blocks)
    assert config.blocks_of(length) == blocks
    seen = torch.zeros(3, length, length, dtype=torch.bool)
    for head, shift in enumerate(shifts or (0, 0, 1)):
        for i in range(length):
            for j in range(length):
                seen[head, i, j] = block[j] == (block[i] + shift) % blocks
    if shifts:
        assert config.scores_per_token(length) == pytest.approx(int(seen.sum()) / 3 / length)
    for padding in (0, 9):
        real = torch.rand(length + padding).argsort() < length
        hidden = torch.randn(1, length + padding, 9, dtype=torch.float64)
        query, key, value = module.project(hidden[:, real])
        expected = module.output(module.merge_heads(dense_weights(query, key, seen[None], scale=3**-0.5) @ value))
        mask = real[None] if padding else None
        torch.testing.assert_close(module(hidden, Tokens(mask=mask))[:, real], expected)


@pytest.mark.parametrize(("heads", "moved"), [(1, 0), (2, 1), (6, 1), (12, 2), (16, 3)])
def test_a_sixth_of_the_heads_looks_one_block_further(heads, moved):
    """10 and 2 of 12 heads, as published."""
    assert BlockwiseConfig().build(width=48, heads=heads).shifts == (0,) * (heads - moved) + (1,) * moved


def test_one_block_is_full_attention_and_published_blocks_a_share_of_it():
    """1024 tokens in 2 blocks score 512 keys per token, in 3 blocks of 341, 341 and 342 about 341."""
    module, hidden = BlockwiseConfig().build(width=6, heads=2), torch.randn(2, 200, 6)
    torch.testing.assert_close(module.weights(hidden).sum(-1), torch.ones(2, 2, 200))
    assert bool((module.weights(hidden) > 0).all())
    assert BlockwiseConfig(block_tokens=10**9, least_blocks=2).scores_per_token(1024) == 512
    three = BlockwiseConfig(block_tokens=10**9, least_blocks=3, shifts=(0, 1, 2)).scores_per_token(1024)
    assert three == pytest.approx((341**2 + 341**2 + 342**2 + 2 * (341 * 341 + 2 * 341 * 342)) / 3 / 1024)


def test_shifts_are_one_for_each_head():
    with pytest.raises(InputError, match="shifts has 3 numbers and the attention 2 heads; give one for each head"):
        BlockwiseConfig(shifts=(0, 1, 2)).build(width=6, heads=2)
