"""A simulated CUDA device: code takes its CUDA paths, and its launches can be counted.

    with FakeCuda() as device, Work("cuda") as work:
        module.to(device)(hidden.to(device))

Values are computed on the CPU, so that results can be compared; or, with `values=False`, not at all: then only sizes
are tracked, and counting the launches for 64 thousand tokens takes about a second. Integers and flags that do not
depend on other values are always known, since layouts and masks are made of them.

Tensors of the device and of the CPU do not mix, as on CUDA. PyTorch's attention is one launch of CUDA's kernel, and
FlexAttention and what `longspan.ops.compiled` fuses are one launch each. Dropout draws other numbers than on CUDA.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.nn.attention.flex_attention import AuxOutput
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from fake_kernels import FUSED, KERNELS, SHOWN, captured_by, flex_forward, fused
from longspan.ops import compiled
from longspan.ops.attend import flex
from longspan.ops.runtime import LAYOUT_CACHE

aten = torch.ops.aten
CUDA, HOST, HOLLOW = torch.device("cuda:0"), torch.device("cpu"), torch.device("meta")
MIXING = {aten.copy_, aten._to_copy, aten.index, aten.index_put, aten.index_put_}
"""Operators that accept tensors of two devices: copies and indexing."""

FEW = 32
"""Up to this many numbers copied to the device stay known: weights that determine sizes, such as spans."""


class OnCuda(torch.Tensor):
    """A tensor of the device; `elem` holds its values, on `meta` if they are not computed.

    PyTorch's own code sees a CPU tensor, so that gradients and autocast work without CUDA; its attributes report CUDA.
    Methods that C++ would run on the CPU tensor are replaced.
    """

    elem: Tensor

    @staticmethod
    def __new__(cls, elem: Tensor) -> OnCuda:
        self = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            elem.size(),
            strides=elem.stride(),
            storage_offset=elem.storage_offset(),
            dtype=elem.dtype,
            layout=elem.layout,
            device=HOST,
        )
        self.elem = elem
        return self

    device = property(lambda self: CUDA)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if func is torch.dropout:
            return _dropout(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _execute(func, args, kwargs or {}, values=True)

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        """Changes only the dtype on the device; copies the values to the CPU."""
        if args and isinstance(args[0], Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        device = kwargs.pop("device", None)
        if args and isinstance(args[0], str | torch.device):
            device, args = args[0], args[1:]
        dtype = kwargs.get("dtype") or next((each for each in args if isinstance(each, torch.dtype)), None)
        if device is None or torch.device(device).type == "cuda":
            copy = bool(kwargs.get("copy", False))
            return _to_of_torch(self, dtype or self.dtype, copy=copy)
        return aten._to_copy(self, dtype=dtype, device=torch.device(device))

    def cpu(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.to(HOST)

    def cuda(self, *args: Any, **kwargs: Any) -> Tensor:
        return self

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")

    def backward(
        self, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, inputs: Any = None
    ) -> None:
        torch.autograd.backward(self, gradient, retain_graph, create_graph, inputs=inputs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"OnCuda({self.elem!r})"


class UnknownNumbers(RuntimeError):
    """The next step depends on values that are not computed."""


class FakeCuda(TorchDispatchMode):
    """The device within its context: `"cuda"` for `Tensor.to`, `Module.to` and tensor factories.

    Args:
        values: whether floating-point values are computed; otherwise only their sizes are known.
        capability: compute capability of the device.
    """

    def __init__(self, *, values: bool = True, capability: tuple[int, int] = (9, 0)) -> None:
        super().__init__()
        self.values, self.capability = values, capability

    def __enter__(self) -> torch.device:  # type: ignore[override]
        LAYOUT_CACHE.clear()  # layouts on another device of the same name
        autocast, self._stack = torch.autocast, ExitStack()
        for home, name, replacement in (
            (torch, "autocast", lambda kind, *args, **kwargs: autocast("cpu", *args, **kwargs)),
            (torch, "Generator", _HostGenerator),
            (torch.Tensor, "to", _to),
            (torch.Tensor, "cuda", lambda tensor: _to(tensor, CUDA)),
            (torch, "tensor", _copied(torch.tensor)),
            (torch, "as_tensor", _copied(torch.as_tensor)),
            (torch.cuda, "_lazy_init", lambda: None),
            (torch.cuda, "get_device_capability", lambda device=CUDA: self.capability),
            (torch.backends.cuda, "is_flash_attention_available", lambda: True),
            (torch.cuda, "get_rng_state", lambda device=CUDA: torch.get_rng_state()),
            (torch.cuda, "set_rng_state", lambda state, device=CUDA: torch.set_rng_state(state)),
            (
                torch.autograd,
                "has_torch_function",
                lambda given: False,
            ),  # which would run the backward pass without `OnCuda`
            (torch.inference_mode, "__enter__", torch.no_grad.__enter__),  # inference tensors have no views of ours
            (torch.inference_mode, "__exit__", torch.no_grad.__exit__),
            (flex, "_kernel", lambda: _flex_attention),
            (compiled, "compiled", _compiled),
        ):
            self._stack.enter_context(mock.patch.object(home, name, replacement))
        swaps = torch.__future__.get_swap_module_params_on_conversion()
        self._stack.callback(torch.__future__.set_swap_module_params_on_conversion, swaps)
        torch.__future__.set_swap_module_params_on_conversion(True)  # `Module.to` keeps parameters, as on CUDA
        super().__enter__()
        return CUDA

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()
        LAYOUT_CACHE.clear()
        SHOWN.clear()
        FUSED.clear()
        _UNKNOWN.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "longspan":  # ours dispatch on the simulated device, not on that of `elem`
            TorchDispatchMode.__enter__(self)
            try:
                return OPDEFS[func._schema.name]._init_fn(*args, **(kwargs or {}))
            finally:
                TorchDispatchMode.__exit__(self, None, None, None)
        return _execute(func, args, kwargs or {}, values=self.values)


class _HostGenerator(torch.Generator):
    """A generator of any device, which draws on the CPU."""

    def __new__(cls, device: Any = HOST) -> Any:
        return super().__new__(cls, HOST)  # pyright: ignore[reportCallIssue]


_to_of_torch = torch.Tensor.to


def _to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`Tensor.to` with `"cuda"` as the device: PyTorch would query CUDA for its index."""
    if args and isinstance(args[0], str | torch.device):
        args = (_indexed(args[0]), *args[1:])
    if kwargs.get("device") is not None:
        kwargs["device"] = _indexed(kwargs["device"])
    return _to_of_torch(tensor, *args, **kwargs)


