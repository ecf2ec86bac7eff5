"""The Transformer block shared by encoder and decoder: residual branches around sublayers, post- or pre-normalised."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from longspan.errors import InputError

if TYPE_CHECKING:
    from longspan.models.fields import ModelFields


PLAIN_ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU, "tanh": nn.Tanh}
"""Those that PyTorch has as transformers means them; the others are transformers' own."""


def activation(name: str) -> nn.Module:
    """The activation that transformers calls `name`; `InputError` when there is none."""
    if name in PLAIN_ACTIVATIONS:
        return PLAIN_ACTIVATIONS[name]()
    from transformers.activations import ACT2FN

    if name not in ACT2FN:
        raise InputError(f"activation_function={name!r} is unknown; choose one of {', '.join(sorted(ACT2FN))}")
    return ACT2FN[name]


def layer_norm(config: ModelFields) -> nn.LayerNorm:
    """A LayerNorm over the model width, with the configuration's ε."""
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)


class FeedForward(nn.Module):
    """`down(dropout(activation(up(x))))`: `(B, T, E)` → `(B, T, E)`.

    Training keeps only what comes out of `up` and computes the activation again in backward: it is the widest tensor of
    a block and the cheapest to remake, a quarter of the memory of a step for about a hundredth of its time.
    """

    def __init__(self, config: ModelFields, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, inner)
        self.down = nn.Linear(inner, config.hidden_size)
        self.activation = activation(config.activation_function)
        self.dropout = nn.Dropout(config.activation_dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        wide = self.up(hidden)
        if not wide.requires_grad or torch.compiler.is_compiling():
            return self._narrow(wide)
        drops = self.training and self.dropout.p > 0
        narrowed = checkpoint(self._narrow, wide, use_reentrant=False, preserve_rng_state=drops)
        assert isinstance(narrowed, Tensor)
        return narrowed

    def _narrow(self, wide: Tensor) -> Tensor:
        """Everything after `up`."""
        return self.down(self.dropout(self.activation(wide)))


def residual(
    hidden: Tensor, sublayer: Callable[[Tensor], Tensor], norm: nn.Module, dropout: nn.Module, *, pre: bool
) -> Tensor:
    """`x + f(norm(x))` when `pre`, else `norm(x + f(x))`, with dropout on the branch."""
    if pre:
        return hidden + dropout(sublayer(norm(hidden)))
    return norm(hidden + dropout(sublayer(hidden)))


def clamp_half(hidden: Tensor) -> Tensor:
    """Keep float16 states finite: large BART checkpoints overflow there; other types pass unchanged."""
    if hidden.dtype != torch.float16:
        return hidden
    limit = torch.finfo(torch.float16).max - 1000
    return hidden.clamp(-limit, limit)
