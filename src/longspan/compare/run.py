"""Run a comparison: every cell in a process of its own, its result in a file, so that any end is no loss.

The output folder::

    report.html table.md cells.csv plots/      what came of it, written anew after every run
    comparison.json                            what was asked, and how many steps the budget gave
    cells/<mechanism>-<what>.json              one result each; the same comparison again runs only what is missing
    logs/<mechanism>-<what>.log                what its process said
    documents-<task>/                          what the rows are made from, for tasks that read documents
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from longspan.compare.budget import CURVES, SHARE, Clock, expected_seconds, steps_within, training_seconds
from longspan.compare.cells import Cell, Result, read_result, write_result
from longspan.compare.probes import PROBES
from longspan.compare.process import PRELOADED, work
from longspan.compare.settings import Comparison
from longspan.compare.skeleton import form_of, refusal
from longspan.errors import InputError
from longspan.files import OWN, claimed, output_folder, write_whole
from longspan.progress import progress_bar
from longspan.settings import to_plain

RECORD = "comparison.json"
FIXED = ("task", "tokens", "rows", "learning_rate", "held_out", "skeleton", "device")
"""What the comparisons in one folder have in common; mechanisms, lengths and seeds may be added."""
POLL = 0.2

Tell = Callable[[str], None]


def compare(comparison: Comparison, output: str | Path, tell: Tell = lambda line: None) -> dict[str, Any]:
    """Run what has no result yet, and return the record of the comparison with all results.

    Mechanisms are first measured as they will be trained, which also says how many steps fit into the budget; then at
    other lengths; then trained. One that refuses the task, or whose process dies, has that as its result.

    Args:
        comparison: what to compare.
        output: a folder, new or of the same comparison.
        tell: called with a line for each cell that is finished.

    Raises:
        InputError: the folder holds something else, or the documents of the task cannot be had.
    """
    folder = output_folder(output)
    _check_folder(folder, comparison)
    with claimed(folder):
        documents = PROBES[comparison.task].prepare(folder)
        _record(folder, comparison, None, documents)
        run = Run(comparison, folder, tell)
        with run.bar():
            steps = run.all()
        _record(folder, comparison, steps, documents)
    return read_record(folder)


def read_record(folder: Path) -> dict[str, Any]:
    """What `comparison.json` says."""
    try:
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{str(folder / RECORD)!r} cannot be read; remove the folder, or give another output"
        ) from error
    if not isinstance(found, dict):
        raise InputError(f"{str(folder / RECORD)!r} is damaged; remove the folder, or give another output")
    return found


def results_in(folder: Path, comparison: Comparison, steps: int | None) -> list[Result]:
    """The results of a comparison's cells, as far as there are any."""
    cells = [*_speed_cells(comparison), *_curve_cells(comparison)]
    if steps is not None:
        cells += _quality_cells(comparison, steps)
    found = (read_result(folder / "cells" / f"{cell.name}.json") for cell in cells)
    return [result for result, cell in zip(found, cells, strict=True) if result is not None and result.cell == cell]


