"""Extractive question answering in the formats of SQuAD and TriviaQA.

A context that does not fit is read in overlapping windows; the best span of all windows is the answer. The same applies
to several contexts of one question, the rows with equal ids.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from longspan.characters import counted
from longspan.errors import InputError
from longspan.models.losses import IGNORED
from longspan.settings import LARGEST, Count, Range
from longspan.tasks.base import Losses, Metrics, Outcome, Task, check_room
from longspan.tasks.distilling import Distilling
from longspan.tasks.metrics.spans import exact_match, normalized, word_f1
from longspan.tasks.predicting import FeatureRows, batches, pad
from longspan.tasks.tokenizers import first_tokens, padding_id
from longspan_documents.questions.rows import Span
from longspan_documents.questions.scores import NEVER, best_spans
from longspan_documents.questions.spans import SpanRow, read_spans
from longspan_documents.questions.tokens import NOWHERE, token_ranges, without_space
from longspan_documents.questions.triviaqa import normalized_alias

logger = logging.getLogger(f"longspan.{__name__}")

LABELS = ("start_positions", "end_positions")


class BestSpan(NamedTuple):
    """The best span of a context and the sum of its start and end logits."""

    score: float
    text: str


@dataclass(frozen=True, kw_only=True)
class SpanAnswers(Task):
    """Extractive question answering (SQuAD 1.1 and 2.0, TriviaQA); defaults are DeFormer's for SQuAD.

    Of several rows with the same id, one question with several contexts, the best answer counts.

    Attributes:
        max_tokens: maximum tokens of a row, `[CLS] question [SEP] context [SEP]`.
        max_question_tokens: longer questions are truncated to this length.
        max_words: maximum words of a context; None reads all.
        overlap: tokens shared by neighbouring windows of a longer context.
        max_windows: maximum windows of a context; None reads all.
        global_question: the question's tokens are global, in training and in inference.
        loss: "first_span" trains on the first answer, and on the first token if a window does not contain it;
            "any_span" on the total probability of all answers in the window; "per_span" on one of them, drawn anew in
            each epoch.
                With
            the last two, windows without an answer do not contribute, and rows without one are not used in training.
        max_answers: with "any_span" and "per_span", the maximum number of answers of a row.
        max_answer_tokens: maximum length of an answer.
        n_best: pair only this number of best starts and ends of a window; None pairs all, which is exact.
        unanswerable: whether a context may contain no answer (SQuAD 2.0); False always returns a span.
        distillation: additional training signal from a teacher; None trains on the labels alone.
    """

    name: ClassVar[str] = "span_answers"
    head: ClassVar[str | None] = "question_answering"
    metrics: ClassVar[Metrics] = Metrics(names=("f1", "exact_match"))

    max_tokens: Annotated[int, Range(16, LARGEST)] = 320
    max_question_tokens: Count = 25
    max_words: Count | None = None
    overlap: Annotated[int, Range(0, LARGEST)] = 128
    max_windows: Count | None = None
    global_question: bool = False
    loss: Literal["first_span", "any_span", "per_span"] = "first_span"
    max_answers: Count = 64
    max_answer_tokens: Count = 30
    n_best: Count | None = None
    unanswerable: bool = False
    distillation: Distilling | None = None

    def __post_init__(self) -> None:
        """Raises `InputError` for a question length or an overlap that leaves no room for the context."""
        super().__post_init__()
        least = self.max_question_tokens + self.overlap + 8
        if self.max_tokens < least:
            raise InputError(
                f"max_tokens={self.max_tokens} leaves no room for a context in addition to max_question_tokens="
                f"{self.max_question_tokens} and overlap={self.overlap}; give at least {least}, or lower these"
            )

    def model_fields(self) -> dict[str, Any]:
        """Returns the fields of the head, and global tokens before the first separator if `global_question`."""
        return super().model_fields() | ({"global_tokens": "question"} if self.global_question else {})

    def check_model(self, config: Any) -> None:
        """Raises `InputError` if rows are longer than the model's positions."""
        check_room(self.max_tokens, config)

    def teacher(self, student: Any) -> Any:
        return None if self.distillation is None else self.distillation.teacher_of(student)

    def read(self, source: str, split: str, limit: int | None, *, on_error: str = "raise") -> list[SpanRow]:
        """Reads questions with their contexts."""
        return list(read_spans(source, split, limit, on_error=on_error, max_words=self.max_words))

    def corpus(self, rows: Sequence[SpanRow]) -> Iterator[str]:
        """Yields every question with its context."""
        return (f"{row.question}\n{row.context}" for row in rows)

    def dataset(
        self, rows: Sequence[SpanRow], tokenizer: Any, *, training: bool, seed: int, folder: Path
    ) -> SpanWindows:
        """Returns the windows of each row, tokenised on access."""
        if training and self.loss != "first_span":
            answered = [row for row in rows if row.answers]
            if not answered:
                raise InputError(
                    f"none of the {len(rows)} training rows holds an answer in its context; name other data"
                )
            if len(answered) < len(rows):
                rest = len(rows) - len(answered)
                logger.warning("left out for want of an answer: %d of %s", rest, counted(len(rows), "row"))
            rows = answered
        return SpanWindows(rows, partial(self.windows, tokenizer=tokenizer), seed)

    def windows(self, row: SpanRow, tokenizer: Any, draw: str = "") -> dict[str, Any]:
        """Returns the windows of a row, `{"rows": […]}`, each with `input_ids`, `spans` (the characters of each token
        of the context), labels, and `token_type_ids` if the tokenizer has them. `draw` seeds random choices."""
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
        windows = []
        for number in range(len(encoded["input_ids"]))[: self.max_windows]:
            parts = encoded.sequence_ids(number)
            spans = [
                without_space(row.context, start, end) if part == 1 else NOWHERE
                for (start, end), part in zip(encoded["offset_mapping"][number], parts, strict=True)
            ]
            window = {"input_ids": encoded["input_ids"][number], "spans": spans}
            window |= self._labels(row, spans, f"{draw} {row.id} {number}")
            if "token_type_ids" in encoded:
                window["token_type_ids"] = encoded["token_type_ids"][number]
            windows.append(window)
        return {"rows": windows}

    def _labels(self, row: SpanRow, spans: list[tuple[int, int]], draw: str) -> dict[str, list[int]]:
        """Returns first and last tokens of the answers in a window, without repetitions; see `loss`."""
        answers = row.answers[: 1 if self.loss == "first_span" else self.max_answers]
        wanted = [Span(start, start + len(words)) for start, words in answers]
        targets = [
            (first, end - 1)
            for span, (first, end) in zip(wanted, token_ranges(spans, wanted), strict=True)
            if first < end and spans[first][0] <= span.start and span.end <= spans[end - 1][1]
        ]
        if self.loss == "first_span":
            targets = targets or [(0, 0)]
        elif self.loss == "per_span" and targets:
            targets = [random.Random(draw).choice(targets)]
        targets = targets or [(IGNORED, IGNORED)]
        return {name: list(dict.fromkeys(ends)) for name, ends in zip(LABELS, zip(*targets, strict=True), strict=True)}

    def collator(self, tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
        """Returns a function that pads the windows of some rows to a batch."""
        return partial(_collate, padding=padding_id(tokenizer))

    def losses(self) -> Losses:
        """Returns the loss as a mean over the windows with labels."""
        return Losses(labels=LABELS, weight=lambda batch: float((batch[LABELS[0]] != IGNORED).any(1).sum()))

    def evaluate(self, model: Any, tokenizer: Any, rows: Sequence[SpanRow], *, batch_size: int) -> Outcome:
        """Returns exact match and F1 over words, in percent of the questions with known answers, and the official
        prediction file."""
        best: dict[str, tuple[SpanRow, BestSpan]] = {}
        for row, one in zip(rows, self.answers(model, tokenizer, rows, batch_size=batch_size), strict=True):
            if row.id not in best or one.score > best[row.id][1].score:
                best[row.id] = (row, one)
        trivia = any(row.accepted is not None for row in rows)
        name, normal = ("TriviaQA", normalized_alias) if trivia else ("SQuAD", normalized)
        known = [
            (one.text, row.accepted or [words for _, words in row.answers])
            for row, one in best.values()
            if row.accepted != ()  # test questions have no known answer
        ]
        scores = {
            score: 100 * sum(measure(text, answers, normal) for text, answers in known) / len(known)
            for score, measure in (("f1", partial(word_f1, both_empty=float(not trivia))), ("exact_match", exact_match))
            if known
        }
        named = {row.id: one.text for row, one in best.values()}
        lines = [{"id": row.id, "question": row.question, "prediction": one.text} for row, one in best.values()]
        files = {f"predictions-{name.lower()}.json": named}
        return Outcome(
            scores=scores, lines=lines, files=files, flavour=f"{name}'s metric, over {counted(len(known), 'question')}."
        )

    def answers(self, model: Any, tokenizer: Any, rows: Sequence[SpanRow], *, batch_size: int) -> list[BestSpan]:
        """Returns the best span of each row, over all windows of its context, in the order of `rows`."""
        answers: list[BestSpan] = []
        dataset = FeatureRows(rows, partial(self.windows, tokenizer=tokenizer))
        for batch in batches(model, dataset, partial(_collate_with_spans, padding=padding_id(tokenizer)), batch_size):
            windows, owners = batch.pop("windows"), batch.pop("owners")
            inputs = {name: value for name, value in batch.items() if name not in LABELS}
            here = rows[len(answers) : len(answers) + owners[-1] + 1]
            with torch.no_grad():
                answers += self._answers(here, model(**inputs), windows, owners)
        return answers

    def _answers(
        self, rows: Sequence[SpanRow], output: Any, windows: list[Any], owners: list[int]
    ) -> Iterator[BestSpan]:
        """Returns the span of each row of a batch, empty for none."""
        start, end = output.start_logits.float(), output.end_logits.float()
        usable = torch.full(start.shape, -1, device=start.device)
        for place, window in zip(usable, windows, strict=True):
            for token, (first, _) in enumerate(window["spans"]):
                if first >= 0:
                    place[token] = 0
        none = (start[:, 0] + end[:, 0]).tolist()
        if self.n_best is not None:
            start, end = (best_of(each, usable, self.n_best) for each in (start, end))
        best = best_spans(start, end, usable, 1, self.max_answer_tokens)
        scores, first, last = (column[:, 0].tolist() for column in best)
        for owner, row in enumerate(rows):
            mine = [number for number, each in enumerate(owners) if each == owner]
            chosen = max(mine, key=scores.__getitem__)
            silent = self.unanswerable and min(none[number] for number in mine) > scores[chosen]
            if silent or scores[chosen] == NEVER:
                yield BestSpan(NEVER, "")
            else:
                spans = windows[chosen]["spans"]
                yield BestSpan(scores[chosen], row.context[spans[first[chosen]][0] : spans[last[chosen]][1]])


class SpanWindows(FeatureRows):
    """Windows of rows, with random choices renewed in each epoch."""

    def __init__(self, rows: Sequence[SpanRow], features: Callable[..., dict[str, Any]], seed: int) -> None:
        super().__init__(rows, features)
        self.seed = seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the random choices."""
        self.draw = f"{self.seed} {epoch}"

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.features(self.rows[index], draw=self.draw)  # pyright: ignore[reportCallIssue]


def best_of(logits: Tensor, usable: Tensor, count: int) -> Tensor:
    """Masks logits `(B, T)` with -inf except for the `count` best of each row's usable tokens, marked by 0."""
    logits = logits.masked_fill(usable < 0, NEVER)
    least = logits.topk(min(count, logits.shape[1])).values[:, -1:]
    return logits.masked_fill(logits < least, NEVER)


def _collate(features: list[dict[str, Any]], padding: int) -> dict[str, Any]:
    """Pads labels to `(B, K)` with −100."""
    windows = [window for feature in features for window in feature["rows"]]
    return pad(windows, {"input_ids": padding, "token_type_ids": 0, **dict.fromkeys(LABELS, IGNORED)})


def _collate_with_spans(features: list[dict[str, Any]], padding: int) -> dict[str, Any]:
    windows = [window for feature in features for window in feature["rows"]]
    owners = [number for number, feature in enumerate(features) for _ in feature["rows"]]
    return _collate(features, padding) | {"windows": windows, "owners": owners}
