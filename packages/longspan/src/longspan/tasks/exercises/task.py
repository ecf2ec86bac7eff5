"""Tasks on exercises: copy, reverse and add, tested on ten times longer texts; and questions about stories.

In both, a decoder generates the answer, which is scored by characters and by whole answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch

from longspan.data.sources import SYNTHETIC
from longspan.errors import InputError
from longspan.models.losses import IGNORED
from longspan.settings import LARGEST, Range
from longspan.tasks.base import Losses, Metrics, Outcome, Task
from longspan.tasks.exercises.rows import SHORTEST, Exercise, Exercises, read_stories
from longspan.tasks.predicting import FeatureRows, batches, labels_of_batch, pad
from longspan.tasks.tokenizers import encode, padding_id


@dataclass(frozen=True, kw_only=True)
class ExerciseTask(Task):
    """Generates the answer to a text.

    Scored in one pass: each token of an answer is predicted from the right ones before it. If all of them are right, so
    is the answer of a greedy `generate()`.

    Attributes:
        max_tokens: the longest text, in tokens; a longer one raises an error.
    """

    metrics: ClassVar[Metrics] = Metrics(names=("character_accuracy", "sequence_accuracy"))

    max_tokens: Annotated[int, Range(3, LARGEST)] = 1024

    def model_class(self) -> Any:
        from longspan.models import LongspanForConditionalGeneration

        return LongspanForConditionalGeneration

    def corpus(self, rows: Sequence[Exercise]) -> Iterator[str]:
        """Yields texts and answers."""
        for row in rows:
            yield f"{row.text} {row.answer}"

    def features(self, row: Exercise, tokenizer: Any) -> dict[str, Any]:
        """Returns `input_ids`, and `labels`: the answer and an end token.

        Raises:
            InputError: the text is too long.
        """
        ids, count = encode(tokenizer, row.text, max_tokens=self.max_tokens)
        if count > self.max_tokens:
            raise InputError(
                f"the text of {row.id} has {count} tokens, more than task.max_tokens={self.max_tokens}; raise it"
            )
        answer = tokenizer(row.answer, add_special_tokens=False)["input_ids"]
        return {"input_ids": ids, "labels": [*answer, tokenizer.eos_token_id]}

    def dataset(
        self, rows: Sequence[Exercise], tokenizer: Any, *, training: bool, seed: int, folder: Path
    ) -> FeatureRows:
        """Returns `features` of each row."""
        return FeatureRows(rows, partial(self.features, tokenizer=tokenizer))

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Pads to `input_ids` `(B, S)` and `labels` `(B, T)`, with the mask of the first."""
        return partial(pad, fillers={"input_ids": padding_id(tokenizer), "labels": IGNORED})

    def losses(self) -> Losses:
        """Returns means over the predicted tokens."""
        return Losses(weight=labels_of_batch)

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[Exercise], *, batch_size: int) -> Outcome:
        """Returns the accuracy of characters and of whole answers, in percent."""
        dataset = FeatureRows(rows, partial(self.features, tokenizer=tokenizer))
        lines: list[dict[str, Any]] = []
        right = counted = 0
        with torch.no_grad():
            for batch in batches(model, dataset, self.collator(tokenizer), batch_size):
                labels = batch["labels"]
                guesses = model(**batch).logits.argmax(-1)
                for guess, wanted in zip(guesses, labels, strict=True):
                    real = wanted != IGNORED
                    hits = (guess == wanted)[real]
                    right, counted = right + int(hits[:-1].sum()), counted + len(hits) - 1
                    row, written = rows[len(lines)], tokenizer.decode(guess[real].tolist(), skip_special_tokens=True)
                    lines.append(
                        {"id": row.id, "prediction": written, "answer": row.answer, "correct": bool(hits.all())}
                    )
        whole = sum(line["correct"] for line in lines)
        scores = {
            "character_accuracy": 100 * right / max(counted, 1),
            "sequence_accuracy": 100 * whole / max(len(lines), 1),
        }
        return Outcome(scores=scores | self.group_scores(rows, lines), lines=lines, flavour=self.flavour)

    def group_scores(self, rows: Sequence[Exercise], lines: Sequence[dict[str, Any]]) -> dict[str, float]:
        """Returns scores of the groups among the rows."""
        return {}

    @property
    def flavour(self) -> str:
        """Describes the scores."""
        return "Tokens of the answers, and whole answers, that are guessed from the right tokens before them; percent."


