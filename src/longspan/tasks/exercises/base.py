"""What exercises share: a decoder writes the answer, and is scored character by character and answer by answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch

from longspan.data.exercises.rows import Exercise
from longspan.errors import InputError
from longspan.models.losses import IGNORED
from longspan.settings import LARGEST, Range
from longspan.tasks.base import Outcome, Task
from longspan.tasks.predicting import FeatureRows, batches, pad
from longspan.tasks.tokenizers import encode, padding_id


@dataclass(frozen=True, kw_only=True)
class ExerciseTask(Task):
    """Read a text, write its answer.

    Scored in one pass: each token of an answer is guessed from the right ones before it. Where all of them are right,
    so is the answer that a greedy `generate()` writes.

    Attributes:
        max_tokens: the longest text, in tokens; a longer one is refused.
    """

    generates: ClassVar[bool] = False
    score_names: ClassVar[tuple[str, ...]] = ("character_accuracy", "sequence_accuracy")

    max_tokens: Annotated[int, Range(3, LARGEST)] = 1024

    def model_class(self) -> Any:
        """`LongspanForConditionalGeneration`."""
        from longspan.models import LongspanForConditionalGeneration

        return LongspanForConditionalGeneration

    def corpus(self, rows: Sequence[Exercise]) -> Iterator[str]:
        """Texts and answers."""
        for row in rows:
            yield f"{row.text} {row.answer}"

    def features(self, row: Exercise, tokenizer: Any) -> dict[str, Any]:
        """`input_ids`, and `labels`: the answer and an end mark.

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
        """`features` of each row."""
        return FeatureRows(rows, partial(self.features, tokenizer=tokenizer))

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Pads to `input_ids` `(B, S)` and `labels` `(B, T)`, with the mask of the first."""
        return partial(pad, fillers={"input_ids": padding_id(tokenizer), "labels": IGNORED})

    def loss_weight(self, batch: dict[str, Any]) -> float:
        """The number of tokens that are guessed."""
        return float((batch["labels"] != IGNORED).sum())

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[Exercise], *, batch_size: int) -> Outcome:
        """Characters and whole answers that are right, in percent."""
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
        """Scores of the groups among the rows."""
        return {}

    @property
    def flavour(self) -> str:
        """What the scores are, in words."""
        return "Tokens of the answers, and whole answers, that are guessed from the right tokens before them; percent."
