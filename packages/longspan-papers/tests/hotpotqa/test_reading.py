"""HotpotQA's format: the array and lines, annotations that point nowhere, bad rows, and made-up two-step facts."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from longspan.errors import InputError
from longspan_papers.hotpotqa.reading import read_multi_hop, record_of
from longspan_papers.hotpotqa.rows import HopRow, Occurrence, Paragraph, two_step_rows

RECORD: dict[str, Any] = {
    "_id": "a",
    "question": "Who rowed?",
    "answer": "Ada",
    "supporting_facts": [["Boats", 1], ["Ada", 0]],
    "context": [
        ["Boats", ["Boats float.", " Ada rowed, and Adam slept."]],
        ["Pond", ["Ada swam."]],
        ["Ada", ["Ada is old."]],
    ],
    "type": "bridge",
    "level": "hard",
}
ROW = HopRow(
    id="a",
    question="Who rowed?",
    paragraphs=(
        Paragraph("Boats", ("Boats float.", " Ada rowed, and Adam slept.")),
        Paragraph("Pond", ("Ada swam.",)),
        Paragraph("Ada", ("Ada is old.",)),
    ),
    answer="Ada",
    facts=(("Boats", 1), ("Ada", 0)),
)


def array(folder: Path, *records: object, name: str = "hotpot_train_v1.1.json") -> Path:
    (folder / name).write_text(json.dumps(records), encoding="utf-8")
    return folder / name


def test_the_array_its_archive_and_lines_give_the_same(tmp_path: Path) -> None:
    file = array(tmp_path, RECORD)
    (tmp_path / "dev.json.gz").write_bytes(gzip.compress(file.read_bytes()))
    (tmp_path / "rows.jsonl").write_text(json.dumps(RECORD) + "\n", encoding="utf-8")
    for source in (file, tmp_path / "dev.json.gz", tmp_path / "rows.jsonl"):
        assert list(read_multi_hop(source)) == [ROW]
    assert list(read_multi_hop(tmp_path, "train")) == [ROW]
    written = array(tmp_path, record_of(ROW), name="again.json")
    assert list(read_multi_hop(written)) == [ROW]


def test_an_answer_is_marked_where_it_stands_as_a_word_of_a_needed_paragraph() -> None:
    # Not in "Pond", which is not needed, and not in "Adam".
    assert ROW.occurrences() == [Occurrence(0, 1, 1, 4), Occurrence(2, -1, 0, 3), Occurrence(2, 0, 0, 3)]
    assert [ROW.text(place) for place in ROW.occurrences()] == ["Ada"] * 3


def test_what_points_nowhere_is_kept_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    beyond = RECORD | {"supporting_facts": [["Boats", 7], ["Ada", 0]], "_id": "b"}
    nobody = RECORD | {"supporting_facts": [["Lakes", 0]], "answer": "Eve", "_id": "c"}
    yes = RECORD | {"answer": "yes", "_id": "d"}
    with caplog.at_level(logging.WARNING):
        rows = list(read_multi_hop(array(tmp_path, RECORD, beyond, nobody, yes)))
    assert [row.id for row in rows] == ["a", "b", "c", "d"]
    assert rows[1].facts == (("Boats", 7), ("Ada", 0))
    assert "2 questions have a supporting fact that names no paragraph" in caplog.text
    assert "1 question has an answer that is in no supporting paragraph;" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": None}, r"question 1: the question \(field 'question'\) is null instead of a text"),
        ({"answer": " "}, "is empty; give one with words"),
        ({"answer": 3}, r"the answer \(field 'answer'\) is an int"),
        ({"context": {}}, "field 'context' of the record holds a dict instead of a list"),
        ({"context": [["A", "no list"]]}, r"paragraph 0 of field 'context' is not \[title, \[sentence"),
        ({"context": [["A", []]]}, "no paragraph with a sentence"),
        ({"context": [["A", [7]]]}, "paragraph 0 of field 'context' holds an int among its sentences"),
        ({"context": [[" ", ["A."]]]}, "the title of paragraph 0 of field 'context' is empty"),
        ({"supporting_facts": [["A", "0"]]}, r"field 'supporting_facts' holds \[\"A\", \"0\"\]"),
    ],
)
def test_a_row_that_cannot_be_is_named_or_passed_over(change: dict, message: str, tmp_path: Path) -> None:
    file = array(tmp_path, RECORD | change, RECORD)
    with pytest.raises(InputError, match=message):
        list(read_multi_hop(file))
    assert list(read_multi_hop(file, on_error="skip")) == [ROW]


def test_a_missing_field_is_named_and_may_be_missing_without_labels(tmp_path: Path) -> None:
    file = array(tmp_path, {name: RECORD[name] for name in ("_id", "question", "context")})
    with pytest.raises(InputError, match="the record has no field 'answer'"):
        list(read_multi_hop(file))
    (row,) = read_multi_hop(file, labelled=False)
    assert (row.answer, row.facts) == (None, ())
    assert record_of(row).keys() == {"_id", "question", "context"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not JSON"),
        (b'{"data": []}', "holds a dict instead of a list; give a file in HotpotQA's format"),
        (b'["x"]', "question 1: the record is a str instead of an object"),
        (b"[\xff]", "is not UTF-8"),
    ],
)
def test_a_file_that_is_none_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "train.json").write_bytes(content)
    with pytest.raises(InputError, match=message):
        list(read_multi_hop(tmp_path / "train.json"))


def test_paragraphs_without_sentences_are_left_out_and_empty_sentences_stay(tmp_path: Path) -> None:
    (row,) = read_multi_hop(array(tmp_path, RECORD | {"context": [["Lake", []], ["Sea", [""]], *RECORD["context"]]}))
    assert row.paragraphs == (Paragraph("Sea", ("",)), *ROW.paragraphs)


def test_made_up_rows_need_both_facts() -> None:
    rows = two_step_rows(40, seed=3, paragraphs=8, fillers=2)
    assert rows == two_step_rows(40, seed=3, paragraphs=8, fillers=2)
    for row in rows:
        titles = [paragraph.title for paragraph in row.paragraphs]
        likes, sleeps, is_in = (
            {p.title: next(s.split()[-2] for s in p.sentences if word in s) for p in row.paragraphs}
            for word in (" likes ", " sleeps ", " is ")
        )
        asked = row.question.split()
        if row.id.startswith("bridge"):
            one, other = asked[8], likes[asked[8]]
            assert (asked[2], row.answer, len(row.occurrences())) == ("someone", sleeps[other], 1)
            # Nobody likes the one asked about, everyone else is liked once: counting names tells nothing.
            assert sorted(likes.values()) == sorted({*titles, *likes.values()} - {one})
        else:
            one, other = asked[1], asked[3]
            assert row.answer == ("yes" if is_in[one] == is_in[other] == "in" else "no")
            assert "in" in (is_in[one], is_in[other])
        assert row.needed == {one, other}
        assert len(set(sleeps.values())) == 8
        assert abs(titles.index(one) - titles.index(other)) > 1
        assert all(row.holds(fact) for fact in row.facts)


def test_shares_of_made_up_questions() -> None:
    rows = two_step_rows(400, seed=1, paragraphs=4, fillers=0, told=0.25, comparisons=0.25)
    bridges = [row.question.split()[2] for row in rows if row.id.startswith("bridge")]
    assert 270 < len(bridges) < 330
    assert 50 < sum(name != "someone" for name in bridges) < 100
    assert 30 < sum(row.answer == "yes" for row in rows) < 70
