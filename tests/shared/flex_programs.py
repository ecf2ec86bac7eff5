"""The programs that Inductor makes of FlexAttention for a GPU that is not there, and what they need of it.

    calls = recorded_calls(config, 8192, (9, 0))
    for program in programs(calls[0], (9, 0), learns=True):
        print(program.name, resources(program, (9, 0)))

Inductor writes Triton for tensors without data on a CUDA device whose properties are made up; Triton compiles it for a
named architecture, and NVIDIA's assembler, which comes with Triton, reports registers, shared memory and spills.
Needs the package `triton`; nothing is launched.
"""

from __future__ import annotations

import ctypes
import io
import re
import subprocess
import tempfile
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fake_cuda import FakeCuda, OnCuda
from longspan.attention import AttentionConfig, Tokens
from longspan.ops.attend import flex

SHARED = {(8, 0): 166_912, (9, 0): 232_448}
"""Bytes of shared memory that one block of threads may use, by compute capability."""
CUDA = torch.device("cuda", 0)


@dataclass(frozen=True)
class FlexCall:
    """The arguments of one call of FlexAttention, and whether it computes gradients as well."""

    query: Tensor
    key: Tensor
    value: Tensor
    options: dict[str, Any]
    learns: bool = False


def recorded_calls(
    config: AttentionConfig,
    length: int,
    capability: tuple[int, int],
    *,
    width: int = 768,
    heads: int = 12,
    causal: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    padded: bool = False,
    globals_: int = 0,
    learns: bool = False,
) -> list[FlexCall]:
    """Returns the calls of FlexAttention in one layer of a mechanism on a simulated CUDA device.

    Args:
        config: of the mechanism.
        length: number of tokens.
        capability: of the device.
        width, heads: of the layer.
        causal: whether tokens see only previous ones.
        dtype: of weights and activations.
        padded: whether a third of the text is padding.
        globals_: number of global tokens.
        learns: whether gradients are needed.
    """
    found: list[FlexCall] = []
    with FakeCuda(values=False) as device:
        simulated = flex._kernel()

        def record(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
            found.append(FlexCall(query, key, value, dict(options), torch.is_grad_enabled()))
            return simulated(query, key, value, **{k: v for k, v in options.items() if k != "kernel_options"})

        with torch.device("meta"):
            module = config.build(width=width, heads=heads, causal=causal).to(dtype)
        module = module.to_empty(device=device)
        place = torch.arange(length, device=device)[None]
        tokens = Tokens(
            mask=place < length - length // 3 if padded else None, is_global=place < globals_ if globals_ else None
        )
        hidden = torch.empty(1, length, width, device=device, dtype=dtype)
        mock_capability = mock.patch.object(torch.cuda, "get_device_capability", return_value=capability)
        with mock_capability, mock.patch.object(flex, "_kernel", return_value=record), torch.set_grad_enabled(learns):
            module(hidden, tokens.with_slots() if padded or globals_ else tokens)
    return found


@dataclass(frozen=True)
class Program:
    """One kernel in Triton's language.

    Attributes:
        name: its name.
        source: the module with its code.
        warps, stages: how many of each it is launched with.
        meta: Inductor's `triton_meta`: types of the arguments, constants.
    """

    name: str
    source: str
    warps: int
    stages: int
    meta: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Resources:
    """What a program needs: registers and spilled bytes of each thread, shared memory of each block of threads."""

    registers: int
    spilled: int
    shared: int


def programs(call: FlexCall, capability: tuple[int, int], *, learns: bool = False) -> list[Program]:
    """Returns the kernels of FlexAttention, forward and with `learns` backward, without compiling them."""
    graphs: list[Any] = []
    sources: list[str] = []
    with inductor_without_device(capability, graphs, sources), FakeTensorMode(), torch.set_grad_enabled(learns):
        convert = partial(_on_fake_device, {})
        tensors = [convert(tensor) for tensor in (call.query, call.key, call.value)]
        options = {name: convert(value) for name, value in call.options.items()}
        torch._dynamo.reset()
        with suppress(CompiledError):
            torch.compile(flex_attention, fullgraph=True)(*tensors, **options)
        if learns:
            _compile_backward(graphs[0])
        torch._dynamo.reset()
    return [program for source in sources for program in _programs_in(source)]


def _compile_backward(graph: Any) -> None:
    """Compiles the backward pass of the one call in a graph of the forward pass.

    Autograd itself asks CUDA for the device of every tensor with a gradient. So the graph of the scores' gradient is
    traced for tensors of the CPU, which it does not depend on, and the operator of the backward pass is called.
    """
    from torch._higher_order_ops.flex_attention import create_fw_bw_graph
    from torch._higher_order_ops.flex_attention import flex_attention_backward as backward
    from torch._inductor.compile_fx import compile_fx_inner
    from torch.fx.experimental.proxy_tensor import make_fx

    module = graph.orig_gm
    (node,) = (each for each in module.graph.nodes if each.target is torch.ops.higher_order.flex_attention)

    def value(each: Any) -> Any:
        if not isinstance(each, torch.fx.Node):
            return each
        return getattr(module, str(each.target)) if each.op == "get_attr" else _on_fake_device({}, each.meta["val"])

    query, key, values, score, block_mask, scale, options, of_scores, of_masks = torch.fx.map_arg(node.args, value)
    host = (torch.empty((), requires_grad=True), *(torch.empty((), dtype=torch.int) for _ in range(4)))
    scores = create_fw_bw_graph(score, host, tuple(torch.empty_like(tensor, device="cpu") for tensor in of_scores))
    out = query.new_empty(*query.shape[:-1], values.shape[-1])
    logs = query.new_empty(query.shape[:-1], dtype=torch.float32)
    leaves, form = tree_flatten([query, key, values, out, logs, out, logs, block_mask[:-1], of_scores, of_masks])
    places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def run(*tensors: Tensor) -> Any:
        found = dict(zip(places, tensors, strict=True))
        *inputs, table, read_by_scores, read_by_masks = tree_unflatten(
            [found.get(index, leaf) for index, leaf in enumerate(leaves)], form
        )
        mask = (*table, block_mask[-1])
        return backward(*inputs, *scores, mask, scale, options, tuple(read_by_scores), tuple(read_by_masks))[:3]

    tensors = [leaves[index] for index in places]
    with torch.no_grad():
        compile_fx_inner(make_fx(run)(*tensors), tensors)


def resources(program: Program, capability: tuple[int, int]) -> Resources:
    """Compiles a program, and reads what NVIDIA's assembler reports of it."""
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    major, minor = capability
    (function, _), meta = _run(program.name, program.source), program.meta
    constants = {(function.arg_names.index(name),): value for name, value in meta["constants"].items()}
    attributes = {(index,): [_ALIGNED] for index, name in enumerate(meta["signature"]) if name in meta["aligned"]}
    source = ASTSource(function, meta["signature"], constants, attributes)
    target = GPUTarget("cuda", 10 * major + minor, 32)
    report = io.StringIO()
    with _triton_for(capability), knobs.nvidia.scope(), knobs.compilation.scope(), redirect_stdout(report):
        knobs.nvidia.dump_ptxas_log = knobs.compilation.always_compile = True
        compiled = triton.compile(source, target, {"num_warps": program.warps, "num_stages": program.stages})
    text = report.getvalue()
    registers, spilled = re.search(r"Used (\d+) registers", text), re.search(r"(\d+) bytes spill stores", text)
    assert registers is not None, text
    assert spilled is not None, text
    return Resources(int(registers[1]), int(spilled[1]), compiled.metadata.shared)


class CompiledError(BaseException):
    """Everything has been compiled, and would be run next."""


def _on_fake_device(known: dict[int, Any], value: Any) -> Any:
    """Replaces the tensors in a value by tensors without data on the CUDA device: also those that functions captured,
    as the predicates of a block mask do."""
    if id(value) in known:
        return known[id(value)][1]
    convert = partial(_on_fake_device, known)
    made = value
    if isinstance(value, Tensor):
        inner = value.elem if isinstance(value, OnCuda) else value
        made = torch.empty_strided(inner.size(), inner.stride(), dtype=inner.dtype, device=CUDA)
    elif isinstance(value, BlockMask):
        parts = {name: convert(part) for name, part in vars(value).items()}
        made = BlockMask.__new__(BlockMask)
        made.__dict__.update(parts)
    elif isinstance(value, types.FunctionType) and value.__closure__:
        cells = tuple(types.CellType(convert(cell.cell_contents)) for cell in value.__closure__)
        made = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
    elif isinstance(value, partial):
        made = partial(
            convert(value.func), *map(convert, value.args), **{k: convert(v) for k, v in value.keywords.items()}
        )
    elif isinstance(value, list | tuple | dict):
        made = type(value)(map(convert, value)) if type(value) in (list, tuple) else tree_map(convert, value)
    known[id(value)] = (value, made)
    return made


class _Properties:
    """Of the device, as far as Inductor reads them."""

    name = "a GPU that is not there"
    warp_size, multi_processor_count, regs_per_multiprocessor = 32, 132, 65_536
    max_threads_per_block, max_threads_per_multi_processor = 1_024, 2_048
    total_memory, L2_cache_size, is_integrated, gcnArchName = 80 << 30, 50 << 20, False, None

    def __init__(self, capability: tuple[int, int]) -> None:
        self.major, self.minor = capability
        self.shared_memory_per_block = 49_152
        self.shared_memory_per_block_optin = self.shared_memory_per_multiprocessor = SHARED[capability]


@contextmanager
def inductor_without_device(capability: tuple[int, int], graphs: list[Any], sources: list[str]) -> Iterator[None]:
    """Inductor takes CUDA for present, and stops before it would launch anything; what it reads and writes goes to
    `graphs` and `sources`."""
    import torch._inductor.compile_fx
    import torch._inductor.config as config

    def compile_to_module(graph: Any) -> Any:
        code = graph.codegen()[0]
        graphs.append(graph)
        sources.append(getattr(code, "value", code))

        def call(*_: Any) -> None:
            raise CompiledError

        return types.SimpleNamespace(call=call, __file__=__file__, key="")

    properties = _Properties(capability)
    replaced: dict[str, Any] = {
        "torch.cuda.is_available": lambda: True,
        "torch.cuda.device_count": lambda: 1,
        "torch.cuda.current_device": lambda: 0,
        "torch.cuda.get_device_properties": lambda device=None: properties,
        "torch.cuda._get_device_properties": lambda device=None: properties,
        "torch.cuda.get_device_capability": lambda device=None: capability,
        "torch.cuda.get_device_name": lambda device=None: properties.name,
        "torch.cuda._lazy_init": lambda: None,
        "torch.cuda._exchange_device": lambda device: 0,
        "torch.cuda._maybe_exchange_device": lambda device: 0,
        "torch.cuda.get_rng_state": lambda *_: torch.get_rng_state(),
        "torch.cuda.set_rng_state": lambda *_: None,
        "torch.cuda.synchronize": lambda device=None: None,
        "torch._subclasses.fake_tensor.init_gpu_context": lambda device: None,
        "torch._inductor.fx_passes.joint_graph.lazy_init": lambda *_: None,
        "torch._inductor.fx_passes.post_grad.lazy_init": lambda *_: None,
        "torch._inductor.graph.GraphLowering.compile_to_module": compile_to_module,
    }
    _guard_devices()
    with ExitStack() as stack:
        for name, replacement in replaced.items():
            stack.enter_context(mock.patch(name, replacement, create=True))
        stack.enter_context(
            config.patch(
                compile_threads=1, pattern_matcher=False, joint_graph_constant_folding=False, fx_graph_cache=False
            )
        )
        stack.enter_context(_triton_for(capability))
        yield


_GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, NoOpDeviceGuardImpl<DeviceType::CUDA>)
}
"""


@cache
def _guard_devices() -> None:
    """Lets operators without data name a CUDA device: PyTorch's build for processors refuses that, and its build for
    CUDA asks the driver. A device that is present keeps its own guard."""
    if torch.cuda.is_available():
        return
    torch_folder = Path(torch.__file__).parent
    folder = Path(tempfile.mkdtemp())
    (folder / "guard.cpp").write_text(_GUARD)
    options = ["-std=c++20", "-shared", "-fPIC", f"-I{torch_folder}/include", f"-L{torch_folder}/lib", "-lc10"]
    subprocess.run(["c++", str(folder / "guard.cpp"), *options, "-o", str(folder / "guard.so")], check=True)
    ctypes.CDLL(str(folder / "guard.so"))


@contextmanager
def _triton_for(capability: tuple[int, int]) -> Iterator[None]:
    """Triton takes such a device for the present one."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    active = types.SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 10 * capability[0] + capability[1], 32),
        get_active_torch_device=lambda: CUDA,
        get_current_device=lambda: 0,
        get_current_stream=lambda device=None: 0,
        get_device_interface=lambda: torch.cuda,
    )
    with mock.patch.object(driver, "_active", active):
        yield


