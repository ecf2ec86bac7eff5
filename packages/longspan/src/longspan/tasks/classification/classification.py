"""Classification of long documents: one label each, predicted from the first token, which is global.

Longformer (Beltagy et al. 2020) on IMDB and Hyperpartisan: `[CLS] text [SEP]` cut at 4 096 tokens, global attention on
the first token, cross-entropy over the labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch

from longspan.characters import counted
from longspan.data.labelled import LabelledRow, clean, cleaning, read_labelled
from longspan.errors import InputError
from longspan.settings import LARGEST, Range, show
from longspan.tasks.base import (
    Losses,
    Metrics,
    Outcome,
    RowStream,
    Task,
    check_room,
    label_fields,
    label_numbers,
    labels_right,
    room_for,
)
from longspan.tasks.metrics.classification import BINS, classification_scores
from longspan.tasks.predicting import FeatureRows, pad, predict
from longspan.tasks.row_sources import streamed_rows
from longspan.tasks.tokenizers import encode, padding_id


@dataclass(frozen=True, kw_only=True)
class Classification(Task):
    """Predicts the label of a document.

    The first token is global, in training and in inference: in the collator and in the model's configuration.

    Attributes:
        max_tokens: longer documents are truncated to this number of tokens, including special tokens.
        labels: names of the labels, in the order of the model's outputs; by default the labels of the
            training rows, sorted.
        text_field: the column of the texts; None detects it, see `read_labelled`.
        label_field: the column of the labels; None detects it.
        clean: remove web addresses and repetitions for emphasis, in training and in inference:
            Hyperpartisan's cleaning.
        by_hash: split files that have all rows into train, validation and test (80/10/10) by a hash of each text.
    """

    name: ClassVar[str] = "classification"
    head: ClassVar[str | None] = "sequence_classification"
    streams: ClassVar[bool] = True
    metrics: ClassVar[Metrics] = Metrics(
        names=("accuracy", "macro_f1", "micro_f1", "f1_*", "calibration_error", "brier"),
        lower_is_better=("calibration_error", "brier"),
    )

    max_tokens: Annotated[int, Range(3, LARGEST)] = 4096
    labels: tuple[str, ...] = ()
    text_field: str | None = None
    label_field: str | None = None
    clean: bool = False
    by_hash: bool = False

    def __post_init__(self) -> None:
        """Raises `InputError` for duplicate labels, and for a single one."""
        super().__post_init__()
        if len(set(self.labels)) < len(self.labels) or len(self.labels) == 1:
            raise InputError(f"task.labels is {show(list(self.labels))}; give two or more, each once, or leave it out")

    def of_rows(self, rows: Sequence[LabelledRow]) -> Self:
        """Returns the task with the labels of the training rows, if none are set."""
        if not rows and not self.labels:
            raise InputError(
                "data.streaming is true, so that no pass over the rows finds their labels; name them in task.labels"
            )
        labels = sorted({row.label for row in rows})
        if len(labels) < 2 and not self.labels:
            raise InputError(
                f"the label is {show(labels[0])} in all of {counted(len(rows), 'training row')}, so there is nothing "
                "to tell apart; give data with two labels or more, or the right task.label_field"
            )
        return self if self.labels else replace(self, labels=tuple(labels))

    def model_fields(self) -> dict[str, Any]:
        """Returns the head, the global first token, and the labels with their numbers."""
        fields = super().model_fields() | {"global_tokens": "first"}
        return fields | label_fields(self.labels) if self.labels else fields

    def check_model(self, config: Any) -> None:
        """Raises `InputError` for more tokens than the model has positions for."""
        check_room(self.max_tokens, config)

    def fitted(self, config: Any) -> Self:
        """Returns the task with at most as many tokens as the model has positions for, and the model's labels."""
        return replace(self.of_model(config), max_tokens=room_for(self.max_tokens, config))

    def of_model(self, config: Any) -> Self:
        """Returns the task with the labels of a trained model, in its order."""
        return replace(self, labels=tuple(str(config.id2label[number]) for number in range(config.num_labels)))

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> list[LabelledRow]:
        """Returns all rows, in memory."""
        return list(self.iterate(source, split, limit, on_error=on_error))

    def iterate(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> Iterator[LabelledRow]:
        """As `read`, one row after the other."""
        fields = {"text_field": self.text_field, "label_field": self.label_field, "by_hash": self.by_hash}
        return read_labelled(source, split, limit=limit, on_error=on_error, **fields)

    def stream(
        self, sources: Sequence[str], split: str, limit: int | None, tokenizer: Any, *, seed: int, on_error: str
    ) -> RowStream:
        """Returns the rows of sources, tokenised on access."""
        features = partial(self.features, tokenizer=tokenizer, numbers=label_numbers(self.labels))
        return streamed_rows(self.iterate, features, sources, split, limit, on_error)

    def corpus(self, rows: Sequence[LabelledRow]) -> Iterator[str]:
        """Yields every text, after cleaning."""
        return (self.text_of(row.text) for row in rows)

    def normalizer(self) -> Any | None:
        """The cleaning, if enabled."""
        return cleaning() if self.clean else None

    @property
    def preparation(self) -> str:
        """Describes the cleaning."""
        if not self.clean:
            return ""
        return (
            "web addresses are taken out, of the same punctuation mark several times one is left, of a letter four "
            "times or more one, and every run of white space becomes one space (`task.clean`)."
        )

    def text_of(self, text: str) -> str:
        """Returns the text after cleaning; a tokenizer that cleans, as those of this version do, changes
        nothing more.
        """
        return clean(text) if self.clean else text

    def encode(self, text: str, tokenizer: Any) -> tuple[list[int], int]:
        """Returns token ids of a text, truncated to `max_tokens`, and the number without truncation."""
        return encode(tokenizer, self.text_of(text), max_tokens=self.max_tokens)

    def dataset(
        self, rows: Sequence[LabelledRow], tokenizer: Any, *, training: bool, seed: int, folder: Path
    ) -> FeatureRows:
        """Returns token ids and the number of the label; labels that are not among `labels` raise `InputError`."""
        numbers = label_numbers(self.labels)
        for row in rows:
            self._check_label(row, numbers)
        return FeatureRows(rows, partial(self.features, tokenizer=tokenizer, numbers=numbers))

    def features(self, row: LabelledRow, tokenizer: Any, numbers: dict[str, int]) -> dict[str, Any]:
        """Returns token ids and the number of the label; raises `InputError` for a label without a number."""
        self._check_label(row, numbers)
        return {"input_ids": self.encode(row.text, tokenizer)[0], "label": numbers[row.label]}

    def _check_label(self, row: LabelledRow, numbers: dict[str, int]) -> None:
        if row.label not in numbers:
            raise InputError(
                f"row {show(row.id)} has the label {show(row.label)}, which was not seen in training "
                f"({', '.join(map(show, self.labels[:20]))}); correct it, or train with all of them in task.labels"
            )

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Pads documents to `input_ids` `(B, T)`, both masks with the first token global, and `labels` `(B,)`."""
        padding = padding_id(tokenizer)

        def collate(features: list[dict[str, Any]]) -> dict[str, Any]:
            batch = pad(features, {"input_ids": padding}, leading=[1] * len(features))
            if all("label" in feature for feature in features):
                batch["labels"] = torch.tensor([feature["label"] for feature in features])
            return batch

        return collate

    def probabilities(self, model: Any, dataset: Any, tokenizer: Any, *, batch_size: int) -> np.ndarray:
        """Returns the probabilities of all labels for every row of a data set, `(N, L)`."""
        logits = predict(model, dataset, self.collator(tokenizer), batch_size=batch_size)
        return torch.from_numpy(logits).double().softmax(-1).numpy()

    def losses(self) -> Losses:
        """Returns means over the rows, with the accuracy."""
        return Losses(right=labels_right)

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[LabelledRow], *, batch_size: int) -> Outcome:
        """Returns the scores of `classification_scores`, and a line with all probabilities for each row."""
        task = self.of_model(model.config)
        dataset = task.dataset(rows, tokenizer, training=False, seed=0, folder=Path())
        probabilities = task.probabilities(model, dataset, tokenizer, batch_size=batch_size)
        numbers = label_numbers(task.labels)
        gold = np.array([numbers[row.label] for row in rows])
        lines = []
        for row, each in zip(rows, probabilities, strict=True):
            named = {label: round(float(value), 6) for label, value in zip(task.labels, each, strict=True)}
            best = task.labels[int(each.argmax())]
            lines.append({"id": row.id, "label": row.label, "prediction": best, "probabilities": named})
        flavour = (
            f"Percent, but for brier (a sum over the labels, 0 to 2); calibration error over {BINS} equal bins; "
            f"documents cut at {self.max_tokens} tokens"
        )
        return Outcome(scores=classification_scores(probabilities, gold, task.labels), lines=lines, flavour=flavour)
