"""`longspan chunks`: JSON and text, folders, what is passed over and refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import docx
import pytest
from PIL import Image, ImageDraw, ImageFont

from longspan.cli import main

NOTES = "# Bees\n\nThey live in hives.\n\n## Dance\n\nBees dance. Frisch described it.\n"


def test_a_folder_becomes_records_and_what_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bees.md").write_text(NOTES)
    (tmp_path / "torn.pdf").write_bytes(b"%PDF-1.4\nno more")
    assert main(["chunks", str(tmp_path), "--json", "--max-words", "4", "--overlap", "1"]) == 0
    out, err = capsys.readouterr()
    records = json.loads(out)
    assert [record["text"] for record in records] == ["They live in hives.", "Bees dance.", "Frisch described it."]
    assert [record["headings"] for record in records] == [["Bees"], ["Bees", "Dance"], ["Bees", "Dance"]]
    for number, record in enumerate(records):
        assert record["file"] == str(tmp_path / "bees.md")
        assert NOTES[record["start"] : record["end"]] == record["text"]
        assert record["sentences"] == [number, number + 1]
        assert record["tokens"] >= record["words"]
    assert "torn.pdf" in err
    assert "1 document, 3 passages" in err


def test_passages_of_so_many_tokens_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from longspan.training.tokenizers import train_tokenizer

    train_tokenizer([NOTES], 300).save_pretrained(tmp_path / "model")
    (tmp_path / "bees.md").write_text(NOTES + "\n" + "hives " * 40)
    asked = ["chunks", str(tmp_path / "bees.md"), "--json", "--max-tokens", "11"]
    assert main([*asked, "--model", str(tmp_path / "model")]) == 0
    counted = json.loads(capsys.readouterr().out)
    assert main([*asked, "--tokenizer", str(tmp_path / "model")]) == 0
    assert json.loads(capsys.readouterr().out) == counted
    assert max(record["tokens"] for record in counted) <= 11
    assert sum(record["words"] for record in counted) == 9 + 40


def test_text_stands_below_its_place_and_does_not_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "notes.md"
    file.write_text(NOTES.replace("hives", "hi\x1b[2Jves"))
    assert main(["chunks", str(file)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith("[line 3, characters 8–")
    assert "[line 7, characters " in out
    assert " · Bees › Dance · " in out
    assert "Bees dance. Frisch described it.\n\n" in out
    assert "\x1b" not in out


def test_mistakes_are_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    assert "does not exist" in refused("chunks", tmp_path / "no.txt")
    # Typer before 0.29 words it otherwise.
    words = refused("chunks", "-", "--max-words", 3)
    assert "--max-words='3' must be at least 4" in words or "'--max-words': 3 is not in the range x>=4" in words
    tokens = refused("chunks", "-", "--max-tokens", 7)
    assert "--max-tokens='7' must be at least 8" in tokens or "'--max-tokens': 7 is not in the range x>=8" in tokens
    assert "nowhere" in refused("chunks", __file__, "--tokenizer", tmp_path / "nowhere")


def test_words_of_a_file_end_no_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note, words = tmp_path / "note.txt", tmp_path / "words.txt"
    note.write_text("Siehe Anm. Nichts gilt hier.\n")
    words.write_text("# of the court\nAnm.\n\n")
    for given, count in (([], 2), (["--abbreviations", str(words)], 1)):
        assert main(["chunks", str(note), "--json", *given]) == 0
        assert json.loads(capsys.readouterr().out)[0]["sentences"] == [0, count]


VERBS_WITH_WORDS = (
    ("chunks", "note.txt"),
    ("embed", "note.txt"),
    ("summarize", "note.txt"),
    ("answer", "note.txt", "one?"),
    ("map", "summarize", "note.txt", "--output", "out", "--workers", 0),
    ("index", "note.txt", "--output", "out"),
    ("index", "note.txt", "--output", "out", "--workers", 0),
    ("serve", "--port", 0),
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff\xfe\xfa", "it is no text in UTF-8"),
        (b"z. B.", "holds 'z. B.'"),
        (b"Anm.\n" * 20_000, "words.txt is longer than 64 KiB"),
    ],
)
def test_a_file_of_words_that_cannot_be_used_is_one_sentence(
    content: bytes | None, message: str, tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same one of every verb that takes such a file, with nothing written."""
    monkeypatch.chdir(tmp_path)
    Path("note.txt").write_text("One is here. Two is there.\n")
    if content is not None:
        Path("words.txt").write_bytes(content)
    sentences = {refused(*words, "--abbreviations", "words.txt") for words in VERBS_WITH_WORDS}
    assert len(sentences) == 1
    assert message in sentences.pop()


def test_scans_and_heads_of_pages_are_read_on_demand(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    refused: Callable[..., str],
) -> None:
    page = Image.new("L", (1240, 400), 255)
    ImageDraw.Draw(page).text((100, 100), "The keeper opens the gate at noon.", 0, ImageFont.load_default(42))
    page.save(tmp_path / "scan.pdf")
    page.save(tmp_path / "scan.png")
    assert "likely scans; read them by text recognition, with --ocr" in refused("chunks", tmp_path / "scan.pdf")
    assert "is an image; read it by text recognition, with --ocr" in refused("chunks", tmp_path / "scan.png")
    for name in ("scan.pdf", "scan.png"):
        assert main(["chunks", str(tmp_path / name), "--ocr", "--json"]) == 0
        assert [record["text"] for record in json.loads(capfd.readouterr()[0])] == [
            "The keeper opens the gate at noon."
        ]
        assert "page 1 of 1 is a picture, which was read by text recognition (OCR)" in caplog.text
        caplog.clear()
    file = docx.Document()
    file.sections[0].header.paragraphs[0].text = "Contract 12/2021"
    file.add_paragraph("The gate is open.")
    file.save(tmp_path / "a.docx")
    for options, texts in (
        ([], ["The gate is open."]),
        (["--page-headers"], ["Contract 12/2021", "The gate is open."]),
    ):
        assert main(["chunks", str(tmp_path / "a.docx"), "--json", *options]) == 0
        assert json.loads(capfd.readouterr()[0])[0]["text"].split("\n") == texts
    assert "--ocr is for documents, and those of --index are read already" in refused(
        "answer", "--index", tmp_path, "why?", "--ocr"
    )


@pytest.mark.parametrize("kind", ["device", "pipe", "folder"])
def test_abbreviations_in_what_may_never_end(
    kind: str, document: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    file = Path("/dev/null") if kind == "device" else tmp_path / kind
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    message = refused("chunks", document, "--abbreviations", file)
    assert message.startswith("error: --abbreviations")
    assert str(file) in message


@pytest.mark.parametrize("name", ["", " "])
def test_a_document_without_a_name(name: str, refused: Callable[..., str]) -> None:
    assert "names no file" in refused("summarize", name)
    assert "names no file" in refused("embed", name)
