"""Every attention mechanism on two tasks, and speed and memory by length: what `longspan compare` finds, committed.

    LONGSPAN_DATA=… OMP_NUM_THREADS=1 python benchmarks/mechanisms.py [--steps 400] [--seeds 1] [--quick]

Resumable: the cells are in `runs/mechanisms-TASK`, and the same command runs only those that are missing. Writes
`results/mechanisms.md`, a CSV of all cells for each task, and the plots of the documentation, whose front page of
mechanisms `docs/figures.py` builds from the CSVs.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longspan.compare.report import write_report
from longspan.compare.run import compare
from longspan.compare.settings import Comparison, lengths_of
from measure import RESULTS, write_page

TASKS = ("recall", "bytes")
PICTURES = Path(__file__).parents[1] / "docs" / "img"
KEPT = {"recall": ("quality", "distance", "training", "memory-training"), "bytes": ("quality",)}
"""Task → the plots that the documentation shows; speed by length is measured once, with the first task."""
ABOUT = """\
All mechanisms with their default options in one skeleton, with equal numbers of weights, rows and steps; the guide
`docs/guides/compare.md` says what exactly is equal. The speed and memory of the tables are those of the batches of
training; the curves by length, of a single row, are in the CSV of the first task and in the plots. `longspan compare`
with the settings below gives the same."""


def comparison_of(task: str, arguments: argparse.Namespace) -> Comparison:
    """One comparison over all mechanisms; lengths are measured with the first task alone."""
    lengths = lengths_of(arguments.lengths) if task == TASKS[0] else (arguments.tokens,)
    return Comparison(
        task=task, tokens=arguments.tokens, lengths=lengths, steps=arguments.steps, seeds=arguments.seeds, device="cpu"
    )


def section(task: str, folder: Path, record: Mapping[str, Any]) -> str:
    """The table of a task, and what was set."""
    asked = record["comparison"]
    chosen = ", ".join(f"{name} {asked[name]}" for name in ("tokens", "rows", "seeds", "learning_rate", "held_out"))
    rows = (folder / "table.md").read_text(encoding="utf-8").strip()
    return f"## {task.capitalize()}\n\n{chosen}, steps {record['steps']}.\n\n{rows}"


def publish(task: str, folder: Path) -> None:
    """Copy the cells and the plots to where they are committed."""
    shutil.copyfile(folder / "cells.csv", RESULTS / f"mechanisms-{task}.csv")
    for plot in KEPT[task]:
        made = folder / "plots" / f"{plot}.png"
        if made.is_file():
            shutil.copyfile(made, PICTURES / f"compare-{task}-{plot}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=512, help="length of a task's rows (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=400, help="updates of the weights (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each (default: %(default)s)")
    parser.add_argument("--lengths", default="512-65536", help="of the curves (default: %(default)s)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the cells are (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="two steps and short rows, to see that it works")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.steps, arguments.lengths, arguments.tokens = 2, "512", 512
    sections = []
    for task in TASKS:
        folder = arguments.runs / f"mechanisms-{task}"
        record = compare(comparison_of(task, arguments), folder, tell=lambda line: print(line, file=sys.stderr))
        report = write_report(folder)
        print(report.text)
        sections.append(section(task, folder, record))
        if not arguments.quick:
            publish(task, folder)
    if not arguments.quick:
        machine = report.data["results"][0]["words"]["machine"]
        write_page("mechanisms", "Every mechanism, in one frame", [machine, ABOUT, *sections])


if __name__ == "__main__":
    main()
