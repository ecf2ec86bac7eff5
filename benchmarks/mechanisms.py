"""Every attention mechanism on two tasks, and speed and memory by length: what `longspan compare` finds, committed.

    LONGSPAN_DATA=… OMP_NUM_THREADS=1 python benchmarks/mechanisms.py [--steps 400] [--seeds 1] [--quick]
    python benchmarks/mechanisms.py --mechanisms etc,three-levels:poolingformer    # these alone; other rows stay

Resumable: the cells are in `runs/mechanisms-TASK`, and the same command runs only those that are missing. Writes a CSV
of all cells for each task, `results/mechanisms.md` from them, and the plots of the documentation where all was measured
on one machine; `docs/figures.py` builds the front page of mechanisms from the CSVs. A row that was not measured keeps
its numbers and names their machine.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longspan.compare.report import write_report
from longspan.compare.run import compare
from longspan.compare.settings import Comparison, comparable, lengths_of, names_of
from longspan.compare.skeleton import NEAR, Skeleton
from longspan.compare.summary import COLUMNS, HEADER, NUMBERS
from measure import RESULTS, table, write_page

TASKS = ("recall", "bytes")
PICTURES = Path(__file__).parents[1] / "docs" / "img"
KEPT = {"recall": ("quality", "distance", "training", "memory-training"), "bytes": ("quality",)}
"""Task → the plots that the documentation shows; speed by length is measured once, with the first task."""
LEVELS = [
    {"left_tokens": 64, "right_tokens": 64},
    {"left_tokens": 128, "right_tokens": 128, "kernel": 5, "stride": 4},
    {"left_tokens": 512, "right_tokens": 512, "kernel": 17, "stride": 16},
]
OPTIONS: dict[str, dict[str, Any]] = {"three-levels": {"levels": LEVELS}}
"""Label → options, of what is compared besides with others than the defaults."""
FURTHER = ("three-levels:poolingformer",)
WITH_MEMORY = ("longformer-memory:longformer",)
"""Those that read sixteen memory tokens in front of every row, in a skeleton of their own."""
MEMORY_TOKENS = 16
ABOUT = """\
All mechanisms with their default options in one skeleton, with equal numbers of weights, rows and steps; the guide
`packages/longspan/docs/guides/compare.md` says what exactly is equal. `three-levels` is Poolingformer with windows of
64, 128 in pools of 5 by 4 and 512 in pools of 17 by 16 on each side, `longformer-memory` has 16 memory tokens in front
of every row. The speed and memory of the tables are those of the batches of training; the curves by length, of a single
row, are in the CSV of the first task. `longspan compare` with the settings below gives the same."""


def comparison_of(task: str, names: Sequence[str], memory: int, arguments: argparse.Namespace) -> Comparison:
    """One comparison of some mechanisms; lengths are measured with the first task alone."""
    lengths = lengths_of(arguments.lengths) if task == TASKS[0] else (arguments.tokens,)
    labels = {name.rpartition(":")[0] or name for name in names}
    return Comparison(
        task=task,
        mechanisms=tuple(names),
        options={label: options for label, options in OPTIONS.items() if label in labels},
        tokens=arguments.tokens,
        lengths=lengths,
        steps=arguments.steps,
        seeds=arguments.seeds,
        skeleton=Skeleton(memory_tokens=memory),
        device="cpu",
    )


def cells_of(file: Path) -> list[dict[str, str]]:
    """The rows of a CSV of cells."""
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def publish(task: str, folders: Sequence[Path]) -> list[dict[str, str]]:
    """Put what was measured in the place of committed cells of the same labels; all cells of the task.

    Plots are copied where no other cells are left: they show what one comparison has.
    """
    file = RESULTS / f"mechanisms-{task}.csv"
    measured = [cell for folder in folders for cell in cells_of(folder / "cells.csv")]
    labels = {cell["label"] for cell in measured}
    others = [cell for cell in cells_of(file) if cell["label"] not in labels]
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(others + measured)
    for plot in KEPT[task] if not others else ():
        made = folders[0] / "plots" / f"{plot}.png"
        if made.is_file():
            shutil.copyfile(made, PICTURES / f"compare-{task}-{plot}.png")
    return others + measured


def line_of(cells: Sequence[Mapping[str, str]], machines: Sequence[str]) -> list[str]:
    """A row of a task's table, from the cells of a label."""
    scores = [float(cell["score"]) for cell in cells if cell["kind"] == "quality" and cell["status"] == "done"]
    trained = next(cell for cell in cells if cell["kind"] == "speed" and cell["rows"] != "1")
    numbers = [f"{float(trained[name]) / unit:,.0f}" if trained[name] else "–" for name, unit in NUMBERS.items()]
    more = float(trained["parameters"]) / float(trained["target_parameters"]) - 1 if trained["parameters"] else 0.0
    notes = f"{more:+.0%} weights" if abs(more) > NEAR else trained["reason"]
    return [
        trained["label"],
        f"{statistics.fmean(scores):.3f}" if scores else "–",
        f"{statistics.stdev(scores):.3f}" if len(scores) > 1 else "–",
        *numbers,
        trained["form"] or "–",
        notes,
        chr(ord("A") + machines.index(trained["machine"])),
    ]


