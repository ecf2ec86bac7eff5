"""Our operators in PyTorch's own, as exporters take them: the same numbers as the operators."""

from __future__ import annotations

import pytest
import torch
from torch._decomp import decomposition_table

import longspan.ops.decompositions  # noqa: F401 (fills the table)
from longspan.errors import InputError
from longspan.ops.pooling import mean_weights, tap_validity

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
@pytest.mark.parametrize("rows", [True, False])
def test_attention(pattern: str, length: int, rows: bool) -> None:
    pooled = pattern.startswith("pooled")
    keys = -(-length // 4) if pooled else length
    mask = torch.arange(keys) < torch.tensor([[keys], [keys // 2]])
    slots = None if pooled or length < 5 else torch.tensor([[0, 4], [1, -1]])
    operator = OPERATORS.blocked_attention.default
    arguments = (*inputs(length, keys), mask, slots, None, None, pattern, 0.5, 0.0, 0, rows)
    torch.testing.assert_close(decomposition_table[operator](*arguments), operator(*arguments))


@pytest.mark.parametrize("length", [1, 2, 13, 71])
def test_relative_attention(length: int) -> None:
    tables = [torch.randn(3, 8, 4, dtype=torch.float64) for _ in range(2)]
    mask = torch.arange(length) < torch.tensor([[length], [max(1, length // 2)]])
    slots, bias = None, None
    if length > 5:
        slots, bias = torch.tensor([[0, 4], [1, -1]]), torch.randn(2, 3, length, 2, dtype=torch.float64)
    operator = OPERATORS.relative_attention.default
    arguments = (*inputs(length, length), *tables, bias, mask, slots, None, 2, 5, 0.5, 0.0)
    torch.testing.assert_close(decomposition_table[operator](*arguments), operator(*arguments))


@pytest.mark.parametrize("length", [1, 2, 13, 71])
@pytest.mark.parametrize(("kernel", "stride"), [(5, 4), (3, 1), (4, 4), (1, 2)])
def test_pooling(length: int, kernel: int, stride: int) -> None:
    hidden = inputs(length, 1)[0]
    mask = torch.arange(length) < torch.tensor([[length], [length // 2]])
    valid = tap_validity(mask, length, kernel, stride, hidden.device)
    for operator, taps in ((OPERATORS.pool_sum, mean_weights(valid, hidden)), (OPERATORS.pool_max, valid)):
        found = decomposition_table[operator.default](hidden, taps, stride)
        torch.testing.assert_close(found, operator.default(hidden, taps, stride))


def test_dropout_is_refused() -> None:
    operator = OPERATORS.blocked_attention.default
    arguments = (*inputs(5, 5), None, None, None, torch.tensor(1), "window(3)", 0.5, 0.1, 0, True)
    with pytest.raises(InputError, match=r"call model.eval\(\) first"):
        decomposition_table[operator](*arguments)
