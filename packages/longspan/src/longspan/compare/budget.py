"""Divides the time budget of a comparison: expected time of each cell, cells that are left out, and the number of
steps.

Quality has priority. A mechanism is measured only while there is time to train it and all mechanisms before it for a
few steps. Then all are trained for as many steps as fit. The curves of speed and memory get the reserved time, a fifth
of the budget or more, and the rest. Starting processes and writing the report count, and no cell runs far beyond the
end.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from longspan.compare.settings import Cell, Result
from longspan.compare.skeleton import config_of, spec_of

START = 8.0
"""Expected seconds for starting a process, until one has been measured."""
MEASURING = 2.0
"""Seconds for measuring a mechanism at a short length, in a started process."""
SETUP = 1.0
"""Seconds for creating a model, the Trainer and its optimizer, in a started process."""
REPORT, REPORT_SHARE = 4.0, 0.1
"""Seconds that are reserved for drawing and writing the report; at most this share of a short budget."""
CURVES = 0.3
"""Share of the time after measuring that is reserved for the curves, if the rest suffices for the minimum steps of
training."""
CURVES_FLOOR = 0.2
"""Share of the budget for the curves that neither measuring nor training uses."""
FEWEST_STEPS = 10
RESERVE = 0.85
"""Share of the remaining time that is planned: the speed of machines varies from one minute to the next."""
TRAINER = 0.006
"""Seconds that the Trainer adds to a step."""
SHARE = 3.0
"""Maximum time of a cell of the curves, as a multiple of its share of the remaining time."""
GRACE, FIRST_GRACE = 0.1, 0.25
"""Shares of the budget by which a cell may exceed it before it is stopped: any cell, and the first training, since one
result is worth more than none."""


@dataclass
class Clock:
    """The time budget of a comparison, and the time that its cells have taken.

    Attributes:
        budget: seconds; `None` is unlimited.
        now: returns a time in seconds.
        begun: result of `now` at the beginning.
        kept: seconds that are reserved for the curves.
        starts: seconds that processes took to start.
        paces: ratios of measured to expected seconds of trainings.
    """

    budget: float | None
    now: Callable[[], float] = time.monotonic
    begun: float | None = None
    kept: float = 0.0
    starts: list[float] = field(default_factory=list)
    paces: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin now, unless `begun` is specified."""
        self.begun = self.now() if self.begun is None else self.begun

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        assert self.begun is not None
        return self.now() - self.begun

    @property
    def left(self) -> float:
        """Remaining seconds of the budget for cells, without those for the report, and `kept`."""
        if self.budget is None:
            return float("inf")
        return max(self.budget - min(REPORT, REPORT_SHARE * self.budget) - self.spent - self.kept, 0.0)

    def keep_for_curves(self) -> None:
        """Reserve `CURVES_FLOOR` of the budget, or the time of two lengths of one mechanism, but at most `CURVES`."""
        if self.budget is not None:
            self.kept = min(max(CURVES_FLOOR * self.budget, 2 * self.least), CURVES * self.budget)

    @property
    def least(self) -> float:
        """Minimum seconds for measuring a mechanism."""
        return self.start + MEASURING

    @property
    def start(self) -> float:
        """Expected seconds for starting a process."""
        return statistics.median(self.starts) if self.starts else START

    @property
    def pace(self) -> float:
        """Expected ratio of measured to expected time of a training, which increases on a busy machine."""
        return statistics.median(self.paces) if self.paces else 1.0

    def patience(self, cell: Cell) -> float | None:
        """Returns the seconds after which a cell that begins now is stopped; the first training may use the reserved
        time too."""
        if self.budget is None:
            return None
        if self.is_first_training(cell):
            return self.left + self.kept + FIRST_GRACE * self.budget
        return self.left + GRACE * self.budget

    def room(self, cell: Cell) -> float:
        """Returns the maximum expected seconds of a cell that may begin now."""
        return (self.patience(cell) or self.left) if self.is_first_training(cell) else self.left

    def is_first_training(self, cell: Cell) -> bool:
        """Whether the cell is the first training."""
        return cell.kind == "quality" and not self.paces

    def note(self, result: Result, expected: float | None) -> None:
        """Update the estimates from the result of a cell, and the expected seconds if it is a training."""
        self.starts.append(max(result.wall - result.seconds, 0.0))
        if result.cell.kind == "quality" and result.status == "done" and expected:
            self.paces.append(result.wall / expected)


def expected_seconds(cell: Cell, known: Result, start: float) -> float:
    """Estimate the seconds for measuring a mechanism, from its result at another length and the counted operations."""
    growth = work_of(cell) / max(work_of(known.cell), 1.0)
    runs = known.numbers["train_wall"] + known.numbers["inference_wall"]
    # Each run is preceded by a warm-up; short ones are then repeated, long ones are measured once.
    return start + MEASURING + min(2 * growth * runs, growth * runs + 8.0)


def work_of(cell: Cell) -> float:
    """Returns the multiply-adds of the skeleton with the mechanism in a forward pass over a batch."""
    skeleton, length = cell.skeleton, cell.tokens
    config = config_of(spec_of(cell.mechanism, cell.options, length))
    try:
        attention = config.costs(length=length, width=skeleton.width, heads=skeleton.heads).multiply_adds
    except NotImplementedError:  # not implemented for the mechanism: assume the worst
        attention = 2 * skeleton.width * length**2 + 4 * skeleton.width**2 * length
    other_work = 2 * skeleton.width * skeleton.feed_forward * length
    return cell.rows * skeleton.layers * float(attention + other_work)


def room_to_measure(waiting: Sequence[Result], steps: int, held_out: int, clock: Clock) -> bool:
    """Whether there is time to measure another mechanism, and to train it and the waiting ones with one seed.

    Args:
        waiting: measurements of the mechanisms that are not trained yet.
        steps: of a training.
        held_out: number of rows that are scored.
        clock: the time budget.
    """
    if not waiting:
        return True
    trainings = [training_seconds(result, steps, held_out, clock.start) for result in waiting]
    another = clock.start + statistics.fmean(result.seconds for result in waiting) + statistics.fmean(trainings)
    return sum(trainings) + another <= RESERVE * clock.left


def steps_within(measured: Iterable[Result], seeds: int, held_out: int, clock: Clock, share: float = 1.0) -> int:
    """Returns the number of steps, the same for all, that fits a share of the remaining time; at least
    `FEWEST_STEPS`."""
    fixed = per_step = 0.0
    for result in measured:
        no_step, one_step = (training_seconds(result, steps, held_out, clock.start) for steps in (0, 1))
        fixed, per_step = fixed + seeds * no_step, per_step + seeds * (one_step - no_step)
    if not per_step:
        return FEWEST_STEPS
    return max(int((share * RESERVE * clock.left - fixed) / per_step), FEWEST_STEPS)


def training_seconds(measured: Result, steps: int, held_out: int, start: float) -> float:
    """Returns the expected seconds for training and scoring a mechanism."""
    numbers = measured.numbers
    scoring = -(-held_out // measured.cell.rows) * numbers["inference_wall"]
    return start + SETUP + steps * (numbers["train_wall"] + TRAINER) + scoring
