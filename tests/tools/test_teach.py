"""What the teacher of the bundled encoder is asked for: runs of sentences, made-up questions, and which texts alone."""

from __future__ import annotations

from random import Random

from teach import ASKED, LONGEST_PASSAGE, alone, passages, questions

PARTS = [
    ("title", ["T"]),
    ("heading", ["First part"]),
    ("text", ["word " * 30] * 12),
    ("heading", ["Second part"]),
    ("heading", ["With a heading inside"]),
    ("text", ["word " * 200, "Short."]),
    ("abstract", ["A."]),
    ("turn", ["Last one."]),
]


def test_passages_are_runs_of_one_section_that_leave_out_headings_alone() -> None:
    runs = passages(PARTS, Random(0))
    assert [place for first, end in runs for place in range(first, end)] == [*range(1, 13), 15, 16, 17]
    assert all(end <= 13 or first >= 15 for first, end in runs)
    body = [text for kind, texts in PARTS if kind in ("heading", "text", "turn") for text in texts]
    for first, end in runs:
        assert end - first == 1 or sum(len(text.split()) for text in body[first:end]) <= LONGEST_PASSAGE
    assert (15, 16) in runs


def test_a_made_up_question_begins_as_one_and_goes_on_with_words_of_the_passage() -> None:
    words = "The marmots of the Alps sleep in burrows, deep below the ground."
    found = list(questions([words], Random(1)))
    assert len(found) == 2
    for question in found:
        beginning = max((one for one in ASKED if question.startswith(one)), key=len)
        assert question.endswith("?")
        assert question.removeprefix(beginning).removesuffix("?").strip() in words


def test_of_some_documents_sentences_of_the_body_are_not_asked() -> None:
    parts = [["title", ["T"]], ["text", ["So.", "Why?"]], ["abstract", ["A."]]]
    assert alone({"parts": parts, "passages": [(0, 2)]}) == [True, False, True, True, True]
