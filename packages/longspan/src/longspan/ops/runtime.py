"""The runtime of operators: caching, piece sizes, and support for derivatives.

Layouts and masks are the same in every layer and step. With varying lengths, most are never requested again; a limit on
entries would not bound memory, since a mask may take a kilobyte or a hundred megabytes: the cache is limited in bytes.
"""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._C import _functorch  # type: ignore[attr-defined]
from torch.autograd import forward_ad

from longspan.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")

BUDGET = 32 << 20
"""Maximum bytes of all cache entries."""
ALWAYS = 4
"""The newest entries are kept whatever their size: a layer with a large pattern does not recompute its masks in each
call."""
OVERHEAD = 1024
"""Bytes per entry, and per tensor in it, besides its data: an estimate of the overhead of Python and PyTorch."""

is_transforming: Callable[[], list[Any] | None] = _functorch.get_interpreter_stack
"""The active transforms of `torch.func`: tensors created now belong to them, and become invalid with them.

PyTorch's own function and none around it: where a graph breaks, Dynamo compiles Python functions one by one, and it
cannot trace this one."""


class LayoutCache:
    """A cache limited in bytes; the least recently used entry is evicted first."""

    def __init__(self, budget: int = BUDGET) -> None:
        self.budget = budget
        self.bytes = 0
        """Current bytes of all entries."""
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()  # gradients are computed in other threads

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, compute: Callable[[], R]) -> R:
        """Returns the entry of a key, computed by `compute()` if it is missing. Entries are shared and must not be
        modified."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key][0]
        with torch.inference_mode(False):  # the next call may record gradients
            value = compute()  # outside the lock, because it may request entries itself
        if is_transforming():
            return value
        with self._lock:
            if key not in self._entries:
                self._entries[key] = value, weight(value)
                self.bytes += self._entries[key][1]
            while self.bytes > self.budget and len(self._entries) > ALWAYS:
                self.bytes -= self._entries.popitem(last=False)[1][1]
        return value

    def clear(self) -> None:
        """Removes all entries."""
        with self._lock:
            self._entries.clear()
            self.bytes = 0


LAYOUT_CACHE = LayoutCache()
"""Shared by all operators."""


def cached(function: Callable[P, R]) -> Callable[P, R]:
    """Caches the results of a function of hashable arguments; they must not be modified.

    While a graph is compiled, the function is called directly: tensors of a graph must not be cached.
    """

    @wraps(function)
    def looked_up(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        return LAYOUT_CACHE.get((function, args, tuple(kwargs.items())), lambda: function(*args, **kwargs))

    return looked_up


def constant_in_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """Marks a function of the device or the settings, whose result a compiled graph holds as a constant: as
    `torch.compiler.assume_constant_result`, which imports the compiler, and that takes seconds."""
    function._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    return function


class _Pass(threading.local):
    entries: dict[Hashable, tuple[Any, Any]] | None = None


_PASS = _Pass()


@contextmanager
def one_pass() -> Iterator[None]:
    """Marks one pass through a model, during which masks do not change: tensors that its layers derive from masks are
    computed once.

    A mask is identified by object, because comparing its values would synchronise a GPU; so nothing is kept after the
    pass.
    """
    before, _PASS.entries = _PASS.entries, {} if _PASS.entries is None else _PASS.entries
    try:
        yield
    finally:
        _PASS.entries = before


def shared_in_pass(function: Callable[..., R]) -> Callable[..., R]:
    """Computes a function of positional tensors and hashable arguments once per `one_pass`, and anew outside of it and
    while a graph is compiled. Its results must not be modified."""

    @wraps(function)
    def looked_up(*args: Any) -> R:
        entries = None if torch.compiler.is_compiling() else _PASS.entries
        if entries is None or _functorch.get_interpreter_stack():
            return function(*args)
        key = (function, *(id(argument) if isinstance(argument, Tensor) else argument for argument in args))
        if key not in entries:
            entries[key] = function(*args), args  # keeps the tensors alive, so that no other tensor gets their id
        return entries[key][0]

    return looked_up


def is_distributed() -> bool:
    """Whether `torch.distributed` is initialised, with any number of processes."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def weight(value: Any) -> int:
    """Returns the bytes of a result: the storage of its tensors, and their overhead."""
    return OVERHEAD + sum(OVERHEAD + tensor.untyped_storage().nbytes() for tensor in _tensors(value))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)
    elif is_dataclass(value):
        for part in fields(value):
            yield from _tensors(getattr(value, part.name))


