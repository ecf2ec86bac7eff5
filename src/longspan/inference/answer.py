"""`longspan.answer`: a document of any length and a question in; out come the answer, its passage, and their place.

Without a model, the bundled reader answers; with one, any model that `longspan train` made for the task
`natural_questions`.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from longspan.characters import check_characters, mend
from longspan.data.questions.rows import Candidate, QuestionRow, Span, check_text, plain_row
from longspan.data.text.reading import read
from longspan.data.text.sentences import split_sentences
from longspan.errors import InputError
from longspan.inference.notes import notes, reads_english
from longspan.inference.results import DocumentAnswer, Quote, ScoredSentence
from longspan.progress import without_bars

BUNDLED = Path(__file__).parents[1] / "bundled" / "reader"
"""The folder of the reader that comes with the package; its README.md is the model card."""

HEADING = 60
"""Longest heading, in characters."""
_ENDS_SENTENCE = re.compile(r"[.!?。！？।…:;,][\"'”’»)\]]*$|\n")

# Not in scripts that put no spaces between words: Thai and its neighbours, Chinese, Japanese.
_INSIDE_WORD = re.compile(r"(?:(?![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\uffff])[^\W_]){2}")

NOT_ENGLISH = "the bundled reader was trained on English; its answers in other languages are less sure"

THRESHOLD, BUNDLED_THRESHOLD = 0.5, 0.8
"""Probability from which on there is an answer: for any model, and for the bundled one, by its validation questions."""


def answer(
    document: str | Path,
    question: str,
    model: str | Path | Reader | None = None,
    *,
    threshold: float | None = None,
    encoding: str | None = None,
) -> DocumentAnswer:
    """Answer a question from a document of any length.

    Args:
        document: the text itself, or a `Path` to a .txt, .md, .html or .pdf file.
        question: one question.
        model: None takes the bundled reader. Else the folder of a model trained here for `natural_questions`, or what
            `load_reader` returned.
        threshold: probability from which on there is an answer; None takes 0.8 for the bundled reader, else 0.5.
        encoding: of a text file; None as in `longspan.data.text.reading.read`.

    Returns:
        A `DocumentAnswer`; `print` shows its text.

    Raises:
        InputError: nothing to read, no question, a question that is too long for the model, a model that cannot be
            loaded or cannot answer questions, a threshold outside 0 to 1.
    """
    pages: Sequence[int] = ()
    if isinstance(document, Path):
        found = read(document, encoding)
        document, pages = found.text, found.pages
    reader = load_reader(model) if model is None or isinstance(model, str | Path) else model
    return reader.answer(document, question, threshold=threshold, pages=pages)


def load_reader(model: str | Path | None = None) -> Reader:
    """Load a reader once to answer many questions; argument and errors as in `answer`. The latest ones are kept."""
    return _bundled() if model is None else _load(str(model))


@lru_cache(maxsize=1)
def _bundled() -> Reader:
    from longspan.inference.bundled import open_bundled
    from longspan.models.heads.question_network import QuestionNetwork

    network, tokenizer = open_bundled(BUNDLED, QuestionNetwork)
    return Reader(network, tokenizer, _task(BUNDLED, network, tokenizer), bundled=True)


@lru_cache(maxsize=2)
def _load(source: str) -> Reader:
    from longspan.checkpoints.loading import load_pair
    from longspan.models import LongspanForNaturalQuestions

    model, tokenizer = load_pair(source)
    if not isinstance(model, LongspanForNaturalQuestions):
        raise InputError(
            f"model {source!r} is a {type(model).__name__}, which cannot answer questions; give one that "
            "`longspan train` made for the task natural_questions"
        )
    return Reader(model, tokenizer, _task(Path(source), model, tokenizer))


def _task(folder: Path, model: Any, tokenizer: Any) -> Any:
    """The task as the recipe beside the model has it; without a recipe, what model and tokenizer tell of it."""
    from longspan.tasks import task_beside
    from longspan.tasks.questions.natural_questions import NaturalQuestions
    from longspan.tasks.questions.options import QuestionOptions, marker_tokens

    if (task := task_beside(folder)) is not None:
        return task
    marked = set(marker_tokens(QuestionOptions())) <= set(tokenizer.get_vocab())
    return NaturalQuestions(markers=marked).fitted(model.config)


class Reader:
    """Answers questions with a `LongspanForNaturalQuestions` model.

    Attributes:
        bundled: the model is the bundled one, which knows English only, and finds sentences better than words.
    """

    def __init__(self, model: Any, tokenizer: Any, task: Any, *, bundled: bool = False) -> None:
        from longspan.tasks.questions.options import MARKED_CANDIDATES

        self.model = model
        self.tokenizer = tokenizer
        # All passages of a document compete; its markers, where a model has them, are numbered up to the last one.
        every = not task.markers or task.max_candidates in {None, 0, MARKED_CANDIDATES}
        # No question is cut: one that leaves no room for the document is refused.
        whole = replace(task, max_question_tokens=None)
        self.task = replace(whole, max_candidates=None) if every else whole
        self.bundled = bundled

    def answer(
        self, text: str, question: str, *, threshold: float | None = None, pages: Sequence[int] = ()
    ) -> DocumentAnswer:
        """See `longspan.answer`; `pages` are the characters at which pages begin."""
        from longspan.tasks.questions.answering import answer_row
        from longspan.tasks.questions.document import encode_text

        if threshold is None:
            threshold = BUNDLED_THRESHOLD if self.bundled else THRESHOLD
        if not 0 <= threshold <= 1:
            raise InputError(f"threshold={threshold} is no probability; give a number from 0 to 1")
        check_question(question)
        text, halves = mend(text) if isinstance(text, str) else (text, 0)
        check_text(text, "the document")
        begin = time.perf_counter()
        row = headed(plain_row(text, question))
        with without_bars():
            found = answer_row(self.model, self.tokenizer, row, self.task)
        candidate = found.candidate or 0
        answered = found.candidate is not None and found.probability >= threshold
        preferred = answered and found.short and found.short_score > 0
        span = self._short(row, Span(found.short[0].start, found.short[-1].end), candidate) if preferred else None
        foreign = self.bundled and not reads_english(text)
        return DocumentAnswer(
            question=row.question,
            answered=answered,
            passage=quote_of(row, row.candidates[candidate].span, pages),
            short=None if span is None else quote_of(row, span, pages),
            yes_no=found.yes_no if answered else "none",
            probability=found.probability,
            passages=tuple(
                ScoredSentence(row.answer(one.span), one.span.start, one.span.end, round(probability, 4))
                for one, probability in zip(row.candidates, found.candidate_probabilities, strict=True)
            ),
            tokens=len(encode_text(self.tokenizer, text, "the document")[0]),
            seconds=time.perf_counter() - begin,
            note=notes(NOT_ENGLISH if foreign else None, halves=halves),
        )

    def _short(self, row: QuestionRow, span: Span, candidate: int) -> Span | None:
        span = whole_words(row, span, candidate)
        if not self.bundled:
            return span
        span = whole_sentences(row, span, candidate)
        return None if span == row.candidates[candidate].span else span


def headed(row: QuestionRow) -> QuestionRow:
    """The row with each heading joined to the passage below it: a heading alone answers nothing."""
    joined: list[Span] = []
    waiting: int | None = None
    for span in (candidate.span for candidate in row.candidates):
        start = span.start if waiting is None else waiting
        is_heading = len(span) <= HEADING and not _ENDS_SENTENCE.search(row.answer(span))
        waiting = start if is_heading else None
        if not is_heading:
            joined.append(Span(start, span.end))
    if waiting is not None:
        joined.append(Span(waiting, row.candidates[-1].span.end))
    return replace(row, candidates=tuple(Candidate(span) for span in joined))


def whole_words(row: QuestionRow, span: Span, candidate: int) -> Span:
    """The span made longer, within its passage, so that it neither begins nor ends inside a word."""
    passage, text = row.candidates[candidate].span, row.text
    start, end = span.start, span.end
    while start > passage.start and _INSIDE_WORD.fullmatch(text, start - 1, start + 1):
        start -= 1
    while end < passage.end and _INSIDE_WORD.fullmatch(text, end - 1, end + 1):
        end += 1
    return Span(start, end)


def whole_sentences(row: QuestionRow, span: Span, candidate: int) -> Span:
    """The span made longer to the sentences of its passage that it touches."""
    passage = row.candidates[candidate].span
    places = [(one.start + passage.start, one.end + passage.start) for one in split_sentences(row.answer(passage))]
    touched = [(start, end) for start, end in places if start < span.end and span.start < end]
    return Span(touched[0][0], touched[-1][1]) if touched else span


def check_question(question: str) -> None:
    """Refuse a question without words."""
    if not isinstance(question, str) or not question.strip():
        raise InputError(f"question={question!r} asks nothing; give a question with words in it")
    check_characters(question, "the question")


def quote_of(row: QuestionRow, span: Span, pages: Sequence[int] = ()) -> Quote:
    """A span of a document with its words and its place; `pages` are the characters at which pages begin."""
    original = row.original(span)
    return Quote(
        text=row.answer(span),
        start=span.start,
        end=span.end,
        start_byte=original["start_byte"],
        end_byte=original["end_byte"],
        first_line=row.text.count("\n", 0, span.start) + 1,
        last_line=row.text.count("\n", 0, max(span.start, span.end - 1)) + 1,
        page=bisect_right(pages, span.start) or None,
    )
