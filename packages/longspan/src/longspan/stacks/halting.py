"""Adaptive computation time: each position decides after how many steps it stops.

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
    """`p = sigmoid(w·x + b)`, the probability that a position stops at this step; b starts at 1, so that a new model
    takes about two steps."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)
        self.init_extra_weights()

    @torch.no_grad()
    def init_extra_weights(self, std: float = 0.02) -> None:
        """Set the bias; the model draws the weights."""
        nn.init.ones_(self.linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """`(B, T, E)` → `(B, T)` in (0, 1), as wide as the states, and float32 at least."""
        stops = projected(self.linear, hidden)[..., 0]
        return stops.to(at_least_float32(stops)).sigmoid()


def at_least_float32(tensor: Tensor) -> torch.dtype:
    """What is summed up over many steps: a model in float64 decides in float64."""
    return torch.promote_types(tensor.dtype, torch.float32)


class Pondering:
    """How far every position of a batch has come. Weights are as wide as the states, and float32 at least.

    Attributes:
        running: `(B, T)` bool, those that have not stopped; padding never runs.
        probability: `(B, T)`, what the weights so far add up to: h of the paper's listing.
        remainder: `(B, T)`, the weight of the last step of those that have stopped: R.
        updates: `(B, T)` float32, steps taken: N.
        output: `(B, T, E)`, the weighed states so far.
    """

    def __init__(self, hidden: Tensor, real: Tensor, *, threshold: float, accumulation: Accumulation) -> None:
        self.real = self.running = real
        self.probability = torch.zeros(hidden.shape[:2], dtype=at_least_float32(hidden), device=hidden.device)
        self.remainder, self.updates = self.probability, self.probability.float()
        self.output = torch.zeros_like(hidden)
        self.threshold = threshold
        self.accumulation = accumulation

    def weigh(self, stops: Tensor, *, all_stop: bool = False) -> Tensor:
        """The weights `(B, T)` of this step's states; positions that reach the threshold stop, with the remainder.

        Args:
            stops: `(B, T)` probabilities of the halting unit.
            all_stop: whether all running positions stop at this step, with the remainder.
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
        """Take in the states `(B, T, E)` of a step by their weights `(B, T)`.

        "paper" is `o ← w·s + (1 − w)·o`. The published code leaves out the parentheses, `o · 1 − w`, which takes w
        away from every number of the state; that is not followed.
        """
        weight = weight.to(hidden.dtype)[..., None]
        before = self.output if self.accumulation == "sum" else (1 - weight) * self.output
        self.output = weight * hidden + before

    def cost(self) -> Tensor:
        """Mean of N + R over the real positions, a scalar: what is paid for thinking."""
        paid = torch.where(self.real, self.updates + self.remainder, 0).sum()
        return paid / self.real.sum().clamp(min=1)


def places_of(running: Tensor) -> Tensor:
    """`(B, Q)` int64, the running places of each row, Q as many as the most of a row; others fill the rows up."""
    most = int(running.sum(1).max()) if running.numel() else 0
    return running.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
