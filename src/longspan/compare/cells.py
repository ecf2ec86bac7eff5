"""One cell of a comparison: a mechanism measured at one length, or trained with one seed; and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from longspan.compare.skeleton import Skeleton
from longspan.files import write_whole
from longspan.settings import Count, Whole, check, from_plain, to_plain

Kind = Literal["speed", "quality"]
Status = Literal["done", "refused", "failed", "left out"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Everything that decides a cell's result, but the machine.

    Attributes:
        kind: "speed" measures tokens per second and memory, "quality" trains and scores.
        task: the probe, by its name.
        mechanism, options: what is compared.
        tokens: of a row.
        rows: in a batch.
        skeleton: what surrounds the attention.
        device: "cpu" or "cuda".
        seed: of weights and training rows.
        steps: updates of the weights; 0 where nothing is trained.
        learning_rate: of AdamW, after a tenth of the steps; it then falls to 0.
        held_out: rows that are scored.
    """

    kind: Kind
    task: str
    mechanism: str
    options: dict[str, Any] = field(default_factory=dict)
    tokens: Count
    rows: Count
    skeleton: Skeleton = field(default_factory=Skeleton)
    device: str = "cpu"
    seed: Whole = 0
    steps: Whole = 0
    learning_rate: float = 3e-3
    held_out: Whole = 0

    def __post_init__(self) -> None:
        check(self)

    @property
    def name(self) -> str:
        """The name of its files: what tells it from the others of a comparison."""
        what = f"{self.tokens}x{self.rows}" if self.kind == "speed" else f"seed{self.seed}"
        return f"{self.mechanism}-{self.kind}-{what}"


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a cell.

    Attributes:
        cell: which it was.
        status: "done"; "refused" by the mechanism; "failed"; "left out" for want of time.
        reason: of all but "done", in a sentence or less.
        seconds: of work; starting the process is not counted.
        wall: seconds with it.
        numbers: what was found: `parameters`, `train_tokens_per_second`, `score`, …
        words: the same in words: `form`, `mechanism`, `machine`.
        by_distance: upper end of a range of distances → answers that were right, and answers.
    """

    cell: Cell
    status: Status
    reason: str = ""
    seconds: float = 0.0
    wall: float = 0.0
    numbers: dict[str, Any] = field(default_factory=dict)
    words: dict[str, Any] = field(default_factory=dict)
    by_distance: dict[str, Any] = field(default_factory=dict)


def write_result(result: Result, file: Path) -> None:
    """Write a result, whole or not at all."""
    write_whole({file: json.dumps(to_plain(result), indent=1)})


def read_result(file: Path) -> Result | None:
    """The result in a file; `None` where there is none, or none of this form."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        return from_plain(Result, data) if isinstance(data, Mapping) else None
    except (OSError, ValueError):  # not there, damaged, or of another version: it is measured again
        return None
