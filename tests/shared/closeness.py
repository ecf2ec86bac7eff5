"""Outputs of the same weights in other storage, which are equal but for rounding.

Where a tensor begins in memory decides on some processors in which order a product of matrices is summed, and a file of
safetensors begins its tensors where its header ends: a model that was saved and loaded has the same weights, bit for
bit, and outputs that differ by roundings. So does a copy, and a text that is padded or batched. What stands in the same
storage and has the same shape is computed in the same way, and is asked to be equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

ULPS = 64
"""Units in the last place of the largest output, by which an output may differ. The sum of n products in another order
is off by about √n of them at most, and each of a handful of layers adds its own. Measured: 1.5 on an AMD EPYC; 10 where
every product of matrices is summed otherwise, 39 where exponentials enlarge that (Performer). A weight that is another,
or a token that is seen or is not, makes a difference of many thousands."""
PRODUCTS = [getattr(torch.ops.aten, name) for name in ("mm", "addmm", "bmm", "baddbmm")]


def check_weights(found: nn.Module, wanted: nn.Module, *, unread: Collection[str] = ()) -> None:
    """The same tensors under the same names, bit for bit, but for those that no forward pass reads."""
    ours, theirs = found.state_dict(), wanted.state_dict()
    assert ours.keys() == theirs.keys()
    different = {name for name, tensor in ours.items() if not torch.equal(tensor, theirs[name])} - set(unread)
    assert not different, different


def check_outputs(found: Tensor, wanted: Tensor, ulps: int = ULPS) -> None:
    """Equal within so many units in the last place of the largest output; what is infinite is the same infinity."""
    largest = wanted[wanted.isfinite()].abs().max().item() if wanted.isfinite().any() else 0.0
    torch.testing.assert_close(found, wanted, rtol=0, atol=ulps * torch.finfo(wanted.dtype).eps * largest)


def misaligned(tensor: Tensor) -> Tensor:
    """A copy of float32 numbers that begins four bytes behind where an allocator would put it: a view into more."""
    room = torch.empty(tensor.numel() + 64, dtype=tensor.dtype)
    first = (-room.data_ptr() % 64 + 4) // room.element_size()
    return room[first : first + tensor.numel()].view(tensor.shape).copy_(tensor.detach())


def misalign(model: nn.Module) -> nn.Module:
    """The same model, whose parameters are misaligned from now on."""
    for parameter in model.parameters():
        parameter.data = misaligned(parameter)
    return model


class ForeignProcessor(TorchDispatchMode):
    """Products of matrices that are not aligned to 64 bytes are summed from the other end, whatever runs the test."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._overloadpacket in PRODUCTS:
            *others, left, right = args
            if left.data_ptr() % 64 or right.data_ptr() % 64:
                args = (*others, left.flip(-1), right.flip(-2))
        return func(*args, **(kwargs or {}))
