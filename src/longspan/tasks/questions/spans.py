"""Questions over short contexts, in the format of SQuAD: the words of the context that answer.

A context that does not fit is read in windows that overlap; the best words of all of them are the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch

from longspan.data.questions.spans import SpanRow, read_spans
from longspan.errors import InputError
from longspan.settings import LARGEST, Count, Range
from longspan.tasks.base import Outcome, Task, check_room
from longspan.tasks.distilling import Distilling
from longspan.tasks.metrics.spans import exact_match, word_f1
from longspan.tasks.predicting import FeatureRows, batches, pad
from longspan.tasks.questions.answering import best_spans
from longspan.tasks.tokenizers import first_tokens, padding_id

LABELS = ("start_positions", "end_positions")


@dataclass(frozen=True, kw_only=True)
class SpanAnswers(Task):
    """Find the words of a context that answer (SQuAD 1.1 and 2.0); limits and defaults are DeFormer's.

    Attributes:
        max_tokens: of a row in all, `[CLS] question [SEP] context [SEP]`.
        max_question_tokens: longer questions are cut to so many.
        overlap: tokens that two windows of a longer context share.
        max_answer_tokens: the longest answer.
        unanswerable: whether a context may hold no answer (SQuAD 2.0); False always gives words.
        distillation: what is learned from a teacher besides; None learns from the labels alone.
    """

    name: ClassVar[str] = "span_answers"
    generates: ClassVar[bool] = False
    head: ClassVar[str | None] = "question_answering"
    label_names: ClassVar[tuple[str, ...]] = LABELS
    score_names: ClassVar[tuple[str, ...]] = ("f1", "exact_match")

    max_tokens: Annotated[int, Range(16, LARGEST)] = 320
    max_question_tokens: Count = 25
    overlap: Annotated[int, Range(0, LARGEST)] = 128
    max_answer_tokens: Count = 30
    unanswerable: bool = False
    distillation: Distilling | None = None

    def __post_init__(self) -> None:
        """Refuse a question or an overlap that leaves no room for the context."""
        super().__post_init__()
        least = self.max_question_tokens + self.overlap + 8
        if self.max_tokens < least:
            raise InputError(
                f"max_tokens={self.max_tokens} leaves no room for a context beside max_question_tokens="
                f"{self.max_question_tokens} and overlap={self.overlap}; give at least {least}, or lower these"
            )

    def check_model(self, config: Any) -> None:
        """Refuse longer rows than the model has positions for."""
        check_room(self.max_tokens, config)

    def teacher(self, student: Any) -> Any:
        return None if self.distillation is None else self.distillation.teacher_of(student)

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> list[SpanRow]:
        """Questions with their contexts."""
        return list(read_spans(source, split, limit, on_error=on_error))

    def corpus(self, rows: Sequence[SpanRow]) -> Iterator[str]:
        """Every question and context, together."""
        return (f"{row.question}\n{row.context}" for row in rows)

    def dataset(
        self, rows: Sequence[SpanRow], tokenizer: Any, *, training: bool, seed: int, folder: Path
    ) -> FeatureRows:
        """The windows of each row, tokenised when they are asked for."""
        return FeatureRows(rows, partial(self.windows, tokenizer=tokenizer))

    def windows(self, row: SpanRow, tokenizer: Any) -> dict[str, Any]:
        """The windows of a row, `{"rows": […]}`, each with `input_ids`, `spans`, the characters of each token that is
        of the context, labels, and `token_type_ids` where the tokenizer makes some."""
        encoded = tokenizer(
            first_tokens(tokenizer, row.question, self.max_question_tokens),
            row.context,
            truncation="only_second",
            max_length=self.max_tokens,
            stride=self.overlap,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            verbose=False,
        )
        found = []
        for number in range(len(encoded["input_ids"])):
            parts = encoded.sequence_ids(number)
            spans = [
                _without_space(row.context, start, end) if part == 1 else (-1, -1)
                for (start, end), part in zip(encoded["offset_mapping"][number], parts, strict=True)
            ]
            window = {"input_ids": encoded["input_ids"][number], "spans": spans, **_labels(row, spans)}
            if "token_type_ids" in encoded:
                window["token_type_ids"] = encoded["token_type_ids"][number]
            found.append(window)
        return {"rows": found}

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Pads the windows of some rows to a batch."""
        return partial(_collate, padding=padding_id(tokenizer))

    def loss_weight(self, batch: dict[str, Any]) -> float:
        """Windows."""
        return float(len(batch["input_ids"]))

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[SpanRow], *, batch_size: int) -> Outcome:
        """Exact match and F1 over words, in percent, and SQuAD's prediction file."""
        texts: list[str] = []
        with torch.no_grad():
            dataset = FeatureRows(rows, partial(self.windows, tokenizer=tokenizer))
            keep = partial(_collate_with_spans, padding=padding_id(tokenizer))
            for batch in batches(model, dataset, keep, batch_size):
                windows, owners = batch.pop("windows"), batch.pop("owners")
                inputs = {name: value for name, value in batch.items() if name not in LABELS}
                texts += self._answers(rows[len(texts) :], model(**inputs), windows, owners)
        said = [[words for _, words in row.answers] for row in rows]
        scores = {
            name: 100 * sum(map(measure, texts, said)) / max(1, len(rows))
            for name, measure in (("f1", word_f1), ("exact_match", exact_match))
        }
        named = {row.id: text for row, text in zip(rows, texts, strict=True)}
        lines = [{"id": row.id, "question": row.question, "prediction": named[row.id]} for row in rows]
        return Outcome(scores=scores, lines=lines, files={"predictions-squad.json": named}, flavour="SQuAD's metric.")

    def _answers(self, rows: Sequence[SpanRow], output: Any, windows: list[Any], owners: list[int]) -> Iterator[str]:
        """The words of each row of a batch, empty for none."""
        start, end = output.start_logits.float(), output.end_logits.float()
        usable = torch.full(start.shape, -1, device=start.device)
        for place, window in zip(usable, windows, strict=True):
            for token, (first, _) in enumerate(window["spans"]):
                if first >= 0:
                    place[token] = 0
        scores, first, last = (
            found[:, 0].tolist() for found in best_spans(start, end, usable, 1, self.max_answer_tokens)
        )
        none = (start[:, 0] + end[:, 0]).tolist()
        for owner in range(max(owners) + 1):
            mine = [number for number, each in enumerate(owners) if each == owner]
            best = max(mine, key=scores.__getitem__)
            silent = self.unanswerable and min(none[number] for number in mine) > scores[best]
            if silent or scores[best] == float("-inf"):
                yield ""
            else:
                spans = windows[best]["spans"]
                yield rows[owner].context[spans[first[best]][0] : spans[last[best]][1]]


