"""Documents out of files of every kind, in pieces of bounded length."""

from __future__ import annotations

import gzip
import json
import lzma
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from longspan.data.corpus.sources import PIECE, Corpus
from longspan.data.fields import CORPUS_FIELDS
from longspan.errors import InputError

DOCUMENTS = ["One two three.\nFour.", "Five — six.", "Seven\n\neight"]


def _texts(source: Path | str, **options: Any) -> list[str]:
    return list(Corpus(source=str(source), **options).texts())


def _json_lines(path: Path, rows: list[Any]) -> Path:
    opened = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opened(path, "wt", encoding="utf-8") as file:  # pyright: ignore[reportCallIssue]
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_json_lines_by_a_known_or_a_named_field(tmp_path: Path, suffix: str) -> None:
    rows = [{"id": 1, "text": text, "other": "no"} for text in DOCUMENTS]
    path = _json_lines(tmp_path / f"a.jsonl{suffix}", [*rows, {"text": "  "}, {"text": None}])
    assert _texts(path) == DOCUMENTS
    assert _texts(path, limit=2) == DOCUMENTS[:2]
    named = _json_lines(tmp_path / f"b.jsonl{suffix}", [{"story": ["One.", "Two."]}])
    assert _texts(named, text_field="story") == ["One.\nTwo."]


