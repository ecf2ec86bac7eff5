"""Runs a comparison: every cell in a separate process, with its result in a file, so that no interruption loses
results.

The output folder::

    report.html table.md cells.csv plots/      the report, written again after every run
    comparison.json                            the settings, and the number of steps that the budget allowed
    cells/<label>-<what>.json                  one result each; the same comparison computes only missing ones
    logs/<label>-<what>.log                    the output of its process
    documents-<task>/                          source data of the rows, for tasks that read documents
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from longspan.compare import worker_of_cells
from longspan.compare.budget import (
    CURVES,
    FEWEST_STEPS,
    SHARE,
    Clock,
    expected_seconds,
    room_to_measure,
    steps_within,
    training_seconds,
)
from longspan.compare.probes import PROBES
from longspan.compare.settings import Cell, Comparison, Result, read_result, write_result
from longspan.compare.skeleton import form_of, refusal
from longspan.errors import InputError
from longspan.files import OWN, claimed, output_folder, write_whole
from longspan.progress import progress_bar
from longspan.settings import from_plain, to_plain
from longspan.workers import Worker, WorkerEndedError, how_it_died

RECORD = "comparison.json"
FIXED = ("task", "tokens", "rows", "learning_rate", "held_out", "skeleton", "device")
"""Settings that all comparisons in one folder share; mechanisms, lengths and seeds may be added."""

Tell = Callable[[str], None]


def compare(
    comparison: Comparison,
    output: str | Path,
    tell: Tell = lambda line: None,
    begun: float | None = None,
    worker: Worker | None = None,
) -> dict[str, Any]:
    """Run the cells without a result, and return the record of the comparison.

    Mechanisms are first measured with the batches of training, which also determines how many steps fit the budget;
    then trained; then measured at other lengths. A mechanism that does not support the task, whose process ends, or for
    which there is no time has that as its result. After any interruption, the folder contains the results of the
    finished cells.

    Args:
        comparison: the settings.
        output: a folder, new or of the same comparison.
        tell: called with a line for each finished cell.
        begun: `time.monotonic()` when the budget began; `None` is now.
        worker: as `worker_of_cells` returns it, if it was started earlier.

    Raises:
        InputError: the folder contains other files, or the documents of the task are not available.
    """
    folder = output_folder(output)
    _check_folder(folder, comparison)
    with claimed(folder) as remove:
        # Before the documents, so that the folder of a run that is killed meanwhile is recognised.
        _record(folder, comparison, comparison.steps, {})
        try:
            documents = PROBES[comparison.task].prepare(folder)
        except InputError:
            remove(RECORD)
            raise
        _record(folder, comparison, comparison.steps, documents)
        with worker or worker_of_cells() as worker:
            run = Run(comparison, folder, tell, Clock(comparison.budget, begun=begun), worker)
            with run.bar():
                try:
                    worker.wait_until_ready(None if comparison.budget is None else run.clock.left)
                except TimeoutError:
                    steps = run.none()
                else:
                    steps = run.all()
        _record(folder, comparison, steps, documents)
    return read_record(folder)


def read_record(folder: Path) -> dict[str, Any]:
    """Read `comparison.json` of an output folder.

    Raises:
        InputError: there is none, or it is damaged.
    """
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{str(folder / RECORD)!r} cannot be read; remove the folder, or give another output"
        ) from error
    if not isinstance(record, dict):
        raise InputError(f"{str(folder / RECORD)!r} is damaged; remove the folder, or give another output")
    return record


def results_in(folder: Path, comparison: Comparison, steps: int | None) -> list[Result]:
    """Returns the existing results of a comparison's cells."""
    cells = [*_speed_cells(comparison), *_curve_cells(comparison)]
    if steps is not None:
        cells += _quality_cells(comparison, steps)
    results = (read_result(folder / "cells" / f"{cell.name}.json") for cell in cells)
    return [result for result, cell in zip(results, cells, strict=True) if result is not None and result.cell == cell]