SEEDS = {"train": 0, "validation": 1}
TEST = 2
"""Number of rows of every other split."""
ROWS = {"train": 20_000, "validation": 200}
TEST_ROWS = 100

Length = Annotated[int, Range(SHORTEST, 100_000)]


@dataclass(frozen=True, kw_only=True)
class Algorithmic(ExerciseTask):
    """An algorithm over digits (Dehghani et al. 2019, arXiv 1807.03819, section 3.3). The data are `synthetic`.

    Attributes:
        algorithm: "copy"; "reverse"; or "addition" of two numbers, written with the lowest digit first.
        length: the longest text of the splits "train" and "validation", in which all lengths are equally frequent.
        test_length: the length of every text of the split "test", for `longspan evaluate DIR --data
            synthetic --split test`.
    """

    name: ClassVar[str] = "algorithmic"

    algorithm: Literal["copy", "reverse", "addition"] = "copy"
    length: Length = 40
    test_length: Length = 400

    def check_model(self, config: Any) -> None:
        """Raises `InputError` for longer tests than the model's inputs or outputs, including two special tokens."""
        for name in ("max_position_embeddings", "max_decoder_position_embeddings"):
            room = min(getattr(config, name), self.max_tokens) - 2
            if self.test_length > room and config.position_embedding != "sinusoidal":
                raise InputError(
                    f"task.test_length={self.test_length} is more than the {room} characters that the model has "
                    f"positions for; raise model.max_tokens and task.max_tokens, or lower it"
                )

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> Sequence[Exercise]:
        """Returns generated rows, at most `limit`; by default 20,000 for training, 200 for validation, 100
        for testing.
        """
        if source != SYNTHETIC:
            raise InputError(f"data={source!r} is not made up, as an algorithm's are; name {SYNTHETIC!r}")
        count = ROWS.get(split, TEST_ROWS) if limit is None else max(limit, 0)
        exact = split not in SEEDS
        length = self.test_length if exact else self.length
        return Exercises(self.algorithm, count, length=length, exact=exact, seed=SEEDS.get(split, TEST))


FAILED = 5.0
"""A task with a larger error, in percent, counts as failed (Weston et al. 2015)."""


@dataclass(frozen=True, kw_only=True)
class Stories(ExerciseTask):
    """Answers questions about stories in the format of bAbI (Weston et al. 2015, arXiv 1502.05698).

    The facts and the question are one text, and the decoder generates the answer. Besides the two accuracies there are
    `error`, the mean over the tasks of the share of wrong answers, and `failed_tasks`, those with more than 5 % of
    them; a file `qa7_….txt` is a task.
    """

    name: ClassVar[str] = "stories"
    metrics: ClassVar[Metrics] = Metrics(
        names=(*ExerciseTask.metrics.names, "error", "failed_tasks"),
        lower_is_better=("error", "failed_tasks"),
    )

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> Sequence[Exercise]:
        """Returns the questions of a file, of a folder or of a generated set."""
        most = None if limit is None else max(limit, 0)
        return list(read_stories(source, split, most, on_error=on_error))

    def group_scores(self, rows: Sequence[Exercise], lines: Sequence[dict[str, Any]]) -> dict[str, float]:
        """Returns errors by task."""
        tasks = defaultdict[str, list[bool]](list)
        for row, line in zip(rows, lines, strict=True):
            tasks[row.group].append(line["correct"])
        errors = [100 * correct.count(False) / len(correct) for correct in tasks.values()]
        failed = sum(error > FAILED for error in errors)
        return {"error": sum(errors) / max(len(errors), 1), "failed_tasks": float(failed)}
