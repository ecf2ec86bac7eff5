"""How `gpu.py` measures a cell: times, rates, tokens of a decoder, distances from a processor, and profiles.

What runs is from `gpu_sides.py`. A profile is written as a Chrome trace, which Perfetto shows, and its kernels with
their time, registers and spilled bytes are part of the row.
"""

from __future__ import annotations

import gc
import gzip
import json
import os
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from unittest import mock

import torch

from gpu_cells import Cell, Run, Setting, side_of, words_of
from gpu_models import DECODING, STEPS
from gpu_sides import RATES, WINDOWS, build
from gpu_tiles import with_options
from longspan.attention import MECHANISMS
from longspan.compare.machine import peak_memory
from longspan.errors import InputError, is_out_of_memory, last_line
from longspan.ops.attend import backends, door, flex

MOST_RUNS = 50
"""Of a cell."""
TOLERANCE = 6e-2
"""Of outputs in bfloat16, as a share of the largest."""
MOST_KERNELS = 12
"""Of a profile, those that take longest."""
PASSES = ("forward", "training")


def measured(cell: Cell, setting: Setting) -> dict[str, Any]:
    """What is written of a cell, whatever happens in it."""
    started = time.perf_counter()
    try:
        with with_options(cell):
            row = {"status": "done", **MEASURES.get(cell.work, timed)(cell, setting)}
    except InputError as error:
        row = {"status": "refused", "reason": str(error)}
    except Exception as error:  # noqa: BLE001 a side that breaks is a row with its reason
        reason = "out of memory" if is_out_of_memory(error) else f"{type(error).__name__}: {last_line(error)}"
        row = {"status": "failed", "reason": reason}
    return row | {"took": round(time.perf_counter() - started, 2)}


def timed(cell: Cell, setting: Setting) -> dict[str, Any]:
    """Milliseconds, the median of some runs behind two that compile, choose kernels and warm up; which backend ran, and
    what is part of the time."""
    run = build(cell, setting)
    with recorded_backends(enabled=not cell.compiled) as names:
        first = one_run(run, setting)
    second = one_run(run, setting)
    count = min(max(int(setting.seconds / max(second, 1e-6)), setting.runs), MOST_RUNS)
    with peak_memory("cuda" if is_cuda(setting) else "cpu") as peak:
        seconds = [one_run(run, setting) for _ in range(count)]
    row: dict[str, Any] = {
        "milliseconds": 1e3 * statistics.median(seconds),
        "least": 1e3 * min(seconds),
        "runs": count,
        "first_seconds": round(first, 3),
        "peak_bytes": peak.bytes,
        "backend": " and ".join(sorted(names)) or cell.side,
    }
    if cell.work in PASSES:
        has_projections = (cell.side in MECHANISMS or cell.side == "hf-bigbird") and cell.form != "bare"
        row["projections"] = has_projections
    if cell.side == "sdpa" or (cell.side == "full" and not cell.compiled):
        row["backend"] = f"PyTorch's {chosen_kernel(cell, setting)}"
    if cell.side in WINDOWS or cell.window:
        row["window"] = side_of(cell, setting)
    if cell.side in WINDOWS or (cell.form == "bare" and cell.window):
        row |= agreement(cell, setting)
    if cell.traced:
        row |= profiled(run, cell, setting)
    return row


def one_run(run: Run, setting: Setting) -> float:
    """Seconds from an idle device to an idle device."""
    if not is_cuda(setting):
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def is_cuda(setting: Setting) -> bool:
    return setting.device == "cuda"


@contextmanager
def recorded_backends(*, enabled: bool) -> Iterator[set[str]]:
    """The names of the backends that compute attention; a graph must not be traced through this recorder."""
    names: set[str] = set()
    if not enabled:
        yield names
        return
    cheapest, compute, kernel = backends.cheapest, backends.compute, flex._kernel

    def chosen(call: Any, **options: Any) -> Any:
        backend = cheapest(call, **options)
        names.add(next((name for name, each in backends.BACKENDS.items() if each is backend), "reference"))
        return backend

    def computed(call: Any, name: str) -> Any:
        if name != "auto":
            names.add(name)
        return compute(call, name)

    def flex_kernel() -> Any:
        names.add("flex")
        return kernel()

    with (
        mock.patch.object(backends, "cheapest", chosen),
        mock.patch.object(door, "compute", computed),
        mock.patch.object(flex, "_kernel", flex_kernel),
    ):
        yield names


