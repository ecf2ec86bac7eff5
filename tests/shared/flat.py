"""Many tensors as one vector, which processes exchange at once instead of waiting for each other once for each."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def flat(values: Iterable[Tensor | None], like: Iterable[Tensor]) -> Tensor:
    """Tensors one behind the other, with zeros for those that are missing."""
    pairs = zip(values, like, strict=True)
    return torch.cat([(torch.zeros_like(each) if value is None else value.detach()).flatten() for value, each in pairs])
