"""What the benchmarks of single layers share: a document, its first token as the global one, and a step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from longspan.attention import Tokens


class OurLayer(nn.Module):
    """One of our mechanisms, with the first token global."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, hidden: Tensor) -> Tensor:
        return self.attention(hidden, Tokens(global_slots=first_token(hidden)))


def first_token(hidden: Tensor) -> Tensor:
    """Its slot, in every row."""
    return torch.zeros(hidden.shape[0], 1, dtype=torch.int64)


def document(length: int, width: int, dtype: torch.dtype) -> Tensor:
    """Random hidden states `(1, T, E)`, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, length, width, generator=generator).to(dtype)


def step(run: Callable[..., Tensor], *inputs: Tensor, backward: bool) -> None:
    """Forward, or forward and backward, of something."""
    with torch.set_grad_enabled(backward):
        given = [tensor.detach().requires_grad_(backward) for tensor in inputs]
        out = run(*given)
        if backward:
            out.sum().backward()