def _indexed(device: Any) -> torch.device:
    return CUDA if torch.device(device).type == "cuda" else torch.device(device)


def _copied(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wraps a function that creates tensors from data: on the CPU, then copied."""

    def made(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        tensor = make(data, *args, **kwargs)
        return tensor if device is None else tensor.to(device)

    return made


# Operators.


def _execute(func: Any, args: Any, kwargs: Any, *, values: bool) -> Any:
    """Returns the result of an operator, on the device if an argument or the `device` option is."""
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    ours = [each for each in tensors if isinstance(each, OnCuda)]
    packet, device = func._overloadpacket, kwargs.get("device")
    wants_cuda = device is not None and torch.device(device).type == "cuda"
    if not ours and not wants_cuda and not (packet is aten.zeros and _of_engine()):
        return func(*args, **kwargs)
    hosts = [each for each in tensors if not isinstance(each, OnCuda) and each.ndim]
    if ours and hosts and packet not in MIXING:
        shapes = ", ".join(str(tuple(each.shape)) for each in hosts)
        raise RuntimeError(f"{func} got tensors on cuda:0 and on cpu ({shapes}); all must be on one device")
    to_host = packet is aten._to_copy and device is not None and torch.device(device) == HOST
    # PyTorch's C++ also passes the layout, in gradients of a cast and in `type_as`, and means the tensor's own device.
    to_host = to_host and kwargs.get("layout") is None
    hollow = any(_is_unknown(each) for each in ours)
    if hollow and (to_host or packet in (aten._local_scalar_dense, aten.is_nonzero, aten.nonzero, aten.bincount)):
        raise UnknownNumbers(f"{func} asks for numbers, which FakeCuda(values=False) does not compute")
    if not values and not ours:
        hollow = _makes_floats(func, tensors, args, kwargs)

    def inner(each: Any) -> Any:
        if not isinstance(each, Tensor):
            return each
        own = each.elem if isinstance(each, OnCuda) else each
        return torch.empty_strided(own.size(), own.stride(), dtype=own.dtype, device=HOLLOW) if hollow else own

    if device is not None:
        kwargs = kwargs | {"device": HOLLOW if hollow else HOST}
    plain_args, plain_kwargs = tree_map(inner, (args, kwargs))
    result = (KERNELS.get(packet) or func)(*plain_args, **plain_kwargs)
    if to_host:
        return result
    if hollow:
        _forget_values(func, args, kwargs)
    pairs = zip(tree_leaves((args, kwargs)), tree_leaves((plain_args, plain_kwargs)), strict=True)
    known = {id(plain): outer for outer, plain in pairs if isinstance(outer, OnCuda)}

    def outer(each: Any) -> Any:
        """Returns the original tensor for in-place results."""
        if not isinstance(each, Tensor) or isinstance(each, OnCuda):
            return each
        return known[id(each)] if id(each) in known else OnCuda(each)

    return tree_map(outer, result)


def _of_engine() -> bool:
    """Whether autograd creates zeros in place of a missing gradient, which on CUDA would be on the device."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_name in ("__torch_dispatch__", "inner", "_fn", "decompose", "__call__"):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"


def _makes_floats(func: Any, given: list[Tensor], args: Any, kwargs: Any) -> bool:
    """Whether an operator that creates a tensor of the device, or copies one to it, creates floating-point values."""
    if given and given[0].numel() <= FEW:
        return False
    dtype = kwargs.get("dtype") or (given[0].dtype if given else None)
    if dtype is not None:
        return dtype.is_floating_point
    if func._overloadpacket in (aten.arange, aten.full):
        return any(isinstance(each, float) for each in args)
    return func._overloadpacket not in (aten.randint, aten.randperm)


_UNKNOWN: dict[int, Any] = {}
"""Storages whose values were known and no longer are."""


def _is_unknown(tensor: OnCuda) -> bool:
    return tensor.elem.is_meta or (bool(_UNKNOWN) and tensor.elem.untyped_storage()._cdata in _UNKNOWN)


def _forget_values(func: Any, args: Any, kwargs: Any) -> None:
    """Marks storages that an operator modified in place with unknown values."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        changed = args[place] if place < len(args) else kwargs.get(argument.name)
        for each in tree_leaves(changed):
            if isinstance(each, OnCuda) and not each.elem.is_meta:
                storage = each.elem.untyped_storage()
                _UNKNOWN[storage._cdata] = storage


# Decisions of PyTorch before an operator is dispatched.


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """One launch of CUDA's kernel: FlashAttention in half precision without a mask, otherwise the memory-efficient
    one."""
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (each.to(torch.get_autocast_dtype("cpu")) for each in (query, key, value))
    if enable_gqa:
        key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value))
    added = 4 - query.ndim
    query, key, value = (each[(None,) * added] for each in (query, key, value))
    half = query.dtype in (torch.float16, torch.bfloat16)
    if attn_mask is None and half and query.shape[-1] == value.shape[-1]:
        options = (dropout_p, is_causal, False)
        context = aten._scaled_dot_product_flash_attention(query, key, value, *options, scale=scale)[0]
    else:
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -math.inf)
            attn_mask = attn_mask.to(query.dtype).expand(*query.shape[:3], key.shape[2])
        context = aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, query.requires_grad, dropout_p, is_causal, scale=scale
        )[0]
    return context[(0,) * added]


def _dropout(input: Tensor, p: float, train: bool) -> Tensor:
    return aten.native_dropout(input, p, train)[0] if train and p else input


_numbers = itertools.count()


def _flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    return_aux: Any = None,
    **options: Any,
) -> Any:
    """One launch: the visible blocks of a mask, and its predicate in partial ones."""

    def shown(scores: Tensor) -> Tensor:
        places = [OnCuda(each) for each in torch.meshgrid(*map(torch.arange, scores.shape), indexing="ij")]
        if score_mod is not None:
            scores = score_mod(OnCuda(scores), *places).elem
        return scores if block_mask is None else scores.masked_fill(~block_mask.mask_mod(*places).elem, -math.inf)

    number = next(_numbers)
    SHOWN[number] = shown
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    captured = captured_by(score_mod) + captured_by(None if block_mask is None else block_mask.mask_mod)
    pairs = _pairs_of(block_mask, query, key)
    context, logs = flex_forward(query, key, value, [each.detach() for each in captured], number, pairs, scale)
    return context if return_aux is None else (context, AuxOutput(lse=logs))


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """One launch, which reads the tensors among the arguments and writes those that the function returns."""

    def run(*args: Any) -> Any:
        places = [place for place, arg in enumerate(args) if isinstance(arg, Tensor)]
        is_one: list[bool] = []

        def steps(*tensors: Tensor) -> list[Tensor]:
            filled = list(args)
            for place, tensor in zip(places, tensors, strict=True):
                filled[place] = tensor
            result = function(*filled)
            is_one.append(isinstance(result, Tensor))
            return [result] if is_one[-1] else list(result)

        number = next(_numbers)
        FUSED[number] = steps
        made = fused([args[place] for place in places], number)
        return made[0] if is_one[-1] else tuple(made)

    return run


def _pairs_of(block_mask: Any, query: Tensor, key: Tensor) -> int:
    """Returns the number of pairs that the kernel computes."""
    rows, heads, queries = query.shape[:3]
    if block_mask is None:
        return rows * heads * queries * key.shape[2]
    counts = [block_mask.kv_num_blocks, block_mask.full_kv_num_blocks]
    counted = [getattr(each, "elem", each) for each in counts if each is not None]
    if any(each.is_meta for each in counted):  # blocks of an unknown mask: all
        return rows * heads * queries * key.shape[2]
    return sum(int(each.expand(rows, heads, -1).sum()) for each in counted) * math.prod(block_mask.BLOCK_SIZE)
