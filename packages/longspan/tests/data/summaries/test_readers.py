"""Readers: every layout by hand-made records, the real data folders, and every kind of bad file."""

import gzip
import json
import logging
import lzma
import os
import re
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from longspan.data.summaries.readers import DATA_SETS, read_rows
from longspan.data.summaries.rows import SummaryRow
from longspan.errors import InputError

DATA = os.environ.get("LONGSPAN_DATA", "")
needs_data = pytest.mark.skipif(not DATA, reason="LONGSPAN_DATA is not set")


def rows_of(record: dict[str, Any], **options: Any) -> list[SummaryRow]:
    with TemporaryDirectory() as folder:
        return list(read_rows(write_lines(Path(folder) / "records.jsonl", record), **options))


def one(record: dict[str, Any], **options: Any) -> SummaryRow:
    (row,) = rows_of(record, **options)
    return row


def write_lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


# Rows


def test_row_of_sentences_and_row_of_one_text() -> None:
    row = SummaryRow(id="1", pieces=("One.", " ", "Two."), references=("A.\nB.",))
    assert (row.source, row.sentences, row.reference) == ("One.   Two.", ("One.", "Two."), "A.\nB.")
    row = SummaryRow(id="1", pieces="One. Two.", references="A.")  # pyright: ignore[reportArgumentType]
    assert (row.source, row.sentences, row.references) == ("One. Two.", ("One.", "Two."), ("A.",))


def test_row_without_reference_says_so() -> None:
    with pytest.raises(InputError, match="row 'x' has no reference summary"):
        _ = SummaryRow(id="x", pieces=("One.",)).reference


# Layouts


PROPOSAL = {
    "id": "go-7",
    "source": "go_proposals",
    "licence": "BSD-3-Clause",
    "title": "Seven",
    "sections": [
        {"title": "", "text": "Before all. A preface."},
        {"title": "Why", "text": "One reason. Another.\n\nDetail\n\nx = 1\ny = 2"},
        {"title": "How", "text": ""},
    ],
    "abstract": "It is proposed. It is good.\n\nIt is short.",
    "digest": None,
}


def test_permissive_layout_has_sections_and_abstract() -> None:
    row = one(PROPOSAL)
    assert (row.id, row.title, row.language) == ("go-7", "Seven", "en")
    assert row.pieces == ("Before all. A preface.", "Why", "One reason. Another.", "Detail", "x = 1\ny = 2", "How")
    assert [row.pieces[index] for index in row.headings] == ["Why", "How"]
    assert row.source.startswith("Before all. A preface.\n\nWhy\n\nOne reason. Another.\n\nDetail")
    assert row.sentences[:4] == ("Before all.", "A preface.", "One reason.", "Another.")
    assert not {"Why", "How"} & set(row.sentences)
    assert row.references == ("It is proposed.\nIt is good.\nIt is short.",)
    assert one(PROPOSAL | {"digest": "Plainly."}, target="digest").references == ("Plainly.",)
    assert not rows_of(PROPOSAL, target="digest")  # it has none
    with pytest.raises(InputError, match="target='blurb' is not in this layout; it has abstract, digest"):
        one(PROPOSAL, target="blurb")
    assert one(PROPOSAL | {"title": []}).title == ""
    for field, value in (("title", None), ("sections", "x"), ("sections", [{"title": "A"}]), ("abstract", 3)):
        with pytest.raises(InputError, match=f"field '({field}|text)' "):
            one(PROPOSAL | {field: value})


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"), [("permissive", 347), ("permissive-papers", 99), ("permissive-proposals", 248)]
)
def test_permissive_documents(name: str, count: int) -> None:
    """Counts as the data's README has them, without the one document of `nixos_rfcs`."""
    rows = list(read_rows(name, "validation"))
    assert len(rows) == len({row.id for row in rows}) == count
    for row in rows:
        # The README: a body of at least 800 words, an abstract of 40 to 400.
        assert len(row.source.split()) >= 800
        assert 40 <= len(row.reference.split()) <= 400
        assert row.reference.replace("\n", " ") not in row.source


