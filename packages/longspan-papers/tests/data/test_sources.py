"""One finder for every kind of data: what a name means, in which order, and what is said where it means nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import longspan
from longspan.data.corpus.sources import CORPORA, Corpus
from longspan.data.sources import Kind, find_source, read, split_of
from longspan.data.summaries.readers import SUMMARIES
from longspan.errors import InputError
from longspan_papers.natural_questions.reading import QUESTIONS

KINDS = {"summaries": SUMMARIES, "questions": QUESTIONS, "corpora": CORPORA}


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., Path]:
    """Write files with one record each, and give the folder."""

    def write(*names: str, folder: str = "folder") -> Path:
        for name in names:
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"text": name}) + "\n", encoding="utf-8")
        return tmp_path / folder

    return write


def names(folder: Path, split: str, kind: Kind[Any]) -> list[str]:
    return [file.relative_to(folder).as_posix() for file in find_source(folder, split, kind).files]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_files_of_a_split(kind: Kind[Any], put: Callable[..., Path]) -> None:
    folder = put("train-b.jsonl", "train.json", "val.jsonl.gz", "test-set.jsonl", "readme.md", ".train.jsonl")
    assert names(folder, "train", kind) == ["train-b.jsonl", "train.json"]
    assert names(folder, "validation", kind) == names(folder, "dev", kind) == ["val.jsonl.gz"]
    folder = put("nq-train-00.jsonl", "nq-train-01.jsonl.gz", "nq-dev-00.jsonl", folder="parts")
    assert names(folder, "train", kind) == ["nq-train-00.jsonl", "nq-train-01.jsonl.gz"]
    assert names(folder, "validation", kind) == ["nq-dev-00.jsonl"]
    with pytest.raises(InputError, match=r"parts has no file of split='test'; it has nq-dev-00\.jsonl, nq-train-00"):
        find_source(folder, "test", kind)
    folder = put("train/b.jsonl", "train/a.jsonl", "valid/dev-notes.jsonl", "other.jsonl", folder="folders")
    assert names(folder, "train", kind) == ["train/a.jsonl", "train/b.jsonl"]
    assert names(folder, "validation", kind) == ["valid/dev-notes.jsonl"]
    assert names(folder / "train", "validation", kind) == ["a.jsonl", "b.jsonl"]  # its files name no split


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_folder_that_names_no_split_is_read_whole_and_says_so(
    kind: Kind[Any], put: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder = put("b.jsonl", "a.json")
    with caplog.at_level(logging.WARNING, "longspan"):
        assert names(folder, "train", kind) == names(folder, "train", kind) == ["a.json", "b.jsonl"]
    (said,) = caplog.records
    assert "no file names a split" in said.getMessage()


def test_a_book_with_a_split_in_the_middle_of_its_name_is_a_book(put: Callable[..., Path]) -> None:
    folder = put("a-train-journey.txt", "the_dev_diary.text", "deep/er/other.txt.xz")
    assert names(folder, "train", CORPORA) == ["a-train-journey.txt", "deep/er/other.txt.xz", "the_dev_diary.text"]


def test_what_comes_before_what(put: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = put("pubmed/train.jsonl.gz", "mine.jsonl", "reader.jsonl")
    monkeypatch.setenv("LONGSPAN_DATA", str(folder))
    monkeypatch.chdir(tmp_path)
    longspan.register(lambda split: iter(()), name="reader")
    assert find_source("pubmed", "train", SUMMARIES).choice is not None  # the data set, not the folder
    assert find_source("pubmed", "train", QUESTIONS).files == (folder / "pubmed" / "train.jsonl.gz",)
    assert find_source("mine.jsonl", "train", SUMMARIES).files == (folder / "mine.jsonl",)
    assert find_source("reader", "train", SUMMARIES).reader is not None
    put("train.jsonl", folder="reader")
    assert find_source("reader", "train", SUMMARIES).files == (Path("reader/train.jsonl"),)  # here, so it comes first
    put("train.jsonl", folder="synthetic")
    assert find_source("synthetic", "train", SUMMARIES).files == ()
    assert find_source("folder/*.jsonl", "train", QUESTIONS).files == (
        Path("folder/mine.jsonl"),
        Path("folder/reader.jsonl"),
    )


@pytest.mark.parametrize(
    ("given", "kind", "meant"),
    [
        ("pubmedd", "summaries", "pubmed"),
        ("tydi-qa", "questions", "tydiqa"),
        ("sintetic", "corpora", "synthetic"),
        ("trian.jsonl", "corpora", "train.jsonl"),
        ("my-data/trian.jsonl", "summaries", "my-data/train.jsonl"),
        ("letter", "summaries", "letters"),
    ],
)
def test_a_misspelt_name_gets_the_near_match(
    given: str, kind: str, meant: str, put: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("train.jsonl", "my-data/train.jsonl")
    monkeypatch.chdir(tmp_path / "folder")
    monkeypatch.delenv("LONGSPAN_DATA", raising=False)
    longspan.register(lambda split: iter(()), name="letters")
    with pytest.raises(InputError, match=rf"data='{given}' is no file, .*; did you mean '{meant}'\?"):
        find_source(given, "train", KINDS[kind])


def test_made_up_rows_are_some_and_not_too_many() -> None:
    for kind in KINDS.values():
        rows = list(read("synthetic", "train", kind, lambda path, choice: iter(()), 3))
        assert len(rows) == 3
        assert rows == list(read("synthetic", "train", kind, lambda path, choice: iter(()), 3))
        assert rows[0] != next(read("synthetic", "validation", kind, lambda path, choice: iter(()), 3))
        with pytest.raises(InputError, match="20,000 made-up rows are asked for; 'synthetic' has at most 10,000"):
            next(read("synthetic", "train", kind, lambda path, choice: iter(()), 20_000))


def test_a_reader_of_texts_is_a_corpus() -> None:
    longspan.register(lambda split: iter([f"{split} one", "two"]), name="texts")
    assert list(Corpus(source="texts").texts()) == ["train one", "two"]
    with pytest.raises(InputError, match="row 1 of reader 'texts' is a str; this task reads QuestionRow"):
        next(read("texts", "train", QUESTIONS, lambda path, choice: iter(())))


def test_names_of_splits() -> None:
    assert split_of(["train", "val"], "validation") == "val"
    assert split_of({"dev": 1, "valid": 2}, "validation") == "valid"
    assert split_of(["train"], "test") is None