class Run:
    """One run of a comparison in its folder."""

    def __init__(self, comparison: Comparison, folder: Path, tell: Tell, clock: Clock, worker: Worker) -> None:
        self.comparison, self.folder, self.tell, self.clock = comparison, folder, tell, clock
        self.worker = worker
        self.progress: Any = None
        self.ahead: float | None = None
        """Expected seconds of the remaining cells; `None` until it is known: the whole budget."""

    @contextmanager
    def bar(self) -> Iterator[None]:
        """Context manager for a progress bar in seconds, whose remainder is the expected remaining time."""
        form = "{desc} {percentage:3.0f}%|{bar}| {elapsed} gone, about {remaining} left"
        with progress_bar(doing="comparing", total=1.0, bar_format=form) as self.progress:
            yield

    def all(self) -> int:
        """Run every cell for which there is time; returns the number of steps."""
        if len(self.comparison.curve_lengths()) > 1:
            self.clock.keep_for_curves()
        measured = self.measure()
        able = {name: result for name, result in measured.items() if result.status == "done"}
        steps = self.steps(able)
        self.train(measured, able, steps)
        self.clock.kept = 0.0
        self.curves(able)
        return steps

    def none(self) -> int | None:
        """Leave out all mechanisms, since no process could be started in time; returns the number of steps, if it is
        known."""
        for cell in _speed_cells(self.comparison):
            if self.has(cell) is None:
                reason = "the budget was over before a process had started"
                write_result(Result(cell=cell, status="left out", reason=reason), self.file(cell))
        self.tell("left out, as the budget was over before a process had started: all that has no result yet")
        return self.known_steps()

    def measure(self) -> dict[str, Result]:
        """Measure each mechanism with the batches of training, while there is time to train it; the first one in any
        case."""
        measured: dict[str, Result] = {}
        steps = self.known_steps() or FEWEST_STEPS
        trained = {cell.label for cell in _quality_cells(self.comparison, steps) if self.has(cell)}
        for cell in _speed_cells(self.comparison):
            waiting = [result for name, result in measured.items() if result.status == "done" and name not in trained]
            free = self.has(cell) is not None or form_of(cell.mechanism, PROBES[cell.task]) is None
            fits = self.clock.left and room_to_measure(waiting, steps, self.comparison.held_out, self.clock)
            if free or fits or not any(result.status != "refused" for result in measured.values()):
                measured[cell.label] = self.cell(cell, None)
            else:
                reason = f"the budget, of which {self.clock.left:,.0f} s are left, has no time to measure and train it"
                measured[cell.label] = Result(cell=cell, status="left out", reason=reason)
                write_result(measured[cell.label], self.file(cell))
        out = [name for name, result in measured.items() if result.status == "left out"]
        if out:
            self.tell(f"left out, as the budget has no time to measure and train them: {', '.join(out)}")
        return measured

    def train(self, measured: dict[str, Result], able: dict[str, Result], steps: int) -> None:
        """Train each mechanism that could be measured, while there is time; the others get the same reason."""
        cells = _quality_cells(self.comparison, steps)
        expected = {
            name: training_seconds(result, steps, self.comparison.held_out, self.clock.start)
            for name, result in able.items()
        }
        for number, cell in enumerate(cells):
            self.ahead = sum(expected.get(later.label, 0.0) for later in cells[number + 1 :])
            if cell.label not in able:
                if self.has(cell) is None:  # the reason was printed already
                    write_result(replace(measured[cell.label], cell=cell, seconds=0.0, wall=0.0), self.file(cell))
                continue
            seconds = expected[cell.label] * self.clock.pace
            if seconds > self.clock.room(cell) and self.has(cell) is None:
                self.leave_out(cell, seconds, self.clock.left)
            else:
                self.cell(cell, expected[cell.label])

    def curves(self, able: dict[str, Result]) -> None:
        """Measure speed and memory by length.

        First the shortest and the longest affordable length of each mechanism, so that there are curves if the time
        ends early; then the lengths between. A cell that would take far more than its share of the remaining time is
        left out.
        """
        cells = [cell for cell in _curve_cells(self.comparison) if cell.label in able]
        last, done = dict(able), set[str]()
        too_long: dict[str, tuple[float, float]] = {}

        def run(cell: Cell, others: int) -> bool:
            """Run a cell unless it takes too long, with `others` cells sharing the time; returns whether it was run."""
            expected = expected_seconds(cell, last[cell.label], self.clock.start)
            share = self.clock.left / others
            if self.has(cell) is None and expected > min(self.clock.left, max(SHARE * share, 2 * self.clock.least)):
                too_long[cell.name] = expected, share
                return False
            result = self.cell(cell, expected)
            done.add(cell.name)
            if result.status == "done":
                last[cell.label] = result
            return True

        for number, label in enumerate(able):
            rising = sorted((cell for cell in cells if cell.label == label), key=lambda cell: cell.tokens)
            for cell in [*rising[:1], *reversed(rising[1:])]:
                if run(cell, 2 * (len(able) - number)) and cell is not rising[0]:
                    break
        waiting = [cell for cell in cells if cell.name not in done]
        for number, cell in enumerate(waiting):
            if not run(cell, sum(later.tokens == cell.tokens for later in waiting[number:])):
                self.leave_out(cell, *too_long[cell.name])

    def steps(self, able: dict[str, Result]) -> int:
        """Returns the steps of every training: the specified number, that of an earlier run, or as many as fit."""
        known = self.known_steps()
        if known is not None:
            return known
        comparison = self.comparison
        share = 1.0
        if _curve_cells(comparison) and self.clock.left:
            share = min((1 - CURVES) * (1 + self.clock.kept / self.clock.left), 1.0)
        steps = steps_within(able.values(), comparison.seeds, comparison.held_out, self.clock, share)
        _record(self.folder, comparison, steps, read_record(self.folder)["documents"])
        return steps

    def known_steps(self) -> int | None:
        """Returns the specified steps, or those of an earlier run with the same budget."""
        before = read_record(self.folder)
        same = before["comparison"]["budget"] == self.comparison.budget
        return self.comparison.steps or (int(before["steps"]) if same and before.get("steps") else None)

    # One cell ---------------------------------------------------------------------------------------------------------

    def file(self, cell: Cell) -> Path:
        """Returns the file of a cell's result."""
        return self.folder / "cells" / f"{cell.name}.json"

    def has(self, cell: Cell) -> Result | None:
        """Returns the result of a cell, if it was run with the same settings and did not fail."""
        result = read_result(self.file(cell))
        return result if result is not None and result.cell == cell and result.status in ("done", "refused") else None

    def keep(self, result: Result) -> Result:
        """Write a result to its file, and print its line."""
        write_result(result, self.file(result.cell))
        self.tell(result_line(result))
        return result

    def leave_out(self, cell: Cell, expected: float, left: float) -> Result:
        """Returns the result of a cell for which there is no time."""
        reason = f"it would take about {expected:,.0f} s, and the budget leaves it {left:,.0f}"
        return self.keep(Result(cell=cell, status="left out", reason=reason))

    def cell(self, cell: Cell, expected: float | None) -> Result:
        """Returns the result of a cell, from its file or from a separate process."""
        known = self.has(cell)
        if known is not None:
            return known
        kind = PROBES[cell.task]
        if form_of(cell.mechanism, kind) is None:
            reason = f"attention {cell.mechanism!r} {refusal(cell.mechanism, kind)}"
            return self.keep(Result(cell=cell, status="refused", reason=reason))
        result = self._in_process(cell, expected or self.clock.start)
        self.clock.note(result, expected)
        return self.keep(result)

    def _in_process(self, cell: Cell, expected: float) -> Result:
        begun, log, patience = self.clock.now(), self.folder / "logs" / f"{cell.name}.log", self.clock.patience(cell)
        log.parent.mkdir(exist_ok=True)

        def tick() -> None:
            gone = self.clock.now() - begun
            self._show(cell, gone, expected)
            if patience is not None and gone > patience:
                raise TimeoutError

        task = {"cell": to_plain(cell), "folder": str(self.folder), "log": str(log)}
        try:
            result = from_plain(Result, self.worker.do(task, tick=tick))
        except TimeoutError:
            result = Result(cell=cell, status="left out", reason="it was stopped, as the budget was over")
        except WorkerEndedError as error:
            result = Result(cell=cell, status="failed", reason=how_it_died(error.code, log))
        return replace(result, wall=self.clock.now() - begun)

    def _show(self, cell: Cell, gone: float, expected: float) -> None:
        bar = self.progress
        if bar is None or bar.disable:
            return
        seed = f", seed {cell.seed}" if cell.kind == "quality" else f", {cell.tokens:,} tokens"
        bar.set_description(f"{cell.label}{seed}", refresh=False)
        bar.n = self.clock.spent
        bar.total = bar.n + max(expected - gone, 0.0) + (self.ahead or 0.0)
        if self.ahead is None:
            bar.total = max(bar.total, self.clock.budget or 0.0)
        bar.refresh()


