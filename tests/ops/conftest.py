"""What tests of operators share: how large the tensors are that an operation makes."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longspan.ops import blocked_operator


class LargestTensor(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation makes."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The largest tensor of each half of the blocked operator, which a mode does not see from outside, call by call."""
    found = []
    for name in ("forward", "backward"):
        original = getattr(blocked_operator.blocked, name)

        def watching(*args, original=original):
            with LargestTensor() as largest:
                result = original(*args)
            found.append(largest.elements)
            return result

        monkeypatch.setattr(blocked_operator.blocked, name, watching)
    return found


@pytest.fixture
def largest_tensor() -> type[LargestTensor]:
    """`with largest_tensor() as largest:` follows the largest tensor that is made."""
    return LargestTensor