@needs_data
def test_permissive_text_is_that_of_the_file() -> None:
    file = Path(DATA) / "permissive/validation-go_proposals.jsonl.xz"
    with lzma.open(file, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    for record, row in zip(records, read_rows(file), strict=True):
        parts = [part for section in record["sections"] for part in (section["title"], section["text"]) if part]
        assert row.source == "\n\n".join(parts)
        titles = [section["title"] for section in record["sections"] if section["title"]]
        assert [row.pieces[index] for index in row.headings] == titles


def test_plain_layout_takes_texts_lists_and_named_fields() -> None:
    row = one({"id": 7, "document": "One. Two.", "summary": "First. Second."})
    assert (row.id, row.source, row.sentences) == ("7", "One. Two.", ("One.", "Two."))
    assert row.references == ("First.\nSecond.",)
    row = one({"source": ["One.", "Two  words."], "references": ["An apple. Then two.", "C."], "question": "Why?"})
    assert (row.id, row.source, row.references) == ("records:1", "One. Two words.", ("An apple.\nThen two.", "C."))
    assert row.question == "Why?"
    row = one({"body": "One.", "headline": "Two.", "text": "Other."}, source_field="body", target_field="headline")
    assert (row.source, row.reference) == ("One.", "Two.")
    assert one({"text": "Only a text."}).references == ()


@pytest.mark.parametrize(
    "abstract",
    [["<S> first one . </S>", "<S> second . </S>"], "<S> first one . </S> <S> second . </S>", "first one .\nsecond ."],
)
def test_scientific_papers_abstract_marks_are_stripped(abstract: Any) -> None:
    for field in ("abstract_text", "abstract"):
        row = one({"article_id": "p", "article_text": ["a b .", "c ."], field: abstract})
        assert (row.id, row.sentences, row.references) == ("p", ("a b .", "c ."), ("first one .\nsecond .",))


def test_scientific_papers_article_as_text_and_as_sections() -> None:
    row = one({"article": "first one. and two.\nthird .", "abstract": "x .", "section_names": "a\nb"})
    assert row.source == "first one. and two.\nthird ."
    assert row.sentences == ("first one.", "and two.", "third .")
    row = one({"abstract_text": ["<S> x . </S>"], "sections": [["a .", "b ."], ["c ."]], "section_names": ["i", "j"]})
    assert row.sentences == ("a .", "b .", "c .")


def test_scientific_papers_section_names_in_capitals_are_not_text() -> None:
    row = one({"article_text": ["BACKGROUND", "we did ."], "abstract": "BACKGROUND we did. RESULTS it was. so be it."})
    assert row.sentences == ("we did .",)
    assert row.reference == "we did.\nit was.\nso be it."


def test_squality_plot_or_every_question() -> None:
    responses = [{"response_text": "A one. A two."}, {"response_text": "B."}]
    questions = [
        {"question_text": "What is the plot?", "question_number": 1, "responses": responses},
        {"question_text": "Who?", "question_number": 2, "responses": responses[:1]},
    ]
    record = {"metadata": {"passage_id": "9"}, "document": "Once upon\na time. The end.", "questions": questions}
    row = one(record)
    assert (row.id, row.question, row.references) == ("9#1", None, ("A one.\nA two.", "B."))
    assert row.sentences == ("Once upon\na time.", "The end.")
    rows = rows_of(record, questions="all")
    assert [(row.id, row.question) for row in rows] == [("9#1", "What is the plot?"), ("9#2", "Who?")]


def test_qmsum_general_or_every_query() -> None:
    turns = [
        {"speaker": "Grad A", "content": "OK , we 're on {disfmarker} . {vocalsound} Right ?"},
        {"speaker": "B", "content": " {gap} "},
        {"speaker": "B", "content": ""},
        {"speaker": "B", "content": "Yes ."},
    ]
    record = {
        "meeting_id": "m",
        "meeting_transcripts": turns,
        "general_query_list": [{"query": "Summarize", "answer": "They met. It went well."}],
        "specific_query_list": [{"query": "Who?", "answer": "A.", "relevant_text_span": [["0", "1"]]}],
    }
    row = one(record)
    assert row.source == "Grad A: OK, we're on. Right?\nB: Yes."
    assert row.sentences == ("Grad A: OK, we're on.", "Right?", "B: Yes.")
    assert (row.question, row.references) == (None, ("They met.\nIt went well.",))
    assert [row.question for row in rows_of(record, questions="all")] == ["Summarize", "Who?"]


def test_scitldr_scisummnet_crd3_leval() -> None:
    row = one({"source": ["a.", "b."], "target": ["t one.", "t two."], "paper_id": "p", "source_labels": [0, 1]})
    assert (row.id, row.sentences, row.references) == ("p", ("a.", "b."), ("t one.", "t two."))
    paper = {
        "paper_id": "P",
        "abstract": ["Ab."],
        "human_summary": ["Hu.", "Man."],
        "sections": [{"title": "1", "sentences": ["One.", "Two."]}, {"title": "2", "sentences": ["Three."]}],
    }
    assert (one(paper).sentences, one(paper).reference) == (("One.", "Two.", "Three."), "Ab.")
    human = one(paper, target="human_summary")
    assert (human.sentences[0], human.reference) == ("Ab.", "Hu.\nMan.")
    synopsis = [
        {"heading": "Pre-Show", "content": [{"sub-heading": "", "content": "Chat."}]},
        {"heading": "Part I", "content": [{"sub-heading": "x", "content": "They go.\n They see."}]},
    ]
    episode = {
        "episode": "E1",
        "METADATA": {"Wiki Blurb": [{"content": "A\n blurb."}], "Synopsis": synopsis},
        "TURNS": [{"NAMES": ["SAM", "LIAM"], "UTTERANCES": ["Hello,", "you."], "NUMBER": 0}],
    }
    assert (one(episode).source, one(episode).reference) == ("SAM and LIAM: Hello, you.", "A blurb.")
    assert one(episode, target="synopsis").reference == "They go.\nThey see."
    show = {"Transcript": ["Ann: Hi.", "[She leaves.]"], "Recap": ["Ann came. She left."], "Show Title": "S"}
    assert (one(show).source, one(show).reference) == ("Ann: Hi.\n[She leaves.]", "Ann came.\nShe left.")
    report = {"input": "Long.", "instructions": ["Sum up."], "outputs": ["Short."], "evaluation": "rouge"}
    assert (one(report).source, one(report).reference, one(report).question) == ("Long.", "Short.", None)
    answers = report | {"evaluation": "f1"}
    assert rows_of(answers) == []
    assert one(answers, questions="all").question == "Sum up."


# Files


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lzma.compress])
def test_files_plain_and_compressed(tmp_path: Path, compress: Any) -> None:
    lines = '\ufeff{"text": "Grüße.", "summary": "你好。"}\n\n{"text": "B.", "summary": "b."}'.encode()
    path = tmp_path / "rows.jsonl"
    path.write_bytes(compress(lines))
    rows = list(read_rows(path))
    assert [(row.id, row.source, row.reference) for row in rows] == [
        ("rows:1", "Grüße.", "你好。"),
        ("rows:3", "B.", "b."),
    ]
    assert len(list(read_rows(str(path), limit=1))) == 1
    assert list(read_rows(path, limit=0)) == []


