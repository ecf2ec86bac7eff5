"""The projection that mechanisms, blocks and heads are made of."""

from __future__ import annotations

from torch import Tensor, nn

from longspan.ops.half_linear import linear


class Linear(nn.Linear):
    """PyTorch's layer, never slower in half precision than in float32 (`longspan.ops.half_linear`)."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def is_plain(layer: nn.Module) -> bool:
    """Whether a layer computes what its weights say: an adapter or a quantised layer, which is a subclass or wrapper of
    Linear, computes something else."""
    return type(layer) in (nn.Linear, Linear)
