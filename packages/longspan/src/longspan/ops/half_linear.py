"""`y = x Wᵀ + b` in half precision on CPUs without instructions for it.

There PyTorch multiplies bfloat16 and float16 element by element: with AVX2 alone four times as slow as float32 in the
forward pass, and twenty-five times with gradients. So inputs are cast, multiplied and accumulated in float32, and the
result is rounded once. The original inputs are saved for the backward pass.

Layers remain PyTorch's `nn.Linear`, the only type that `torch.ao.quantization.quantize_dynamic` replaces; mechanisms,
blocks and heads call them through `longspan.attention.base.projected`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from longspan.ops.runtime import full_precision, half_way, needs_reference

FEWEST_ROWS = 4
"""With fewer vectors, casting the weights would take longer than PyTorch's half-precision product."""


def called(layer: nn.Module, inputs: Tensor) -> Tensor:
    """Computes `layer(inputs)` with `linear` for its linear products: those of an `nn.Linear`, an adapter, or any
    module in its place."""
    if _half_type(inputs) is None:
        return layer(inputs)
    with _FastProducts():
        return layer(inputs)


class _FastProducts(TorchFunctionMode):
    """Computes `F.linear` with `linear`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (linear if func is F.linear else func)(*args, **(kwargs or {}))


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes `F.linear` in the fastest precision: inputs `(…, E)`, weight `(F, E)`, bias `(F,)` → `(…, F)`, in the
    dtype of `F.linear`, also under autocast."""
    dtype = _half_type(inputs)
    # Incompatible dtypes are left to PyTorch, which raises.
    together = weight.dtype == inputs.dtype or (torch.is_autocast_enabled("cpu") and weight.dtype != torch.float64)
    if dtype is None or not together or needs_reference(inputs, weight, bias):
        return F.linear(inputs, weight, bias)
    return _WideLinear.apply(inputs, weight, bias, dtype)  # pyright: ignore[reportReturnType]


def _half_type(inputs: Tensor) -> torch.dtype | None:
    """Returns the half-precision dtype of a product that is faster in float32; otherwise `None`."""
    autocast = torch.is_autocast_enabled("cpu")
    if inputs.device.type != "cpu" or torch.compiler.is_compiling() or inputs.dtype == torch.float64:
        return None
    dtype = torch.get_autocast_dtype("cpu") if autocast else inputs.dtype
    if dtype not in (torch.bfloat16, torch.float16) or inputs.numel() < FEWEST_ROWS * inputs.shape[-1]:
        return None
    return dtype if half_way(dtype) == "float32" else None


class _WideLinear(torch.autograd.Function):
    """The product in float32, with gradients that are themselves differentiable. Under autocast, inputs and weights are
    rounded first, so that results agree across CPUs up to the order of summation."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.half, ctx.bias_dtype = dtype, None if bias is None else bias.dtype
        with full_precision(inputs):
            wide_bias = None if bias is None else bias.to(dtype).float()
            return F.linear(inputs.to(dtype).float(), weight.to(dtype).float(), wide_bias).to(dtype)

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