def test_several_sources_come_in_their_order(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        write_lines(tmp_path / name, {"text": name, "summary": name})
    assert [row.source for row in read_rows([tmp_path / "b.jsonl", tmp_path])] == ["b.jsonl", "a.jsonl", "b.jsonl"]


def test_reading_is_a_stream(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"text": "a", "summary": "b"}, {"text": "c", "summary": "d"})
    path.write_text(path.read_text() + "not json\n")
    rows = read_rows(path)
    assert [row.source for row in islice(rows, 2)] == ["a", "c"]
    with pytest.raises(InputError, match=r"a\.jsonl, line 3: not JSON"):
        next(rows)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "line 2: not JSON"),
        (b"[1]", "line 2: a list instead of a JSON object"),
        (b'{"text": "\xff"}', "line 2: not UTF-8 at byte 10"),
        (b'{"text": 5, "summary": "a"}', "line 2: field 'text' holds an int instead of a text"),
        (b'{"text": null, "summary": "a"}', "line 2: field 'text' holds null"),
        (b'{"summary": "a"}', "line 2: field 'source' is missing; the record has summary"),
        (b'{"text": ["a", 1], "summary": "a"}', "line 2: field 'text' holds a list"),
    ],
)
def test_malformed_line_names_file_and_line(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a", "summary": "b"}\n' + line + b"\n")
    with pytest.raises(InputError, match=re.escape(f"{path}, {message}")) as caught:
        list(read_rows(path))
    assert "\n" not in str(caught.value)


def test_corrupt_lines_are_passed_over_and_counted_when_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = {"text": "One.", "summary": "Short."}
    lines = [json.dumps(good), "not json", json.dumps({"text": 3, "summary": "x"}), json.dumps(good)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(InputError, match="line 2: not JSON"):
        list(read_rows(tmp_path / "a.jsonl"))
    assert len(list(read_rows(tmp_path / "a.jsonl", on_error="skip"))) == 2
    assert "2 corrupt records were skipped; the first: " in caplog.text
    assert "line 2: not JSON" in caplog.text
    with pytest.raises(InputError, match="on_error='ignore' is unknown; choose 'raise' or 'skip'"):
        read_rows(tmp_path / "a.jsonl", on_error="ignore")


def test_broken_records_of_known_layouts_are_input_errors(tmp_path: Path) -> None:
    for record in (
        {"METADATA": 1, "TURNS": [1]},
        {"METADATA": {}, "TURNS": [{"NAMES": 3}]},
        {"meeting_transcripts": [{}], "general_query_list": []},
        {"document": 1, "questions": [[]]},
        {"input": "a", "instructions": ["a"], "outputs": [], "evaluation": "rouge"},
        {"sections": [{"sentences": 1}], "human_summary": ["a"]},
        {"article_text": {}, "abstract_text": "a"},
        {"unknown": 1},
    ):
        path = write_lines(tmp_path / "a.jsonl", record)
        with pytest.raises(InputError, match=r"a\.jsonl, line 1: "):
            list(read_rows(path))


def test_damaged_archives_and_missing_files(tmp_path: Path) -> None:
    whole = gzip.compress(b'{"text": "a", "summary": "b"}\n' * 5000)
    for name, data in (("cut.gz", whole[:60]), ("cut.xz", lzma.compress(os.urandom(9000))[:4000])):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=re.escape(name)):
            list(read_rows(tmp_path / name))
    with pytest.raises(
        InputError, match=r"is no file, directory or pattern.* none of the data sets permissive, permissive-papers, "
    ):
        read_rows(tmp_path / "none.jsonl")


def test_options_are_checked_at_once(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"text": "a", "summary": "b"})
    for options, message in (
        ({"layout": "nope"}, "layout='nope' is unknown"),
        ({"questions": "some"}, "questions='some' is unknown"),
        ({"limit": -1}, "limit=-1 is negative"),
    ):
        with pytest.raises(InputError, match=message):
            read_rows(path, **options)  # type: ignore[arg-type]
    paper = write_lines(tmp_path / "b.jsonl", {"sections": [], "human_summary": ["a"], "abstract": ["b"]})
    with pytest.raises(InputError, match="target='blurb' is not in this layout; it has abstract, human_summary"):
        list(read_rows(paper, target="blurb"))


