"""Questions in SQuAD's format: the release's file, a row per line, answers where they are said to be, bad rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longspan.errors import InputError
from longspan_documents.questions.spans import SpanRow, read_spans

CONTEXT = "Anna planted roses. Karl dug a pond."
ROW = {"id": "a", "question": "Who dug?", "answers": [{"text": "Karl", "answer_start": 20}]}
EXPECTED = SpanRow("a", "Who dug?", CONTEXT, ((20, "Karl"),))


def release(folder: Path, *asked: object, name: str = "train-v2.0.json", indent: int | None = None) -> Path:
    whole = {"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": list(asked)}]}]}
    (folder / name).write_text(json.dumps(whole, indent=indent), encoding="utf-8")
    return folder / name


@pytest.mark.parametrize("indent", [None, 1])
def test_the_release_and_a_row_per_line_give_the_same(indent: int | None, tmp_path: Path) -> None:
    impossible = {"id": "b", "question": "Who sang?", "answers": [], "is_impossible": True}
    release(tmp_path, ROW, impossible, indent=indent)
    assert list(read_spans(tmp_path, "train")) == [EXPECTED, SpanRow("b", "Who sang?", CONTEXT)]
    flat = ROW | {"context": CONTEXT, "answers": {"text": ["Karl"], "answer_start": [20]}}
    (tmp_path / "rows.jsonl").write_text(json.dumps(flat) + "\n", encoding="utf-8")
    assert list(read_spans(tmp_path / "rows.jsonl")) == [EXPECTED]


def test_made_up_rows_have_their_answer_and_repeat() -> None:
    rows = list(read_spans("synthetic", "train", 5))
    assert rows == list(read_spans("synthetic", "train", 5))
    assert rows != list(read_spans("synthetic", "validation", 5))
    for row in rows:
        ((start, words),) = row.answers
        assert row.context[start : start + len(words)] == words


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": [{"text": "Karl", "answer_start": 19}]}, "question 1: the answer 'Karl' is not at"),
        ({"answers": [{"text": "Karl", "answer_start": -16}]}, "is not at character -16"),
        ({"answers": [{"text": 3, "answer_start": 1}]}, "the text of an answer is 3"),
        ({"answers": {"text": ["a"], "answer_start": []}}, "has 1 texts and 0 starts"),
        ({"answers": "Karl"}, "field 'answers' is no list"),
        ({"question": " "}, "the question"),
    ],
)
def test_a_row_that_cannot_be_is_named_or_passed_over(change: dict, message: str, tmp_path: Path) -> None:
    file = release(tmp_path, ROW | change, ROW)
    with pytest.raises(InputError, match=message):
        list(read_spans(file))
    assert list(read_spans(file, on_error="skip")) == [EXPECTED]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ('{"rows": []}', "the file has no field 'data'; it has rows; give a file in the format of SQuAD"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', "a paragraph has no field 'context'"),
        ("[]", "the file is a list instead of an object"),
    ],
)
def test_a_file_that_is_none_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        list(read_spans(tmp_path / "train.json"))
