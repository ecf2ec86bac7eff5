"""TyDi QA: bytes of the file become characters and go back, in every script of the samples."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from longspan.errors import InputError
from longspan_documents.questions.rows import Annotation, Span
from longspan_papers.natural_questions.formats import tydi_question
from longspan_papers.natural_questions.reading import read_questions
from spoilt import changed

# Ten letters of three bytes, one of four, thirteen of one: 47 bytes.
TEXT = "\nอักษร one.\nดีมาก 𝄞 two\n"
LANGUAGES = ["arabic", "bengali", "english", "finnish", "indonesian", "japanese", "korean", "russian", "swahili"]


def bytes_of(part: str) -> dict[str, int]:
    start = TEXT.encode().index(part.encode())
    return {"plaintext_start_byte": start, "plaintext_end_byte": start + len(part.encode())}


NONE = {"plaintext_start_byte": -1, "plaintext_end_byte": -1}


def record() -> dict[str, Any]:
    def note(index: int, minimal: dict[str, int], yes_no: str = "NONE") -> dict[str, Any]:
        return {"passage_answer": {"candidate_index": index}, "minimal_answer": minimal, "yes_no_answer": yes_no}

    return {
        "example_id": 12,
        "language": "thai",
        "question_text": "อะไร",
        "document_title": "อักษร",
        "document_plaintext": TEXT,
        "passage_answer_candidates": [bytes_of("อักษร one."), bytes_of("ดีมาก 𝄞 two")],
        "annotations": [note(1, bytes_of("𝄞")), note(0, NONE, "NO"), note(-1, NONE)],
    }


def test_a_record_by_hand() -> None:
    row = tydi_question(record())
    assert row.text == TEXT
    assert [row.answer(candidate.span) for candidate in row.candidates] == ["อักษร one.", "ดีมาก 𝄞 two"]
    place = TEXT.index("𝄞")
    assert row.annotations == (Annotation(1, (Span(place, place + 1),)), Annotation(0, (), "no"), Annotation())
    assert (row.id, row.language, row.title, row.source) == ("12", "thai", "อักษร", "tydi")
    found = row.original(row.annotations[0].short[0])
    assert found == {
        "start_byte": bytes_of("𝄞")["plaintext_start_byte"],
        "end_byte": bytes_of("𝄞")["plaintext_end_byte"],
    }
    assert row.original(None) == {"start_byte": -1, "end_byte": -1}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("annotations", ..., "no field 'annotations'"),
        ("annotations", [], "field 'annotations' is empty"),
        ("annotations.0.minimal_answer", ..., r"annotations\[0\] has no field 'minimal_answer'"),
        ("annotations.0.minimal_answer.plaintext_start_byte", 2, r"bytes 2–\d+, which are not whole characters"),
        ("annotations.0.minimal_answer", {"plaintext_start_byte": 1, "plaintext_end_byte": 4}, r"outside its passage"),
        ("annotations.0.minimal_answer.plaintext_end_byte", 10**6, "not whole characters of a document of 47 bytes"),
        ("annotations.2.minimal_answer", {"plaintext_start_byte": 1, "plaintext_end_byte": 4}, r"passage \(none\)"),
        ("annotations.0.passage_answer.candidate_index", 2, "names candidate 2, but the document has 2 candidates"),
        ("annotations.1.yes_no_answer", None, "'yes_no_answer' .* is None"),
        ("passage_answer_candidates", ..., "no field 'passage_answer_candidates'"),
        ("passage_answer_candidates.0.plaintext_end_byte", "9", "holds a str instead of a whole number"),
        ("passage_answer_candidates.0.plaintext_start_byte", -1, "bytes -1–"),
        ("question_text", "", r"the question \(field 'question_text'\) is empty"),
        ("document_plaintext", "\n", r"the document \(field 'document_plaintext'\) is empty"),
    ],
)
def test_malformed_records_are_refused_in_one_sentence(path: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tydi_question(changed(record(), path, value))


@pytest.mark.parametrize(("name", "rows"), [("tiny_dev", 11), ("small_gold_annotation", 3)])
def test_every_sample_is_read_and_goes_back(data_folder: Path, name: str, rows: int) -> None:
    path = data_folder / f"tydiqa/{name}.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    read = list(read_questions(path))
    assert len(read) == len(records) == rows
    for row, raw in zip(read, records, strict=True):
        document = raw["document_plaintext"].encode()
        for candidate, entry in zip(row.candidates, raw["passage_answer_candidates"], strict=True):
            first, end = entry["plaintext_start_byte"], entry["plaintext_end_byte"]
            assert row.original(candidate) == {"start_byte": first, "end_byte": end}
            assert row.answer(candidate.span) == document[first:end].decode()
        assert len(row.annotations) == 3
        for note, entry in zip(row.annotations, raw["annotations"], strict=True):
            minimal = entry["minimal_answer"]
            assert (-1 if note.candidate is None else note.candidate) == entry["passage_answer"]["candidate_index"]
            found = row.original(note.short[0] if note.short else None)
            assert found == {"start_byte": minimal["plaintext_start_byte"], "end_byte": minimal["plaintext_end_byte"]}
            assert note.yes_no == entry["yes_no_answer"].lower()
    if name == "tiny_dev":
        assert sorted(row.language or "" for row in read) == [*LANGUAGES, "telugu", "thai"]
