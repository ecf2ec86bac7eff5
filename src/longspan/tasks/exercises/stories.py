"""Questions about short stories: bAbI."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from longspan.data.exercises.rows import Exercise
from longspan.data.exercises.stories import read_stories
from longspan.tasks.exercises.base import ExerciseTask

FAILED = 5.0
"""More errors than this, in percent, and a task counts as failed (Weston et al. 2015)."""


@dataclass(frozen=True, kw_only=True)
class Stories(ExerciseTask):
    """Answer questions about stories in the format of bAbI (Weston et al. 2015, arXiv 1502.05698).

    The facts and the question are one text, and the answer is written by the decoder. Besides the two accuracies there
    are `error`, the mean over the tasks of the share of answers that are wrong, and `failed_tasks`, those with more
    than 5 % of them; a file `qa7_….txt` is a task.
    """

    name: ClassVar[str] = "stories"
    lower_is_better: ClassVar[tuple[str, ...]] = ("error", "failed_tasks")
    score_names: ClassVar[tuple[str, ...]] = (*ExerciseTask.score_names, *lower_is_better)

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> Sequence[Exercise]:
        """The questions of a file, a folder or a made-up set."""
        most = None if limit is None else max(limit, 0)
        return list(read_stories(source, split, most, on_error=on_error))

    def group_scores(self, rows: Sequence[Exercise], lines: Sequence[dict[str, Any]]) -> dict[str, float]:
        """Errors by task."""
        tasks = defaultdict[str, list[bool]](list)
        for row, line in zip(rows, lines, strict=True):
            tasks[row.group].append(line["correct"])
        errors = [100 * correct.count(False) / len(correct) for correct in tasks.values()]
        failed = sum(error > FAILED for error in errors)
        return {"error": sum(errors) / max(len(errors), 1), "failed_tasks": float(failed)}
