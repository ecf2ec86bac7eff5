"""Extractive question answering over a context: SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018), TriviaQA.

- `read_spans("squad/", "train")`: the release files, such as `train-v1.1.json`
- `read_spans("triviaqa-rc/", "dev")`: the release folder, its archive, or a file in its `qa/`; a row for each page of a
  question, see `longspan_documents.questions.triviaqa`
- `read_spans("train.jsonl")`: a row per line, `{"id", "question", "context", "answers": {"text": […],
  "answer_start": […]}}`, as in the data sets of the Hub
- `read_spans("synthetic", limit=64)`: generated
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longspan.data.fields import (
    Record,
    Skipped,
    check_on_error,
    check_text,
    list_of,
    name_of,
    number_of,
    parsed,
    value_of,
)
from longspan.data.jsonl import read_json, read_jsonl
from longspan.data.sources import DataSet, Kind, read
from longspan.errors import InputError
from longspan_documents.questions import triviaqa
from longspan_documents.questions.made_up import synthetic_questions


@dataclass(frozen=True, slots=True)
class SpanRow:
    """A question, its context, and the annotated answers.

    Attributes:
        id: id of the question in predictions; rows with equal ids are several contexts of one question.
        question, context: as in the file.
        answers: pairs of the first character in the context and the words from there on; empty if unanswerable.
        accepted: correct answers independent of the context, if known: TriviaQA's normalised aliases, empty for its
            test questions; None if they are the answers in the context.
    """

    id: str
    question: str
    context: str
    answers: tuple[tuple[int, str], ...] = ()
    accepted: tuple[str, ...] | None = None


def made_up(count: int | None, seed: int) -> Iterator[SpanRow]:
    """Yields generated rows, see `longspan_papers.natural_questions.reading`; every question is answerable."""
    count = 16 if count is None else count
    for row in synthetic_questions(count, seed=seed, paragraphs=6, unanswerable=0.0):
        ((span,),) = (annotation.short for annotation in row.annotations)
        yield SpanRow(row.id, row.question, row.text, ((span.start, row.text[span.start : span.end]),))


SPANS = Kind(
    row=SpanRow,
    named={"triviaqa-sample": DataSet.sample("triviaqa/triviaqa-wikipedia-sample.tar.gz")},
    made_up=lambda count, seed: made_up(count, seed),
    suffixes=("json", "jsonl", "tar", "tgz"),
    is_one=triviaqa.is_release,
)
"""Sources of such questions."""


def read_spans(
    data: str | Path | Sequence[str | Path],
    split: str = "train",
    limit: int | None = None,
    *,
    on_error: str = "raise",
    max_words: int | None = None,
) -> Iterator[SpanRow]:
    """Streams questions with their contexts; arguments and errors as in `read_questions`.

    With `max_words`, contexts are truncated to that many words, without the answers after them.
    """
    check_on_error(on_error)

    def read_file(path: Path, _: None) -> Iterator[SpanRow]:
        stem, skipped = path.name.split(".")[0], Skipped(str(path), on_error)

        def parse(record: Record, number: int) -> SpanRow:
            row = span_row(record, f"{stem}:{number}")
            context = triviaqa.first_words(row.context, max_words)
            answers = tuple(answer for answer in row.answers if answer[0] + len(answer[1]) <= len(context))
            return replace(row, context=context, answers=answers)

        if ".jsonl" in path.name.lower():
            return parsed(read_jsonl(path, skipped.add), parse, skipped)
        if path.is_dir() or triviaqa.ARCHIVE.search(path.name):
            return _trivia(*triviaqa.in_release(path, split, max_words), skipped)
        whole = read_json(path, "give a file in the format of SQuAD or TriviaQA, or one row per line named .jsonl")
        if isinstance(whole, dict) and "Data" in whole:
            return _trivia(whole, path.name, triviaqa.evidence_beside(path, max_words), skipped)
        return parsed(_records(whole, path), parse, skipped, "question")

    return read(data, split, SPANS, read_file, limit)


def _trivia(whole: Any, name: str, pages: triviaqa.Evidence, skipped: Skipped) -> Iterator[SpanRow]:
    """Yields a row for each page of each question; its answers are all occurrences of accepted names."""

    def parse(given: Any, number: int) -> SpanRow:
        one = triviaqa.asked(given, f"{name.split('.')[0]}:{number}")
        text = pages[one.page]
        answers = triviaqa.occurrences(text, one.accepted)
        return SpanRow(one.id, one.question, text, tuple(answers), one.accepted)

    return parsed(triviaqa.asked_of_pages(whole, name), parse, skipped, "question")


def _records(whole: Any, path: Path) -> Iterator[tuple[int, Record]]:
    """Yields the questions of a release file, each with its context, counted from 1."""
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
    """Returns the row of one record, with answers as a list, as in SQuAD, or as lists by name, as on the Hub.

    Raises:
        InputError: a field is missing or has another type; an answer is not at its position.
    """
    question = check_text(value_of(record, "question"), "the question (field 'question')")
    context = check_text(value_of(record, "context"), "the context (field 'context')")
    answers = [] if record.get("is_impossible") is True else _answers(value_of(record, "answers"))
    for start, words in answers:
        if not words or context[start : start + len(words)] != words or start < 0:
            raise InputError(
                f"the answer {words[:80]!r} is not at character {start} of the context; correct answer_start"
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
    answers = []
    for each in given:
        words = value_of(each, "text", "an answer")
        if not isinstance(words, str):
            raise InputError(f"the text of an answer is {words!r}; give words of the context")
        answers.append((number_of(each, "answer_start", "an answer"), words))
    return answers
