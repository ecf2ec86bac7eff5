"""What numbers were measured on, and the peak of memory that a piece of work adds."""

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
"""Of the memory that is free, how much a cell may take; the rest is left to the machine."""


def machine(device: str = "cpu") -> str:
    """One line that says what the numbers were measured on."""
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
    """Bytes that a block added at most; `None` where the system does not tell."""

    bytes: int | None = None


@contextmanager
def peak_memory(device: str) -> Iterator[Peak]:
    """The peak of memory that the block adds to what was there before.

    On CUDA what torch has allocated; else the resident memory of this process, as Linux counts it, which is the block's
    own only in a process that has done nothing larger before.
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
    """Let the peak of this process begin anew, at what it holds now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def resident(field: str) -> int:
    """Bytes of a memory field of this process, such as `VmRSS`, as Linux counts it."""
    match = re.search(rf"{field}:\s+(\d+) kB", STATUS.read_text(encoding="utf-8"))
    assert match is not None
    return int(match[1]) * 1024


def stay_within_memory() -> None:
    """Let this process fail, rather than the machine, when it asks for more memory than is free (on Linux)."""
    if not sys.platform.startswith("linux"):
        return
    import resource

    with suppress(OSError, ValueError):
        free = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="utf-8"))
        if free is not None:
            limit = resident("VmData") + int(SPARED * int(free[1]) * 1024)
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
