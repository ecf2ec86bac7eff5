"""What the benchmarks share: paired timings, peak memory of a fresh process, the machine's name, result pages."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from longspan.compare.machine import forget_peak, resident
from longspan.compare.machine import machine as machine  # for the benchmarks
from longspan.compare.probes import Probe
from longspan.tasks.metrics.bootstrap import Interval

RESULTS = Path(__file__).parent / "results"


def paired_seconds(
    sides: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    warm_ups: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of each side, the sides taking turns so that a drifting machine hits all of them.

    With one thread, `clock=time.process_time` counts what the processor did for this process alone.
    """
    for _ in range(warm_ups):
        for run in sides.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            synchronize()
            start = clock()
            run()
            synchronize()
            seconds[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def synchronize() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def check_close(name: str, one: torch.Tensor, two: torch.Tensor, tolerance: float) -> float:
    """The largest difference of two results; above the tolerance the benchmark stops: no speed without truth."""
    difference = float((one.double() - two.double()).abs().max())
    if not difference <= tolerance:
        raise SystemExit(f"{name}: the sides differ by {difference:.3g}, more than {tolerance:.3g}; nothing is timed")
    return difference


def peak_bytes(function: Callable[..., Any], *arguments: Any) -> int:
    """Peak memory that `function(*arguments)` adds, in a fresh process.

    The function prepares its inputs, runs once on something small, and yields; what it allocates after that counts.
    It must be a generator function of a module, so that the new process can import it.
    """
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(send, function, arguments))
    process.start()
    send.close()
    try:
        return receive.recv()
    except EOFError:
        raise SystemExit(f"{function.__name__}{arguments} did not finish; its process ran out of memory?") from None
    finally:
        process.join()


def _measure(send: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(os.cpu_count() or 1)
    steps = function(*arguments)
    next(steps)
    forget_peak()
    before = resident("VmRSS")
    for _ in steps:
        pass
    send.send(resident("VmHWM") - before)


def peak_allocated(run: Callable[[], Any]) -> int:
    """What the tensors that `run()` makes take at most at once on the CPU, in bytes, as torch's allocator counts them.

    What the libraries of a machine keep for themselves is not in it; the same at every call.
    """
    return max(itertools.accumulate(allocations(run)), default=0)


def allocations(run: Callable[[], Any]) -> list[int]:
    """The bytes that `run()` asks torch's allocator on the CPU for, in order, below 0 where it gives some back."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profile:
        run()
    events: Any = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return [change for _, change in changes]


def rows_of(probe: Probe, seed: int, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, labels (−100 where nothing is asked) and distances, `(B, T)` each, of so many causal rows of a seed."""
    rows = [probe.row(seed, number, "causal") for number in range(first, first + count)]
    ids, labels, distances = ([getattr(row, name) for row in rows] for name in ("ids", "labels", "distances"))
    return tuple(torch.from_numpy(np.stack(each)) for each in (ids, labels, distances))  # pyright: ignore[reportReturnType]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def shown(interval: Interval, *, signed: bool = False, digits: int = 1) -> str:
    """ "52.1 (45.0, 59.2)" """
    numbers = [f"{value:{'+' if signed else ''}.{digits}f}" for value in interval]
    return f"{numbers[0]} ({numbers[1]}, {numbers[2]})"


def finished(file: Path) -> list[dict[str, Any]]:
    """The runs that are done, a line each of a JSON Lines file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []


def add_run(file: Path, row: Mapping[str, Any]) -> None:
    """Add a run that is done."""
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(row) + "\n")


def reading(page: Path) -> list[str]:
    """What a person wrote about the numbers of a page, from its heading "Reading" on; nothing where nobody did."""
    _, heading, text = (page.read_text(encoding="utf-8") if page.is_file() else "").partition("## Reading")
    return [f"{heading}{text}".rstrip()] if heading else []


def write_page(name: str, title: str, parts: Sequence[str], *, how: str = "Measured") -> Path:
    """Write `results/NAME.md` with a title, the date and the parts; what a person wrote about the numbers stays."""
    path = RESULTS / f"{name}.md"
    path.parent.mkdir(exist_ok=True)
    date = time.strftime("%Y-%m-%d", time.gmtime())
    text = "\n\n".join([f"# {title}", f"{how} on {date}.", *parts, *reading(path)])
    path.write_text(f"{text}\n", encoding="utf-8")
    return path
