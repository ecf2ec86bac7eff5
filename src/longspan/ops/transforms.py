"""Derivatives that the operators do not have: dense references pass them on, and zeros must never stand for them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C import _functorch  # type: ignore[attr-defined]
from torch.autograd import forward_ad


def has_tangent(*tensors: Tensor | None) -> bool:
    """Whether one of the tensors carries a forward-mode tangent (`torch.func.jvp`, `jacfwd`)."""
    if forward_ad._current_level < 0:
        return False
    return any(tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def needs_reference(*tensors: Tensor | None) -> bool:
    """Whether a transform is at work that PyTorch does not carry through operators like ours: forward mode, or one of
    `torch.func` that differentiates (`grad`, `vjp`, `jacrev`, `hessian`)."""
    if has_tangent(*tensors):
        return True
    if torch.compiler.is_compiling():
        return False
    differentiating = (_functorch.TransformType.Grad, _functorch.TransformType.Jvp)
    return any(level.key() in differentiating for level in _functorch.get_interpreter_stack() or ())


def is_transforming() -> bool:
    """Whether a transform of `torch.func` is at work: tensors made now belong to it, and end with it."""
    return bool(_functorch.get_interpreter_stack())
