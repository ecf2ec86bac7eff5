"""Our operators in PyTorch's own, as exporters take them: the same numbers as the operators."""

from __future__ import annotations

import pytest
import torch
from torch._decomp import decomposition_table

import longspan.ops.decompositions  # noqa: F401 (fills the table)
from longspan.errors import InputError
from longspan.ops.tiles.pooling import POOLINGS

OPERATORS = torch.ops.longspan
PATTERNS = [
    "window(3, 5)",
    "window(2, 2, 3)",
    "first(2) | blocks(7)",
    "pooled_window(9, 9, 5, 4)",
    "window(1) & causal()",
]


def inputs(queries: int, keys: int) -> list[torch.Tensor]:
    return [torch.randn(2, 3, length, 4, dtype=torch.float64) for length in (queries, keys, keys)]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("length", [1, 2, 13, 71])
def test_attention(pattern: str, length: int) -> None:
    pooled = pattern.startswith("pooled")
    keys = -(-length // 4) if pooled else length
    mask = torch.arange(keys) < torch.tensor([[keys], [keys // 2]])
    slots = None if pooled or length < 5 else torch.tensor([[0, 4], [1, -1]])
    operator = OPERATORS.blocked_attention.default
    arguments = (*inputs(length, keys), [], mask, slots, None, "", [0], pattern, 0.5, 0.0)
    torch.testing.assert_close(decomposition_table[operator](*arguments), operator(*arguments))


@pytest.mark.parametrize("length", [1, 2, 13, 71])
def test_terms(length: int) -> None:
    shapes = [(3, 8, 4), (3, 4), (3, 8, 4), (3, 5), (1, 1, length, 1)]
    mask = torch.arange(length) < torch.tensor([[length], [max(1, length // 2)]])
    slots = torch.tensor([[0, 4], [1, -1]]) if length > 5 else None
    shapes += [] if slots is None else [(2, 3, length, 2)]
    kinds = "content_to_position:2 position_to_content:1 position_bias:1 bias:1"
    kinds += "" if slots is None else " global_key_bias:1"
    terms = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    offsets = [0, -2, -5, -2, 0] + [0] * (slots is not None)
    operator = OPERATORS.blocked_attention.default
    arguments = (*inputs(length, length), terms, mask, slots, None, kinds, offsets, "window(2, 5)", 0.5, 0.0)
    torch.testing.assert_close(decomposition_table[operator](*arguments), operator(*arguments))


@pytest.mark.parametrize("length", [1, 2, 13, 71])
@pytest.mark.parametrize(("kernel", "stride"), [(5, 4), (3, 1), (4, 4), (1, 2)])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling(length: int, kernel: int, stride: int, pooling: str) -> None:
    hidden = inputs(length, 1)[0]
    weight = torch.randn(3, kernel, 4, dtype=torch.float64) if pooling == "ldconv" else None
    operator = OPERATORS.pool.default
    for mask in (None, torch.arange(length) < torch.tensor([[length], [length // 2]])):
        arguments = (hidden, weight, mask, kernel, stride, pooling)
        torch.testing.assert_close(decomposition_table[operator](*arguments), operator(*arguments))


def test_dropout_is_refused() -> None:
    operator = OPERATORS.blocked_attention.default
    arguments = (*inputs(5, 5), [], None, None, torch.tensor(1), "", [0], "window(3)", 0.5, 0.1)
    with pytest.raises(InputError, match=r"call model.eval\(\) first"):
        decomposition_table[operator](*arguments)


@pytest.mark.parametrize("length", [1, 2, 13, 71])
@pytest.mark.parametrize("causal", [False, True])
def test_buckets(length: int, causal: bool) -> None:
    query, value = (torch.randn(2, length, 3, 4, dtype=torch.float64) for _ in range(2))
    ids = torch.randint(4, (2, 3, 2, length)).masked_fill(torch.arange(length) >= max(1, length - 3), -1)
    operator = OPERATORS.hashed_attention.default
    for key in (None, torch.randn_like(query)):
        arguments = (query, key, value, ids, None, 4, 5, 1, 0, causal, 0.5, True, 0.0)
        torch.testing.assert_close(decomposition_table[operator](*arguments)[0], operator(*arguments)[0])
    with pytest.raises(InputError, match="cannot be exported"):
        decomposition_table[operator](*arguments[:-1], 0.1)


@pytest.mark.parametrize("blocks", [1, 2, 7])
@pytest.mark.parametrize("causal", [False, True])
def test_sorted_blocks(blocks: int, causal: bool) -> None:
    query, key, value = (torch.randn(2, blocks, 5, 3, 4, dtype=torch.float64) for _ in range(3))
    real = torch.arange(5 * blocks).view(blocks, 5) < torch.tensor([5 * blocks, 5 * blocks - 3])[:, None, None]
    order = torch.rand(2, 3, blocks, blocks, dtype=torch.float64)
    operator = OPERATORS.block_attention.default
    arguments = (query, key, value, real, order, None, 0.5, causal, 0.0)
    torch.testing.assert_close(decomposition_table[operator](*arguments), operator(*arguments))
    with pytest.raises(InputError, match="cannot be exported"):
        decomposition_table[operator](*arguments[:-1], 0.1)
