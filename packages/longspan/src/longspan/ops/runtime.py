"""How operators run: what they compute once and keep, how much at a time, and the derivatives that they do not have.

Layouts and masks are the same in every layer and step. Where lengths vary, most are never asked for again; a number of
entries would bound nothing, since one mask may have a kilobyte or a hundred megabytes: the cache has a number of bytes.
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
"""Bytes that all entries of the cache may have together."""
ALWAYS = 4
"""The newest entries stay whatever their size: a layer with a large pattern does not compute its masks in each call."""
OVERHEAD = 1024
"""Bytes of an entry, and of each tensor in it, besides its numbers: about what Python and PyTorch need for them."""


class LayoutCache:
    """Results by what they were computed from; when they are too many bytes, the one unused for longest goes first."""

    def __init__(self, budget: int = BUDGET) -> None:
        self.budget = budget
        self.bytes = 0
        """What all entries weigh now."""
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()  # gradients are computed in threads of their own

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, compute: Callable[[], R]) -> R:
        """The entry of a key, by `compute()` where there is none; it is shared, and must not be changed."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key][0]
        with torch.inference_mode(False):  # the next call may be one that learns
            value = compute()  # not under the lock: it may ask for entries itself
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
        """Forget all entries."""
        with self._lock:
            self._entries.clear()
            self.bytes = 0


LAYOUT_CACHE = LayoutCache()
"""Shared by all operators."""


