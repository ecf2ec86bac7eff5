"""Work that is counted, since a clock measures the machine and its load: launches, FLOPs, bytes, waits, peak memory.

    with Work() as work:
        module(hidden).sum().backward()
    work.operations, work.flops, work.bytes, work.waits, work.peak

On a GPU an operation is a kernel to launch, and a wait is a point at which the host stands still until the device has
caught up. Both are properties of the code, not of the device: tensors on the processor, on `meta`, or of a `FakeCuda`
count alike.
"""

from __future__ import annotations

import math
import re
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

aten = torch.ops.aten

INDEXED = re.compile(r"aten::(_?index|gather|scatter|embedding$|masked_select)")
"""Operators whose first tensor is a table of which they read or write some rows."""

FLOPS: dict[Any, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: lambda *args, **_: sdpa_flop_count(
        *(tensor.shape for tensor in args[:3])
    ),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda *args, **_: sdpa_backward_flop_count(
        *(tensor.shape for tensor in args[:4])
    ),
    aten.bmm: lambda one, other, *_, **__: 2 * one.numel() * other.shape[-1],
}
"""FLOPs of operators for which PyTorch has no count: full attention on a processor, and products whose result is of
another type; others may add theirs."""

WAITS = re.compile(
    r"aten::(_local_scalar_dense|nonzero|masked_select|_unique2?|unique_(dim|consecutive)|equal|bincount|is_nonzero)$"
)
"""Operators whose results, or their shapes, the host must know."""

NO_KERNEL = {
    *(aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided, aten.new_empty_strided, aten.resize_),
    aten._unsafe_view,  # a view, which only autograd takes for a new tensor
}
"""Operators that give memory without writing to it."""

UNREAD = re.compile(r"aten::((new_)?(zeros|ones|full|empty)(_like)?|rand\w*_like|copy_|fill_|zero_|bernoulli_)$")
"""Operators that do not read their first tensor: they ask for its shape, or overwrite it."""


class Work(TorchDispatchMode):
    """What a computation does.

    Our own operators are opened: what counts is what they do inside. A view moves nothing. What looks up rows of a
    table reads those rows, and not the table; what changes some rows of a tensor in place writes those. Numbers that
    are repeated without a copy are read once, and memory that is overwritten is not read.

    Attributes:
        operations: that write memory, each a kernel to launch.
        flops: of the products of matrices.
        bytes: that are read or written.
        waits: operations after which the host must wait for the device: values read, lengths that depend on data,
            copies from the host and to it.
        largest: elements of the largest tensor that was made.
        peak: the most bytes of tensors made here that were there at once.
        kernels: how often each operator ran.
        waited: how often each of those ran that wait.

    Args:
        device: count only what happens on devices of this type, such as `"cuda"`, and nothing that the host computes
            for itself; `None` for all.
    """

    def __init__(self, device: str | None = None) -> None:
        super().__init__()
        self.device = device
        self.operations = self.flops = self.bytes = self.waits = 0
        self.largest = self.alive = self.peak = 0
        self.kernels: Counter[str] = Counter()
        self.waited: Counter[str] = Counter()
        self._followed: set[int] = set()
        self._simple: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "longspan":
            with self:
                return OPDEFS[func._schema.name]._init_fn(*args, **kwargs)
        if func not in self._simple:  # inside of our operators PyTorch leaves its own, made of others, as they are
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
            self._simple.add(func)
        result = func(*args, **kwargs)
        if func.is_view:
            return result
        given = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)]
        made = [tensor for tensor in tree_leaves(result) if isinstance(tensor, Tensor)]
        if self.device is not None and not any(each.device.type == self.device for each in (*given, *made)):
            return result
        self._follow(made)
        if _waits(func, args, given, made):
            self.waits += 1
            self.waited[func._schema.name] += 1
        if func._overloadpacket in NO_KERNEL:
            return result
        count, flops = FLOPS.get(func._overloadpacket), 0
        if count is not None:
            flops = count(*args, **kwargs)
        elif (known := flop_registry.get(func._overloadpacket)) is not None:
            flops = known(*args, **kwargs, out_val=result)
        if INDEXED.match(func.name()):
            given, made = given[1:], [tensor for tensor in made if tensor is not given[0]]
        read = given[1:] if UNREAD.match(func._schema.name) else given
        read = [each for each in read if not any(each is other for other in _written_only(func, kwargs))]
        self.launched(func, sum(moved_bytes(tensor) for tensor in (*read, *made)), flops, given)
        return result

    def launched(self, func: Any, moved: int, flops: int, given: list[Tensor]) -> None:
        """Note a kernel: its operator, the bytes that it reads and writes, its FLOPs, and the tensors that it reads."""
        self.operations += 1
        self.kernels[func._schema.name] += 1
        self.flops += flops
        self.bytes += moved

    def _follow(self, tensors: list[Tensor]) -> None:
        """Count the memory of new tensors until it is given back."""
        for tensor in tensors:
            if self.device is not None and tensor.device.type != self.device:
                continue
            self.largest = max(self.largest, tensor.numel())
            storage = getattr(tensor, "elem", tensor).untyped_storage()
            if storage._cdata not in self._followed:
                self._followed.add(storage._cdata)
                self.alive += storage.nbytes()
                weakref.finalize(storage, self._forget, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.alive)

    def _forget(self, address: int, size: int) -> None:
        self._followed.discard(address)
        self.alive -= size


def moved_bytes(tensor: Tensor) -> int:
    """Bytes that reading or writing a tensor moves: what is repeated by a stride of 0 is there once."""
    counts = [size if stride else min(size, 1) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return math.prod(counts) * tensor.element_size()


def _written_only(func: Any, kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that are given as `out`."""
    return [kwargs[each.name] for each in func._schema.arguments if each.is_out and each.name in kwargs]


def _waits(func: Any, args: Any, given: list[Tensor], made: list[Tensor]) -> bool:
    """Whether the host must wait for the device, or for a copy, before it goes on."""
    packet = func._overloadpacket
    if WAITS.match(func._schema.name):
        return True
    if packet in (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_):
        flags = [each for each in args[1] if isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8)]
        # One number in the place of all that a mask shows is written without looking the places up.
        return bool(flags) and not (packet is not aten.index and args[2].numel() == 1)
    if packet is aten.repeat_interleave:
        return True  # with a known length PyTorch never gets here
    if packet in (aten._to_copy, aten.copy_):
        tensors = {each.device.type for each in (*given, *made)}
        return len(tensors) > 1
    return False