def result_line(result: Result) -> str:
    """Returns a result on one line, for the terminal."""
    cell, numbers = result.cell, result.numbers
    what = f"seed {cell.seed}" if cell.kind == "quality" else f"{cell.tokens:,} tokens × {cell.rows}"
    place = f"{cell.label}, {what}"
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
    """Returns the cells that measure each mechanism with the batches of training."""
    return [comparison.speed(name, comparison.tokens, comparison.rows) for name in comparison.labels]


def _curve_cells(comparison: Comparison) -> list[Cell]:
    """Returns the cells with one row of each length: the shortest, the longest, then always the one farthest from those
    before, so that a curve covers the whole range whenever the time ends."""
    lengths = in_gaps(comparison.curve_lengths())
    cells = [comparison.speed(name, length, 1) for length in lengths for name in comparison.labels]
    return [cell for cell in cells if (cell.tokens, cell.rows) != (comparison.tokens, comparison.rows)]


def in_gaps(lengths: list[int]) -> list[int]:
    """Order increasing lengths so that each next one is as far as possible, on a logarithmic scale, from those
    before."""
    ordered, left = lengths[:1], lengths[1:]
    while left:
        farthest = max(left, key=lambda length: min(abs(math.log(length / near)) for near in ordered))
        ordered.append(farthest)
        left.remove(farthest)
    return ordered