class Run:
    """One run of a comparison in its folder."""

    def __init__(self, comparison: Comparison, folder: Path, tell: Tell) -> None:
        self.comparison, self.folder, self.tell = comparison, folder, tell
        self.clock = Clock(comparison.budget)
        self.progress: Any = None
        self.ahead: float | None = None
        """Seconds that the cells to come are expected to take; `None` before that is known: all of the budget."""

    @contextmanager
    def bar(self) -> Iterator[None]:
        """A bar in seconds, of all that is expected; what is left of it is the time left."""
        form = "{desc} {percentage:3.0f}%|{bar}| {elapsed} gone, about {remaining} left"
        with progress_bar(doing="comparing", total=1.0, bar_format=form) as self.progress:
            yield

    def all(self) -> int:
        """Every cell; the number of steps."""
        measured = {cell.mechanism: self.cell(cell, None) for cell in _speed_cells(self.comparison)}
        able = {name: result for name, result in measured.items() if result.status == "done"}
        self.curves(able)
        steps = self.steps(able)
        cells = _quality_cells(self.comparison, steps)
        expected = {
            name: training_seconds(result, steps, self.comparison.held_out, self.clock.start)
            for name, result in able.items()
        }
        for number, cell in enumerate(cells):
            self.ahead = sum(expected.get(later.mechanism, 0.0) for later in cells[number + 1 :])
            if cell.mechanism in able:
                self.cell(cell, expected[cell.mechanism])
            elif self.has(cell) is None:  # for the same reason, which was told
                write_result(replace(measured[cell.mechanism], cell=cell, seconds=0.0, wall=0.0), self.file(cell))
        return steps

    def curves(self, able: dict[str, Result]) -> None:
        """Speed and memory by length; what would take far more than its share of the budget is left out."""
        cells = [cell for cell in _curve_cells(self.comparison) if cell.mechanism in able]
        begun, last = self.clock.spent, dict(able)
        room = CURVES * self.clock.left
        for number, cell in enumerate(cells):
            known = last[cell.mechanism]
            expected = expected_seconds(cell, known, self.clock.start)
            left = max(room - (self.clock.spent - begun), 0.0)
            share = left / sum(later.tokens == cell.tokens for later in cells[number:])
            if expected > min(left, SHARE * share) and not self.has(cell):
                reason = f"it would take about {expected:,.0f} s, and the budget leaves it {share:,.0f}"
                self.keep(Result(cell=cell, status="left out", reason=reason))
                continue
            result = self.cell(cell, expected)
            if result.status == "done":
                last[cell.mechanism] = result

    def steps(self, able: dict[str, Result]) -> int:
        """The steps of every training: those asked for, those of before, or those that fit."""
        comparison = self.comparison
        if comparison.steps is not None:
            return comparison.steps
        before = read_record(self.folder)
        if before.get("steps") and before["comparison"]["budget"] == comparison.budget:
            return int(before["steps"])
        steps = steps_within(able.values(), comparison.seeds, comparison.held_out, self.clock)
        _record(self.folder, comparison, steps, before["documents"])
        return steps

    # One cell ---------------------------------------------------------------------------------------------------------

    def file(self, cell: Cell) -> Path:
        """Where its result is."""
        return self.folder / "cells" / f"{cell.name}.json"

    def has(self, cell: Cell) -> Result | None:
        """Its result, if it was run with the same settings and did not fail."""
        found = read_result(self.file(cell))
        return found if found is not None and found.cell == cell and found.status in ("done", "refused") else None

    def keep(self, result: Result) -> Result:
        """Write a result, and tell it."""
        write_result(result, self.file(result.cell))
        self.tell(told(result))
        return result

    def cell(self, cell: Cell, expected: float | None) -> Result:
        """The result of a cell, from its file or from a process of its own."""
        found = self.has(cell)
        if found is not None:
            return found
        kind = PROBES[cell.task]
        if form_of(cell.mechanism, kind) is None:
            reason = f"attention {cell.mechanism!r} {refusal(cell.mechanism, kind)}"
            return self.keep(Result(cell=cell, status="refused", reason=reason))
        result = self._in_process(cell, expected or self.clock.start)
        self.clock.note(result)
        return self.keep(result)

    def _in_process(self, cell: Cell, expected: float) -> Result:
        begun, log = time.monotonic(), self.folder / "logs" / f"{cell.name}.log"
        log.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="longspan-") as place:
            made = Path(place) / "result.json"
            process = _processes().Process(target=work, args=(to_plain(cell), made, self.folder, log))
            process.start()
            late = self._wait(process, cell, expected)
            result = read_result(made)
        if result is None:
            reason = f"it was stopped after {late:,.0f} s" if late else _how_it_died(process.exitcode or 0, log)
            result = Result(cell=cell, status="failed", reason=reason)
        return replace(result, wall=time.monotonic() - begun)

    def _wait(self, process: BaseProcess, cell: Cell, expected: float) -> float:
        """Wait for a process and move the bar; the seconds after which it was stopped, or 0."""
        begun, patience = time.monotonic(), self.clock.patience(expected)
        try:
            while process.is_alive():
                gone = time.monotonic() - begun
                self._show(cell, gone, expected)
                if patience is not None and gone > patience:
                    return gone
                process.join(POLL)
        finally:
            if process.is_alive():
                process.kill()
            process.join()
        return 0.0

    def _show(self, cell: Cell, gone: float, expected: float) -> None:
        bar = self.progress
        if bar is None or bar.disable:
            return
        seed = f", seed {cell.seed}" if cell.kind == "quality" else f", {cell.tokens:,} tokens"
        bar.set_description(f"{cell.mechanism}{seed}", refresh=False)
        bar.n = self.clock.spent
        bar.total = bar.n + max(expected - gone, 0.0) + (self.ahead or 0.0)
        if self.ahead is None:
            bar.total = max(bar.total, self.clock.budget or 0.0)
        bar.refresh()