# Piece sizes by device. On a CPU, many small pieces are faster than one, because a piece that fits the cache next to a
# core stays there between steps. On a GPU, launching a piece takes about as long as computing a million products: there
# a piece is as large as a bound on memory allows, and up to that bound the number of launches does not grow with the
# length.


@dataclass(frozen=True)
class Sizes:
    """Numbers computed at a time, in float32 or wider; temporary memory is a few times as large.

    Attributes:
        tile_scores: scores of the tiles of a pattern.
        least_tile_scores: the minimum worth a step; with as many, one head is enough.
        short_pieces: number of pieces for short inputs, where allocating working memory costs more than splitting.
        biased_scores: scores of full attention with a bias.
        dense_scores: scores of all pairs of all heads and rows, up to which a GPU is faster than with a sparse form.
        top_scores: scores of all pairs, of which the highest are selected.
        tree_scores: scores of a tree of spans, and labels of its edges.
        sorted_scores: scores of sorted blocks, and of buckets.
        causal_numbers: sums, scores and features of causal linear attention.
        product_rows: rows of vectors in row-wise dot products.
    """

    tile_scores: int
    least_tile_scores: int
    short_pieces: int
    biased_scores: int
    dense_scores: int
    top_scores: int
    tree_scores: int
    sorted_scores: int
    causal_numbers: int
    product_rows: int


PROCESSOR = Sizes(
    tile_scores=1 << 20,
    least_tile_scores=1 << 16,
    short_pieces=6,
    biased_scores=1 << 19,
    dense_scores=0,
    top_scores=1 << 20,
    tree_scores=1 << 20,
    sorted_scores=1 << 18,
    causal_numbers=1 << 19,
    product_rows=1 << 12,
)
"""Two megabytes, about the cache next to a core, and twice that for two operands."""

GPU = Sizes(
    tile_scores=1 << 28,
    least_tile_scores=1 << 28,
    short_pieces=1,
    biased_scores=1 << 28,
    dense_scores=1 << 25,
    top_scores=1 << 29,
    tree_scores=1 << 28,
    sorted_scores=1 << 28,
    causal_numbers=1 << 28,
    product_rows=1 << 62,
)
"""One gigabyte, and twice that for scores of all pairs. Twelve heads reach it at 64 thousand tokens with a window of
128 tokens to each side."""


SIZES = {False: PROCESSOR, True: GPU}
"""By `Tensor.is_cuda`."""


# Half precision on a CPU. Scores, softmax and sums are float32 in each way; the ways differ in rounding only. Which is
# fastest, by up to twenty times, depends on the instructions of the CPU. These are queried, not measured: timing would
# choose differently in another run.

HALF_WAYS = ("kernel", "bfloat16", "float32")
"""`"kernel"`: chunks of a forward pass with PyTorch's attention kernel, and calls that it does not support as in the
second way; `"bfloat16"`: scores by products in float32, everything else by products in bfloat16; `"float32"`: all
products in float32, which the second way also uses for float16, whose sums may overflow."""
HALF_VARIABLE = "LONGSPAN_HALF_PRECISION"
"""The environment variable that selects one of them for all inputs."""


def half_way(dtype: torch.dtype) -> str:
    """Returns the entry of `HALF_WAYS` for inputs of bfloat16 or float16 on this CPU.

    Raises:
        InputError: the environment variable has an unknown value.
    """
    way = os.environ.get(HALF_VARIABLE) or _fastest_half_way(dtype)
    if way not in HALF_WAYS:
        raise InputError(f"{HALF_VARIABLE}={way!r} is no way of half precision; name one of {', '.join(HALF_WAYS)}")
    return way


