"""Reads documents for `longspan answer` with a model trained for Natural Questions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from longspan_documents.inference.readers import Words, short_answer
from longspan_documents.inference.results import RankedPassage, ShortAnswer
from longspan_documents.questions.rows import Candidate, QuestionRow, Span, plain_row
from longspan_documents.text.blocks import Document

HEADING = 60
"""Longest heading, in characters."""
_ENDS_SENTENCE = re.compile(r"[.!?。！？।…:;,][\"'”’»)\]]*$|\n")


class ChunkReader:
    """Reads whole documents with a `LongspanForNaturalQuestions`, in the chunks of its task."""

    def __init__(self, model: Any, tokenizer: Any, task: Any) -> None:
        from longspan_papers.natural_questions.options import MARKED_CANDIDATES

        self.model = model
        self.tokenizer = tokenizer
        # All passages of a document are candidates; a model's markers are numbered up to the last one.
        unlimited = not task.markers or task.max_candidates in {None, 0, MARKED_CANDIDATES}
        # Questions are not truncated: one that leaves no room for the document raises.
        whole = replace(task, max_question_tokens=None)
        self.task = replace(whole, max_candidates=None) if unlimited else whole

    def best(
        self, question: str, documents: Sequence[Document], passages: Sequence[RankedPassage]
    ) -> ShortAnswer | None:
        """See `SpanReader.best`."""
        answers = []
        for number in dict.fromkeys(passage.document for passage in passages):
            if (words := self.read(question, documents[number].text)) is not None:
                weight = max(passage.weight for passage in passages if passage.document == number)
                answers.append((weight * words.probability, number, words))
        if not answers:
            return None
        _, number, words = max(answers, key=lambda answer: answer[0])
        return short_answer(documents, number, words, 0)

    def read(self, question: str, text: str) -> Words | None:
        """Returns the short answer, or yes or no; None if the model finds no answer, or only a passage."""
        from longspan.progress import without_bars
        from longspan_papers.natural_questions.answering import answer_row

        row = headed(plain_row(text, question))
        with without_bars():
            answer = answer_row(self.model, self.tokenizer, row, self.task)
        if answer.candidate is None or answer.probability < 0.5 or answer.short_score <= 0:
            return None
        span = row.candidates[answer.candidate].span if answer.yes_no != "none" else answer.short[0]
        return Words(span.start, span.end, answer.probability, answer.yes_no)


def headed(row: QuestionRow) -> QuestionRow:
    """Joins each heading to the passage below it, since a heading alone is no answer."""
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


def chunk_reader(model: Any, tokenizer: Any, folder: Path) -> ChunkReader:
    """Returns a reader with the task of the recipe in the model's folder; else with a task inferred from model and
    tokenizer."""
    from longspan.tasks import task_of_folder
    from longspan_papers.natural_questions.options import QuestionOptions, marker_tokens
    from longspan_papers.natural_questions.task import NaturalQuestions

    if (task := task_of_folder(folder)) is not None:
        return ChunkReader(model, tokenizer, task)
    marked = set(marker_tokens(QuestionOptions())) <= set(tokenizer.get_vocab())
    return ChunkReader(model, tokenizer, NaturalQuestions(markers=marked).fitted(model.config))
