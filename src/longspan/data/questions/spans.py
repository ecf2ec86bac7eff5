"""Questions whose answer is a stretch of a short context: SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018).

- `read_spans("squad/", "train")`: the files of the release, `train-v1.1.json` and the like
- `read_spans("train.jsonl")`: a row per line, `{"id", "question", "context", "answers": {"text": […],
  "answer_start": […]}}`, as the data sets of the Hub have it
- `read_spans("synthetic", limit=64)`: made up in code
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longspan.data.fields import Record, list_of, name_of, number_of, value_of
from longspan.data.jsonl import UNREADABLE, open_bytes, read_jsonl, unreadable
from longspan.data.questions.rows import check_text
from longspan.data.questions.synthetic import synthetic_questions
from longspan.data.skipping import Skipped, check_on_error
from longspan.data.sources import Kind, read
from longspan.errors import InputError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SpanRow:
    """A question, the context that is to answer it, and what annotators marked there.

    Attributes:
        id: names the row in predictions.
        question, context: as they are in the file.
        answers: each a first character of the context and the words from there on; none where it does not answer.
    """

    id: str
    question: str
    context: str
    answers: tuple[tuple[int, str], ...] = ()


def made_up(count: int | None, seed: int) -> Iterator[SpanRow]:
    """Rows of made-up facts, see `longspan.data.questions.synthetic`; every question has its answer."""
    count = 16 if count is None else count
    for row in synthetic_questions(count, seed=seed, paragraphs=6, unanswerable=0.0):
        ((span,),) = (annotation.short for annotation in row.annotations)
        yield SpanRow(row.id, row.question, row.text, ((span.start, row.text[span.start : span.end]),))


SPANS = Kind(
    row=SpanRow,
    named={},
    made_up=lambda count, seed: made_up(count, seed),
    suffixes=("json", "jsonl"),
)
"""Where such questions come from."""


def read_spans(
    data: str | Path | Sequence[str | Path], split: str = "train", limit: int | None = None, *, on_error: str = "raise"
) -> Iterator[SpanRow]:
    """Stream questions with their contexts; arguments and errors as in `read_questions`."""
    check_on_error(on_error)
    return read(data, split, SPANS, lambda path, _: _in_file(path, Skipped(str(path), on_error)), limit)


def _in_file(path: Path, skipped: Skipped) -> Iterator[SpanRow]:
    """Rows of one file; the malformed ones go to `skipped`, with their place."""

    def leave_out(number: int, error: InputError) -> None:
        skipped.add(number, error)

    try:
        is_release = ".jsonl" not in path.name.lower()
        unit = "question" if is_release else "line"
        for number, record in _records(path) if is_release else read_jsonl(path, leave_out):
            try:
                row = span_row(record, f"{path.name.split('.')[0]}:{number}")
            except InputError as error:
                leave_out(number, InputError(skipped.with_remedy(f"{path}, {unit} {number}: {error}")))
            else:
                yield row
    finally:  # also where the reading stops at a limit
        skipped.report()


def _records(path: Path) -> Iterator[tuple[int, Record]]:
    """The questions of a release file, each with its context, counted from 1."""
    try:
        with open_bytes(path) as file:
            whole = json.loads(file.read().decode("utf-8-sig"))
    except UNREADABLE as error:
        raise unreadable(path, error) from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not JSON ({error}); give a file in the format of SQuAD, or one row per line named .jsonl"
        ) from None
    number = 0
    try:
        for article in list_of(whole, "data", "the file"):
            for paragraph in list_of(article, "paragraphs", "an article"):
                context = value_of(paragraph, "context", "a paragraph")
                for asked in list_of(paragraph, "qas", "a paragraph"):
                    number += 1
                    yield number, {**asked, "context": context} if isinstance(asked, dict) else {}
    except InputError as error:
        raise InputError(f"{path}: {error}; give a file in the format of SQuAD") from None


def span_row(record: Record, default_id: str = "") -> SpanRow:
    """The row of one record: answers as SQuAD has them, a list, or as the Hub has them, lists by name.

    Raises:
        InputError: a field is missing or of another type; an answer is not where it is said to be.
    """
    question = check_text(value_of(record, "question"), "the question (field 'question')")
    context = check_text(value_of(record, "context"), "the context (field 'context')")
    answers = [] if record.get("is_impossible") is True else _answers(value_of(record, "answers"))
    for start, words in answers:
        if not words or context[start : start + len(words)] != words or start < 0:
            raise InputError(
                f"the answer {words[:80]!r} does not stand at character {start} of the context; correct answer_start"
            )
    return SpanRow(name_of(record, "id", default_id), question, context, tuple(answers))


def _answers(given: Any) -> list[tuple[int, str]]:
    where = "field 'answers'"
    if isinstance(given, dict):
        texts, starts = list_of(given, "text", where), list_of(given, "answer_start", where)
        if len(texts) != len(starts):
            raise InputError(f"{where} has {len(texts)} texts and {len(starts)} starts; give as many of each")
        given = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    if not isinstance(given, list):
        raise InputError(f"{where} is no list; give a list of objects with text and answer_start")
    found = []
    for each in given:
        words = value_of(each, "text", "an answer")
        if not isinstance(words, str):
            raise InputError(f"the text of an answer is {words!r}; give words of the context")
        found.append((number_of(each, "answer_start", "an answer"), words))
    return found
