"""The feed-forward layer of a block: what it computes, and what it keeps in memory meanwhile."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from counted import Work
from longspan.stacks.block import ROWS_AT_ONCE, FeedForward


@pytest.mark.parametrize("shape", [(2, 1300), (1, ROWS_AT_ONCE), (3, 1), (2, 0), (2, 2, 700)])
def test_without_gradients_a_long_text_is_computed_in_pieces(shape: tuple[int, ...]) -> None:
    """Equation 2 of Vaswani et al. 2017, with GELU; of the wide states only one piece exists at a time."""
    torch.manual_seed(0)
    layer = FeedForward(16, 64, activation_function="gelu", dropout=0.0).double()
    hidden = torch.randn(*shape, 16, dtype=torch.float64)
    expected = F.gelu(hidden @ layer.up.weight.T + layer.up.bias) @ layer.down.weight.T + layer.down.bias
    torch.testing.assert_close(layer(hidden), expected)
    with Work() as work, torch.no_grad():
        found = layer(hidden)
    torch.testing.assert_close(found, expected.detach())
    assert work.largest <= max(64 * ROWS_AT_ONCE, hidden.numel())
