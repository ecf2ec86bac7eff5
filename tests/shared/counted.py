"""Counts of work, instead of times that depend on the machine and its load: launches, FLOPs, bytes, synchronisations,
peak memory; and lines of Python.

    with Work() as work:
        module(hidden).sum().backward()
    work.operations, work.flops, work.bytes, work.waits, work.peak

On a GPU an operation is a kernel launch, and a wait is a point at which the host blocks until the device has finished.
Both are properties of the code, not of the device: tensors on the CPU, on `meta`, or of a `FakeCuda` count alike.
"""

from __future__ import annotations

import math
import re
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from types import FrameType
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
"""FLOPs of operators for which PyTorch has no formula: full attention on a CPU, and products with a result of another
dtype; other modules may add theirs."""

WAITS = re.compile(
    r"aten::(_local_scalar_dense|nonzero|masked_select|_unique2?|unique_(dim|consecutive)|equal|bincount|is_nonzero)$"
)
"""Operators whose results or shapes the host must read."""

NO_KERNEL = {
    *(aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided, aten.new_empty_strided, aten.resize_),
    aten._unsafe_view,  # a view, which only autograd treats as a new tensor
}
"""Operators that allocate memory without writing to it."""

UNREAD = re.compile(r"aten::((new_)?(zeros|ones|full|empty)(_like)?|rand\w*_like|copy_|fill_|zero_|bernoulli_)$")
"""Operators that do not read their first tensor: they use its shape, or overwrite it."""


class Work(TorchDispatchMode):
    """Counts the work of a computation.

    Our custom operators are expanded: the operations inside them are counted. Views move nothing. Indexing reads the
    selected rows, not the table; in-place updates of rows write those rows. What a view repeats is read once, and
    overwritten memory is not read.

    Attributes:
        operations: operations that write memory, each a kernel launch.
        flops: FLOPs of matrix products.
        bytes: bytes read or written.
        waits: synchronisations: values read by the host, lengths that depend on data, copies from and to the host.
        largest: elements of the largest tensor created.
        peak: largest number of bytes of created tensors alive at once.
        kernels: number of calls by operator.
        waited: number of synchronisations by operator.

    Args:
        device: count only operations on devices of this type, such as `"cuda"`, excluding those of the host; `None` for
            all.
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
        if func not in self._simple:  # inside our operators, PyTorch's composite operators are not decomposed
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
            self._simple.add(func)
        result = func(*args, **kwargs)
        if func.is_view:
            return result
        inputs = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)]
        made = [tensor for tensor in tree_leaves(result) if isinstance(tensor, Tensor)]
        if self.device is not None and not any(tensor.device.type == self.device for tensor in (*inputs, *made)):
            return result
        self._follow(made)
        if _waits(func, args, inputs, made):
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
            inputs, made = inputs[1:], [tensor for tensor in made if tensor is not inputs[0]]
        read = inputs[1:] if UNREAD.match(func._schema.name) else inputs
        read = [tensor for tensor in read if not any(tensor is other for other in _written_only(func, kwargs))]
        self.launched(func, sum(moved_bytes(tensor) for tensor in (*read, *made)), flops, inputs)
        return result

    def launched(self, func: Any, moved: int, flops: int, given: list[Tensor]) -> None:
        """Records a kernel: its operator, the bytes that it reads and writes, its FLOPs, and its input tensors."""
        self.operations += 1
        self.kernels[func._schema.name] += 1
        self.flops += flops
        self.bytes += moved

    def _follow(self, tensors: list[Tensor]) -> None:
        """Tracks the memory of new tensors until it is freed."""
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
    """Returns the bytes moved by reading or writing a tensor. What a view repeats counts once: expanded dimensions
    (stride 0), and windows that overlap, which follow each other closely enough to be read from the cache."""
    sizes = [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    if not tensor.numel():
        return 0
    covered = 1 + sum((size - 1) * stride for size, stride in sizes)
    return min(math.prod(size for size, _ in sizes), covered) * tensor.element_size()


def _written_only(func: Any, kwargs: dict[str, Any]) -> list[Tensor]:
    return [kwargs[argument.name] for argument in func._schema.arguments if argument.is_out and argument.name in kwargs]


def _waits(func: Any, args: Any, given: list[Tensor], made: list[Tensor]) -> bool:
    """Whether the host must wait for the device, or for a copy, before it continues."""
    packet = func._overloadpacket
    if WAITS.match(func._schema.name):
        return True
    if packet in (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_):
        flags = [
            tensor for tensor in args[1] if isinstance(tensor, Tensor) and tensor.dtype in (torch.bool, torch.uint8)
        ]
        # Writing a single number by a mask does not look up its positions.
        return bool(flags) and not (packet is not aten.index and args[2].numel() == 1)
    if packet is aten.repeat_interleave:
        return True  # with a known length PyTorch does not get here
    if packet in (aten._to_copy, aten.copy_):
        tensors = {tensor.device.type for tensor in (*given, *made)}
        return len(tensors) > 1
    return False


def lines_run(function: Callable[..., object], *arguments: Any) -> int:
    """How many lines of Python a call runs, a loop's as often as it goes round; what C does by itself is not seen.

    An input on which C would take the square of its length belongs beside it: one so long that the test would not end.
    """
    lines = 0

    def seen(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return seen

    before = sys.gettrace()
    sys.settrace(seen)
    try:
        function(*arguments)
    finally:
        sys.settrace(before)
    return lines


def exponent(small: float, large: float, times: float) -> float:
    """By which power of its input work has grown that was `small`, and is `large` for an input `times` as large."""
    return math.log(large / small) / math.log(times)
