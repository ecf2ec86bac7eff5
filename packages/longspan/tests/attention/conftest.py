"""What tests of several mechanisms need."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def flags(length: int, kind: str) -> Tensor:
    """`(2, T)` bool: none, all, the first token, a ragged prefix, anywhere, or one whole row."""
    rows = torch.zeros(2, length, dtype=torch.bool)
    if kind == "all":
        rows[:] = True
    elif kind == "first":
        rows[:, :1] = True
    elif kind == "ragged":
        rows[0, : length // 2], rows[1, : length // 5] = True, True
    elif kind == "anywhere":
        rows = torch.rand(2, length) < 0.3
    elif kind == "row":
        rows[1] = True
    return rows


def check_drawn_in_training_alone(module: nn.Module, hidden: Tensor) -> None:
    """A module draws something new at each pass of training, and the same where checkpointing repeats a pass."""
    assert torch.equal(module(hidden), module(hidden))
    module.train()
    assert not torch.equal(module(hidden), module(hidden))
    results = []
    for run in (module, lambda each: checkpoint(module, each, use_reentrant=False)):
        torch.manual_seed(5)
        output = run(hidden)
        results.append((output, *torch.autograd.grad(output.square().sum(), (hidden, *module.parameters()))))
    torch.testing.assert_close(*results)
