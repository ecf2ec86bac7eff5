"""Calling an operator of ours, or in plain inference the function behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def run(operator: Callable[..., Any], kernel: Callable[..., Any], *arguments: Any) -> Any:
    """The result of `operator`, whose implementation on real tensors is `kernel`.

    An operator gives gradients and stays opaque to `torch.compile` and `torch.export`. Where neither is wanted the
    kernel says the same: the first call of a Python operator imports PyTorch's whole compiler, which takes longer than
    reading a short document.
    """
    watched = torch.is_grad_enabled() or torch.compiler.is_compiling()
    return operator(*arguments) if watched else kernel(*arguments)
