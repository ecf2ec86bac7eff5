"""Tables that shorten a text along its length: those of a layer, or those that all layers of an encoder share."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class LengthTables(nn.Module):
    """One table for keys and values, or one for each: `key` and `value`.

    Args:
        shape: of a table: heads, or 1 for all; then slots and tokens, `(H or 1, k, n)`, whose rows are sums of tokens,
            or places of a block and channels, `(H or 1, n, D)`, whose sums are weighted means.
        apart: whether there are two.
        seed: start of the draws of tables that are not learned, N(0, 1/k); `None` for learned ones. They are saved with
            the weights, and the same wherever they are drawn.
        mean: whether a table starts as a mean over its places, not as `U(±√(6 / (k + n)) / √2)` (fairseq).
    """

    def __init__(
        self, shape: tuple[int, int, int], *, apart: bool, seed: int | None = None, mean: bool = False
    ) -> None:
        super().__init__()
        self.seed, self.mean = seed, mean
        self.names = ("key", "value") if apart else ("key",)
        for name in self.names:
            table = torch.empty(shape)
            if seed is None:
                self.register_parameter(name, nn.Parameter(table))
            else:
                self.register_buffer(name, table)
        self.init_extra_weights()

    @torch.no_grad()
    def init_extra_weights(self, std: float = 0.02) -> None:
        """Start what transformers has not marked as loaded."""
        for number, name in enumerate(self.names):
            table = getattr(self, name)
            if self.seed is not None:
                self._draw(table, number)
            elif self.mean:
                nn.init.constant_(table, 1 / table.shape[1])
            else:
                bound = math.sqrt(3 / (table.shape[1] + table.shape[2]))
                nn.init.uniform_(table, -bound, bound)

    def _draw(self, table: Tensor, number: int) -> None:
        """Always the same numbers for the same seed, whatever was drawn before and on whatever device."""
        if getattr(table, "_is_hf_initialized", False):
            return
        assert self.seed is not None
        generator = torch.Generator().manual_seed(2 * self.seed + number)
        drawn = torch.randn(table.shape, generator=generator, device="cpu") / math.sqrt(table.shape[1])
        table.copy_(drawn)

    def forward(self) -> tuple[Tensor, ...]:
        """The tables, for `Tokens(relative=…)`."""
        return tuple(getattr(self, name) for name in self.names)
