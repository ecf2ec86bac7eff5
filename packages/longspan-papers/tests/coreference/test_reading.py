"""Coreference data by name: JSON Lines in and out, made-up documents, and records that are wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from longspan.errors import InputError
from longspan_papers.coreference.reading import read_coreference, record_of, row_of
from longspan_papers.coreference.rows import synthetic_documents


def test_json_lines_and_back(tmp_path: Path) -> None:
    rows = synthetic_documents(3, seed=5)
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps(record_of(row)) + "\n" for row in rows), encoding="utf-8")
    assert list(read_coreference(tmp_path, "train")) == rows
    assert list(read_coreference(file, limit=2)) == rows[:2]
    array = tmp_path / "test.json"
    array.write_text(json.dumps([record_of(row) for row in rows], indent=1), encoding="utf-8")
    assert list(read_coreference(array)) == rows
    array.write_text(json.dumps([record_of(rows[0]), {"sentences": [[1]]}]), encoding="utf-8")
    with pytest.raises(InputError, match=r"test\.json, element 2: .*\(on_error: skip"):
        list(read_coreference(array))
    assert list(read_coreference(array, on_error="skip")) == rows[:1]
    part = replace(rows[0], part=3)  # of a long document of OntoNotes
    assert row_of(json.loads(json.dumps(record_of(part)))) == part


def test_made_up_documents_follow_their_rule() -> None:
    assert synthetic_documents(2, seed=1) == list(read_coreference("synthetic", "dev", 2))
    for row in read_coreference("synthetic"):
        latest: dict[str, int] = {}
        owner = {mention: number for number, cluster in enumerate(row.clusters) for mention in cluster}
        for mention in sorted(owner):
            text = row.text(mention).lower()
            sex = {"she": "f", "her": "f", "the old woman": "f", "he": "m", "him": "m", "the old man": "m"}.get(text)
            if sex is None:
                sex = "f" if text in ("ada", "emmy", "grace", "mary", "rosa", "vera") else "m"
            else:
                assert owner[mention] == latest[sex]
            latest[sex] = owner[mention]


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"clusters": []}, "no field 'sentences'"),
        ({"sentences": [["a"]]}, "no field 'clusters'"),
        ({"sentences": ["a b"], "clusters": []}, "'sentences' holds a str"),
        ({"sentences": [["a", 3]], "clusters": []}, "'sentences' holds an int"),
        ({"sentences": [["a"]], "clusters": [[[0]]]}, "'clusters' holds other than lists of"),
        ({"sentences": [["a"]], "clusters": [[[0, 0.5]]]}, "'clusters' holds other than lists of"),
        ({"sentences": [["a"]], "clusters": [[[0, 1]]]}, "mention 0–1, but its words are 0 to 0"),
    ],
)
def test_wrong_records(record: dict, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        row_of(record)
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(record) + "\n" + json.dumps({"sentences": [["a"]], "clusters": []}), encoding="utf-8")
    with pytest.raises(InputError, match=r"rows\.jsonl, line 1: .*\(on_error: skip"):
        list(read_coreference(file))
    assert [row.id for row in read_coreference(file, on_error="skip")] == ["rows:2"]
