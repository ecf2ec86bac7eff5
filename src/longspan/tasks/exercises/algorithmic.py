"""Copy, reverse and add: trained on short texts, tested on ten times as long ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from longspan.data.exercises.algorithms import SHORTEST, Exercises
from longspan.data.exercises.rows import Exercise
from longspan.data.sources import SYNTHETIC
from longspan.errors import InputError
from longspan.settings import Range
from longspan.tasks.exercises.base import ExerciseTask

SEEDS = {"train": 0, "validation": 1}
TEST = 2
"""Of every other split."""
ROWS = {"train": 20_000, "validation": 200}
TEST_ROWS = 100

Length = Annotated[int, Range(SHORTEST, 100_000)]


@dataclass(frozen=True, kw_only=True)
class Algorithmic(ExerciseTask):
    """An algorithm over digits (Dehghani et al. 2019, arXiv 1807.03819, section 3.3). The data are `synthetic`.

    Attributes:
        algorithm: "copy"; "reverse"; or "addition" of two numbers, written with the lowest digit first.
        length: the longest text of the splits "train" and "validation", where shorter ones come up as often.
        test_length: the length of every text of the split "test", which is asked for by `longspan evaluate DIR --data
            synthetic --split test`.
    """

    name: ClassVar[str] = "algorithmic"

    algorithm: Literal["copy", "reverse", "addition"] = "copy"
    length: Length = 40
    test_length: Length = 400

    def check_model(self, config: Any) -> None:
        """Refuse tests that are longer than the model reads or writes; two tokens more stand around a text."""
        for name in ("max_position_embeddings", "max_decoder_position_embeddings"):
            room = min(getattr(config, name), self.max_tokens) - 2
            if self.test_length > room and config.position_embedding != "sinusoidal":
                raise InputError(
                    f"task.test_length={self.test_length} is more than the {room} characters that the model has "
                    f"positions for; raise model.max_tokens and task.max_tokens, or lower it"
                )

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> Sequence[Exercise]:
        """Made-up rows, at most `limit`; without one, 20,000 for training, 200 to validate, 100 to test."""
        if source != SYNTHETIC:
            raise InputError(f"data={source!r} is not made up, as an algorithm's are; name {SYNTHETIC!r}")
        count = ROWS.get(split, TEST_ROWS) if limit is None else max(limit, 0)
        exact = split not in SEEDS
        length = self.test_length if exact else self.length
        return Exercises(self.algorithm, count, length=length, exact=exact, seed=SEEDS.get(split, TEST))
