"""Made-up questions: the same everywhere, answered by the words around the answer."""

import re

from longspan_documents.questions.made_up import FACTS, synthetic_questions


def test_the_answer_stands_behind_the_words_of_the_question() -> None:
    rows = synthetic_questions(60, seed=3)
    answered = 0
    for row in rows:
        asked = re.fullmatch(r"what is the (\w+) of (\w+)", row.question)
        assert asked
        found = re.findall(rf"the {asked[1]} of {asked[2]} is ([\w ]+?) \.", row.text)
        (note,) = row.annotations
        if note.candidate is None:
            assert found == []
            continue
        answered += 1
        (span,) = note.short
        assert found == [row.answer(span)]
        passage = row.candidates[note.candidate].span
        assert passage.start < span.start < span.end < passage.end
        assert len(re.findall(r"the \w+ of \w+ is", row.text)) == FACTS
    assert 40 <= answered <= 56


def test_rows_are_the_same_for_the_same_seed_and_share_one_vocabulary() -> None:
    rows = synthetic_questions(20, seed=0)
    assert rows == synthetic_questions(20, seed=0)
    assert rows[:5] == synthetic_questions(5, seed=0)
    others = synthetic_questions(20, seed=1)
    assert {row.text for row in rows}.isdisjoint(row.text for row in others)
    words = [{word for row in some for word in row.text.split()} for some in (rows, others)]
    assert len(words[0] & words[1]) > 0.9 * len(words[0] | words[1])


def test_passages_are_the_paragraphs() -> None:
    (row,) = synthetic_questions(1, seed=5, paragraphs=9)
    assert [row.answer(candidate.span) for candidate in row.candidates] == row.text.split("\n\n")
    assert len(row.candidates) == 9
