"""Adaptive computation time: each position determines its number of steps.

Graves 2016, arXiv 1603.08983, per position as in Dehghani et al. 2019, "Universal Transformers", arXiv 1807.03819,
section 2.2 and the listing of its appendix.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from longspan.attention.base import projected

Accumulation = Literal["paper", "sum"]


class HaltingUnit(nn.Module):
    """`p = sigmoid(w·x + b)`, the probability that a position halts at this step. b is initialised with 1, so that a
    new model takes about two steps.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)
        self.init_extra_weights()

    @torch.no_grad()
    def init_extra_weights(self, std: float = 0.02) -> None:
        """Initialises the bias; the model initialises the weights."""
        nn.init.ones_(self.linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Maps `(B, T, E)` to `(B, T)` in (0, 1), in the dtype of the states, and float32 at least."""
        stops = projected(self.linear, hidden)[..., 0]
        return stops.to(at_least_float32(stops)).sigmoid()


def at_least_float32(tensor: Tensor) -> torch.dtype:
    """Returns the dtype of sums over many steps: that of the model, and float32 at least."""
    return torch.promote_types(tensor.dtype, torch.float32)


class Pondering:
    """Adaptive computation of a batch. Weights have the dtype of the states, and float32 at least.

    Attributes:
        running: `(B, T)` bool, positions that have not halted; never padding.
        probability: `(B, T)`, the sum of the weights so far: h of the paper's listing.
        remainder: `(B, T)`, the weight of the last step of halted positions: R.
        updates: `(B, T)` float32, the number of steps: N.
        output: `(B, T, E)`, the weighted sum of states so far.
    """

    def __init__(self, hidden: Tensor, real: Tensor, *, threshold: float, accumulation: Accumulation) -> None:
        self.real = self.running = real
        self.probability = torch.zeros(hidden.shape[:2], dtype=at_least_float32(hidden), device=hidden.device)
        self.remainder, self.updates = self.probability, self.probability.float()
        self.output = torch.zeros_like(hidden)
        self.threshold = threshold
        self.accumulation = accumulation

    def weigh(self, stops: Tensor, *, all_stop: bool = False) -> Tensor:
        """Returns the weights `(B, T)` of this step's states; positions that reach the threshold halt,
        with the remainder.

        Args:
            stops: `(B, T)` probabilities of the halting unit.
            all_stop: whether all running positions halt at this step, with the remainder.
        """
        halts = self.running & (self.probability + stops > self.threshold)
        if all_stop:
            halts = self.running
        goes_on = self.running & ~halts
        left = 1 - self.probability
        weight = torch.where(goes_on, stops, torch.where(halts, left, 0))
        self.remainder = torch.where(halts, left, self.remainder)
        self.probability = self.probability + weight
        self.updates = self.updates + self.running
        self.running = goes_on
        return weight

    def add(self, hidden: Tensor, weight: Tensor) -> None:
        """Accumulates the states `(B, T, E)` of a step with their weights `(B, T)`.

        "paper" is `o ← w·s + (1 − w)·o`. The published code lacks the parentheses, `o · 1 − w`, which subtracts w from
        every number of the state; this implementation follows the paper.
        """
        weight = weight.to(hidden.dtype)[..., None]
        before = self.output if self.accumulation == "sum" else (1 - weight) * self.output
        self.output = weight * hidden + before

    def cost(self) -> Tensor:
        """Returns the mean of N + R over the real positions, a scalar: the ponder cost."""
        paid = torch.where(self.real, self.updates + self.remainder, 0).sum()
        return paid / self.real.sum().clamp(min=1)


def places_of(running: Tensor) -> Tensor:
    """Returns the running positions of each row, `(B, Q)` int64, with Q the most of any row; other rows are filled
    with halted ones.
    """
    most = int(running.sum(1).max()) if running.numel() else 0
    return running.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
