"""`longspan answer`: documents and questions in; passages with their places, or one sentence for every mistake, out."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import longspan
from longspan.cli import main
from longspan_documents.inference.results import RankedPassage, ShortAnswer, quote_of
from longspan_documents.text.blocks import Document

TEXT = (
    "# Homes\n\nMarmots live in the mountains — high up.\n\n"
    "# Enemies\n\nEagles are their main enemies.\nYoung marmots hide from them.\n\n"
    "# Warnings\n\nA whistle warns of danger."
)
QUESTION = "which are the main enemies of marmots?"


class Eagles:
    """A reader that always finds the eagles."""

    def best(
        self, question: str, documents: Sequence[Document], passages: Sequence[RankedPassage]
    ) -> ShortAnswer | None:
        place = documents[0].text.index("Eagles")
        return ShortAnswer(document=0, quote=quote_of(documents[0], place, place + 6), probability=0.875)


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "marmots.md"
    path.write_text(TEXT, encoding="utf-8")
    return path


def run(*arguments: object) -> int:
    return main(["answer", *map(str, arguments)])


def test_prints_passages_best_first_with_place_section_and_mark(
    document: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("marmots.md", QUESTION) == 0
    captured = capsys.readouterr()
    start = TEXT.index("Eagles")
    first = captured.out.splitlines()[0]
    assert first.startswith(f"1. lines 7–8, characters {start}–{TEXT.index('them.') + 5} · Enemies · probability 0.")
    assert "   **Eagles are their main enemies.** Young marmots hide from them." in captured.out
    assert "\n2. " in captured.out
    assert "3 passages searched" in captured.err


def test_top_says_how_many(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("marmots.md", QUESTION, "--top", 1) == 0
    assert "2. " not in capsys.readouterr().out


def test_json_has_the_places(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("marmots.md", QUESTION, "--json") == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["question"] == QUESTION
    assert record["answered"] is True
    assert record["short"] is None
    best = record["passages"][0]
    start = TEXT.index("Eagles")
    assert (best["file"], best["heading"]) == ("marmots.md", "Enemies")
    assert (best["sentence"]["start"], best["sentence"]["start_byte"]) == (start, start + 2)
    assert best["text"][slice(*best["mark"])] == "Eagles are their main enemies."
    assert 0 < best["probability"] < 1


def test_no_answer_is_said(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("marmots.md", "who discovered penicillin?") == 0
    assert capsys.readouterr().out.startswith("Probably not there (probability of an answer: 0.")
    assert run("marmots.md", "who discovered penicillin?", "--threshold", 0) == 0
    assert capsys.readouterr().out.startswith("1. ")


def test_several_questions_of_several_files(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("snow.txt").write_text("Snow falls in winter.")
    assert run("marmots.md", "snow.txt", "-q", "when does snow fall?", "--question", QUESTION) == 0
    out = capsys.readouterr().out
    one, two = out.split(f"== {QUESTION} ==")
    assert one.startswith("== when does snow fall? ==")
    assert "1. snow.txt · line 1" in one
    assert "1. marmots.md · lines 7–8" in two


def test_a_folder_and_what_was_passed_over(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("sub").mkdir()
    Path("sub", "snow.txt").write_text("Snow falls in winter.")
    Path("sub", "broken.pdf").write_bytes(b"%PDF-1.4\n")
    Path("code.py").write_text("pass")
    assert run(".", "when does snow fall?") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("1. sub/snow.txt · line 1")
    assert "note: .: 1 file passed over (1 .py)" in captured.err
    assert "note: passed over: sub/broken.pdf" in captured.err


def test_a_model_marks_the_very_words(
    document: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("longspan_documents.inference.answer.load_reader", lambda source, *place: Eagles())
    assert run("marmots.md", QUESTION, "--model", "any") == 0
    out = capsys.readouterr().out
    start = TEXT.index("Eagles")
    assert out.startswith(f"Eagles\n[line 7, characters {start}–{start + 6}; probability 0.88]\n")
    assert "**Eagles** are their main enemies. Young marmots hide from them." in out


def test_a_terminal_shows_the_mark_in_colour(
    document: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert run("marmots.md", QUESTION) == 0
    out = capsys.readouterr().out
    assert "**" not in out
    assert "\x1b[" in out


def test_reads_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert run("-", QUESTION) == 0
    assert "Eagles" in capsys.readouterr().out


def test_the_page_of_a_pdf(make_pdf: Callable[..., bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "two.pdf"
    path.write_bytes(make_pdf("Snow falls in winter.", "Marmots sleep in deep burrows."))
    assert run(path, "where do marmots sleep?", "--json") == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["passages"][0]["sentence"]["page"] == 2


def test_draws_a_picture(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("marmots.md", QUESTION, "--picture", "strip.png") == 0
    assert Path("strip.png").stat().st_size > 5000


def test_a_picture_has_the_question_the_passages_and_their_probabilities() -> None:
    from longspan_documents.pictures.strips import draw_answer

    found = longspan.answer(TEXT, QUESTION)
    figure = draw_answer(found, "marmots.md")
    texts: list[Any] = [text.get_text() for text in figure.texts]
    best = found.passages[0]
    assert texts[0] == QUESTION
    assert texts[1] == str(best.sentence)
    assert texts[2].startswith("marmots.md · ")
    assert texts[3] == "1"
    assert f"probability {best.probability:.2f}" in texts[4]
    bars, strip = figure.axes
    assert [bar.get_height() for bar in bars.patches] == pytest.approx([one.probability for one in found.passages])
    assert len(strip.lines) == len(found.passages)
    found = longspan.answer(TEXT, QUESTION, Eagles())
    figure = draw_answer(found)
    assert figure.texts[1].get_text() == "Eagles"
    assert list(figure.axes[0].lines[0].get_xdata()) == [TEXT.index("Eagles") + 3]  # pyright: ignore[reportArgumentType]


def test_mistakes_are_one_sentence(document: Path, refused: Callable[..., str]) -> None:
    Path("empty").mkdir()
    sentences = {
        ("marmots.md",): "name a document and ask a question",
        ("missing.txt", QUESTION): "missing.txt does not exist",
        ("marmots.md", "missing.txt", "-q", QUESTION): "missing.txt does not exist",
        ("marmots.md", "why?", QUESTION): "ask several questions with -q",
        ("marmots.md", " "): "asks nothing",
        ("marmots.md", "-q", "when?", "-q", "?"): "asks nothing",
        ("empty", QUESTION): "holds no document",
        ("marmots.md", QUESTION, "--top", 0): "--top='0' must be at least 1",
        ("marmots.md", QUESTION, "--threshold", 2): "--threshold='2' must be at most 1",
        ("marmots.md", QUESTION, "--model", "./nowhere"): "nowhere",
        ("marmots.md", "-q", "a?", "-q", "b?", "--picture", "a.png"): "draws one answer",
        (".", QUESTION, "--picture", "a.png"): "draws one document",
    }
    for arguments, words in sentences.items():
        assert words in refused("answer", *arguments), arguments
