"""The natural questions: every quote stands once, where the file says, in a document of the data folder."""

import json
import os
from collections import Counter
from pathlib import Path

import natural
import pytest


def _rows():
    return [json.loads(line) for line in natural.QUESTIONS.read_text(encoding="utf-8").splitlines()]


def test_there_are_ten_questions_with_an_answer_and_three_without_for_each_of_six_documents():
    counts = Counter((row["document"], row["answerable"]) for row in _rows())
    names = {name for name, _ in counts}
    assert len(names) == 6
    assert all(counts[name, True] == 10 and counts[name, False] == 3 for name in names)


def test_no_quote_is_long_and_only_unanswerable_questions_have_none():
    for row in _rows():
        assert bool(row["answers"]) == row["answerable"], row["question"]
        assert all(len(answer["quote"].split()) <= 25 for answer in row["answers"]), row["question"]


def test_every_quote_stands_once_where_the_file_says():
    folder = os.environ.get("LONGSPAN_DATA")
    if not folder:
        pytest.skip("set LONGSPAN_DATA to the data folder to check the quotes")
    texts, questions = natural.natural_questions(Path(folder))
    for question in questions:
        assert all(texts[question.document][start:end].strip() for start, end in question.places)
    assert sum(bool(question.places) for question in questions) == 60


def test_questions_for_reasons_stand_in_documents_of_their_own():
    rows = [json.loads(line) for line in natural.REASONS.read_text(encoding="utf-8").splitlines()]
    parts = {(row["document"], row["part"]) for row in rows}
    assert Counter(part for _, part in parts) == {"design": 5, "held out": 6}
    assert Counter(row["kind"] for row in rows) == {"why": 36, "how": 18, "what": 14}
    assert all(0 < len(answer["quote"].split()) <= 25 for row in rows for answer in row["answers"])
    folder = os.environ.get("LONGSPAN_DATA")
    if not folder:
        pytest.skip("set LONGSPAN_DATA to the data folder to check the quotes")
    _, questions = natural.natural_questions(Path(folder), natural.REASONS)
    assert all(question.places for question in questions)