KERNEL = re.compile(r"async_compile\.triton\('(\w+)', '''(.*?)'''", re.DOTALL)
_ALIGNED = ["tt.divisibility", 16]


def _programs_in(source: str) -> list[Program]:
    """Returns the kernels in a module of Inductor's that are templates, which those of FlexAttention are."""
    kernels = KERNEL.findall(source)
    return [_program(name, code) for name, code in kernels if "@triton_heuristics.template" in code]


def _program(name: str, code: str) -> Program:
    _, options = _run(name, code)
    meta = options["triton_meta"]
    names = list(meta["signature"])
    aligned = {names[place] for config in meta["configs"] for (place,), kinds in config.items() if _ALIGNED in kinds}
    return Program(name, code, options["num_warps"], options["num_stages"], {**meta, "aligned": aligned})


def _run(name: str, code: str) -> tuple[Any, dict[str, Any]]:
    """Returns the function of a kernel, and the options that Inductor gives its decorator."""
    from torch._inductor.runtime import triton_heuristics

    options: dict[str, Any] = {}

    def template(**given: Any) -> Callable[[Any], Any]:
        options.update(given)
        return lambda function: function

    # Triton reads a function's source from its file.
    file = Path(tempfile.mkdtemp(), f"{name}.py")
    file.write_text(code)
    space: dict[str, Any] = {"__name__": name, "__file__": str(file)}
    with mock.patch.object(triton_heuristics, "template", template):
        exec(compile(code, str(file), "exec"), space)
    return space[name], options
