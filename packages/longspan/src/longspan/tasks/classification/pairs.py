"""A label for a pair of texts: inference (MNLI), duplicate questions (QQP)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch

from longspan.data.pairs import PairRow, read_pairs
from longspan.errors import InputError
from longspan.settings import LARGEST, Count, Range, show
from longspan.tasks.base import Losses, Metrics, Outcome, RowStream, Task, check_room, label_fields, labels_right
from longspan.tasks.distilling import Distilling
from longspan.tasks.predicting import FeatureRows, pad, predict
from longspan.tasks.row_sources import streamed_rows
from longspan.tasks.tokenizers import first_tokens, padding_id


@dataclass(frozen=True, kw_only=True)
class PairLabels(Task):
    """Predicts the relation of two texts; the limits are DeFormer's for MNLI.

    Attributes:
        labels: as in the data, in the order of the model's outputs.
        max_tokens: of the whole pair, `[CLS] first [SEP] second [SEP]`.
        max_first_tokens: a longer first text is truncated to this number.
        distillation: learning from a teacher in addition to the labels; None for labels only.
    """

    name: ClassVar[str] = "pair_labels"
    head: ClassVar[str | None] = "sequence_classification"
    metrics: ClassVar[Metrics] = Metrics(names=("accuracy",))
    streams: ClassVar[bool] = True

    labels: tuple[str, ...] = ("yes", "no")
    max_tokens: Annotated[int, Range(8, LARGEST)] = 120
    max_first_tokens: Count = 85
    distillation: Distilling | None = None

    def __post_init__(self) -> None:
        """Raises `InputError` for fewer than two labels, and for a first text that leaves no room for the second."""
        super().__post_init__()
        if len(set(self.labels)) < 2 or len(set(self.labels)) < len(self.labels):
            raise InputError(f"labels is {show(list(self.labels))}; give at least two, each once")
        if self.max_first_tokens + 6 > self.max_tokens:
            raise InputError(
                f"max_first_tokens={self.max_first_tokens} leaves no room in max_tokens={self.max_tokens}; give at "
                f"most {self.max_tokens - 6}"
            )

    def model_fields(self) -> dict[str, Any]:
        """Returns an output for each label."""
        return super().model_fields() | label_fields(self.labels)

    def check_model(self, config: Any) -> None:
        """Raises `InputError` for longer pairs than the model has positions for."""
        check_room(self.max_tokens, config)

    def teacher(self, student: Any) -> Any:
        return None if self.distillation is None else self.distillation.teacher_of(student)

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> list[PairRow]:
        """Returns labelled pairs of a data set, file or folder, in memory; errors as in `read_pairs`."""
        return list(read_pairs(source, split, limit, on_error=on_error))

    def stream(
        self, sources: Sequence[str], split: str, limit: int | None, tokenizer: Any, *, seed: int, on_error: str
    ) -> RowStream:
        """Returns the pairs of sources, tokenised on access."""
        features = partial(self.features, tokenizer=tokenizer)
        return streamed_rows(read_pairs, features, sources, split, limit, on_error)

    def corpus(self, rows: Sequence[PairRow]) -> Iterator[str]:
        """Yields both texts, concatenated."""
        return (f"{row.first}\n{row.second}" for row in rows)

    def dataset(
        self, rows: Sequence[PairRow], tokenizer: Any, *, training: bool, seed: int, folder: Path
    ) -> FeatureRows:
        """Returns pairs, tokenised on access."""
        return FeatureRows(rows, partial(self.features, tokenizer=tokenizer))

    def features(self, row: PairRow, tokenizer: Any) -> dict[str, Any]:
        """Returns `input_ids`, `token_type_ids` if the tokenizer has them, and the label's number."""
        if row.label not in self.labels:
            raise InputError(
                f"row {row.id!r} has the label {show(row.label)}, and task.labels is {show(list(self.labels))}; name it"
            )
        first = first_tokens(tokenizer, row.first, self.max_first_tokens)
        encoded = tokenizer(first, row.second, truncation="only_second", max_length=self.max_tokens, verbose=False)
        inputs = {name: encoded[name] for name in ("input_ids", "token_type_ids") if name in encoded}
        return inputs | {"labels": self.labels.index(row.label)}

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Pads pairs to a batch."""
        fillers = {"input_ids": padding_id(tokenizer), "token_type_ids": 0}

        def collate(features: list[dict[str, Any]]) -> dict[str, Any]:
            return pad(features, fillers) | {"labels": torch.tensor([feature["labels"] for feature in features])}

        return collate

    def losses(self) -> Losses:
        """Returns means over the rows, with the accuracy."""
        return Losses(right=labels_right)

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[PairRow], *, batch_size: int) -> Outcome:
        """Returns the accuracy in percent."""
        dataset = FeatureRows(rows, partial(self.features, tokenizer=tokenizer))
        chosen = predict(model, dataset, self.collator(tokenizer), batch_size=batch_size).argmax(-1).tolist()
        right = [self.labels[place] == row.label for place, row in zip(chosen, rows, strict=True)]
        lines = [
            {"id": row.id, "prediction": self.labels[place], "label": row.label}
            for place, row in zip(chosen, rows, strict=True)
        ]
        return Outcome(scores={"accuracy": 100 * sum(right) / max(1, len(rows))}, lines=lines, flavour="Accuracy.")
