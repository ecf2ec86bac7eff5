"""`longspan answer`: files and questions in; answers with their places, or one sentence for every mistake, out."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from longspan.cli import main
from longspan.data.questions.rows import QuestionRow, Span
from longspan.models import LongspanConfig, LongspanForNaturalQuestions
from longspan.tasks.questions.answering import Answer
from longspan.training.tokenizers import train_tokenizer

TEXT = (
    "Marmots live in the mountains — high up.\n\nEagles are their main enemies.\nYoung marmots hide from them.\n\n"
    "A whistle warns of danger."
)
QUESTION = "which are the main enemies of marmots?"
SHORT = Span(TEXT.index("Eagles"), TEXT.index("Eagles") + 6)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random reader on disk, as `longspan train` leaves it."""
    torch.manual_seed(5)
    folder = tmp_path_factory.mktemp("reader")
    tokenizer = train_tokenizer([TEXT], 300)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = LongspanConfig(
        vocab_size=len(tokenizer), position_embedding="sinusoidal", global_tokens="question", init_std=0.3, **sizes
    )
    LongspanForNaturalQuestions(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "marmots.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def certain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model finds the eagles, and is sure."""
    said(monkeypatch, probability=0.875, short_score=3.0)


def said(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    def answer_row(model: Any, tokenizer: Any, row: QuestionRow, options: Any, batch_size: int = 1) -> Answer:
        return Answer(candidate=1, short=(SHORT,), candidate_probabilities=(0.0, 0.75, 0.125), **fields)

    monkeypatch.setattr("longspan.tasks.questions.answering.answer_row", answer_row)


def run(*arguments: object) -> int:
    return main(["answer", *map(str, arguments)])


@pytest.mark.usefixtures("certain")
def test_prints_the_answer_its_passage_and_its_place(
    document: Path, reader: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(document, QUESTION, "--model", reader) == 0
    captured = capsys.readouterr()
    # The dash takes three bytes: byte offsets behind it are two more than characters.
    assert captured.out == (
        "Eagles\n\n  Eagles are their main enemies.\n  Young marmots hide from them.\n\n"
        "[lines 3–4 of the text, characters 42–102, bytes 44–104; probability 0.88]\n"
    )
    assert "tokens read" in captured.err


def test_says_when_there_is_no_answer(
    document: Path, reader: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said(monkeypatch, probability=0.25, short_score=3.0)
    assert run(document, QUESTION, "--model", reader) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "no answer in this document"
    assert lines[-1].startswith("[the nearest passage: lines 3–4")
    assert run(document, QUESTION, "--model", reader, "--threshold", 0.25) == 0
    assert capsys.readouterr().out.startswith("Eagles\n")


def test_a_passage_without_a_short_answer(
    document: Path, reader: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said(monkeypatch, probability=0.75, short_score=-1.0)
    assert run(document, QUESTION, "--model", reader) == 0
    assert capsys.readouterr().out.startswith("This passage answers:\n\n  Eagles are")


@pytest.mark.usefixtures("certain")
def test_json_has_places_scores_and_times(document: Path, reader: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(document, QUESTION, "why?", "--model", reader, "--json") == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["question"] for record in records] == [QUESTION, "why?"]
    first = records[0]
    assert (first["file"], first["answered"], first["answer"]) == (str(document), True, "Eagles")
    for quote in (first["short"], first["passage"]):
        assert document.read_bytes()[quote["start_byte"] : quote["end_byte"]].decode() == quote["text"]
        assert TEXT[quote["start"] : quote["end"]] == quote["text"]
    assert [passage["probability"] for passage in first["passages"]] == [0.0, 0.75, 0.125]
    assert first["probability"] == 0.875
    assert first["tokens"] > 20
    assert first["seconds"] >= 0


@pytest.mark.usefixtures("certain")
def test_several_questions_get_headings(document: Path, reader: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(document, QUESTION, "why?", "--model", reader) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"== {QUESTION} ==\n")
    assert "\n== why? ==\n" in out


@pytest.mark.usefixtures("certain")
def test_a_terminal_shows_the_answer_in_colour(
    document: Path, reader: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for name, value in (("TERM", "xterm-256color"), ("COLUMNS", "100"), ("FORCE_COLOR", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert run(document, QUESTION, "--model", reader) == 0
    out = capsys.readouterr().out
    assert out.count("Eagles") == 2
    assert "\x1b[1;30;43mEagles\x1b[0m are their main enemies." in out


@pytest.mark.usefixtures("certain")
def test_writes_a_picture(document: Path, reader: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "strip.png"
    assert run(document, QUESTION, "--model", reader, "--picture", picture) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert run(document, QUESTION, "why?", "--model", reader, "--picture", picture) == 2
    assert "draws one answer, but 2 questions are asked" in capsys.readouterr().err


def test_the_picture_marks_the_passage_and_the_answer(reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from longspan.inference.answer import answer
    from longspan.pictures.answers import draw_answer

    said(monkeypatch, probability=0.75, short_score=3.0)
    figure = draw_answer(answer(TEXT, QUESTION, reader), "marmots.txt")
    texts = [text.get_text() for text in figure.texts]
    assert texts[:2] == [QUESTION, "Eagles"]
    assert "marmots.txt · lines 3–4 · probability 0.75 · 3 passages" in texts[2]
    scores, strip = figure.axes
    assert [bar.get_height() for bar in scores.patches] == [0.75]
    assert list(scores.lines[0].get_xdata()) == [SHORT.start + 3]  # pyright: ignore[reportArgumentType]
    assert len(strip.lines) == 1
    said(monkeypatch, probability=0.25, short_score=3.0)
    figure = draw_answer(answer(TEXT, QUESTION, reader))
    assert figure.texts[1].get_text() == "no answer in this document"
    assert not figure.axes[0].patches
    assert not figure.axes[1].lines


def test_reads_standard_input(
    reader: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert run("-", QUESTION, "--model", reader, "--threshold", 0) == 0
    captured = capsys.readouterr()
    assert "probability" in captured.out
    assert "[standard input: " in captured.err


def test_the_page_of_a_pdf(
    make_pdf: Callable[..., bytes], reader: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "three.pdf"
    lines = ["One page about snow", "A second page about marmots", "The last page"]
    path.write_bytes(make_pdf(*lines))
    assert run(path, QUESTION, "--model", reader, "--json", "--threshold", 0) == 0
    record = json.loads(capsys.readouterr().out)[0]
    text = "\n".join(lines)
    assert record["passage"]["text"] == text
    from longspan.data.questions.rows import plain_row
    from longspan.data.text.reading import read
    from longspan.inference.answer import quote_of

    document = read(path)
    assert document.text == text
    row = plain_row(document.text, QUESTION)
    starts = [text.index(line) for line in lines]
    assert [quote_of(row, Span(start, start + 3), document.pages).page for start in starts] == [1, 2, 3]


def test_pages_where_a_word_was_broken_between_them(make_pdf: Callable[..., bytes], tmp_path: Path) -> None:
    from longspan.data.text.reading import read

    path = tmp_path / "broken.pdf"
    path.write_bytes(make_pdf("an early bird in the moun-", "tains sings a beauti-", "ful song", "the end"))
    document = read(path)
    # A broken word stands whole on the page where it begins; lines and pages end where they did, a word later.
    text = document.text
    assert text == "an early bird in the mountains\nsings a beautiful\nsong\nthe end"
    assert list(document.pages) == [0, text.index("sings"), text.index("song"), text.index("the end")]
