"""`y = x Wᵀ + b` in half precision on processors that have no instructions for it.

There PyTorch multiplies bfloat16 and float16 number by number: on a processor with AVX2 alone four times as slow as
float32 forward, and twenty-five times with gradients. So inputs are cast, multiplied and added up in float32, and the
result is rounded once. What is kept for the way back are the inputs as they were.

Layers stay PyTorch's own `nn.Linear`, the only type that `torch.ao.quantization.quantize_dynamic` replaces, and
mechanisms, blocks and heads call them by `longspan.attention.base.projected`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from longspan.ops.runtime import full_precision, half_way, needs_reference

FEWEST_ROWS = 4
"""Vectors of fewer are multiplied by PyTorch in half precision: to cast the weights would take longer."""


def called(layer: nn.Module, inputs: Tensor) -> Tensor:
    """`layer(inputs)`, whose linear products are computed by `linear`: those of an `nn.Linear`, and of an adapter or
    whatever else is in its place."""
    if _half_type(inputs) is None:
        return layer(inputs)
    with _FastProducts():
        return layer(inputs)


class _FastProducts(TorchFunctionMode):
    """Computes `F.linear` by `linear`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (linear if func is F.linear else func)(*args, **(kwargs or {}))


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` in the way in which it is fastest: inputs `(…, E)`, weight `(F, E)`, bias `(F,)` → `(…, F)`, of the
    type that it has there, under autocast too."""
    dtype = _half_type(inputs)
    # Types that do not go together are an error, which PyTorch raises.
    together = weight.dtype == inputs.dtype or (torch.is_autocast_enabled("cpu") and weight.dtype != torch.float64)
    if dtype is None or not together or needs_reference(inputs, weight, bias):
        return F.linear(inputs, weight, bias)
    return _WideLinear.apply(inputs, weight, bias, dtype)  # pyright: ignore[reportReturnType]


def _half_type(inputs: Tensor) -> torch.dtype | None:
    """The type of a product in half precision that is faster computed in float32; `None` for any other."""
    autocast = torch.is_autocast_enabled("cpu")
    if inputs.device.type != "cpu" or torch.compiler.is_compiling() or inputs.dtype == torch.float64:
        return None
    dtype = torch.get_autocast_dtype("cpu") if autocast else inputs.dtype
    if dtype not in (torch.bfloat16, torch.float16) or inputs.numel() < FEWEST_ROWS * inputs.shape[-1]:
        return None
    return dtype if half_way(dtype) == "float32" else None


class _WideLinear(torch.autograd.Function):
    """The product in float32, and its gradients, which are differentiable themselves. Autocast has inputs and weights
    rounded first, so that its results are the same on all processors but for the order of sums."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.half, ctx.bias_dtype = dtype, None if bias is None else bias.dtype
        with full_precision(inputs):
            own = None if bias is None else bias.to(dtype).float()
            return F.linear(inputs.to(dtype).float(), weight.to(dtype).float(), own).to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        inputs, weight = ctx.saved_tensors
        to_inputs, to_weight, to_bias = ctx.needs_input_grad[:3]
        with full_precision(grad):
            wide = grad.float()
            rows = wide.flatten(0, -2)
            return (
                (wide @ weight.to(ctx.half).float()).to(inputs.dtype) if to_inputs else None,
                (rows.mT @ inputs.to(ctx.half).float().flatten(0, -2)).to(weight.dtype) if to_weight else None,
                rows.sum(0).to(ctx.bias_dtype) if to_bias else None,
                None,
            )
