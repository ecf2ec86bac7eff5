"""Labelled pairs: GLUE's tables with their loose quotes, a row per line, pairs without a label."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longspan.data.pairs import PairRow, read_pairs
from longspan.errors import InputError


def test_tables_of_glue_are_read_with_their_quotes(tmp_path: Path) -> None:
    rows = ["index\tsentence1\tsentence2\tlabel1\tgold_label", '0\tHe said "no\tHe spoke.\tneutral\tentailment']
    rows += ["1\tA\tB\tneutral\t-", "2\tC d\tE\tneutral\tneutral"]
    (tmp_path / "train.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    found = list(read_pairs(tmp_path, "train"))
    assert found == [
        PairRow("train:2", 'He said "no', "He spoke.", "entailment"),
        PairRow("train:4", "C d", "E", "neutral"),
    ]


@pytest.mark.parametrize(
    ("names", "label"),
    [
        (("premise", "hypothesis"), "label"),
        (("question1", "question2"), "is_duplicate"),
        (("first", "second"), "label"),
    ],
)
def test_a_row_per_line_has_any_of_the_names(names: tuple[str, str], label: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({names[0]: "One.", names[1]: "Two.", label: 1, "id": 7}) + "\n", encoding="utf-8")
    assert list(read_pairs(file)) == [PairRow("7", "One.", "Two.", "1")]


def test_made_up_pairs_have_both_labels() -> None:
    assert {row.label for row in read_pairs("synthetic", "train", 20)} == {"yes", "no"}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"premise": "One."}, "line 1: a pair has two texts .* and this record has premise"),
        ({"premise": "One.", "hypothesis": 3, "label": 1}, "line 1: field 'hypothesis'"),
    ],
)
def test_a_row_that_cannot_be_is_named(record: dict, message: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=message):
        list(read_pairs(tmp_path / "rows.jsonl"))
    assert not list(read_pairs(tmp_path / "rows.jsonl", on_error="skip"))
