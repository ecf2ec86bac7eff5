"""The table on the front page of mechanisms, from the cells that `benchmarks/mechanisms.py` left."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
LENGTHS = (1024, 8192, 65536)
"""Those of the table, of the ones that were measured."""
HEADER = (
    *("mechanism", "recall", "bytes"),
    *(f"{length:,}" for length in LENGTHS),
    f"MiB at {LENGTHS[-1]:,}",
    "machine",
)
NONE = "–"


@dataclass
class Found:
    """What was measured of one mechanism with its options."""

    scores: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Task → the accuracy of each seed."""
    speed: dict[int, float] = field(default_factory=dict)
    """Tokens of a single row → tokens a second in training."""
    memory: dict[int, float] = field(default_factory=dict)
    """Tokens of a single row → bytes in training."""
    mechanism: str = ""
    """What the label stands for."""
    machine: str = ""

    def score(self, task: str) -> str:
        """ "0.81" """
        return f"{fmean(self.scores[task]):.2f}" if self.scores.get(task) else NONE

    def cells(self, name: str, machines: Sequence[str]) -> list[str]:
        """A line of the table."""
        speeds = [f"{self.speed[length]:,.0f}" if length in self.speed else NONE for length in LENGTHS]
        most = self.memory.get(LENGTHS[-1])
        page = f"[`{name}`]({self.mechanism}.md)"
        where = chr(ord("A") + machines.index(self.machine)) if len(machines) > 1 else NONE
        room = f"{most / 2**20:,.0f}" if most else NONE
        return [page, self.score("recall"), self.score("bytes"), *speeds, room, where]


def read_cells(paths: Sequence[Path]) -> dict[str, Found]:
    """Label → what was measured, from the CSVs of comparisons."""
    found: dict[str, Found] = defaultdict(Found)
    for path in paths:
        with path.open(encoding="utf-8", newline="") as lines:
            for cell in csv.DictReader(lines):
                _add(found[cell.get("label") or cell["mechanism"]], cell)
    return dict(found)


def _add(found: Found, cell: dict[str, str]) -> None:
    if cell["status"] != "done":
        return
    found.mechanism, found.machine = cell["mechanism"], cell.get("machine", "")
    if cell["kind"] == "quality":
        found.scores[cell["task"]].append(float(cell["score"]))
    elif cell["rows"] == "1" and cell["task"] == "recall":
        found.speed[int(cell["tokens"])] = float(cell["train_tokens_per_second"])
        found.memory[int(cell["tokens"])] = float(cell["train_bytes"])


def measured_table(paths: Sequence[Path]) -> str:
    """Markdown: machine by machine, the best in recall first; a column that nobody has is left out, and so are the
    names of the machines where there is one."""
    found = read_cells(paths)
    machines = list(dict.fromkeys(each.machine for each in found.values()))

    def place(name: str) -> tuple[int, float, str]:
        scores = found[name].scores.get("recall") or [0.0]
        return machines.index(found[name].machine), -fmean(scores), name

    order = sorted(found, key=place)
    rows = [found[name].cells(name, machines) for name in order]
    measured = [column for column in range(len(HEADER)) if any(row[column] != NONE for row in rows)]
    lines = [HEADER, ["---"] * len(HEADER), *rows]
    text = [f"| {' | '.join(line[column] for column in measured)} |" for line in lines]
    if len(machines) > 1:
        text += ["", "; ".join(f"{chr(ord('A') + number)}: {words}" for number, words in enumerate(machines)) + "."]
    return "\n".join(text)


def with_table(page: str, table: str) -> str:
    """A page with the table between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"