def cached(function: Callable[P, R]) -> Callable[P, R]:
    """A function of hashable arguments whose results are cached, and must not be changed.

    While a graph is compiled it is called as it stands: what a graph holds is for one call, and not to be cached.
    """

    @wraps(function)
    def looked_up(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        return LAYOUT_CACHE.get((function, args, tuple(kwargs.items())), lambda: function(*args, **kwargs))

    return looked_up


class _Pass(threading.local):
    entries: dict[Hashable, tuple[Any, Any]] | None = None


_PASS = _Pass()


@contextmanager
def one_pass() -> Iterator[None]:
    """One pass through a model, in which nobody writes into a mask: what its layers derive of masks is computed once.

    A mask is known by being the same tensor, since to compare its numbers would wait for them on a GPU; so nothing is
    kept from one pass to the next.
    """
    before, _PASS.entries = _PASS.entries, {} if _PASS.entries is None else _PASS.entries
    try:
        yield
    finally:
        _PASS.entries = before


def shared_in_pass(function: Callable[..., R]) -> Callable[..., R]:
    """A function of tensors and hashable arguments by position, computed once for the same ones in `one_pass`, and anew
    elsewhere and while a graph is compiled. Its results must not be changed."""

    @wraps(function)
    def looked_up(*args: Any) -> R:
        entries = None if torch.compiler.is_compiling() else _PASS.entries
        if entries is None or _functorch.get_interpreter_stack():
            return function(*args)
        key = (function, *(id(each) if isinstance(each, Tensor) else each for each in args))
        if key not in entries:
            entries[key] = function(*args), args  # which holds the tensors, so that no other gets their id
        return entries[key][0]

    return looked_up


def is_distributed() -> bool:
    """Whether `torch.distributed` has been initialised, by torchrun's processes or by a group of one."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def weight(value: Any) -> int:
    """Bytes of a result: the memory behind its tensors, and what it costs to hold them."""
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


# How much is computed at once, by device. A piece that fits the cache next to a core stays there from step to step, so
# that on a processor many small pieces are faster than one. A GPU takes about as long to be told of a piece as to
# compute a million products: there a piece is as large as a bound on memory allows, and up to that bound the number of
# launches does not grow with the text.


@dataclass(frozen=True)
class Sizes:
    """Numbers at a time, all in float32 at least; what is computed beside them is a few times as much.

    Attributes:
        tile_scores: of the tiles of a pattern.
        least_tile_scores: fewer are not worth the steps; with as many, one head is enough.
        short_pieces: short inputs are still cut into so many, where fresh working memory costs more than that saves.
        biased_scores: of full attention with a bias.
        dense_scores: of all pairs of all heads and rows, where the steps of a sparse form would take a GPU longer.
        top_scores: of all pairs, of which the highest are picked.
        tree_scores: of a tree of spans, and labels of its edges.
        sorted_scores: of sorted blocks, and of buckets.
        causal_numbers: sums, scores and features of causal linear attention.
        product_rows: rows of vectors multiplied one by one.
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
"""Two megabytes, about the cache next to a core, and twice that where two are read in turn."""

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
"""A gigabyte, and twice that for scores of all pairs. Twelve heads reach it at 64 thousand tokens, in a window of 128
tokens to each side."""


SIZES = {False: PROCESSOR, True: GPU}
"""By whether a tensor is on a GPU, `Tensor.is_cuda`."""


# How half precision is multiplied on a processor. Scores, softmax and sums are float32 in every way, which differ in
# rounding only; which one is fastest, by up to twenty times, depends on what the processor multiplies by itself. It is
# asked for that, and not measured: a clock would choose otherwise in another run.

HALF_WAYS = ("kernel", "bfloat16", "float32")
"""`"kernel"`: chunks of a forward pass by PyTorch's own attention kernel, what that does not serve as by the second;
`"bfloat16"`: scores by products in float32, all else by products in bfloat16; `"float32"`: all products in float32, as
those of float16, whose sums may overflow, are by the second way too."""
HALF_VARIABLE = "LONGSPAN_HALF_PRECISION"
"""The variable of the environment that names one of them for all inputs, whatever the processor."""


def half_way(dtype: torch.dtype) -> str:
    """By which of `HALF_WAYS` inputs of bfloat16 or float16 are computed on this processor.

    Raises:
        InputError: the environment names another.
    """
    way = os.environ.get(HALF_VARIABLE) or _fastest_half_way(dtype)
    if way not in HALF_WAYS:
        raise InputError(f"{HALF_VARIABLE}={way!r} is no way of half precision; name one of {', '.join(HALF_WAYS)}")
    return way


@cache
def _fastest_half_way(dtype: torch.dtype) -> str:
    """As measured (log, 2026-11) on processors with matrix units, with instructions for bfloat16 alone, and with
    neither."""
    if not torch.backends.mkldnn.is_available():  # nobody to ask, and nobody who multiplies it faster
        return "float32"
    if dtype == torch.float16:
        return "kernel" if torch.ops.mkldnn._is_mkldnn_fp16_supported() else "float32"
    if torch.cpu._is_amx_tile_supported():
        return "kernel"
    # On other kinds oneDNN says so itself; on this one it also means products that are converted, and slower.
    intel_like = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    own = torch.cpu._is_avx512_bf16_supported() if intel_like else True
    return "bfloat16" if own and torch.ops.mkldnn._is_mkldnn_bf16_supported() else "float32"


class Buffers:
    """Working memory by name, used again from chunk to chunk.

    Attributes:
        wide: the type of scores and sums, float32 at least.
        narrow: the type of matrix products in which no precision is at stake.
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
        """An uninitialised contiguous tensor of that shape; the last one of that name and type is overwritten."""
        size, place = math.prod(shape), (name, dtype)
        if place not in self.tensors or self.tensors[place].numel() < size:
            self.tensors[place] = self.like.new_empty(size, dtype=dtype)
        return self.tensors[place][:size].view(shape)

    def take_filled(self, name: str, *shape: int, dtype: torch.dtype, fill: float, layout: tuple[int, ...]) -> Tensor:
        """The same, with `fill` in places that are never written under one `layout`."""
        tensor, place = self.take(name, *shape, dtype=dtype), (name, dtype)
        if self.layouts.get(place) != layout:
            tensor.fill_(fill)
            self.layouts[place] = layout
        return tensor

    def cast(self, name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """The tensor in `dtype`: itself, or a contiguous copy in the memory called `name`."""
        return tensor if tensor.dtype == dtype else self.take(name, *tensor.shape, dtype=dtype).copy_(tensor)


def full_precision(tensor: Tensor) -> torch.autocast:
    """A context in which autocast leaves matrix products in the type of their inputs."""
    return torch.autocast(tensor.device.type, enabled=False)


def keeps_bfloat16(tensor: Tensor) -> bool:
    """Whether what is made of each number of a tensor is stored in bfloat16 like it, and only added up in float32.

    On a GPU memory is what features cost, and tensor cores add up in float32. float16 has too small a range for sums.
    A graph fuses the steps itself, and derivatives of another kind follow the plain ones.
    """
    plain = tensor.is_cuda and tensor.dtype == torch.bfloat16 and not torch.compiler.is_compiling()
    return plain and not is_transforming() and not has_tangent(tensor)


def wide_product(one: Tensor, other: Tensor) -> Tensor:
    """`(N, T, ·) @ (N, ·, S)` in float32 at least. What keeps bfloat16 is read in it, since tensor cores give sums of
    such products in float32; PyTorch has no derivative of that, so not where something is learned."""
    wide = torch.promote_types(other.dtype, torch.float32)
    learns = torch.is_grad_enabled() and (one.requires_grad or other.requires_grad)
    if keeps_bfloat16(other) and not learns:
        return torch.bmm(one.to(other.dtype), other, out_dtype=wide)
    return one.to(wide) @ other.to(wide)


def dropout_factors(weights: Tensor, prob: float, generator: torch.Generator) -> Tensor:
    """Dropout by a generator of its own, which gives it again: 1/(1 − p) where a weight stays, else 0, shaped like
    `weights`."""
    factors = torch.empty_like(weights).bernoulli_(1 - prob, generator=generator)
    return factors.div_(1 - prob) if prob < 1 else factors


def seeded(seed: int, number: int, device: torch.device) -> torch.Generator:
    """The generator of part `number` of an operator's work, so that its backward pass draws the same again."""
    return torch.Generator(device=device).manual_seed((seed + number * 0x9E3779B1) % 2**63)


def softmax_gradient(slopes: Tensor, weights: Tensor, factors: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradients of scores, and the weights after dropout that values were mixed by, `(…, S)` both.

    Args:
        slopes: the gradients of the weights after dropout, which are overwritten.
        weights: of the softmax, before dropout.
        factors: `dropout_factors` of them, which are overwritten; `None` without dropout.
    """
    used = weights
    if factors is not None:
        slopes.mul_(factors)
        used = factors.mul_(weights)
    return torch._softmax_backward_data(slopes, weights, -1, weights.dtype, grad_input=slopes), used


def register_gradient(operator: Any, backward: Any, *, tensors: int) -> None:
    """Let the operator `backward` give the gradients of another: it takes the gradient of the result and all arguments
    of that, the first `tensors` of which are tensors, and gives gradients for as many arguments, from the first on, as
    it has results."""

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:tensors])
        ctx.options = inputs[tensors:]

    def gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grads = backward(grad.contiguous(), *ctx.saved_tensors, *ctx.options)
        return *grads, *([None] * (tensors + len(ctx.options) - len(grads)))

    operator.register_autograd(gradient, setup_context=setup)


def run(operator: Callable[..., Any], kernel: Callable[..., Any], *arguments: Any) -> Any:
    """The result of `operator`, whose implementation on real tensors is `kernel`.

    An operator gives gradients and stays opaque to `torch.compile` and `torch.export`. Where neither is wanted the
    kernel says the same: the first call of a Python operator imports PyTorch's whole compiler, which takes longer than
    reading a short document.
    """
    watched = torch.is_grad_enabled() or torch.compiler.is_compiling()
    return operator(*arguments) if watched else kernel(*arguments)


def has_tangent(*tensors: Tensor | None) -> bool:
    """Whether one of the tensors carries a forward-mode tangent (`torch.func.jvp`, `jacfwd`)."""
    if forward_ad._current_level < 0:
        return False
    return any(tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def needs_reference(*tensors: Tensor | None) -> bool:
    """Whether a transform is at work that PyTorch does not carry through operators like ours: forward mode, or one of
    `torch.func` that differentiates (`grad`, `vjp`, `jacrev`, `hessian`)."""
    if forward_ad._current_level >= 0 and has_tangent(*tensors):
        return True
    if torch.compiler.is_compiling():
        return False
    differentiating = (_functorch.TransformType.Grad, _functorch.TransformType.Jvp)
    return any(level.key() in differentiating for level in _functorch.get_interpreter_stack() or ())


def derivatives_of(*tensors: Tensor | None) -> int:
    """What these tensors are differentiated by beside plain backward: 2 for forward mode, 1 for transforms of
    `torch.func` alone, 0 for neither."""
    if forward_ad._current_level >= 0 and has_tangent(*tensors):
        return 2
    return int(not torch.compiler.is_compiling() and is_transforming() and needs_reference(*tensors))


def is_transforming() -> bool:
    """Whether a transform of `torch.func` is at work: tensors made now belong to it, and end with it."""
    return bool(_functorch.get_interpreter_stack())