def _without_space(text: str, start: int, end: int) -> tuple[int, int]:
    """The characters of a token without the space before it, which some tokenizers count to it."""
    words = text[start:end].strip()
    return (text.index(words, start), text.index(words, start) + len(words)) if words else (-1, -1)


def _labels(row: SpanRow, spans: Sequence[tuple[int, int]]) -> dict[str, int]:
    """First and last token of the first answer; 0, the first token of all, where the window does not hold all of it."""
    if not row.answers:
        return dict.fromkeys(LABELS, 0)
    start, words = row.answers[0]
    end = start + len(words)
    inside = [place for place, (first, last) in enumerate(spans) if first >= 0 and first < end and start < last]
    whole = inside and spans[inside[0]][0] <= start and end <= spans[inside[-1]][1]
    return dict(zip(LABELS, (inside[0], inside[-1]) if whole else (0, 0), strict=True))


def _collate(features: list[dict[str, Any]], padding: int) -> dict[str, Any]:
    windows = [window for feature in features for window in feature["rows"]]
    batch: dict[str, Any] = pad(windows, {"input_ids": padding, "token_type_ids": 0})
    return batch | {name: torch.tensor([window[name] for window in windows]) for name in LABELS}


def _collate_with_spans(features: list[dict[str, Any]], padding: int) -> dict[str, Any]:
    windows = [window for feature in features for window in feature["rows"]]
    owners = [number for number, feature in enumerate(features) for _ in feature["rows"]]
    return _collate(features, padding) | {"windows": windows, "owners": owners}