def chosen_kernel(cell: Cell, setting: Setting) -> str:
    """Which of its kernels PyTorch chooses for full attention; padding is a channel more."""
    from torch.nn.attention import SDPBackend

    heads = torch.empty(
        1,
        setting.heads,
        cell.tokens,
        setting.width // setting.heads + cell.padded,
        dtype=setting.dtype,
        device=setting.device,
        requires_grad=cell.work == "training",
    )
    return SDPBackend(torch._fused_sdp_choice(heads, heads, heads)).name.lower()


def agreement(cell: Cell, setting: Setting) -> dict[str, Any]:
    """How far a side is from our operator, which computes the same.

    Raises:
        ArithmeticError: too far for its time to mean anything.
    """
    theirs = replace(cell, compiled=False, traced=False)
    ours = replace(theirs, side="window", form="", options="")
    if theirs == ours:
        return {}
    expected, found = (build(each, setting)().detach().float() for each in (ours, theirs))
    apart = float((expected - found).abs().max() / expected.abs().max())
    if apart > TOLERANCE:
        raise ArithmeticError(f"it differs from our window by {apart:.3g} of the largest number, so no time is given")
    return {"differs": apart}


def compared(cell: Cell, setting: Setting) -> dict[str, Any]:
    """How far outputs and gradients of a mechanism in float32 are from those of the processor, as shares of the
    largest. Where states choose what is seen, rounding may choose otherwise for a few tokens: the median says more."""
    numbers: dict[str, Any] = {}
    for work in PASSES:
        one = replace(cell, work=work)
        host, here = (
            build(one, replace(setting, device=device, dtype=torch.float32))() for device in ("cpu", setting.device)
        )
        apart = (here.detach().cpu() - host).abs() / host.abs().max().clamp(min=1e-9)
        numbers[work] = {"largest": float(apart.max()), "median": float(apart.median())}
    return numbers


def rate(cell: Cell, setting: Setting) -> dict[str, Any]:
    """Operations of a product, or bytes of a copy, per second."""
    row = timed(cell, setting)
    return row | {"per_second": 1e3 * RATES[cell.side][1](cell.tokens) / row["milliseconds"]}


def token_times(cell: Cell, setting: Setting) -> dict[str, Any]:
    """Milliseconds of a written token, behind a text that compiles; the share of tokens that are those of a growing
    cache; and the graphs that CUDA could not record."""
    from torch._dynamo.utils import counters

    write = build(cell, setting)
    before = counters["inductor"]["cudagraph_skips"]
    written = write()[0]
    with peak_memory("cuda" if is_cuda(setting) else "cpu") as peak:
        texts = [write()[1] for _ in range(setting.runs)]
    row: dict[str, Any] = {
        "milliseconds": 1e3 * statistics.median(seconds for text in texts for seconds in text),
        "runs": len(texts),
        "tokens_of_a_run": setting.written,
        "peak_bytes": peak.bytes,
        "backend": cell.work,
    }
    if cell.work != "decode":
        expected = build(replace(cell, work="decode"), setting)()[0]
        row["same_tokens"] = float((written == expected)[:, cell.tokens :].float().mean())
        row["skipped_graphs"] = counters["inductor"]["cudagraph_skips"] - before
    return row


PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "flash_attn",
    "flash-attn-4",
    "nvidia-cudnn-frontend",
    "nvidia-cutlass-dsl",
)


def versions(cell: Cell, setting: Setting) -> dict[str, Any]:
    """Versions of what takes part, and the device's numbers."""
    found: dict[str, Any] = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    found |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    if is_cuda(setting):
        properties = torch.cuda.get_device_properties(0)
        found |= {
            name: getattr(properties, name)
            for name in ("name", "major", "minor", "multi_processor_count", "total_memory", "L2_cache_size")
        }
    return {"versions": found}


