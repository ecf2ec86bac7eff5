"""Prediction files: the official formats of Natural Questions and TyDi QA, and a readable line for each row."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from longspan_documents.questions.rows import Annotation, Place, QuestionRow
from longspan_papers.natural_questions.answering import Answer
from longspan_papers.natural_questions.metric import AnswerLabel


def answer_label(row: QuestionRow, answer: Answer) -> AnswerLabel:
    """Converts an answer to the units of the published document, for the metric."""
    return AnswerLabel(
        candidate=answer.candidate,
        long=Place(**row.original(None if answer.candidate is None else row.candidates[answer.candidate])),
        short=tuple(Place(**row.original(span)) for span in answer.short),
        yes_no=answer.yes_no,
        long_score=answer.long_score,
        short_score=answer.short_score,
    )


def natural_questions_prediction(row: QuestionRow, label: AnswerLabel) -> dict[str, Any]:
    """Returns one entry of `predictions` in the file for the official evaluation of Natural Questions.

    Every answer has its score; the evaluation finds the threshold. Unknown byte and token offsets are −1.
    """
    return {
        "example_id": _number(row.id),
        "long_answer": asdict(label.long),
        "long_answer_score": _score(label.long_score),
        "short_answers": [asdict(place) for place in label.short],
        "short_answers_score": _score(label.short_score),
        "yes_no_answer": label.yes_no.upper(),
    }


def tydi_prediction(row: QuestionRow, label: AnswerLabel) -> dict[str, Any]:
    """Returns one line of the file for the official evaluation of TyDi QA's primary tasks."""
    minimal = label.spans[0] if label.spans else Place()
    return {
        "example_id": _number(row.id),
        "language": row.language or "",
        "passage_answer_index": -1 if label.candidate is None else label.candidate,
        "passage_answer_score": _score(label.long_score),
        "minimal_answer": {"start_byte_offset": minimal.start_byte, "end_byte_offset": minimal.end_byte},
        "minimal_answer_score": _score(label.short_score),
        "yes_no_answer": label.yes_no.upper(),
    }


def official_files(pairs: Iterable[tuple[QuestionRow, AnswerLabel]]) -> dict[str, Any]:
    """Returns file name → content, in the formats of the rows; plain rows are written as Natural Questions."""
    pairs = list(pairs)
    questions = [natural_questions_prediction(row, label) for row, label in pairs if row.source != "tydi"]
    tydi = [tydi_prediction(row, label) for row, label in pairs if row.source == "tydi"]
    files: dict[str, Any] = {"predictions-nq.json": {"predictions": questions}} if questions else {}
    return files | ({"predictions-tydi.jsonl": tydi} if tydi else {})


def line(row: QuestionRow, answer: Answer) -> dict[str, Any]:
    """Returns question, answer and annotations as text; scores are null if there was no candidate."""
    long = "" if answer.candidate is None else row.answer(row.candidates[answer.candidate].span)
    short = [row.answer(span) for span in answer.short]
    return {
        "id": row.id,
        "question": row.question,
        "prediction": answer.yes_no if answer.yes_no != "none" else (short[0] if short else long),
        "long": long,
        "short": short,
        "yes_no": answer.yes_no,
        "long_score": answer.long_score if math.isfinite(answer.long_score) else None,
        "short_score": answer.short_score if math.isfinite(answer.short_score) else None,
        "probability": answer.probability,
        "candidate": answer.candidate,
        "gold": [_gold(row, annotation) for annotation in row.annotations],
    }


def _gold(row: QuestionRow, annotation: Annotation) -> dict[str, Any]:
    long = "" if annotation.candidate is None else row.answer(row.candidates[annotation.candidate].span)
    return {
        "candidate": annotation.candidate,
        "long": long,
        "short": [row.answer(span) for span in annotation.short],
        "yes_no": annotation.yes_no,
    }


def _score(score: float) -> float:
    """Replaces infinity, the score of no answer, by 0, since JSON has no infinity."""
    return score if math.isfinite(score) else 0.0


def _number(name: str) -> int | str:
    """Returns a published id as the integer that it is."""
    return int(name) if name.lstrip("-").isdecimal() and name.isascii() else name