@cache
def _fastest_half_way(dtype: torch.dtype) -> str:
    """Based on measurements (log, 2026-11) on CPUs with matrix units, with bfloat16 instructions alone, and with
    neither."""
    if not torch.backends.mkldnn.is_available():  # without oneDNN, PyTorch has no fast half-precision products
        return "float32"
    if dtype == torch.float16:
        return "kernel" if torch.ops.mkldnn._is_mkldnn_fp16_supported() else "float32"
    if torch.cpu._is_amx_tile_supported():
        return "kernel"
    # On x86, oneDNN also reports support for bfloat16 that is emulated and slower, so the instructions are checked.
    intel_like = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    native_bfloat16 = torch.cpu._is_avx512_bf16_supported() if intel_like else True
    return "bfloat16" if native_bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported() else "float32"


class Buffers:
    """Named working memory, reused from chunk to chunk.

    Attributes:
        wide: dtype of scores and sums, float32 or wider.
        narrow: dtype of matrix products that do not need precision.
    """

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.wide = torch.promote_types(like.dtype, torch.float32)
        self.narrow = self.wide
        if like.dtype == torch.bfloat16 and (like.is_cuda or half_way(like.dtype) != "float32"):
            self.narrow = torch.bfloat16
        self.tensors: dict[tuple[str, torch.dtype], Tensor] = {}
        self.layouts: dict[tuple[str, torch.dtype], tuple[int, ...]] = {}

    def take(self, name: str, *shape: int, dtype: torch.dtype) -> Tensor:
        """Returns an uninitialised contiguous tensor of this shape, overwriting the last one of this name and dtype."""
        size, place = math.prod(shape), (name, dtype)
        if place not in self.tensors or self.tensors[place].numel() < size:
            self.tensors[place] = self.like.new_empty(size, dtype=dtype)
        return self.tensors[place][:size].view(shape)

    def take_filled(self, name: str, *shape: int, dtype: torch.dtype, fill: float, layout: tuple[int, ...]) -> Tensor:
        """As `take`, with `fill` at positions that are never written under one `layout`."""
        tensor, place = self.take(name, *shape, dtype=dtype), (name, dtype)
        if self.layouts.get(place) != layout:
            tensor.fill_(fill)
            self.layouts[place] = layout
        return tensor

    def cast(self, name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns the tensor in `dtype`: itself, or a contiguous copy in the buffer `name`."""
        return tensor if tensor.dtype == dtype else self.take(name, *tensor.shape, dtype=dtype).copy_(tensor)


def full_precision(tensor: Tensor) -> torch.autocast:
    """Returns a context in which autocast keeps matrix products in the dtype of their inputs."""
    return torch.autocast(tensor.device.type, enabled=False)


def keeps_bfloat16(tensor: Tensor) -> bool:
    """Whether features of a tensor are stored in bfloat16, and accumulated in float32.

    On a GPU, memory traffic dominates the cost of features, and tensor cores accumulate in float32. The range of
    float16 is too small for sums. Compiled graphs fuse the steps themselves, and other derivatives use the plain steps.
    """
    plain = tensor.is_cuda and tensor.dtype == torch.bfloat16 and not torch.compiler.is_compiling()
    return plain and not is_transforming() and not has_tangent(tensor)


def wide_product(left: Tensor, right: Tensor) -> Tensor:
    """Computes `(N, T, ·) @ (N, ·, S)` in float32 or wider. Tensors for which `keeps_bfloat16` holds are read in
    bfloat16, because tensor cores accumulate in float32; not with gradients, which PyTorch does not support for it."""
    wide = torch.promote_types(right.dtype, torch.float32)
    learns = torch.is_grad_enabled() and (left.requires_grad or right.requires_grad)
    if keeps_bfloat16(right) and not learns:
        return torch.bmm(left.to(right.dtype), right, out_dtype=wide)
    return left.to(wide) @ right.to(wide)


def dropout_factors(weights: Tensor, prob: float, generator: torch.Generator) -> Tensor:
    """Returns dropout factors from a generator, which can reproduce them: 1/(1 − p) or 0, shaped like `weights`."""
    factors = torch.empty_like(weights).bernoulli_(1 - prob, generator=generator)
    return factors.div_(1 - prob) if prob < 1 else factors


def seeded(seed: int, number: int, device: torch.device) -> torch.Generator:
    """Returns the generator of part `number` of an operator's work, so that its backward pass can reproduce the
    draws."""
    return torch.Generator(device=device).manual_seed((seed + number * 0x9E3779B1) % 2**63)


def softmax_gradient(slopes: Tensor, weights: Tensor, factors: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the gradients of scores, and the weights after dropout, `(…, S)` both.

    Args:
        slopes: the gradients of the weights after dropout; overwritten.
        weights: the softmax weights before dropout.
        factors: their `dropout_factors`, overwritten; `None` without dropout.
    """
    used = weights
    if factors is not None:
        slopes.mul_(factors)
        used = factors.mul_(weights)
    return torch._softmax_backward_data(slopes, weights, -1, weights.dtype, grad_input=slopes), used


def gradients_in_steps(
    function: Callable[..., Any], inputs: tuple[Tensor, ...], grads: Tensor | tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """Returns the gradients of a function's inputs as steps that autograd follows, so that they can be differentiated
    again; `None` for inputs without a gradient. `grads` are those of its results."""
    needed = [tensor for tensor in inputs if tensor.requires_grad]
    slopes = iter(torch.autograd.grad(function(*inputs), needed, grads, create_graph=True))
    return tuple(next(slopes) if tensor.requires_grad else None for tensor in inputs)


def register_gradient(operator: Any, backward: Any, *, tensors: int) -> None:
    """Registers the operator `backward` as the gradient of `operator`: it takes the gradient of the result and all
    arguments, of which the first `tensors` are tensors, and returns gradients for the leading arguments, one per
    result."""

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:tensors])
        ctx.options = inputs[tensors:]

    def gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grads = backward(grad.contiguous(), *ctx.saved_tensors, *ctx.options)
        return *grads, *([None] * (tensors + len(ctx.options) - len(grads)))

    operator.register_autograd(gradient, setup_context=setup)


