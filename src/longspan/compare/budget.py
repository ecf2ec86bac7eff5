"""How the time of a comparison is divided: what each cell will take, what is left out, how many steps there are."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from longspan.attention import attention_config
from longspan.compare.cells import Cell, Result
from longspan.compare.skeleton import spec_of

START = 8.0
"""Seconds that a process takes to start, until one was seen."""
CURVES = 0.3
"""Share of a budget for the curves of speed and memory."""
FEWEST_STEPS = 10
RESERVE = 0.85
"""Of the time that is left, what is planned with: machines are not the same from one minute to the next."""
TRAINER = 0.006
"""Seconds that the Trainer adds to a step."""
SHARE = 3.0
"""How many times its share of what is left for the curves a cell may take."""
PATIENCE = 3.0
"""How many times its expected time a cell may take, before it is stopped."""


@dataclass
class Clock:
    """The time that a comparison has, and what its cells have taken.

    Attributes:
        budget: seconds; `None` is no end.
        starts: seconds that processes took to start.
    """

    budget: float | None
    begun: float = field(default_factory=time.monotonic)
    starts: list[float] = field(default_factory=list)

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.begun

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return float("inf") if self.budget is None else max(self.budget - self.spent, 0.0)

    @property
    def start(self) -> float:
        """Seconds that a process takes to start."""
        return statistics.median(self.starts) if self.starts else START

    def note(self, result: Result) -> None:
        """Learn from a cell that was run."""
        self.starts.append(max(result.wall - result.seconds, 0.0))

    def patience(self, expected: float) -> float | None:
        """Seconds after which a cell is stopped that was expected to take so long: none before all of the budget."""
        return None if self.budget is None else max(PATIENCE * expected, self.budget)


def expected_seconds(cell: Cell, known: Result, start: float) -> float:
    """What measuring a mechanism will take, from a result of the same at another length: counted costs decide."""
    growth = work_of(cell) / max(work_of(known.cell), 1.0)
    runs = known.numbers["train_wall"] + known.numbers["inference_wall"]
    # Each is run once to warm up; short ones are then repeated, and what is so long that it counts at once is not.
    return start + 2.0 + min(2 * growth * runs, growth * runs + 8.0)


def work_of(cell: Cell) -> float:
    """Multiply-adds of the skeleton with the mechanism over a batch, forward."""
    skeleton, length = cell.skeleton, cell.tokens
    config = attention_config(spec_of(cell.mechanism, cell.options, length))
    try:
        attention = config.costs(length=length, width=skeleton.width, heads=skeleton.heads).multiply_adds
    except NotImplementedError:  # nobody has counted it: expect the worst
        attention = 2 * skeleton.width * length**2 + 4 * skeleton.width**2 * length
    other = 2 * skeleton.width * skeleton.feed_forward * length
    return cell.rows * skeleton.layers * float(attention + other)


def steps_within(measured: Iterable[Result], seeds: int, held_out: int, clock: Clock) -> int:
    """The steps, the same for all, that fit into what is left of the time; at least ten."""
    overhead = per_step = 0.0
    for result in measured:
        batches = -(-held_out // result.cell.rows)
        overhead += seeds * (clock.start + batches * result.numbers["inference_wall"])
        per_step += seeds * (result.numbers["train_wall"] + TRAINER)
    if not per_step:
        return FEWEST_STEPS
    return max(int((RESERVE * clock.left - overhead) / per_step), FEWEST_STEPS)


def training_seconds(measured: Result, steps: int, held_out: int, start: float) -> float:
    """What training and scoring a mechanism will take."""
    numbers = measured.numbers
    scoring = -(-held_out // measured.cell.rows) * numbers["inference_wall"]
    return start + steps * (numbers["train_wall"] + TRAINER) + scoring
