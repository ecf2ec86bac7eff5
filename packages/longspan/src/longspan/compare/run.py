"""Run a comparison: every cell in a process of its own, its result in a file, so that any end is no loss.

The output folder::

    report.html table.md cells.csv plots/      what came of it, written anew after every run
    comparison.json                            what was asked, and how many steps the budget gave
    cells/<label>-<what>.json                  one result each; the same comparison again runs only what is missing
    logs/<label>-<what>.log                    what its process said
    documents-<task>/                          what the rows are made from, for tasks that read documents
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
"""What the comparisons in one folder have in common; mechanisms, lengths and seeds may be added."""

Tell = Callable[[str], None]


def compare(
    comparison: Comparison,
    output: str | Path,
    tell: Tell = lambda line: None,
    begun: float | None = None,
    worker: Worker | None = None,
) -> dict[str, Any]:
    """Run what has no result yet, and return the record of the comparison.

    Mechanisms are first measured as they will be trained, which also says how many steps fit into the budget; then
    trained; then measured at other lengths. One that refuses the task, or whose process dies, has that as its result,
    and so has one for which there is no time. Whatever ends it, what was done by then has its results in the folder.

    Args:
        comparison: what to compare.
        output: a folder, new or of the same comparison.
        tell: called with a line for each cell that is finished.
        begun: `time.monotonic()` when the budget began; `None` is now.
        worker: as `worker_of_cells` returns it, where it was started earlier.

    Raises:
        InputError: the folder holds something else, or the documents of the task cannot be had.
    """
    folder = output_folder(output)
    _check_folder(folder, comparison)
    with claimed(folder) as remove:
        # Before the documents, so that the folder of a run that is killed meanwhile is known for what it is.
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
    """What `comparison.json` of an output folder says.

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
    """The results of a comparison's cells, as far as there are any."""
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
        """Seconds that the cells to come are expected to take; `None` before that is known: all of the budget."""

    @contextmanager
    def bar(self) -> Iterator[None]:
        """A bar in seconds, of all that is expected; what is left of it is the time left."""
        form = "{desc} {percentage:3.0f}%|{bar}| {elapsed} gone, about {remaining} left"
        with progress_bar(doing="comparing", total=1.0, bar_format=form) as self.progress:
            yield

    def all(self) -> int:
        """Every cell for which there is time; the number of steps."""
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
        """Leave every mechanism out, as no process could be started in time; the number of steps, if it is known."""
        for cell in _speed_cells(self.comparison):
            if self.has(cell) is None:
                reason = "the budget was over before a process had started"
                write_result(Result(cell=cell, status="left out", reason=reason), self.file(cell))
        self.tell("left out, as the budget was over before a process had started: all that has no result yet")
        return self.known_steps()

    def measure(self) -> dict[str, Result]:
        """Each mechanism as it will be trained, as long as there will be time to train it; the first in any case."""
        measured: dict[str, Result] = {}
        steps = self.known_steps() or FEWEST_STEPS
        trained = {cell.label for cell in _quality_cells(self.comparison, steps) if self.has(cell)}
        for cell in _speed_cells(self.comparison):
            waiting = [each for name, each in measured.items() if each.status == "done" and name not in trained]
            free = self.has(cell) is not None or form_of(cell.mechanism, PROBES[cell.task]) is None
            fits = self.clock.left and room_to_measure(waiting, steps, self.comparison.held_out, self.clock)
            if free or fits or not any(each.status != "refused" for each in measured.values()):
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
        """Train each mechanism that could be measured, as long as there is time; the others get the same reason."""
        cells = _quality_cells(self.comparison, steps)
        expected = {
            name: training_seconds(result, steps, self.comparison.held_out, self.clock.start)
            for name, result in able.items()
        }
        for number, cell in enumerate(cells):
            self.ahead = sum(expected.get(later.label, 0.0) for later in cells[number + 1 :])
            if cell.label not in able:
                if self.has(cell) is None:  # for the same reason, which was told
                    write_result(replace(measured[cell.label], cell=cell, seconds=0.0, wall=0.0), self.file(cell))
                continue
            seconds = expected[cell.label] * self.clock.pace
            if seconds > self.clock.room(cell) and self.has(cell) is None:
                self.leave_out(cell, seconds, self.clock.left)
            else:
                self.cell(cell, expected[cell.label])

    def curves(self, able: dict[str, Result]) -> None:
        """Speed and memory by length: first the shortest and the longest that can be afforded of one mechanism after
        the other, so that there are curves however early the time ends; then the lengths between. What would take far
        more than its share of what is left is left out."""
        cells = [cell for cell in _curve_cells(self.comparison) if cell.label in able]
        last, done = dict(able), set[str]()
        too_long: dict[str, tuple[float, float]] = {}

        def run(cell: Cell, others: int) -> bool:
            """Run a cell unless it is too long, where so many others want a share; whether it was run."""
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
        """The steps of every training: those asked for, those of before, or those that fit."""
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
        """The steps that were asked for, or those of before with the same budget."""
        before = read_record(self.folder)
        same = before["comparison"]["budget"] == self.comparison.budget
        return self.comparison.steps or (int(before["steps"]) if same and before.get("steps") else None)

    # One cell ---------------------------------------------------------------------------------------------------------

    def file(self, cell: Cell) -> Path:
        """The file of a cell's result."""
        return self.folder / "cells" / f"{cell.name}.json"

    def has(self, cell: Cell) -> Result | None:
        """Its result, if it was run with the same settings and did not fail."""
        result = read_result(self.file(cell))
        return result if result is not None and result.cell == cell and result.status in ("done", "refused") else None

    def keep(self, result: Result) -> Result:
        """Write a result into its file, and print its line."""
        write_result(result, self.file(result.cell))
        self.tell(told(result))
        return result

    def leave_out(self, cell: Cell, expected: float, left: float) -> Result:
        """The result of a cell for which there is no time."""
        reason = f"it would take about {expected:,.0f} s, and the budget leaves it {left:,.0f}"
        return self.keep(Result(cell=cell, status="left out", reason=reason))

    def cell(self, cell: Cell, expected: float | None) -> Result:
        """The result of a cell, from its file or from a process of its own."""
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