def told(result: Result) -> str:
    """A result on one line."""
    cell, numbers = result.cell, result.numbers
    what = f"seed {cell.seed}" if cell.kind == "quality" else f"{cell.tokens:,} tokens × {cell.rows}"
    place = f"{cell.mechanism}, {what}"
    if result.status != "done":
        return f"{place}: {result.status}: {result.reason}"
    if cell.kind == "quality":
        return f"{place}: {PROBES[cell.task].score} {numbers['score']:.3f} after {cell.steps:,} steps"
    speeds = " and ".join(
        f"{numbers[f'{name}_tokens_per_second']:,.0f} tokens/s {words}"
        for name, words in (("train", "in training"), ("inference", "in inference"))
    )
    return f"{place}: {speeds}"


def _speed_cells(comparison: Comparison) -> list[Cell]:
    """Each mechanism as it will be trained."""
    return [comparison.speed(name, comparison.tokens, comparison.rows) for name in comparison.mechanisms]


def _curve_cells(comparison: Comparison) -> list[Cell]:
    """One row at each length: the shortest, the longest, then whichever lies farthest from those before, so that a
    curve is worth something wherever the time ends."""
    lengths = in_gaps(comparison.curve_lengths())
    cells = [comparison.speed(name, length, 1) for length in lengths for name in comparison.mechanisms]
    return [cell for cell in cells if (cell.tokens, cell.rows) != (comparison.tokens, comparison.rows)]


def in_gaps(lengths: list[int]) -> list[int]:
    """Rising lengths, each next one as far as can be, on a logarithmic scale, from those before."""
    found, left = lengths[:1], lengths[1:]
    while left:
        farthest = max(left, key=lambda length: min(abs(math.log(length / near)) for near in found))
        found.append(farthest)
        left.remove(farthest)
    return found


def _quality_cells(comparison: Comparison, steps: int) -> list[Cell]:
    """Each mechanism with each seed; all mechanisms of one seed before the next."""
    seeds = range(1, comparison.seeds + 1)
    return [comparison.quality(name, seed, steps) for seed in seeds for name in comparison.mechanisms]


def _check_folder(folder: Path, comparison: Comparison) -> None:
    """Refuse a folder with something else in it."""
    if not folder.exists() or all(OWN.fullmatch(name) for name in os.listdir(folder)):
        return
    if not (folder / RECORD).is_file():
        raise InputError(f"output {str(folder)!r} exists and holds no comparison; give another --output")
    before, now = read_record(folder).get("comparison", {}), to_plain(comparison)
    for name in FIXED:
        if before.get(name) != now[name]:
            raise InputError(
                f"output {str(folder)!r} holds a comparison with {name}={before.get(name)!r}, not {now[name]!r}; "
                "go on with the same, or give another --output"
            )


def _record(folder: Path, comparison: Comparison, steps: int | None, documents: dict[str, str]) -> None:
    before = read_record(folder) if (folder / RECORD).is_file() else {}
    same = before.get("comparison", {}).get("budget") == comparison.budget
    kept = before.get("steps") if same else None
    found = {"comparison": to_plain(comparison), "steps": steps or kept, "documents": documents}
    write_whole({folder / RECORD: json.dumps(found, indent=1)})


@cache
def _processes() -> Any:
    """How processes are started: from one that has imported everything and done nothing, where the system can."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["longspan.compare.process", *PRELOADED])
    before, home = os.environ.get("PYTHONPATH"), str(Path(__file__).parents[2])
    try:  # it is to import this package, wherever this process found it
        os.environ["PYTHONPATH"] = os.pathsep.join([home, before] if before else [home])
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH")
        os.environ |= {} if before is None else {"PYTHONPATH": before}
    return context


def _how_it_died(code: int, log: Path) -> str:
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        memory = ", as the system does when memory runs out" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{memory}"
    said = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"its process ended with code {code}: {lines[-1][:200] if lines else 'it said nothing'}"
