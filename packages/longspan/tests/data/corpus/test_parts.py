"""One file cut by position: what each part holds by hand, characters at the borders, and files of another size."""

from __future__ import annotations

import gzip
import logging
import zipfile
from pathlib import Path

import pytest

from longspan.data.corpus import files
from longspan.data.corpus.sources import Corpus
from longspan.errors import InputError

LETTERS = "abcdefghijklmnopqrst"
"""Twenty bytes: 18 to train on, one to validate, one to test."""


def read(source: Path | str, split: str, text_split: str = "position") -> str:
    return "".join(Corpus(source=str(source), split=split, text_split=text_split).texts())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A published file of twenty bytes."""
    monkeypatch.setitem(files.PUBLISHED, "text8", 20)


def pack(folder: Path, data: bytes, form: str) -> Path:
    """text8 as a file, zipped as it is published, or in a folder."""
    if form == "plain":
        (folder / "text8").write_bytes(data)
        return folder / "text8"
    target = folder / "text8" if form == "folder" else folder
    target.mkdir(exist_ok=True)
    with zipfile.ZipFile(target / "text8.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("text8", data)
    return folder / ("text8" if form == "folder" else "text8.zip")


@pytest.mark.parametrize("form", ["plain", "zip", "folder"])
def test_the_published_files_are_cut_by_position(small: None, tmp_path: Path, form: str) -> None:
    path = pack(tmp_path, LETTERS.encode(), form)
    assert [read(path, split, "file") for split in ("train", "validation", "test")] == [LETTERS[:18], "s", "t"]
    assert read(path, "dev", "file") == "s"


def test_a_name_is_enough_in_the_data_folder(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path))
    pack(tmp_path, LETTERS.encode(), "zip")
    assert read("text8", "test", "file") == "t"


def test_another_size_is_cut_only_where_that_is_asked_for(tmp_path: Path) -> None:
    path = pack(tmp_path, LETTERS.encode() * 10, "zip")
    with pytest.raises(InputError, match=r"text8.zip holds 200 bytes, but text8 as it is published has 100,000,000"):
        read(path, "train", "file")
    assert read(path, "train") == LETTERS * 9


def test_characters_at_the_borders_belong_to_the_part_of_their_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "READ", 3)
    for before in range(15, 20):
        text = "a" * before + "€" + "\r\n" + "𝄞" + "z" * 9
        (tmp_path / "novel.txt").write_bytes(text.encode())
        found = [read(tmp_path / "novel.txt", split) for split in ("train", "validation", "test")]
        assert "".join(found) == text
        size = len(text.encode())
        for border, part in zip((size * 90 // 100, size * 95 // 100), ("".join(found[:1]), "".join(found[:2]))):  # noqa: B905
            assert 0 <= len(part.encode()) - border <= 3


def test_compressed_text_and_an_end_within_a_character(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "novel.txt.gz").write_bytes(gzip.compress(("x" * 36 + "€").encode()[:-1]))
    assert read(tmp_path / "novel.txt.gz", "train") == "x" * 34
    with caplog.at_level(logging.WARNING):
        assert read(tmp_path / "novel.txt.gz", "test") == ""
    assert "ends within a character, which is left out (2 bytes)" in caplog.text


@pytest.mark.parametrize(
    ("data", "split", "sentence"),
    [
        (b"abc\xff" * 20, "train", "is not UTF-8"),
        (b"abcd" * 10, "dialogues", "split='dialogues' is none of a text that is cut by position; give one of train"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, data: bytes, split: str, sentence: str) -> None:
    (tmp_path / "novel.txt").write_bytes(data)
    with pytest.raises(InputError, match=sentence):
        read(tmp_path / "novel.txt", split)


def test_archives_and_options_that_do_not_fit(small: None, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "text8.zip", "w") as archive:
        archive.writestr("one", "a")
        archive.writestr("two", "b")
    with pytest.raises(InputError, match="holds 2 files, none of them named text8; unpack the one to read"):
        read(tmp_path / "text8.zip", "train")
    with pytest.raises(InputError, match="text_unit='line' cuts a text into documents"):
        Corpus(source="synthetic", text_unit="line", text_split="position")
    with pytest.raises(InputError, match="text_split='bytes' is unknown"):
        Corpus(source="synthetic", text_split="bytes")
