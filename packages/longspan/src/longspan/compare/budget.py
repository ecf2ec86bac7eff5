"""How the time of a comparison is divided: what each cell will take, what is left out, how many steps there are.

Quality comes first. A mechanism is measured only while there is time to train it and all before it for a few steps;
then all are trained for as many steps as fit; the curves of speed and memory get what is kept for them, a fifth of the
budget or more, and what is left. Starting processes and writing the report count, and no cell runs far beyond the end.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from longspan.compare.settings import Cell, Result
from longspan.compare.skeleton import config_of, spec_of

START = 8.0
"""Seconds that a process takes to start, until one was seen."""
MEASURING = 2.0
"""Seconds that a process takes, once it has started, to measure a mechanism at a short length."""
SETUP = 1.0
"""Seconds that a process takes, once it has started, to build a model, the Trainer and its optimiser."""
REPORT, REPORT_SHARE = 4.0, 0.1
"""Seconds that are kept for drawing and writing the report, of a short budget no more than this share."""
CURVES = 0.3
"""Share of what is left after measuring that is kept for the curves, if that leaves the fewest steps for training."""
CURVES_FLOOR = 0.2
"""Share of the budget that neither measuring nor training takes from the curves."""
FEWEST_STEPS = 10
RESERVE = 0.85
"""Of the time that is left, what is planned with: machines are not the same from one minute to the next."""
TRAINER = 0.006
"""Seconds that the Trainer adds to a step."""
SHARE = 3.0
"""How many times its share of what is left for the curves a cell may take."""
GRACE, FIRST_GRACE = 0.1, 0.25
"""Shares of the budget by which a cell may overrun it before it is stopped: any, and the first that is trained, which
is worth more than none."""


@dataclass
class Clock:
    """The time that a comparison has, and what its cells have taken.

    Attributes:
        budget: seconds; `None` is no end.
        now: seconds since some moment.
        begun: what `now` gave at the beginning.
        kept: seconds that are no part of what is left before the curves begin.
        starts: seconds that processes took to start.
        paces: seconds that trainings took, divided by those that were expected.
    """

    budget: float | None
    now: Callable[[], float] = time.monotonic
    begun: float | None = None
    kept: float = 0.0
    starts: list[float] = field(default_factory=list)
    paces: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin now, unless it is said when."""
        self.begun = self.now() if self.begun is None else self.begun

    @property
    def spent(self) -> float:
        """Seconds since the budget began."""
        assert self.begun is not None
        return self.now() - self.begun

    @property
    def left(self) -> float:
        """Seconds of the budget that are left for cells, without those that writing the report takes, and `kept`."""
        if self.budget is None:
            return float("inf")
        return max(self.budget - min(REPORT, REPORT_SHARE * self.budget) - self.spent - self.kept, 0.0)

    def keep_for_curves(self) -> None:
        """Keep `CURVES_FLOOR` of the budget, or what two lengths of one mechanism take, but no more than `CURVES`."""
        if self.budget is not None:
            self.kept = min(max(CURVES_FLOOR * self.budget, 2 * self.least), CURVES * self.budget)

    @property
    def least(self) -> float:
        """Seconds that measuring a mechanism takes at least."""
        return self.start + MEASURING

    @property
    def start(self) -> float:
        """Seconds that a process takes to start."""
        return statistics.median(self.starts) if self.starts else START

    @property
    def pace(self) -> float:
        """How many times longer than expected a training takes: a busy machine slows them down."""
        return statistics.median(self.paces) if self.paces else 1.0

    def patience(self, cell: Cell) -> float | None:
        """Seconds after which a cell that begins now is stopped; the first training may take what is kept, too."""
        if self.budget is None:
            return None
        if self.is_first_training(cell):
            return self.left + self.kept + FIRST_GRACE * self.budget
        return self.left + GRACE * self.budget

    def room(self, cell: Cell) -> float:
        """Seconds that a cell may be expected to take, to be begun now."""
        return (self.patience(cell) or self.left) if self.is_first_training(cell) else self.left

    def is_first_training(self, cell: Cell) -> bool:
        """Whether nothing has been trained so far, and this will be."""
        return cell.kind == "quality" and not self.paces

    def note(self, result: Result, expected: float | None) -> None:
        """Learn from a cell that was run, and of a training that was expected to take so long."""
        self.starts.append(max(result.wall - result.seconds, 0.0))
        if result.cell.kind == "quality" and result.status == "done" and expected:
            self.paces.append(result.wall / expected)


def expected_seconds(cell: Cell, known: Result, start: float) -> float:
    """What measuring a mechanism will take, from a result of the same at another length: counted costs decide."""
    growth = work_of(cell) / max(work_of(known.cell), 1.0)
    runs = known.numbers["train_wall"] + known.numbers["inference_wall"]
    # Each is run once to warm up; short ones are then repeated, and what is so long that it counts at once is not.
    return start + MEASURING + min(2 * growth * runs, growth * runs + 8.0)


def work_of(cell: Cell) -> float:
    """Multiply-adds of the skeleton with the mechanism over a batch, forward."""
    skeleton, length = cell.skeleton, cell.tokens
    config = config_of(spec_of(cell.mechanism, cell.options, length))
    try:
        attention = config.costs(length=length, width=skeleton.width, heads=skeleton.heads).multiply_adds
    except NotImplementedError:  # nobody has counted it: expect the worst
        attention = 2 * skeleton.width * length**2 + 4 * skeleton.width**2 * length
    other = 2 * skeleton.width * skeleton.feed_forward * length
    return cell.rows * skeleton.layers * float(attention + other)


def room_to_measure(waiting: Sequence[Result], steps: int, held_out: int, clock: Clock) -> bool:
    """Whether one more mechanism can be measured, and it and those that wait for it be trained with one seed.

    Args:
        waiting: what was measured, of the mechanisms that are not trained yet.
        steps: of a training.
        held_out: rows that are scored.
        clock: the time.
    """
    if not waiting:
        return True
    trainings = [training_seconds(result, steps, held_out, clock.start) for result in waiting]
    another = clock.start + statistics.fmean(result.seconds for result in waiting) + statistics.fmean(trainings)
    return sum(trainings) + another <= RESERVE * clock.left


def steps_within(measured: Iterable[Result], seeds: int, held_out: int, clock: Clock, share: float = 1.0) -> int:
    """The steps, the same for all, that fit into a share of what is left of the time; at least ten."""
    fixed = per_step = 0.0
    for result in measured:
        none, one = (training_seconds(result, steps, held_out, clock.start) for steps in (0, 1))
        fixed, per_step = fixed + seeds * none, per_step + seeds * (one - none)
    if not per_step:
        return FEWEST_STEPS
    return max(int((share * RESERVE * clock.left - fixed) / per_step), FEWEST_STEPS)


def training_seconds(measured: Result, steps: int, held_out: int, start: float) -> float:
    """What training and scoring a mechanism will take."""
    numbers = measured.numbers
    scoring = -(-held_out // measured.cell.rows) * numbers["inference_wall"]
    return start + SETUP + steps * (numbers["train_wall"] + TRAINER) + scoring
