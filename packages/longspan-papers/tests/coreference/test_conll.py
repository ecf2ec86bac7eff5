"""CoNLL files: three forms read, written back, and every way in which their brackets can be wrong."""

from __future__ import annotations

import gzip
import logging
import os
from pathlib import Path

import pytest

from longspan.data.fields import Skipped
from longspan.errors import InputError
from longspan_papers.coreference.conll import conll_text, read_conll
from longspan_papers.coreference.rows import CoreferenceRow, crossing

DATA = os.environ.get("LONGSPAN_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="reads the folder of data sets, which LONGSPAN_DATA names")


def conll(*marks: str, name: str = "bc/a") -> str:
    """Words w0, w1, … with these marks, in CoNLL-2012's columns."""
    lines = [f"{name} 0 {i} w{i} NN * - - - Ann * * {mark}" for i, mark in enumerate(marks)]
    return "\n".join([f"#begin document ({name}); part 003", *lines, "", "#end document", ""])


def read(text: str | bytes, folder: Path, **options) -> list[CoreferenceRow]:
    file = folder / "some.conll"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return list(read_conll(file, **options))


@pytest.mark.parametrize(
    ("marks", "clusters"),
    [
        (["(0)", "-", "(0)"], (((0, 0), (2, 2)),)),
        (["(12|(0)", "-", "12)|(0)"], (((0, 0), (2, 2)), ((0, 2),))),
        (["(5|(4|(61", "5)|4)|61)"], (((0, 1),), ((0, 1),), ((0, 1),))),
        (["(3(4)", "3)(4)"], (((0, 0), (1, 1)), ((0, 1),))),
        # A mention of a cluster in one of the same: what was opened last closes first.
        (["(0", "(0", "0)", "0)"], (((0, 3), (1, 2)),)),
        (["(0|(0", "0)", "0)"], (((0, 1), (0, 2)),)),
        # Clusters that cross; and a word that ends one mention of a cluster and begins the next.
        (["(0", "(1", "0)", "1)"], (((0, 2),), ((1, 3),))),
        (["(0", "0)|(0", "0)"], (((0, 1), (1, 2)),)),
        (["(0", "(0|0)", "0)"], (((0, 1), (1, 2)),)),
        (["(0|0)", "(0)"], (((0, 0), (1, 1)),)),
        (["-", "*", "_"], ()),
    ],
)
def test_marks(marks: list[str], clusters, tmp_path: Path) -> None:
    (row,) = read(conll(*marks), tmp_path)
    assert row.clusters == clusters
    assert (row.id, row.part, row.words) == ("bc/a", 3, tuple(f"w{i}" for i in range(len(marks))))
    assert row.speakers == (("Ann",) * len(marks),)


def test_litbanks_empty_last_column_and_ontogums_three(tmp_path: Path) -> None:
    tabs = "\t".join
    middle = ["_"] * 8
    litbank = [
        "#begin document (some_brat); part 0",
        tabs(["some_brat", "0", "0", "One", *middle, ""]),
        "",
        tabs(["some_brat", "0", "0", "the", *middle, "(0"]),
        tabs(["some_brat", "0", "1", "swamp", *middle, "0)"]),
        "",
        "#end document",
    ]
    (row,) = read("\n".join(litbank), tmp_path)
    assert (row.sentences, row.clusters, row.speakers) == ((("One",), ("the", "swamp")), (((1, 2),),), None)
    ontogum = ["# begin document ", "0\tInsights\t(1", "1\t-\t_", "2\té\t1)(2)", "# end document", ""]
    one, two = read("\r\n".join(ontogum * 2), tmp_path)
    assert (one.sentences, one.clusters) == ((("Insights", "-", "é"),), (((0, 2),), ((2, 2),)))
    assert (one.id, two.id) == ("some:1", "some:2")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (conll("(0", "-"), "ends, but the mention of cluster 0 opened in line 2 is not closed; close it with 0\\)"),
        (conll("(0|(1)", "1)|0)"), "line 3: 1\\) closes a mention of cluster 1, but none is open"),
        (conll("-", "7)"), "line 3: 7\\) closes a mention of cluster 7, but none is open"),
        (conll("(0)x|"), "line 2: '\\(0\\)x|' are no brackets"),
        (conll("(0)").replace("#end document", ""), "document 'bc/a' has no '#end document'; get the whole file"),
        (conll("-").replace("#end document", "") * 2, "has no '#end document'"),
        ("#begin document (a); part 0\nword (0)\n#end document\n", "line 2: 2 columns"),
        ("a 0 0 w NN * - - - - * * -\n", "line 1: no line '#begin document' before it"),
        (conll("-", "-").encode().replace(b"w1", b"w\xff"), "line 3: not UTF-8 at byte"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(text: str | bytes, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence) as error:
        read(text, tmp_path)
    assert "some.conll, line" in str(error.value)


def test_five_columns_are_enough(tmp_path: Path) -> None:
    assert read(conll("-").replace("NN * - - - Ann * *", ""), tmp_path)[0].words == ("w0",)


def test_a_wrong_document_can_be_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = (
        conll("(0)", name="a") + conll("(0", "-", name="b") + conll("-", "3)", "-", name="c") + conll("(1)", name="d")
    )
    with caplog.at_level(logging.WARNING):
        rows = read(text, tmp_path, skipped=Skipped("here", "skip"))
    assert [row.id for row in rows] == ["a", "d"]
    assert "2 corrupt records were skipped" in caplog.text


def test_it_is_written_back_and_crossing_mentions_of_a_cluster_are_refused(tmp_path: Path) -> None:
    clusters = (((0, 4), (1, 1), (1, 2)), ((0, 4), (3, 6)), ((2, 2),))
    row = CoreferenceRow(
        id="a", sentences=(("a",) * 4, ("b",) * 3), speakers=(("x",) * 4, ("",) * 3), clusters=clusters
    )
    assert crossing(clusters[0]) is None
    with pytest.raises(InputError, match="mentions 0–4 and 3–6, which cross"):
        conll_text([row])
    fine = CoreferenceRow(id="a", part=2, sentences=row.sentences, clusters=(clusters[0], ((3, 6),), ((2, 2),)))
    assert read(conll_text([fine, row.__class__(id="b", sentences=(("c",),))]), tmp_path)[0] == fine


def test_tabs_and_line_ends_of_other_files_break_no_line(tmp_path: Path) -> None:
    words, marks = (("a\tb", "\n", "", "c\r"),), (((0, 1), (3, 3)), ((1, 1), (2, 2)))
    row = CoreferenceRow(id="a\nb", sentences=words, speakers=(("x\ty",) * 4,), clusters=marks)
    (found,) = read(conll_text([row]), tmp_path)
    assert (found.id, found.words, found.clusters) == ("a b", ("a b", " ", "", "c "), marks)
    assert found.speakers == (("x y",) * 4,)


def test_crossing_is_found_where_mentions_lie_between() -> None:
    assert crossing([(0, 5), (1, 2), (3, 8)]) == ((0, 5), (3, 8))
    assert crossing([(0, 5), (1, 2), (3, 5), (6, 8), (6, 6)]) is None


def test_rows_refuse_mentions_outside_and_speakers_of_other_words() -> None:
    with pytest.raises(InputError, match="mention 1–3, but its words are 0 to 1"):
        CoreferenceRow(id="a", sentences=(("a", "b"),), clusters=(((1, 3),),))
    with pytest.raises(InputError, match="speakers of document 'a' do not fit"):
        CoreferenceRow(id="a", sentences=(("a", "b"),), speakers=(("x",),))


@needs_data
@pytest.mark.parametrize(
    ("name", "documents", "mentions", "alone"), [("litbank", 10, 3053, True), ("ontogum", 12, 1234, False)]
)
def test_real_files_come_back(name: str, documents: int, mentions: int, alone: bool, tmp_path: Path) -> None:
    file = Path(str(DATA)) / name / "validation.conll.gz"
    rows = list(read_conll(file))
    assert len(rows) == documents
    assert sum(len(cluster) for row in rows for cluster in row.clusters) == mentions
    assert any(len(cluster) == 1 for row in rows for cluster in row.clusters) == alone
    # Every opening bracket is a mention; every row with columns a word.
    with gzip.open(file, "rt", encoding="utf-8") as opened:
        lines = [line.rstrip("\n") for line in opened if line.strip() and not line.startswith("#")]
    assert sum(line.split("\t")[-1].count("(") for line in lines) == mentions
    assert sum(len(row.words) for row in rows) == len(lines)
    assert read(conll_text(rows), tmp_path) == rows
