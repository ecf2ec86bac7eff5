"""The table of kinds: signatures before endings, what is not read is refused, and others can add to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import longspan
import longspan_documents
from longspan.cli import main
from longspan.errors import InputError
from longspan_documents.text.blocks import Document
from longspan_documents.text.documents import SAVE
from longspan_documents.text.folders import documents_in
from longspan_documents.text.kinds.source import Source
from longspan_documents.text.kinds.table import READERS, FileKind, endings, kind_of
from longspan_documents.text.reading import read


def kind(data: bytes, suffix: str) -> str | None:
    found = kind_of(Source.of_bytes(data, suffix))
    return found.name if found else None


@pytest.mark.parametrize(
    ("data", "suffix", "name"),
    [
        (b"%PDF-1.7\n", ".txt", "pdf"),
        (b"{\\rtf1 a}", ".docx", "rich-text"),
        (b"<!doctype html><p>a", "", "page"),
        (b"WEBVTT\n\n00:01.000 --> 00:02.000\na", ".txt", "subtitles"),
        (b"1\r\n00:00:01,000 --> 00:00:02,000\r\na", "", "subtitles"),
        (b"MIME-Version: 1.0\r\nFrom: a@example.org\r\n\r\na", "", "mail"),
        (b"From a@example.org Mon May  3 10:00:00 2021\nFrom: a@example.org\n\na", "", "mailbox"),
        (b".TH A 1\n", ".1", "manual"),
        (b"% a\n\\documentclass{article}", ".txt", "latex"),
        (b"a,b\n", ".csv", "values"),
        (b"a,b\n", ".txt", None),
        (b"Words of a text.", "", None),
        (b"Words of a text.", ".unknown", None),
    ],
)
def test_signatures_decide_before_endings(data: bytes, suffix: str, name: str | None) -> None:
    assert kind(data, suffix) == name


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x89PNG\r\n\x1a\n", "an image; read it by text recognition, with --ocr"),
        (b"ID3\x03", "a recording; transcribe it"),
        (b"\0\0\0 ftypM4A ", "a recording; transcribe it"),
        (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive; unpack it"),
        (b"\x1f\x8b\x08", "a gzip archive; unpack it"),
        (b"PAR1", "a Parquet table"),
        (b"%!PS-Adobe-3.0\n", "a PostScript file; convert it to .pdf"),
        (b"\0" * 60 + b"BOOKMOBI", "a Kindle book; convert it to .epub"),
        (b"<?xml version='1.0'?><FictionBook>a</FictionBook>", "a FictionBook; convert it to .epub"),
        (b"<?xml version='1.0'?><x><y>a</y></x>", "XML, not a document"),
        (b"<?xml version='1.0'?><!-- a --><book>a</book>", "DocBook; convert it to .html"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".txt"])
def test_what_is_not_read_is_refused_with_the_remedy(data: bytes, what: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(data)
    with pytest.raises(InputError, match=rf"is {what}"):
        read(path)


@pytest.fixture
def other_kind() -> Iterator[FileKind]:
    made = FileKind(
        name="shouts",
        title="a file of shouts",
        endings=(".shout",),
        signature=lambda source: source.head.startswith(b"SHOUT "),
        read=lambda source: source.text.removeprefix("SHOUT ").capitalize(),
    )
    yield made
    READERS.pop("shouts", None)


def test_a_kind_of_others_is_read_everywhere(other_kind: FileKind, tmp_path: Path) -> None:
    assert longspan.register(other_kind) is other_kind
    for name in ("a.shout", "a.txt"):
        (tmp_path / name).write_text("SHOUT THE GATE IS OPEN.")
        document = read(tmp_path / name)
        assert isinstance(document, Document)
        assert document.text == "The gate is open."
        assert document.extracted
    assert [path.name for path in documents_in(tmp_path)[0]] == ["a.shout", "a.txt"]
    with pytest.raises(InputError, match="there is a kind of file 'shouts' already"):
        longspan.register(FileKind(name="shouts", title="a", endings=(), read=lambda source: ""))
    with pytest.raises(InputError, match="is for readers"):
        longspan.register(other_kind, name="other")


@pytest.mark.parametrize("wrong", [{"name": "A b"}, {"endings": ("abc",)}, {"sure": True}])
def test_a_kind_that_could_not_be_found_is_refused(wrong: dict) -> None:
    right = {"name": "a", "title": "a", "endings": (".a",), "read": lambda source: ""}
    with pytest.raises(InputError):
        FileKind(**{**right, **wrong})


def test_no_ending_is_of_two_kinds() -> None:
    every = [ending for one in READERS.values() for ending in one.endings]
    assert len(every) == len(set(every))


GUIDE = Path(__file__).parents[3] / "docs/guides/reading.md"


@pytest.mark.skipif(not GUIDE.is_file(), reason="runs in a checkout, not from an installed package")
@pytest.mark.parametrize("name", READERS)
def test_the_guide_has_the_row_of_every_kind(name: str) -> None:
    one = READERS[name]
    endings = ", ".join(f"`{ending}`" for ending in one.endings) or {"chats": "`.json`"}.get(name, "images")
    row = f"| {endings} | {one.parts} | {one.left_out} | {one.library} |"
    assert one.name == name
    assert row in GUIDE.read_text(encoding="utf-8").splitlines()


def test_the_page_of_the_server_takes_the_same_endings() -> None:
    page = Path(longspan_documents.__file__).with_name("serve") / "static/page.js"
    found = re.search(r"const READABLE = /\\\.\((.*)\)\$/i;", page.read_text(encoding="utf-8"))
    assert found is not None
    assert {f".{ending}" for ending in found[1].split("|")} == endings()


@pytest.mark.parametrize("command", ["summarize", "answer", "index", "map", "serve", "coref", "importance"])
def test_the_help_of_a_command_names_what_it_reads(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every ending of the table; lines are broken between words, so that each is whole."""
    assert main([command, "--help"]) == 0
    words = set(re.findall(r"\.[a-z]+", capsys.readouterr().out))
    assert endings() <= words


def test_the_remedy_names_kinds_that_are_read() -> None:
    named = re.findall(r"\.[a-z]+", SAVE)
    assert len(named) > 5
    assert set(named) <= endings()