def run(operator: Callable[..., Any], kernel: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the result of `operator`, whose implementation on real tensors is `kernel`.

    An operator provides gradients and is opaque to `torch.compile` and `torch.export`. If neither is needed, the kernel
    is called directly: the first call of a Python operator imports PyTorch's compiler, which takes longer than reading
    a short document.
    """
    watched = torch.is_grad_enabled() or torch.compiler.is_compiling()
    return operator(*arguments) if watched else kernel(*arguments)


def has_tangent(*tensors: Tensor | None) -> bool:
    """Whether one of the tensors carries a forward-mode tangent (`torch.func.jvp`, `jacfwd`)."""
    if forward_ad._current_level < 0:
        return False
    return any(tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def needs_reference(*tensors: Tensor | None) -> bool:
    """Whether a transform is active that PyTorch does not support for custom operators: forward mode, or a
    differentiating one of `torch.func` (`grad`, `vjp`, `jacrev`, `hessian`)."""
    if forward_ad._current_level >= 0 and has_tangent(*tensors):
        return True
    if torch.compiler.is_compiling():
        return False
    differentiating = (_functorch.TransformType.Grad, _functorch.TransformType.Jvp)
    return any(level.key() in differentiating for level in _functorch.get_interpreter_stack() or ())


def derivatives_of(*tensors: Tensor | None) -> int:
    """Returns which derivatives besides backward apply to these tensors: 2 for forward mode, 1 for transforms of
    `torch.func` alone, 0 for neither."""
    if forward_ad._current_level >= 0 and has_tangent(*tensors):
        return 2
    if torch.compiler.is_compiling() or not is_transforming():
        return 0
    return int(needs_reference(*tensors))