def told(result: Result) -> str:
    """A result on one line, for the terminal."""
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
    """Each mechanism as it will be trained."""
    return [comparison.speed(name, comparison.tokens, comparison.rows) for name in comparison.labels]


def _curve_cells(comparison: Comparison) -> list[Cell]:
    """One row at each length: the shortest, the longest, then whichever lies farthest from those before, so that a
    curve covers the whole range whenever the time ends."""
    lengths = in_gaps(comparison.curve_lengths())
    cells = [comparison.speed(name, length, 1) for length in lengths for name in comparison.labels]
    return [cell for cell in cells if (cell.tokens, cell.rows) != (comparison.tokens, comparison.rows)]


def in_gaps(lengths: list[int]) -> list[int]:
    """Rising lengths, each next one as far as can be, on a logarithmic scale, from those before."""
    ordered, left = lengths[:1], lengths[1:]
    while left:
        farthest = max(left, key=lambda length: min(abs(math.log(length / near)) for near in ordered))
        ordered.append(farthest)
        left.remove(farthest)
    return ordered


def _quality_cells(comparison: Comparison, steps: int) -> list[Cell]:
    """Each mechanism with each seed; all mechanisms of one seed before the next."""
    seeds = range(1, comparison.seeds + 1)
    return [comparison.quality(name, seed, steps) for seed in seeds for name in comparison.labels]


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
    steps_before = before.get("steps") if same else None
    record = {"comparison": to_plain(comparison), "steps": steps or steps_before, "documents": documents}
    write_whole({folder / RECORD: json.dumps(record, indent=1)})
