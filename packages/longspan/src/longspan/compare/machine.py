"""Description of the machine, and peak memory of a block of code."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from longspan.characters import counted

STATUS = Path("/proc/self/status")
SPARED = 0.9
"""Share of the free memory that a cell may allocate; the rest is for the other processes of the machine."""


def machine(device: str = "cpu") -> str:
    """Returns one line that describes the machine."""
    import transformers

    versions = f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
    if device == "cuda":
        return f"{torch.cuda.get_device_name()}, {versions}"
    names: list[str] = []
    with suppress(OSError):
        names = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    processor = names[0] if names else platform.processor() or platform.machine()
    threads = counted(torch.get_num_threads(), "thread")
    return f"{processor}, {counted(os.cpu_count() or 1, 'core')}, {threads}, {versions}"


@dataclass
class Peak:
    """Peak memory that a block has added, in bytes; `None` if the system does not report it."""

    bytes: int | None = None


@contextmanager
def peak_memory(device: str) -> Iterator[Peak]:
    """Measure the peak memory of the block, relative to the memory at its beginning.

    On CUDA, this is the memory allocated by torch; otherwise the resident memory of this process on Linux, which
    belongs to the block only if the process has used less before.
    """
    peak = Peak()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield peak
        torch.cuda.synchronize()
        peak.bytes = torch.cuda.max_memory_allocated() - before
        return
    if not STATUS.exists():
        yield peak
        return
    forget_peak()
    before = resident("VmRSS")
    yield peak
    peak.bytes = max(resident("VmHWM") - before, 0)


def forget_peak() -> None:
    """Reset the peak memory of this process to its current memory."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def resident(field: str) -> int:
    """Returns a memory field of this process in bytes, such as `VmRSS`, on Linux."""
    match = re.search(rf"{field}:\s+(\d+) kB", STATUS.read_text(encoding="utf-8"))
    assert match is not None
    return int(match[1]) * 1024


def stay_within_memory() -> None:
    """Limit the memory of this process to the free memory, so that an allocation fails instead of the machine
    (Linux)."""
    if not sys.platform.startswith("linux"):
        return
    import resource

    with suppress(OSError, ValueError):
        free = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="utf-8"))
        if free is not None:
            limit = resident("VmData") + int(SPARED * int(free[1]) * 1024)
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