def section(task: str, cells: Sequence[Mapping[str, str]], machines: Sequence[str], record: Mapping[str, Any]) -> str:
    """The table of a task, machine by machine and the best first, and what was set."""
    asked = record["comparison"]
    chosen = ", ".join(f"{name} {asked[name]}" for name in ("tokens", "rows", "seeds", "learning_rate", "held_out"))
    labels = dict.fromkeys(cell["label"] for cell in cells)
    rows = [line_of([cell for cell in cells if cell["label"] == label], machines) for label in labels]
    rows.sort(key=lambda row: row[1] if row[1] != "–" else "", reverse=True)
    rows.sort(key=lambda row: row[-1])
    header = [*("accuracy" if name == "score" else name for name in HEADER), "machine"]
    return f"## {task.capitalize()}\n\n{chosen}, steps {record['steps']}.\n\n{table(header, rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mechanisms", default="", help="measure these alone (default: all)")
    parser.add_argument("--tokens", type=int, default=512, help="length of a task's rows (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=400, help="updates of the weights (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each (default: %(default)s)")
    parser.add_argument("--lengths", default="512-65536", help="of the curves (default: %(default)s)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the cells are (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="two steps and short rows, to see that it works")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.steps, arguments.lengths, arguments.tokens = 2, "512", 512
    chosen = (
        names_of(arguments.mechanisms, "mechanisms")
        if arguments.mechanisms
        else (*comparable(), *FURTHER, *WITH_MEMORY)
    )
    groups = {
        "": ([name for name in chosen if name not in WITH_MEMORY], 0),
        "-memory": ([name for name in chosen if name in WITH_MEMORY], MEMORY_TOKENS),
    }
    cells: dict[str, list[dict[str, str]]] = {}
    records: dict[str, Any] = {}
    for task in TASKS:
        folders = []
        for ending, (names, memory) in groups.items():
            if not names:
                continue
            folders.append(arguments.runs / f"mechanisms-{task}{ending}")
            asked = comparison_of(task, names, memory, arguments)
            records[task] = compare(asked, folders[-1], tell=lambda line: print(line, file=sys.stderr))
            print(write_report(folders[-1]).text)
        if not arguments.quick:
            cells[task] = publish(task, folders)
    if not arguments.quick:
        machines = list(dict.fromkeys(cell["machine"] for each in cells.values() for cell in each))
        words = "\n".join(f"- {chr(ord('A') + number)}: {machine}" for number, machine in enumerate(machines))
        sections = [section(task, cells[task], machines, records[task]) for task in TASKS]
        write_page("mechanisms", "Every mechanism, in one frame", [f"Machines:\n\n{words}", ABOUT, *sections])


if __name__ == "__main__":
    main()