def test_a_text_file_is_one_document_or_its_blocks_or_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("\n".join(DOCUMENTS) + "\n", encoding="utf-8")
    assert _texts(path) == ["\n".join(DOCUMENTS) + "\n"]
    assert [text.strip() for text in _texts(path, text_unit="block")] == ["\n".join(DOCUMENTS)[:-7], "eight"]
    assert [text.strip() for text in _texts(path, text_unit="line")] == [
        "One two three.",
        "Four.",
        "Five — six.",
        "Seven",
        "eight",
    ]
    (tmp_path / "book.txt.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert _texts(tmp_path / "book.txt.gz") == _texts(path)


def test_directories_and_patterns(tmp_path: Path) -> None:
    for name, text in (("b/2.txt", "two"), ("a/1.txt", "one"), ("a/notes.csv", "not text"), ("a/.1.txt", "hidden")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert _texts(tmp_path) == ["one", "two"]
    assert _texts(f"{tmp_path}/*/2.txt") == ["two"]
    splits = tmp_path / "splits"
    splits.mkdir()
    for name in ("train-00.jsonl", "train-01.jsonl", "val.jsonl"):
        _json_lines(splits / name, [{"text": name}])
    assert _texts(splits) == ["train-00.jsonl", "train-01.jsonl"]
    assert _texts(splits, split="validation") == ["val.jsonl"]
    with pytest.raises(InputError, match="has no file of split='test'"):
        Corpus(source=str(splits), split="test")


def test_records_of_summarisation_data_sets_give_their_document(tmp_path: Path) -> None:
    sections = [{"title": "A", "sentences": ["One.", "Two."]}, {"title": "B", "sentences": ["Three."]}]
    row = {"paper_id": "x", "title": "T", "sections": sections, "abstract": ["Short."], "human_summary": ["S."]}
    assert _texts(_json_lines(tmp_path / "papers.jsonl", [row])) == ["One. Two. Three."]


def test_parquet_and_saved_data_sets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the 'datasets' extra")
    table = datasets.Dataset.from_dict({"id": [1, 2, 3], "text": DOCUMENTS})
    table.to_parquet(str(tmp_path / "a.parquet"))
    assert _texts(tmp_path / "a.parquet") == DOCUMENTS
    with pytest.raises(InputError, match="has no field 'story'; it has id, text"):
        _texts(tmp_path / "a.parquet", text_field="story")
    table.save_to_disk(str(tmp_path / "one"))
    assert _texts(tmp_path / "one") == DOCUMENTS
    both = datasets.DatasetDict({"train": table, "validation": table.select([1])})
    both.save_to_disk(str(tmp_path / "two"))
    assert _texts(tmp_path / "two") == DOCUMENTS
    assert _texts(tmp_path / "two", split="dev") == DOCUMENTS[1:2]
    with pytest.raises(InputError, match="has no split 'test'; it has train, validation"):
        _texts(tmp_path / "two", split="test")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 is not enough")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        _texts(tmp_path / "broken.parquet")


def test_a_data_set_of_the_hub_is_streamed(tmp_path: Path) -> None:
    """The library takes a folder of Parquet files for a data set's name, so this needs no network."""
    datasets = pytest.importorskip("datasets", reason="needs the 'datasets' extra")
    (tmp_path / "data").mkdir()
    table = datasets.Dataset.from_dict({"id": [1, 2, 3], "text": DOCUMENTS})
    table.to_parquet(str(tmp_path / "data" / "train-00000-of-00001.parquet"))
    assert _texts(f"hf:{tmp_path}") == DOCUMENTS
    assert _texts(f"hf:{tmp_path}", limit=1) == DOCUMENTS[:1]
    for source, options in ((f"hf:{tmp_path}", {"split": "nowhere"}), ("hf:no-one/nothing", {})):
        with pytest.raises(InputError, match="of the Hub cannot be streamed"):
            _texts(source, **options)


def test_a_library_that_is_missing_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r"reading Parquet files needs the 'datasets' extra.*pip install"):
        _texts(tmp_path / "a.parquet")


@pytest.mark.parametrize("unit", ["file", "block"])
def test_pieces_are_short_and_together_the_document(tmp_path: Path, unit: str) -> None:
    text = " ".join(f"word{number}" for number in range(60_000)) + "x" * (2 * PIECE)
    (tmp_path / "long.txt").write_text(text)
    pieces = list(Corpus(source=str(tmp_path / "long.txt"), text_unit=unit).pieces())
    assert "".join(piece for piece, _ in pieces) == text
    assert max(len(piece) for piece, _ in pieces) <= PIECE
    assert [last for _, last in pieces] == [False] * (len(pieces) - 1) + [True]
    assert all(piece.startswith(" word") for piece, _ in pieces[1:4])


def test_one_endless_document_is_never_in_memory(tmp_path: Path) -> None:
    """64 MB of text in one file and in one document, read with less than 4 MB."""
    with gzip.open(tmp_path / "huge.txt.gz", "wt", compresslevel=1) as file:
        for _ in range(640):
            file.write("a few words in a line\n" * 4546)
    tracemalloc.start()
    try:
        length = sum(len(piece) for piece, _ in Corpus(source=str(tmp_path / "huge.txt.gz")).pieces())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert length == 640 * 4546 * 22
    assert peak < 4_000_000


def test_what_a_fingerprint_depends_on(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one two")
    before = Corpus(source=str(path)).fingerprint()
    assert before == Corpus(source=str(path)).fingerprint()
    assert before != Corpus(source=str(path), text_unit="line").fingerprint()
    path.write_text("one Two")
    assert before != Corpus(source=str(path)).fingerprint()


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (b'{"text": "a"}\n{"text": 3}\n', {}, "line 2: the text field holds an int"),
        (b'{"text": "a"}\nnot json\n', {}, "line 2: not JSON"),
        (b'{"id": 1, "label": "a"}\n', {}, "no field known to hold text; name it as text_field: id, label"),
        (b'{"id": 1, "text": "a"}\n', {"text_field": "txt"}, "has no field 'txt'; it has id, text"),
    ],
)
def test_corrupt_records(
    tmp_path: Path, content: bytes, options: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        _texts(path, **options)
    kept = _texts(path, on_error="skip", **options)
    assert kept == ["a"] * content.count(b'"a"}\n{"') + ["a"] * (b"not json" in content)
    assert "corrupt record" in caplog.text


def test_other_mistakes(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin.txt is not UTF-8 \(byte 0xe9\)"):
        _texts(tmp_path / "latin.txt")
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"some words" * 100)[:30])
    with pytest.raises(InputError, match="damaged"):
        _texts(tmp_path / "cut.txt.gz")
    for source, words in (
        (tmp_path / "none.txt", "is no file, directory or pattern"),
        (f"{tmp_path}/*.none", "no file matches"),
    ):
        with pytest.raises(InputError, match=words):
            Corpus(source=str(source))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"has no file that can be read \(\.txt, \.text, \.jsonl"):
        Corpus(source=str(tmp_path / "empty"))
    with pytest.raises(InputError, match="text_unit='page' is unknown"):
        Corpus(source=str(tmp_path), text_unit="page")


@pytest.mark.parametrize("name", CORPUS_FIELDS)
def test_every_known_name_of_a_text_is_read(name: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"id": 1, name: ["one", "two"]}) + "\n")
    assert list(Corpus(source=str(file)).texts()) == ["one\ntwo"]


def test_a_remark_is_not_the_text(tmp_path: Path) -> None:
    """As arXiv's comments beside the sections of a paper, and an origin beside a text."""
    file = tmp_path / "rows.jsonl"
    sections = [{"title": "Results", "text": ["They are good."]}]
    lines = [{"title": "T", "sections": sections, "abstract": ["Good."], "licence": "CC0", "comment": "12 pages"}]
    lines += [{"source": "GitHub", "raw_content": "The text."}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert list(Corpus(source=str(file)).texts()) == ["Results\n\nThey are good.", "The text."]
