"""Question data sets by name, file and directory, one record at a time, and what happens to malformed rows."""

import gzip
import json
import logging
import lzma
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from longspan.data.sources import find_source
from longspan.errors import InputError
from longspan_papers.natural_questions.reading import QUESTION_DATA_SETS, QUESTIONS, read_questions


def record(number: int, **more: Any) -> dict[str, Any]:
    return {
        "example_id": number,
        "question_text": "who",
        "document_text": f"<P> number {number} </P>",
        "long_answer_candidates": [{"start_token": 0, "end_token": 4, "top_level": True}],
        "annotations": [
            {
                "long_answer": {"start_token": 0, "end_token": 4, "candidate_index": 0},
                "short_answers": [{"start_token": 2, "end_token": 3}],
                "yes_no_answer": "NONE",
            }
        ],
        **more,
    }


def tydi(number: int) -> dict[str, Any]:
    return {
        "example_id": number,
        "question_text": "who",
        "document_plaintext": "text",
        "passage_answer_candidates": [],
        "annotations": [
            {
                "passage_answer": {"candidate_index": -1},
                "minimal_answer": {"plaintext_start_byte": -1, "plaintext_end_byte": -1},
            }
        ],
    }


def lines(*records: Any) -> bytes:
    return "".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in records).encode()


def ids(*arguments: Any, **options: Any) -> list[str]:
    return [row.id for row in read_questions(*arguments, **options)]


def test_plain_gzip_and_xz_files_hold_any_of_the_formats(tmp_path: Path) -> None:
    content = lines(record(1), "", tydi(2), record(3))
    (tmp_path / "a.jsonl").write_bytes(content)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(content))
    (tmp_path / "c.jsonl.xz").write_bytes(lzma.compress(content))
    for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.xz"):
        rows = list(read_questions(tmp_path / name))
        assert [(row.id, row.source) for row in rows] == [("1", "nq"), ("2", "tydi"), ("3", "nq")]
    assert ids([tmp_path / "a.jsonl", tmp_path / "c.jsonl.xz"], limit=4) == ["1", "2", "3", "1"]
    assert ids(tmp_path / "a.jsonl", limit=0) == []


def test_rows_without_an_id_are_named_by_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "shard.jsonl").write_bytes(lines("", record(0, example_id=None)))
    assert ids(tmp_path / "shard.jsonl") == ["shard:2"]


def test_one_record_is_read_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(record(1), record(2), "{damaged"))
    rows = read_questions(tmp_path / "a.jsonl")
    assert [row.id for row in islice(rows, 2)] == ["1", "2"]
    with pytest.raises(InputError, match=r"a\.jsonl, line 3: not JSON"):
        next(rows)
    assert ids(tmp_path / "a.jsonl", limit=2) == ["1", "2"]  # what lies behind the limit is never read


MALFORMED = [
    ("{damaged", "not JSON"),
    ('"text"', "a str instead of a JSON object"),
    ({}, "no document: .* this record has no fields"),
    ({"question": "q", "context": "c"}, "this record has context, question"),
    (record(9, annotations=[]), "field 'annotations' is empty"),
    (record(9, question_text=""), "is empty"),
    (record(9, document_text="<P> </P>"), "only HTML tokens"),
    (record(9, long_answer_candidates=[{"start_token": 0, "end_token": 99}]), "tokens 0–99"),
]


@pytest.mark.parametrize(("bad", "message"), MALFORMED, ids=[message for _, message in MALFORMED])
def test_malformed_rows_are_named_by_line_and_skipped_if_asked(
    bad: Any, message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(record(1), bad, record(2), bad))
    with pytest.raises(InputError, match=rf"a\.jsonl, line 2: .*{message}"):
        ids(path)
    with caplog.at_level(logging.WARNING, "longspan"):
        assert ids(path, on_error="skip") == ["1", "2"]
    said = [entry.getMessage() for entry in caplog.records]
    assert len(said) == 3
    assert "line 2" in said[0]
    assert "line 4" in said[1]
    assert f"{path}: 2 corrupt records were skipped" in said[2]


def test_bytes_that_are_not_utf8_are_one_malformed_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(record(1)) + b"\xff\xfe\n" + lines(record(2)))
    assert ids(tmp_path / "a.jsonl", on_error="skip") == ["1", "2"]
    with pytest.raises(InputError, match="line 2: not UTF-8"):
        ids(tmp_path / "a.jsonl")


def test_a_truncated_file_is_an_error_whatever_was_asked(tmp_path: Path) -> None:
    content = gzip.compress(lines(*map(record, range(500))))
    (tmp_path / "a.jsonl.gz").write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="is damaged after line"):
        ids(tmp_path / "a.jsonl.gz", on_error="skip")


def test_wrong_options_are_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LONGSPAN_DATA", raising=False)
    with pytest.raises(InputError, match="on_error='ignore' is unknown"):
        read_questions("synthetic", on_error="ignore")
    with pytest.raises(InputError, match="limit=-1 is negative"):
        read_questions("synthetic", limit=-1)
    with pytest.raises(InputError, match="'nowhere' is no file, directory or pattern"):
        read_questions("nowhere")
    with pytest.raises(InputError, match=r"LONGSPAN_DATA names \(it is not set\)"):
        read_questions("natural-questions")
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"lacks .*derived_train"):
        read_questions("natural-questions")
    with pytest.raises(InputError, match="split='test' is not in data set 'tydiqa'"):
        read_questions("tydiqa", "test")


def test_made_up_rows() -> None:
    assert len(ids("synthetic")) == 16
    assert ids("synthetic", "train", 3) == ["synthetic-0-0", "synthetic-0-1", "synthetic-0-2"]
    assert ids("synthetic", "validation", 1) == ["synthetic-1-0"]
    assert find_source("synthetic", "train", QUESTIONS).files == ()


@pytest.mark.parametrize("name", QUESTION_DATA_SETS)
def test_named_data_sets(name: str, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGSPAN_DATA", str(data_folder))
    for split in ("train", "validation"):
        (row,) = read_questions(name, split, 1)
        assert row.text
        assert row.candidates
    assert ids("tydiqa/tiny_dev.jsonl.gz", "train", 2) == ids("tydiqa", "train", 2)
