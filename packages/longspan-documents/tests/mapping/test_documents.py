"""Whole jobs in one process: results equal those of single calls, errors are rows, and what is missing is done."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import longspan
from longspan import InputError, map_documents
from longspan.files import claimed

Rows = list[dict[str, Any]]
Write = Callable[..., Path]
Read = Callable[[Path], Rows]


def test_summaries_are_those_of_single_calls(rows: Rows, write_lines: Write, read_parts: Read, tmp_path: Path) -> None:
    mapped = map_documents("summarize", write_lines(rows), tmp_path / "out", sentences=2, workers=0)
    assert (mapped.rows, mapped.errors, mapped.parts, mapped.written) == (20, 0, 3, 3)
    done = read_parts(tmp_path / "out")
    assert [(row["id"], row["text"]) for row in done] == [(row["id"], row["text"]) for row in rows]
    for row in done:
        summary = longspan.summarize(row["text"], 2)
        assert row["summary"] == summary.text
        assert row["tokens"] == summary.tokens
        assert [(one["start"], one["end"]) for one in row["sentences"]] == [one.place for one in summary.sentences]
        assert row["error"] is None


@pytest.mark.parametrize("name", ["article_text", "raw_content", "body"])
def test_columns_of_training_data_are_known(name: str, write_lines: Write, read_parts: Read, tmp_path: Path) -> None:
    """A text, and a list of sentences, which is read as lines; a row without any is an error of that row."""
    sentences = ["The first result is good.", "The second result is better.", "Nothing else was found."]
    lines = [{name: sentences, "source": "arXiv"}, {name: [], "source": "arXiv"}]
    map_documents("summarize", write_lines(lines), tmp_path / "out", sentences=1, workers=0)
    row, blank = read_parts(tmp_path / "out")
    assert (row["error"], row[name]) == (None, sentences)
    assert row["summary"] == longspan.summarize("\n".join(sentences), 1).text
    assert f"its {name} is blank" in blank["error"]


def test_vectors_are_those_of_single_calls(rows: Rows, read_parts: Read, tmp_path: Path) -> None:
    table = pa.table({"id": [row["id"] for row in rows], "body": [row["text"] for row in rows]})
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=7)
    map_documents("embed", tmp_path / "rows.parquet", tmp_path / "out", text_field="body", workers=0, part_rows=3)
    done = read_parts(tmp_path / "out")
    assert [row["id"] for row in done] == list(range(20))
    for row in done[::5]:
        vector = longspan.embed_document(row["body"]).vector
        np.testing.assert_allclose(row["vector"], vector, atol=1e-6)


@pytest.mark.parametrize(
    ("verb", "options", "column"),
    [("summarize", {}, "summary"), ("embed", {}, "vector"), ("answer", {"question": "which paper?"}, "passages")],
)
def test_a_row_that_is_the_name_of_a_file_is_a_text(
    verb: str, options: dict[str, Any], column: str, write_lines: Write, read_parts: Read, tmp_path: Path
) -> None:
    map_documents(verb, write_lines([{"text": "paper.pdf"}]), tmp_path / "out", workers=0, **options)
    (row,) = read_parts(tmp_path / "out")
    assert row["error"] is None
    assert row[column]


def test_answers_to_the_question_of_each_row(rows: Rows, write_lines: Write, read_parts: Read, tmp_path: Path) -> None:
    asked = [{**row, "asks": f"where do bees of kind {row['id']} live?"} for row in rows[:4]] + [
        {**rows[4], "asks": " "}
    ]
    map_documents("answer", write_lines(asked), tmp_path / "out", question_field="asks", top=1, workers=0)
    *done, blank = read_parts(tmp_path / "out")
    for row in done:
        single = longspan.answer(row["text"], row["asks"], top=1)
        assert row["answered"] == single.answered
        assert row["probability"] == pytest.approx(single.probability)
        assert [one["text"] for one in row["passages"]] == [one.text for one in single.passages]
        if row["answered"]:
            assert row["text"][row["answer_start"] : row["answer_end"]].split() == row["answer"].split()
    assert blank["answer"] is None
    assert "asks nothing" in blank["error"]


def test_documents_of_a_folder(read_parts: Read, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.md").write_text("# Bees\n\nBees live in hives. They dance.\n")
    (folder / "b.pdf").write_bytes(b"%PDF-1.4\nno more")
    (folder / "c.png").write_bytes(b"\x89PNG")
    mapped = map_documents("summarize", folder, tmp_path / "out", sentences=1, workers=0)
    good, bad = read_parts(tmp_path / "out")
    assert good["file"] == str(folder / "a.md")
    assert good["summary"] == longspan.summarize(folder / "a.md", 1).text
    assert bad["summary"] is None
    assert "b.pdf" in bad["error"]
    assert mapped.errors == 1
    assert "1 .png" in mapped.notes[0]


def test_a_table_among_documents_is_a_row(read_parts: Read, tmp_path: Path) -> None:
    """Of which no sentences can be picked; alone, it is the table of texts that somebody meant."""
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.md").write_text("# Bees\n\nBees live in hives. They dance.\n")
    (folder / "b.csv").write_text("kind,food\nbee,nectar\n")
    map_documents("summarize", folder, tmp_path / "out", sentences=1, workers=0)
    good, table = read_parts(tmp_path / "out")
    assert good["error"] is None
    assert (table["summary"], table["error"]) == ("", None)
    assert "no sentences" in table["note"]
    map_documents("answer", folder, tmp_path / "asked", question="which food?", workers=0)
    assert [one["text"] for one in read_parts(tmp_path / "asked")[1]["passages"]] == [
        "| kind | food |\n| bee | nectar |"
    ]
    with pytest.raises(InputError, match=r"'.*b\.csv' is a table that is not read; save it as Parquet"):
        map_documents("summarize", folder / "b.csv", tmp_path / "alone", workers=0)


def test_bad_rows_are_rows_with_an_error(rows: Rows, write_lines: Write, read_parts: Read, tmp_path: Path) -> None:
    path = write_lines([{**rows[0], "more": {"a": [1]}}, {"id": 1, "text": "  "}, {"id": 2}, rows[3]])
    with path.open("ab") as file:
        file.write(b'\n\n{"id": 4, \n["no object"]\n\xff\xfe\n' + json.dumps(rows[5]).encode())
    mapped = map_documents("embed", path, tmp_path / "out", workers=0)
    done = read_parts(tmp_path / "out")
    assert [row["id"] for row in done] == [0, 1, 2, 3, None, None, None, 5]
    assert mapped.errors == 5
    said = [row["error"] for row in done]
    assert [one is None for one in said] == [True, False, False, True, False, False, False, True]
    for one, words in zip(
        [said[index] for index in (1, 2, 4, 5, 6)],
        ("its text is blank", "its text is missing", "row 5 of", "no JSON object", "not UTF-8"),
        strict=True,
    ):
        assert words in str(one)
    assert all((row["vector"] is None) == (row["error"] is not None) for row in done)
    assert done[0]["more"] == {"a": [1]}


def test_a_second_call_does_what_is_missing(rows: Rows, write_lines: Write, read_parts: Read, tmp_path: Path) -> None:
    path, out = write_lines(rows), tmp_path / "out"
    map_documents("summarize", path, out, words=9, workers=0, part_rows=6)
    before = read_parts(out)
    again = map_documents("summarize", path, out, words=9, workers=0)
    assert (again.written, again.rows) == (0, 20)
    (out / "part-000000-000000006.parquet").unlink()
    (out / "part-000000-000000018.parquet").unlink()
    (out / ".longspan-0123456789ab.part").write_bytes(b"what a killed process left")
    stamps = {file.name: file.stat().st_mtime_ns for file in out.glob("part-*")}
    assert map_documents("summarize", path, out, words=9, workers=0).written == 2
    assert read_parts(out) == before
    assert all((out / name).stat().st_mtime_ns == stamp for name, stamp in stamps.items())
    names = [f"part-000000-{first:09d}.parquet" for first in (0, 6, 12, 18)]
    assert sorted(file.name for file in out.iterdir()) == ["_job.json", *names]


def test_another_job_is_refused(rows: Rows, write_lines: Write, tmp_path: Path) -> None:
    path, out = write_lines(rows[:3]), tmp_path / "out"
    map_documents("summarize", path, out, sentences=1, workers=0)
    other = write_lines(rows[:3], "other.jsonl")
    for said, change in (
        ("the verb summarize, and this is embed", {"verb": "embed", "sentences": None}),
        ("its sentences is 1, not 2", {"sentences": 2}),
        ("its query is None, not 'x'", {"query": "x"}),
        ("its raw is False, not True", {"raw": True}),
        ("other.jsonl", {"inputs": other}),
        ("its parts have 8 rows, not 5", {"part_rows": 5}),
    ):
        given = {"verb": "summarize", "inputs": path, "sentences": 1, **change}
        with pytest.raises(InputError, match=r"holds another job: .*; give another folder") as error:
            map_documents(output=out, workers=0, **given)
        assert said in str(error.value)
    (out / "_job.json").write_text("{")
    with pytest.raises(InputError, match=r"_job\.json is damaged"):
        map_documents("summarize", path, out, sentences=1, workers=0)
    (out / "_job.json").unlink()
    with pytest.raises(InputError, match=r"is not empty and holds no _job\.json"):
        map_documents("summarize", path, out, sentences=1, workers=0)


def test_a_column_of_the_results_name_needs_a_prefix(write_lines: Write, read_parts: Read, tmp_path: Path) -> None:
    path = write_lines([{"text": "Bees dance. They live.", "summary": "of people"}])
    with pytest.raises(InputError, match=r"a column 'summary', .* --prefix map_"):
        map_documents("summarize", path, tmp_path / "out", workers=0)
    assert not (tmp_path / "out").exists()
    map_documents("summarize", path, tmp_path / "out", workers=0, prefix="map_", sentences=1)
    (row,) = read_parts(tmp_path / "out")
    assert row["summary"] == "of people"
    assert row["map_summary"]
    assert row["map_error"] is None


def test_a_damaged_table_is_one_sentence_and_the_others_are_done(rows: Rows, read_parts: Read, tmp_path: Path) -> None:
    columns = {"text": [row["text"] for row in rows]}
    for name in ("a", "b"):
        parquet.write_table(pa.table(columns), tmp_path / f"{name}.parquet", compression="gzip")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[60:200] = bytes(140)  # the first page; the end of the file, which is read first, is as it was
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(InputError, match=r"a\.parquet cannot be read as Parquet .*; the parts of all other"):
        map_documents("summarize", tmp_path / "*.parquet", tmp_path / "out", sentences=1, workers=0, part_rows=20)
    assert sorted(file.name for file in (tmp_path / "out").glob("part-*")) == ["part-000001-000000000.parquet"]
    assert len(read_parts(tmp_path / "out")) == 20
    (tmp_path / "c.jsonl.gz").write_bytes(b"\x1f\x8b\x08 no more")
    (tmp_path / "d.parquet").write_bytes(b"PAR1")
    for name in ("c.jsonl.gz", "d.parquet"):
        with pytest.raises(InputError, match=name):
            map_documents("summarize", tmp_path / name, tmp_path / name[0], workers=0)
        assert not (tmp_path / name[0]).exists()


def test_what_a_replaced_table_made_is_done_again(rows: Rows, read_parts: Read, tmp_path: Path) -> None:
    """It may have other rows now; the parts of the tables before and behind it stay as they are."""
    texts = [row["text"] for row in rows]
    for name in ("a", "b", "c"):
        parquet.write_table(pa.table({"text": texts}), tmp_path / f"{name}.parquet", compression="gzip")
    data = bytearray((tmp_path / "b.parquet").read_bytes())
    data[60:200] = bytes(140)
    (tmp_path / "b.parquet").write_bytes(data)
    call: Any = {"verb": "embed", "inputs": tmp_path / "?.parquet", "output": tmp_path / "out", "workers": 0}
    for _ in range(2):
        with pytest.raises(InputError, match=r"b\.parquet cannot be read as Parquet"):
            map_documents(**call, part_rows=8)
    stamps = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "out").glob("part-*")}
    for count, parts in ((20, 3), (9, 2)):
        parquet.write_table(pa.table({"text": texts[:count]}), tmp_path / "b.parquet")
        mapped = map_documents(**call)
        assert (mapped.rows, mapped.errors, mapped.parts, mapped.written) == (40 + count, 0, 6 + parts, parts)
        assert "b.parquet changed since the job was begun" in mapped.notes[0]
        assert [row["text"] for row in read_parts(tmp_path / "out")] == [*texts, *texts[:count], *texts]
        assert all((tmp_path / "out" / name).stat().st_mtime_ns == stamp for name, stamp in stamps.items())
    assert map_documents(**call).written == 0
    parquet.write_table(pa.table({"text": texts, "more": texts}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b\.parquet' has changed .* other columns now; give another folder"):
        map_documents(**call)


def test_what_a_replaced_document_made_is_done_again(read_parts: Read, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.md").write_text(f"Bees of kind {name} live in hives. They dance.\n")
    (folder / "b.md").write_text("\n")
    assert map_documents("embed", folder, tmp_path / "out", workers=0, part_rows=1).errors == 1
    (folder / "b.md").write_text("Bees live in hollow trees.\n")
    mapped = map_documents("embed", folder, tmp_path / "out", workers=0)
    assert (mapped.rows, mapped.errors, mapped.parts, mapped.written) == (3, 0, 3, 1)
    vector = longspan.embed_document(folder / "b.md").vector
    np.testing.assert_allclose(read_parts(tmp_path / "out")[1]["vector"], vector, atol=1e-6)


def test_damaged_parts_and_state_are_one_sentence(rows: Rows, write_lines: Write, tmp_path: Path) -> None:
    """What is wrong → what the file of a part, or the state, is replaced by."""
    path, out = write_lines(rows), tmp_path / "out"

    def call() -> longspan.Mapped:
        return map_documents("embed", path, out, workers=0, part_rows=8)

    call()
    part, other = sorted(out.glob("part-*"))[:2]
    table = parquet.read_table(part)
    tables = {
        "no error column": table.drop_columns(["error"]),
        "another type": table.set_column(0, "id", pa.array(["x"] * 8)),
        "more columns": table.append_column("extra", table["id"]),
        "no rows": table.slice(0, 0),
        "fewer rows": table.slice(0, 5),
        "no columns": table.select([]),
        "another seal": table.replace_schema_metadata({"longspan": "0" * 32}),
        "no seal": table.replace_schema_metadata(),
    }
    whole = part.read_bytes()
    damages = {
        "empty": b"",
        "text": b"PAR1 no more PAR1",
        "cut": whole[:99],
        "footer": whole[:-9] + b"\xff" + whole[-8:],
    }
    damages["another part"] = other.read_bytes()
    for what, damaged in tables.items():
        parquet.write_table(damaged, part)
        damages[what] = part.read_bytes()
    for what, data in damages.items():
        part.write_bytes(data)
        with pytest.raises(InputError, match=rf"{part.name} is damaged or no part of this job; delete it") as error:
            call()
        assert "\n" not in str(error.value), what
    part.unlink()
    assert call().written == 1
    stranger = out / "part-000007-000000000.parquet"
    stranger.write_bytes(whole)
    with pytest.raises(InputError, match=rf"{stranger.name} is no part of this job; move it"):
        call()
    stranger.unlink()
    state = json.loads((out / "_job.json").read_text())
    for change in ({"part_rows": 0}, {"schema": "AAAA"}, {"verb": 3}, {"inputs": []}, {"options": None}, {"text": "x"}):
        (out / "_job.json").write_text(json.dumps(state | change))
        with pytest.raises(InputError, match=r"_job\.json is damaged .*; give another output folder"):
            call()
    for text in ("", "[]", "null", "{}", "[" * 9999):
        (out / "_job.json").write_text(text)
        with pytest.raises(InputError, match=r"_job\.json is damaged .*; give another output folder"):
            call()


def test_readers_of_whole_folders(rows: Rows, write_lines: Write, tmp_path: Path) -> None:
    map_documents("embed", write_lines(rows), tmp_path / "out", workers=0)
    assert parquet.read_table(tmp_path / "out")["id"].to_pylist() == list(range(20))
    pandas = pytest.importorskip("pandas")
    assert list(pandas.read_parquet(tmp_path / "out")["id"]) == list(range(20))


def test_half_characters_become_unknown_ones(read_parts: Read, tmp_path: Path) -> None:
    """In keys, values, objects and columns that are kept as JSON; a whole pair is one letter."""
    (tmp_path / "rows.jsonl").write_text(
        r'{"text": "Bees \ud83d\ude00 dance \ud83d.", "a\udc00": 1, "in": {"\ud800": "\udfff"}, "mixed": "\ud800"}'
        "\n"
        r'{"text": "They live.", "mixed": [{"\ud800": 1}]}'
        "\n"
    )
    assert map_documents("embed", tmp_path / "rows.jsonl", tmp_path / "out", workers=0).errors == 0
    first, second = read_parts(tmp_path / "out")
    assert first["text"] == "Bees 😀 dance \ufffd."
    assert (first["a\ufffd"], first["in"], first["mixed"]) == (1, {"\ufffd": "\ufffd"}, '"\ufffd"')
    assert second["mixed"] == '[{"\ufffd": 1}]'


def test_values_that_are_nested_deep_are_kept_as_json(read_parts: Read, tmp_path: Path) -> None:
    deep = "[" * 400 + "]" * 400
    (tmp_path / "rows.jsonl").write_text('{"text": "Bees dance.", "deep": ' + deep + "}\n")
    assert map_documents("embed", tmp_path / "rows.jsonl", tmp_path / "out", workers=0).errors == 0
    assert read_parts(tmp_path / "out")[0]["deep"] == deep


def test_names_of_documents_need_not_be_text(read_parts: Read, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    with open(os.fsencode(folder) + b"/a\xff.md", "w") as file:
        file.write("Bees live in hives.\n")
    for written in (1, 0):
        mapped = map_documents("embed", folder, tmp_path / "out", workers=0)
        assert (mapped.errors, mapped.written) == (0, written)
    assert read_parts(tmp_path / "out")[0]["file"] == f"{folder}/a\ufffd.md"


def test_a_full_disk_is_one_sentence(write_lines: Write, small_disk: Path, read_parts: Read) -> None:
    noise = np.random.default_rng(0).bytes(60_000 * 20).hex()
    path = write_lines([{"text": "Bees dance.", "noise": noise[120_000 * n :][:120_000]} for n in range(20)])
    for _ in range(2):
        with pytest.raises(InputError, match=r"the disk is full .* the same call continues"):
            map_documents("embed", path, small_disk / "out", workers=0, part_rows=1)
        left = sorted(file.name for file in (small_disk / "out").iterdir())
        assert left[0] == "_job.json"
        assert not [name for name in left if not name.startswith(("_job", "part-"))]
        assert len(read_parts(small_disk / "out")) == len(left) - 1
        assert 0 < len(left) - 1 < 20


def test_documents_of_an_address_are_fetched(read_parts: Read, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.md").write_text("# Bees\n\nBees live in hives. They dance.\n")
    (folder / "b.txt").write_text("")
    (folder / "c.png").write_bytes(b"\x89PNG")
    mapped = map_documents("embed", f"file://{folder}", tmp_path / "out", workers=0)
    good, bad = read_parts(tmp_path / "out")
    assert good["file"] == f"file://{folder}/a.md"
    np.testing.assert_allclose(good["vector"], longspan.embed_document(folder / "a.md").vector, atol=1e-6)
    assert bad["error"] == f"file://{folder}/b.txt is empty; give a document with text"
    assert "its documents are read, 1 other file passed over" in mapped.notes[0]


def test_two_calls_at_once_are_refused(rows: Rows, write_lines: Write, tmp_path: Path) -> None:
    with claimed(tmp_path / "out"), pytest.raises(InputError, match="another process is writing"):
        map_documents("embed", write_lines(rows[:1]), tmp_path / "out", workers=0)


def test_what_is_not_installed_is_named(
    rows: Rows, write_lines: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(rows[:1])
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(InputError, match=r"the engine ray needs the 'ray' extra; .* 'longspan\[ray\]'"):
        map_documents("embed", path, tmp_path / "out", engine="ray")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"longspan map needs the 'map' extra; .* 'longspan\[map\]'"):
        map_documents("embed", path, tmp_path / "out", workers=0)


def test_progress_is_reported(rows: Rows, write_lines: Write, tmp_path: Path) -> None:
    told = []
    map_documents("embed", write_lines(rows[:9]), tmp_path / "out", workers=0, report=told.append, part_rows=4)
    assert [one.done for one in told] == [0, 4, 8, 9]
    assert told[0].seconds_left is None
    assert told[-1].seconds_left == 0
    assert {one.rows for one in told} == {9}


@pytest.mark.parametrize(
    ("said", "given"),
    [
        ("cannot be mapped; did you mean 'summarize'", {"verb": "summarise"}),
        ("top is an option of answer, not of summarize", {"top": 3}),
        ("nothing is no option of summarize", {"nothing": 3}),
        ("sentences is 0; it must be at least 1", {"sentences": 0}),
        ("model is missing; give a classifier", {"verb": "classify"}),
        ("neither is given", {"verb": "answer"}),
        ("asks nothing", {"verb": "answer", "question": " "}),
        ("engine is 'spark'", {"engine": "spark"}),
        ("workers is -1", {"workers": -1}),
        ("no column 'words'", {"text_field": "words"}),
        ("holds int64 and no texts", {"text_field": "id"}),
        ("no column 'asks'", {"verb": "answer", "question_field": "asks"}),
        ("encoding is 'latin-1', and tables are UTF-8", {"encoding": "latin-1"}),
        ("does not exist", {"inputs": "nowhere.jsonl"}),
        ("matches no file", {"inputs": "nowhere*.jsonl"}),
        ("is standard input", {"inputs": "-"}),
        ("there is no input", {"inputs": []}),
        ("model 'no-such-folder-here'", {"model": "no-such-folder-here"}),
    ],
)
def test_mistakes_are_one_sentence(
    said: str, given: dict[str, Any], rows: Rows, write_lines: Write, tmp_path: Path
) -> None:
    call = {"verb": "summarize", "inputs": write_lines(rows[:2]), **given}
    with pytest.raises(InputError) as error:
        map_documents(output=tmp_path / "out", **{"workers": 0, **call})
    assert said in str(error.value)
    assert not list((tmp_path / "out").glob("part-*"))


@pytest.mark.parametrize(
    ("verb", "options"), [("summarize", {"sentences": 1}), ("embed", {}), ("answer", {"question": "was gilt?"})]
)
def test_abbreviations_of_the_user_end_no_sentence(
    verb: str, options: dict[str, Any], write_lines: Write, read_parts: Read, tmp_path: Path
) -> None:
    """In texts of tables and in files; `Anm.` would end the first sentence of two."""
    text = "Siehe Anm. Nichts gilt hier."
    (tmp_path / "note.txt").write_text(text)
    for name, source in {"rows": write_lines([{"text": text}]), "files": tmp_path / "note.txt"}.items():
        given = {"abbreviations": iter(["Anm."]), "workers": 0, **options}
        map_documents(verb, source, tmp_path / name, **given)
        (row,) = read_parts(tmp_path / name)
        assert row["error"] is None
        if verb == "summarize":
            assert row["summary"] == text
        elif verb == "answer":
            assert [one["text"] for one in row["passages"]] == [text]
        else:
            whole = longspan.embed_document(text, abbreviations=["Anm."]).vector
            np.testing.assert_allclose(row["vector"], whole, atol=1e-6)


def test_abbreviations_belong_to_the_job(write_lines: Write, tmp_path: Path) -> None:
    """The words, not the order or the letter case in which they are given; a verb that cuts no sentences has none."""
    rows, out = write_lines([{"text": "Siehe Anm. Nichts gilt hier."}]), tmp_path / "out"
    map_documents("summarize", rows, out, workers=0, abbreviations=["Anm.", "Abb."])
    assert map_documents("summarize", rows, out, workers=0, abbreviations=["abb", "Anm"]).written == 0
    for other in (["Anm."], None):
        with pytest.raises(InputError, match=r"holds another job: its abbreviations is \['abb', 'anm'\], not"):
            map_documents("summarize", rows, out, workers=0, abbreviations=other)
    for words, message in (("Anm", "is one string"), (["z. B."], "holds 'z. B.'"), (5, "of type int; give words")):
        with pytest.raises(InputError, match=message):
            map_documents("summarize", rows, tmp_path / "new", workers=0, abbreviations=words)
    verbs = "summarize and answer and embed and chunks"
    with pytest.raises(InputError, match=f"abbreviations is an option of {verbs}, not of coref"):
        map_documents("coref", rows, tmp_path / "new", workers=0, model="m", abbreviations=["Anm."])