def test_empty_rows_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    records = [{"text": text, "summary": "s"} for text in ("a", "", " ", "b")] + [{"text": "c", "summary": ""}]
    path = write_lines(tmp_path / "a.jsonl", *records)
    with caplog.at_level(logging.WARNING):
        assert [row.source for row in read_rows(path)] == ["a", "b"]
    assert "3 records have no text" in caplog.text
    assert "the first is in line 2" in caplog.text


# Named data sets


def test_named_data_set_needs_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LONGSPAN_DATA", raising=False)
    with pytest.raises(InputError, match=r"data='pubmed' is not here, .* LONGSPAN_DATA names \(it is not set\); get "):
        read_rows("pubmed")
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"data='pubmed' lacks pubmed/train\.jsonl\.gz in LONGSPAN_DATA="):
        read_rows("pubmed")
    with pytest.raises(InputError, match="split='train' is not in data set 'gov-report'; it has validation"):
        read_rows("gov-report")
    (tmp_path / "arxiv").mkdir()
    write_lines(tmp_path / "arxiv" / "val.txt", {"article_text": ["a ."], "abstract_text": ["<S> b . </S>"]})
    assert [row.reference for row in read_rows("arxiv", "validation")] == ["b ."]


@pytest.mark.variant
@needs_data
@pytest.mark.parametrize("name", DATA_SETS)
def test_every_named_data_set_reads_well(name: str) -> None:
    for split in DATA_SETS[name].splits:
        rows = list(read_rows(name, split, limit=5))
        assert len(rows) == 5
        assert len({row.id for row in rows}) == 5
        for row in rows:
            assert len(row.sentences) >= 2
            assert row.references
            assert not re.search(r"</?S>|\{disfmarker\}", row.source + " ".join(row.references))
            assert all(line.strip() for reference in row.references for line in reference.split("\n"))
            assert (row.question is not None) == name.endswith(("questions", "queries"))


@pytest.mark.variant
@needs_data
def test_counts_match_the_data_folder() -> None:
    for name, split, count in (("pubmed", "dev", 100), ("squality", "validation", 25), ("qmsum", "validation", 35)):
        assert sum(1 for _ in read_rows(name, split)) == count
    assert sum(len(row.references) for row in read_rows("squality-questions", "validation")) == 500
    assert sum(len(row.references) for row in read_rows("scitldr", "validation")) == 1453
    large = next(read_rows(Path(DATA) / "pubmed_more" / "train-large.jsonl.xz"))
    assert large.id == "sumpubmed_6723"
    assert large.sentences[0].startswith("the runt domain is a highly conserved <dig> amino acid")
    assert large.reference.startswith("runx transcription factors play")
    book = next(read_rows(Path(DATA) / "pg_novels", "validation"))
    assert (book.id, book.references) == ("15265", ())
