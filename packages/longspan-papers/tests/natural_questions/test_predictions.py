"""The official prediction formats, field by field."""

from __future__ import annotations

from array import array

from longspan_documents.questions.rows import Annotation, Candidate, Place, QuestionRow, Span, TokenPlaces
from longspan_papers.natural_questions.answering import Answer
from longspan_papers.natural_questions.predictions import answer_label, line, official_files

# "<P> Bern is big </P> <Table> <Tr> 7 </Tr> </Table>": tokens 0–4 are the paragraph, 5–9 the table.
ROW = QuestionRow(
    id="-8062182676792486818",
    question="what is big",
    text="Bern is big 7",
    candidates=(
        Candidate(Span(0, 11), place=Place(0, 5, 100, 130)),
        Candidate(Span(12, 13), kind="table", place=Place(5, 10, 131, 170)),
    ),
    annotations=(Annotation(candidate=0, short=(Span(0, 4),)),),
    source="nq",
    tokens=TokenPlaces(
        array("q", [1, 2, 3, 7]),
        array("q", [0, 5, 8, 12]),
        13,
        array("q", [104, 109, 112, 150]),
        array("q", [108, 111, 115, 151]),
    ),
)


def answer(**changes) -> Answer:
    given = {"candidate": 0, "long_score": 2.5, "short": (Span(0, 7),), "short_score": -1.0, "probability": 0.75}
    return Answer(**(given | changes))


def test_natural_questions():
    (entry,) = official_files([(ROW, answer_label(ROW, answer()))])["predictions-nq.json"]["predictions"]
    assert entry == {
        "example_id": -8062182676792486818,
        "long_answer": {"start_byte": 100, "end_byte": 130, "start_token": 0, "end_token": 5},
        "long_answer_score": 2.5,
        "short_answers": [{"start_byte": 104, "end_byte": 111, "start_token": 1, "end_token": 3}],
        "short_answers_score": -1.0,
        "yes_no_answer": "NONE",
    }
    yes = answer_label(ROW, answer(short=(), yes_no="yes"))
    (entry,) = official_files([(ROW, yes)])["predictions-nq.json"]["predictions"]
    assert (entry["short_answers"], entry["yes_no_answer"]) == ([], "YES")


def test_no_answer_at_all():
    (entry,) = official_files([(ROW, answer_label(ROW, Answer()))])["predictions-nq.json"]["predictions"]
    null = {"start_byte": -1, "end_byte": -1, "start_token": -1, "end_token": -1}
    assert (entry["long_answer"], entry["short_answers"], entry["yes_no_answer"]) == (null, [], "NONE")
    assert (entry["long_answer_score"], entry["short_answers_score"]) == (0.0, 0.0)  # JSON has no infinity


def test_tydi():
    row = QuestionRow(
        id="12",
        question="missä",
        text="Äiti on",
        candidates=(Candidate(Span(0, 7)),),
        source="tydi",
        language="finnish",
    )
    files = official_files([(row, answer_label(row, answer(short=(Span(0, 4),)))), (row, answer_label(row, Answer()))])
    assert list(files) == ["predictions-tydi.jsonl"]
    first, second = files["predictions-tydi.jsonl"]
    assert first == {
        "example_id": 12,
        "language": "finnish",
        "passage_answer_index": 0,
        "passage_answer_score": 2.5,
        "minimal_answer": {"start_byte_offset": 0, "end_byte_offset": 5},  # "Ä" has two bytes
        "minimal_answer_score": -1.0,
        "yes_no_answer": "NONE",
    }
    assert (second["passage_answer_index"], second["minimal_answer"]["start_byte_offset"]) == (-1, -1)


def test_both_kinds_of_rows_have_their_file():
    row = QuestionRow(id="a:1", question="what", text="x", candidates=(), source="tydi")
    files = official_files([(row, answer_label(row, Answer())), (ROW, answer_label(ROW, answer()))])
    assert set(files) == {"predictions-nq.json", "predictions-tydi.jsonl"}
    assert files["predictions-tydi.jsonl"][0]["example_id"] == "a:1"


def test_a_readable_line():
    assert line(ROW, answer()) == {
        "id": "-8062182676792486818",
        "question": "what is big",
        "prediction": "Bern is",
        "long": "Bern is big",
        "short": ["Bern is"],
        "yes_no": "none",
        "long_score": 2.5,
        "short_score": -1.0,
        "probability": 0.75,
        "candidate": 0,
        "gold": [{"candidate": 0, "long": "Bern is big", "short": ["Bern"], "yes_no": "none"}],
    }
    assert line(ROW, answer(short=(), yes_no="no"))["prediction"] == "no"
    nothing = line(ROW, Answer())
    assert (nothing["prediction"], nothing["long_score"], nothing["short_score"]) == ("", None, None)
