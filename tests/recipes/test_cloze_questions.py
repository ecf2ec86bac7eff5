"""Questions made from documents: answers stand where they are said to, questions do not give them away."""

from __future__ import annotations

import random

import pytest
from cloze_questions import FUNCTION_WORDS, WORD, ClozeOptions, _topic, cloze_rows, paragraphs_of

from longspan.data.questions.rows import plain_row
from longspan.data.summaries.rows import SummaryRow
from longspan.errors import InputError

PLACES = ("harbour", "market", "garden", "library", "station", "chapel", "theatre", "museum", "factory")
THINGS = ("lantern", "violin", "compass", "kettle", "ladder", "mirror", "barrel", "anchor", "blanket")
NAMES = ("Miss Bradley", "Mr. Collins", "Doctor Watson", "Lady Agatha", "Captain Nemo", "Sir Walter", "Mrs. Dalloway")


def document(number: int) -> list[str]:
    """Eleven paragraphs of three sentences, no two alike."""
    draw = random.Random(number)
    return [
        f"In the old {draw.choice(PLACES)} stood a broken {draw.choice(THINGS)} that nobody in {number} wanted. "
        f"Early on Monday the quiet visitor {draw.choice(NAMES)} carried {draw.randint(20, 90)} heavy boxes upstairs. "
        f"Later a painted {draw.choice(THINGS)} was moved from the {draw.choice(PLACES)} number {number} {place} away."
        for place in range(11)
    ]


DOCUMENTS = [document(number) for number in range(7)]
OPTIONS = ClozeOptions(min_words=80, max_words=200)


def test_the_same_seed_makes_the_same_questions() -> None:
    first, second = (list(cloze_rows(DOCUMENTS, 40, seed=3, options=OPTIONS)) for _ in range(2))
    assert first == second
    assert len({row.id for row in first}) == 40
    assert first != list(cloze_rows(DOCUMENTS, 40, seed=4, options=OPTIONS))


def test_answers_stand_in_their_paragraph_and_not_in_the_question() -> None:
    answered = 0
    for row in cloze_rows(DOCUMENTS, 200, seed=1, options=OPTIONS):
        note = row.annotations[0]
        assert all(row.answer(one.span) for one in row.candidates)
        if note.candidate is None:
            assert not note.short
            continue
        passage = row.candidates[note.candidate].span
        for span in note.short:
            answered += 1
            assert passage.start <= span.start < span.end <= passage.end
            assert row.answer(span) == row.answer(span).strip()
            hidden = row.answer(span).lower()
            assert f" {hidden} " not in f" {row.question.lower().rstrip('?')} "
    assert answered > 80


def test_a_question_is_about_its_paragraph() -> None:
    """Most of its words that carry something, endings aside, are the paragraph's or all over the document."""
    options = ClozeOptions(min_words=80, max_words=200, topic=0, unanswerable=0.0, long_only=0.0)
    for row in cloze_rows(DOCUMENTS, 100, seed=2, options=options):
        index = row.annotations[0].candidate
        assert index is not None
        passage = row.answer(row.candidates[index].span).lower()
        words = [word.lower() for word in WORD.findall(row.question)]
        carrying = [word for word in words if word not in FUNCTION_WORDS and word not in {"person", "tell", "about"}]
        assert len(carrying) >= 3
        assert all(word[:4] in passage for word in carrying), row.question


def test_shares_of_questions_without_an_answer() -> None:
    always = ClozeOptions(min_words=80, max_words=200, unanswerable=1.0)
    assert all(row.annotations[0].candidate is None for row in cloze_rows(DOCUMENTS, 50, seed=0, options=always))
    never = ClozeOptions(min_words=80, max_words=200, unanswerable=0.0)
    assert all(row.annotations[0].candidate is not None for row in cloze_rows(DOCUMENTS, 50, seed=0, options=never))


def test_documents_without_sentences_are_refused() -> None:
    for documents in ([], [["one", "two", "three", "four"]]):
        with pytest.raises(InputError, match="give more text"):
            list(cloze_rows(documents, 5, seed=0))


def test_paragraphs_of_plain_texts_and_of_sentences() -> None:
    text = "First paragraph here.\n\n" + "x" * 800 + "\n\nThird."
    assert paragraphs_of(SummaryRow(id="a", pieces=(text,)), random.Random(0))[0] == "First paragraph here."
    assert len(plain_row(text, "?").candidates) == 3
    sentences = tuple(f"genes rose by <dig> percent <cit> in mouse {letter}." for letter in "abcdefghij")
    paragraphs = paragraphs_of(SummaryRow(id="b", pieces=sentences), random.Random(0))
    assert 2 <= len(paragraphs) <= 4
    joined = " ".join(paragraphs)
    assert "<" not in joined
    assert joined.count("Genes rose by ") == 10
    assert joined.count(" percent in mouse") == 10


def test_words_that_occur_equally_often_are_in_order() -> None:
    """Python's sets are in another order in every process; a seed must give the same questions in all."""
    expected = ["kappa", "alpha", "beta", "delta", "gamma", "omega"]
    assert _topic(["omega alpha kappa beta gamma delta"] * 2 + ["kappa"]) == expected
