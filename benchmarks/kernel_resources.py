"""Registers, shared memory and spills of every Triton kernel, compiled ahead of time: no GPU is needed.

    python benchmarks/kernel_resources.py --capability 80 90

Each operator is called as it would be on a device, forward and backward; in place of a launch its kernels are compiled
for that architecture, with the arguments that they would get, and what they take is read from the machine code.
Prints a JSON line for each.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from longspan.ops.kernels.banded import banded_attention, banded_attention_backward
from longspan.ops.kernels.causal_chunks import causal_chunks, causal_chunks_backward
from longspan.ops.kernels.ldconv import ldconv_pool, ldconv_pool_backward

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
LENGTH, HEADS = 2048, 12


class NoDevice:
    """What Triton asks of a driver before it compiles."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return int(self.target.arch)  # what is compiled is remembered by device

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compiling_for(capability: int, compiled: list[Any]) -> Iterator[None]:
    """Within it a launch compiles, and adds what it compiled to the list."""
    launch = JITFunction.run

    def compile_only(self: Any, *args: Any, warmup: bool, **options: Any) -> Any:
        kernel = launch(self, *args, warmup=True, **options)
        compiled.append(kernel)
        return kernel

    before = driver._active
    driver.set_active(NoDevice(capability))  # pyright: ignore[reportArgumentType]
    JITFunction.run = compile_only
    try:
        yield
    finally:
        JITFunction.run = launch
        driver._active = before


def resources(kernel: Any) -> dict[str, int]:
    """Registers of a thread, bytes of shared memory of a program, and bytes of a thread's registers that spill."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(TOOLS / "cuobjdump"), "-res-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", told))
    spills = int(found["STACK"]) + int(found["LOCAL"])
    return {"registers": int(found["REG"]), "shared": kernel.metadata.shared, "spills": spills}


def tensors(dtype: torch.dtype, width: int, length: int = LENGTH) -> list[Tensor]:
    """Queries, keys, values and a gradient, `(1, H, T, D)`, laid out as projections lay them out."""
    return [torch.zeros(1, length, HEADS, width, dtype=dtype).transpose(1, 2) for _ in range(4)]


def pooled(dtype: torch.dtype, width: int) -> None:
    """LDConv pools of a padded text, forward and backward."""
    hidden, *_ = tensors(dtype, width)
    weight, mask = torch.zeros(HEADS, 5, width, dtype=dtype), torch.ones(1, LENGTH, dtype=torch.bool)
    mixed, logs = ldconv_pool(hidden, weight, mask, 4)
    ldconv_pool_backward(mixed, hidden, weight, mask, logs, 4)


def band(dtype: torch.dtype, width: int, *, stride: int, terms: bool) -> None:
    """A band of padded keys, forward and backward."""
    query, _, _, grad = tensors(dtype, width)
    _, key, value, _ = tensors(dtype, width, LENGTH // stride)
    tables = [torch.zeros(HEADS, 257, width, dtype=dtype) for _ in range(2 if terms else 0)]
    inputs = (
        query,
        key,
        value,
        torch.ones(1, key.shape[2], dtype=torch.bool),
        tables,
        128,
        128,
        stride,
        -128,
        0,
        0.125,
        False,
    )
    mixed, logs = banded_attention(*inputs)
    banded_attention_backward(grad, logs, mixed, logs, *inputs)


def causal(dtype: torch.dtype, width: int) -> None:
    """Causal linear attention of features, four for each channel, always float32, forward and backward."""
    query, key, value, _ = tensors(torch.float32, width)
    query, key = (each.repeat(1, 1, 1, 4) for each in (query, key))
    sums = torch.zeros(1, HEADS, 4 * width, width + 1)
    mixed, total, last = causal_chunks(query, key, value, sums)
    causal_chunks_backward(mixed, total, last, query, key, value, sums)


CALLS: dict[str, Callable[[torch.dtype, int], None]] = {
    "LDConv pooling": pooled,
    "causal linear": causal,
    "pooled window": lambda dtype, width: band(dtype, width, stride=4, terms=False),
    "window": lambda dtype, width: band(dtype, width, stride=1, terms=False),
    "disentangled window": lambda dtype, width: band(dtype, width, stride=1, terms=True),
}


def measure(capability: int, dtypes: list[str], widths: list[int], calls: list[str]) -> Iterator[dict[str, Any]]:
    """A row for each kernel of each call."""
    for call in calls:
        for dtype in dtypes:
            for width in widths:
                compiled: list[Any] = []
                with compiling_for(capability, compiled), torch.no_grad():
                    CALLS[call](getattr(torch, dtype), width)
                for kernel in compiled:
                    place = {"call": call, "kernel": kernel.metadata.name, "capability": capability}
                    yield place | {"dtype": dtype, "width": width} | resources(kernel)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capability", type=int, nargs="+", default=[80, 90])
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--width", type=int, nargs="+", default=[64])
    parser.add_argument("--call", nargs="+", choices=CALLS, default=list(CALLS))
    options = parser.parse_args()
    for capability in options.capability:
        for row in measure(capability, options.dtype, options.width, options.call):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
