"""How a comparison spends its time: durations that were recorded, on a clock that they alone move."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longspan.compare.budget import Clock
from longspan.compare.report import write_report
from longspan.compare.run import Run, _record, compare, results_in
from longspan.compare.settings import Cell, Comparison, Result
from longspan.files import OWN
from longspan.settings import from_plain, to_plain
from longspan.workers import POLL, Worker

pytestmark = pytest.mark.slow

# Seconds on a machine with five times as much to do as it has processors: the import of all that a process needs, one
# to measure a mechanism, a step of training, a batch of scoring, and what a training takes besides.
IMPORT, MEASURING, FORWARD, TRAINING = 20.0, 1.7, 0.09, 2.6
STEP = {"full": 0.15, "fusion": 0.5, "sparse": 0.21, "explicit_sparse": 0.4, "linear": 0.11}


class Recorded:
    """A worker that lets recorded time pass; `slower` is how much longer trainings take than planned."""

    def __init__(self, slower: float = 1.0) -> None:
        self.time, self.slower = 0.0, slower
        self.begun: list[Cell] = []

    def do(self, task: dict[str, Any], *, tick: Callable[[], None]) -> dict[str, Any]:
        """Let the time of a cell pass."""
        cell = from_plain(Cell, task["cell"])
        self.begun.append(cell)
        step = STEP.get(cell.mechanism, 0.18)
        work = self.slower * (TRAINING + cell.steps * step + cell.held_out / cell.rows * FORWARD)
        if cell.kind == "speed":
            work = MEASURING + cell.rows * cell.tokens / 2048 * (step + FORWARD)
        ends = self.time + 0.1 + work
        while self.time < ends:
            tick()
            self.time += POLL
        growth = cell.rows * cell.tokens / 2048
        numbers = {"score": 0.5, "answers": 3} if cell.kind == "quality" else {}
        for name, wall in (("train", step), ("inference", FORWARD)):
            numbers |= {f"{name}_wall": growth * wall, f"{name}_tokens_per_second": 9.0, f"{name}_bytes": 2**20}
        numbers |= {"parameters": 100, "target_parameters": 100, "feed_forward": 512}
        words = {"form": "bidirectional", "global_tokens": "none", "mechanism": cell.mechanism}
        words |= {"machine": "a clock", "clock": "seconds"}
        return to_plain(Result(cell=cell, status="done", seconds=work, numbers=numbers, words=words))


def compared(comparison: Comparison, folder: Path, recorded: Recorded) -> list[Result]:
    """The results of a comparison whose time is recorded, the import included."""
    folder.mkdir(exist_ok=True)
    _record(folder, comparison, comparison.steps, {})
    clock = Clock(comparison.budget, now=lambda: recorded.time)
    recorded.time += IMPORT
    steps = Run(comparison, folder, lambda line: None, clock, recorded).all()  # type: ignore[arg-type]
    return results_in(folder, comparison, steps)


def trained(results: list[Result]) -> list[Cell]:
    """The cells that were trained."""
    return [result.cell for result in results if result.cell.kind == "quality" and result.status == "done"]


@pytest.mark.parametrize("slower", [1.0, 3.0])
@pytest.mark.parametrize("budget", [40, 120, 300])
def test_it_ends_with_the_budget_and_trains_before_all_else(budget: int, slower: float, tmp_path: Path) -> None:
    comparison, recorded = Comparison(tokens=512, budget=budget, seeds=2), Recorded(slower)
    results = compared(comparison, tmp_path, recorded)
    # What is kept for the report is left; the last cell may have run over by a tenth, the only training by a quarter.
    assert recorded.time <= budget * (1.25 if len(trained(results)) == 1 else 1.1)
    cells = trained(results)
    if budget > 40 or slower == 1:
        assert cells
    assert len({cell.steps for cell in cells}) <= 1
    assert all(cell.steps >= 10 for cell in cells)
    # Every cell has a result, if only that there was no time for it; curves have none where nothing was measured.
    measured = {result.cell.mechanism for result in results if result.status == "done"}
    count = len(comparison.mechanisms)
    assert len([result for result in results if result.cell.kind == "quality"]) == 2 * count
    assert len([result for result in results if result.cell.kind == "speed"]) == count + 3 * len(measured)
    kinds = [(cell.kind, cell.rows) for cell in recorded.begun]
    curves = [place for place, kind in enumerate(kinds) if kind == ("speed", 1)]
    assert all(place > max(at for at, kind in enumerate(kinds) if kind[0] == "quality") for place in curves if cells)
    # No time went into measuring mechanisms that are not trained then, while nothing is slower than it was measured.
    if slower == 1:
        assert {cell.mechanism for cell in cells} == measured


@pytest.mark.parametrize(("budget", "slower"), [(60, 1.0), (120, 1.0), (120, 3.0), (300, 1.0), (300, 3.0)])
def test_a_curve_is_there_however_many_are_compared(budget: int, slower: float, tmp_path: Path) -> None:
    results = compared(Comparison(tokens=512, budget=budget), tmp_path, Recorded(slower))
    points = Counter(result.cell.label for result in results if result.cell.rows == 1 and result.status == "done")
    assert max(points.values()) >= 2
    assert trained(results)


def test_lengths_that_are_too_long_leave_shorter_ones(tmp_path: Path) -> None:
    comparison = Comparison(mechanisms=("full", "linear"), tokens=512, lengths=(512, 1024, 2**20), budget=120)
    results = compared(comparison, tmp_path, Recorded())
    states = {(result.cell.label, result.cell.tokens): result.status for result in results if result.cell.rows == 1}
    assert states == {
        (label, tokens): "left out" if tokens == 2**20 else "done"
        for label in ("full", "linear")
        for tokens in (512, 1024, 2**20)
    }


def test_a_killed_comparison_leaves_nothing_that_the_next_does_not_clear(tmp_path: Path) -> None:
    """What it was writing has a name that is known as temporary, where `clear_stale` looks."""
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells/.longspan-0123456789ab.part").write_text("of a process that was killed")
    assert compared(Comparison(mechanisms=("full",), tokens=512, lengths=(), steps=10), tmp_path, Recorded())
    assert not [file for file in (tmp_path / "cells").iterdir() if OWN.fullmatch(file.name)]


def test_a_long_budget_trains_all_and_measures_every_length(tmp_path: Path) -> None:
    comparison, recorded = Comparison(tokens=512, budget=1800), Recorded()
    results = compared(comparison, tmp_path, recorded)
    assert {result.status for result in results} == {"done"}
    assert len(results) == len(comparison.mechanisms) * (1 + 3 + 1)
    assert 900 < recorded.time < 1800


def test_the_same_command_again_goes_on_with_what_was_left_out(tmp_path: Path) -> None:
    comparison = Comparison(tokens=512, lengths=(512,), budget=60)
    counts = []
    for _ in range(20):
        results = compared(comparison, tmp_path, Recorded())
        counts.append(len(trained(results)))
        if counts[-1] == len(comparison.mechanisms):
            break
    assert counts == sorted(counts)
    assert counts[0] >= 2
    assert counts[-1] == len(comparison.mechanisms)
    assert len({cell.steps for cell in trained(results)}) == 1


def test_without_a_budget_nothing_is_left_out(tmp_path: Path) -> None:
    results = compared(Comparison(tokens=512, steps=1000), tmp_path, Recorded())
    assert {result.status for result in results} == {"done"}


def test_a_report_is_written_whatever_was_left_out(tmp_path: Path) -> None:
    compared(
        Comparison(tokens=512, budget=40, mechanisms=("full", "linear", "cluster", "routing")), tmp_path, Recorded()
    )
    report = write_report(tmp_path)
    assert "full" in report.text
    assert "not trained, for want of time" in report.text
    assert (tmp_path / "report.html").is_file()
    # Nothing at all could be run.
    compared(Comparison(tokens=512, budget=1, mechanisms=("full", "linear")), tmp_path / "none", Recorded())
    assert write_report(tmp_path / "none").text.count("not trained, for want of time") == 2


def test_where_no_process_starts_in_time_everything_is_left_out(tmp_path: Path) -> None:
    said: list[str] = []
    comparison = Comparison(tokens=512, budget=40, mechanisms=("full", "linear"))
    never = Worker([sys.executable, "-S", "-c", "import time; time.sleep(3600)"])
    record = compare(comparison, tmp_path, said.append, begun=-1e6, worker=never)
    assert record["steps"] is None
    assert len(said) == 1
    assert "the budget was over before a process had started" in said[0]
    assert "for want of time" in write_report(tmp_path).text