def _quality_cells(comparison: Comparison, steps: int) -> list[Cell]:
    """Returns the cells that train each mechanism with each seed; all mechanisms of one seed before the next."""
    seeds = range(1, comparison.seeds + 1)
    return [comparison.quality(name, seed, steps) for seed in seeds for name in comparison.labels]


def _check_folder(folder: Path, comparison: Comparison) -> None:
    """Check that a folder contains nothing else."""
    if not folder.exists() or all(OWN.fullmatch(name) for name in os.listdir(folder)):
        return
    if not (folder / RECORD).is_file():
        raise InputError(f"output {str(folder)!r} exists and holds no comparison; give another --output")
    before, now = read_record(folder).get("comparison", {}), to_plain(comparison)
    for name in FIXED:
        if before.get(name) != now[name]:
            raise InputError(
                f"output {str(folder)!r} contains a comparison with {name}={before.get(name)!r}, not {now[name]!r}; "
                "continue with the same value, or give another --output"
            )


def _record(folder: Path, comparison: Comparison, steps: int | None, documents: dict[str, str]) -> None:
    before = read_record(folder) if (folder / RECORD).is_file() else {}
    same = before.get("comparison", {}).get("budget") == comparison.budget
    steps_before = before.get("steps") if same else None
    record = {"comparison": to_plain(comparison), "steps": steps or steps_before, "documents": documents}
    write_whole({folder / RECORD: json.dumps(record, indent=1)})