MEASURES: dict[str, Callable[[Cell, Setting], dict[str, Any]]] = {
    "check": compared,
    "device": versions,
    "rate": rate,
    **dict.fromkeys(DECODING, token_times),
}
"""By the work of a cell; every other is timed."""


# Profiles -------------------------------------------------------------------------------------------------------------


def profiled(run: Run, cell: Cell, setting: Setting) -> dict[str, Any]:
    """One run under PyTorch's profiler: the trace's file, and the kernels that take longest."""
    from torch.profiler import ProfilerActivity, profile

    name = re.sub(r"[^a-z0-9]+", "-", words_of(cell)).strip("-")
    file = setting.keep / "traces" / f"{name}.json.gz"
    file.parent.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda(setting) else [])]
    with profile(activities=activities, acc_events=True) as profiler:
        run()
        if is_cuda(setting):
            torch.cuda.synchronize()
    profiler.export_chrome_trace(str(file))
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        events = json.load(lines)["traceEvents"]
    kernels = kernels_of(events, "kernel" if is_cuda(setting) else "cpu_op", spills_of_programs())
    return {"trace": file.name, "kernels": kernels[:MOST_KERNELS], "number_of_kernels": len(kernels)}


def kernels_of(
    events: Sequence[dict[str, Any]], kind: str, spilled: dict[tuple[str, int], int]
) -> list[dict[str, Any]]:
    """The kernels of a trace, those that take longest first: runs, milliseconds of all, registers of a thread, shared
    memory of a block, and spilled bytes of a thread where Triton made the program."""
    found: dict[str, dict[str, Any]] = defaultdict(lambda: {"runs": 0, "milliseconds": 0.0})
    for event in events:
        if event.get("cat") == kind and event.get("ph") == "X":
            row, numbers = found[event["name"]], event.get("args", {})
            row["runs"] += 1
            row["milliseconds"] += event["dur"] / 1e3
            row["registers"], row["shared"] = numbers.get("registers per thread"), numbers.get("shared memory")
            row["spilled"] = spilled.get((event["name"], row["registers"]))
    rows = [{"kernel": name, **row} for name, row in found.items()]
    return sorted(rows, key=lambda row: -row["milliseconds"])


def spills_of_programs() -> dict[tuple[str, int], int]:
    """Name and registers → spilled bytes of a thread, of every program that Inductor has loaded: a profile has no
    spills. Inductor keeps no list of its programs, so they are looked for among all objects; the programs of two
    patterns can have one name."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    programs: list[Any] = [each for each in gc.get_objects() if issubclass(type(each), CachingAutotuner)]
    ready = [(each.fn.__name__, launcher) for each in programs for launcher in each.launchers]
    return {(name, launcher.n_regs): launcher.n_spills for name, launcher in ready}


# Compiling ahead ------------------------------------------------------------------------------------------------------


def compile_once(task: tuple[Cell, Setting, float]) -> str | None:
    """Run a cell in another process, so that the one that times it finds its programs compiled; what went wrong, if
    anything did, which the row will say too. A task that would begin after its deadline, in seconds of `time.time`, is
    left out, so that nothing is compiled while something is timed."""
    cell, setting, deadline = task
    if time.time() > deadline:
        return "too late"
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    try:
        with with_options(cell):
            build(cell, setting)()
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {last_line(error)}"
    finally:
        free(compiled=True)
    return None


def compiles(cell: Cell) -> bool:
    """Whether a cell runs programs that are compiled at its first run."""
    if cell.work in ("check", *DECODING):
        return cell.work == "decode-graph"
    return cell.compiled or cell.side in MECHANISMS or cell.side in STEPS or cell.side in WINDOWS


def free(*, compiled: bool) -> None:
    """Give back what a cell held on CUDA; what was compiled too, so that the next cell compiles as a new process would,
    for its own length, with the programs on disk."""
    gc.collect()
    if compiled:
        torch.compiler.reset()
    torch.cuda.empty_cache()
