"""`longspan summarize` and `longspan.summarize`: files in, summaries out, one sentence for every mistake."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import docx
import pytest
import torch

import longspan
from counted import Work, exponent, lines_run
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForMaskedLM, LongspanForSentenceScoring
from longspan.training.tokenizers import train_tokenizer
from longspan_documents.inference.results import reads_english
from longspan_documents.inference.summarize import WEIGHTS, load_summarizer
from marmots import TEXT, run, write

CHINESE = (
    "土拨鼠生活在山区。它们在深深的洞穴里过冬。一声哨响会警告其他同伴有危险。老鹰是它们的主要敌人。幼鼠七月离开洞穴。"
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer([TEXT, CHINESE], 330, simplify=True)


def small_config(vocab_size: int, **options: Any) -> LongspanConfig:
    return LongspanConfig(
        vocab_size=vocab_size,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        init_std=0.3,
        **options,
    )


@pytest.fixture(scope="module")
def scorer(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    head = {"head": "sentence_scoring", "layers": 1}
    config = small_config(len(tokenizer), position_embedding="sinusoidal", attention="poolingformer", head=head)
    return write(tmp_path_factory.mktemp("scorer"), LongspanForSentenceScoring(config), tokenizer)


def test_prints_sentences_of_the_document_in_order(
    document: Path, scorer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(document, "--sentences", 3, "--model", scorer) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert len(lines) == 3
    places = [TEXT.index(line) for line in lines]
    assert places == sorted(places)
    assert "3 of 8 sentences" in captured.err


def test_json_gives_places_scores_and_times(document: Path, scorer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = document.with_name("copy.md")
    other.write_text(TEXT, encoding="utf-8")
    assert run(document, other, "--json", "--model", scorer, "-n", 2) == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["file"] for record in records] == [str(document), str(other)]
    for sentence in records[0]["sentences"]:
        assert TEXT[sentence["start"] : sentence["end"]] == sentence["text"]
        assert 0 <= sentence["score"] <= 1
    assert records[0]["tokens"] > 50
    assert records[0]["seconds"] >= 0


def test_several_files_get_headings(document: Path, scorer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(document, document, "--model", scorer, "-n", 1) == 0
    assert capsys.readouterr().out.count(f"== {document} ==") == 2


def test_reads_standard_input(
    scorer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert run("-", "--model", scorer, "-n", 1) == 0
    assert capsys.readouterr().out.strip() in TEXT


def as_word(text: str) -> bytes:
    data, file = io.BytesIO(), docx.Document()
    for paragraph in text.split("\n\n"):
        file.add_paragraph(paragraph)
    file.save(data)
    return data.getvalue()


def as_book(text: str) -> bytes:
    data = io.BytesIO()
    paragraphs = "".join(f"<p>{paragraph}</p>" for paragraph in text.split("\n\n"))
    with zipfile.ZipFile(data, "w") as book:
        book.writestr("META-INF/container.xml", "<a><rootfile full-path='a.opf'/></a>")
        item = "<item id='a' href='a.xhtml' media-type='application/xhtml+xml'/>"
        book.writestr("a.opf", f"<package>{item}<itemref idref='a'/></package>")
        book.writestr("a.xhtml", f"<html><body>{paragraphs}</body></html>")
    return data.getvalue()


@pytest.mark.parametrize("made", [as_word, as_book])
def test_word_files_and_books_by_name_and_through_a_pipe(
    made: Callable[[str], bytes],
    scorer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / {"as_word": "a.docx", "as_book": "a.epub"}[made.__name__]
    path.write_bytes(made(TEXT))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert run(path, "-", "--model", scorer, "-n", 9, "--json") == 0
    for record in json.loads(capsys.readouterr().out):
        assert [sentence["text"] for sentence in record["sentences"]] == split(TEXT)


def split(text: str) -> list[str]:
    return [f"{sentence}." for sentence in re.split(r"\.\s*", text) if sentence]


def test_writes_a_picture(document: Path, scorer: Path, tmp_path: Path) -> None:
    picture = tmp_path / "strip.png"
    assert run(document, "--model", scorer, "--picture", picture) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_characters_without_a_font(
    scorer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longspan_documents.pictures.strips.FONTS", ("DejaVu Sans",))
    path = tmp_path / "chinese.txt"
    path.write_text(CHINESE, encoding="utf-8")
    assert run(path, "--model", scorer, "--picture", tmp_path / "strip.png", "-n", 1) == 0
    assert capsys.readouterr().err.count("no installed font") == 1


def test_models_that_cannot_summarise(tmp_path: Path, scorer: Path, tokenizer: Any) -> None:
    masked = write(tmp_path / "masked", LongspanForMaskedLM(small_config(len(tokenizer))), tokenizer)
    with pytest.raises(InputError, match="LongspanForMaskedLM, which cannot summarise"):
        longspan.summarize(TEXT, model=masked)
    larger = train_tokenizer([TEXT, CHINESE, "zyxw vuts rqpo nmlk " * 9], 400)
    write(tmp_path / "other", LongspanForSentenceScoring.from_pretrained(scorer), larger)
    with pytest.raises(InputError, match="tokenizer"):
        longspan.summarize(TEXT, model=tmp_path / "other")


def test_nothing_to_summarise() -> None:
    with pytest.raises(InputError, match="text holds nothing"):
        longspan.summarize("  \n ")


PAPER = (
    "The Slow Snail\n\nAbstract\n\n"
    "We measure how slowly the garden snails move. On three data sets the error is halved.\n\n"
    + "1 Introduction\n\n"
    + "".join(
        f"Snail number {number} lives below the old wall. It moved for {number} hours.\n\n" for number in range(30)
    )
    + "References\n\n[1] A. Smith. Snails at night. Journal of Snails, 2010.\n"
)
OWN = ["We measure how slowly the garden snails move.", "On three data sets the error is halved."]


def test_a_summary_starts_from_the_documents_own_abstract(scorer: Path) -> None:
    summary = longspan.summarize(PAPER, 4, scorer)
    assert [sentence.text for sentence in summary.sentences[:2]] == OWN
    assert len(summary.sentences) == 4
    assert summary.abstract
    assert summary.note == "starts from the document's own abstract"
    assert longspan.summarize(PAPER, 1, scorer).text in OWN
    assert not any("Smith" in sentence.text for sentence in summary.document)
    assert not longspan.summarize(TEXT, 2, scorer).abstract


def test_raw_knows_no_abstract_and_leaves_nothing_out(
    scorer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "paper.txt").write_text(PAPER)
    assert run(tmp_path / "paper.txt", "--raw", "--model", scorer, "-n", 99, "--json") == 0
    captured = capsys.readouterr()
    assert "own abstract" not in captured.err
    texts = [sentence["text"] for sentence in json.loads(captured.out)[0]["sentences"]]
    assert {"Abstract", "1 Introduction", "References"} <= set(texts)


def test_a_quoted_turn_keeps_its_speaker(scorer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "talk.txt"
    path.write_text(
        "Ann: The snail is slow.\nBob: The wall is high.\nAnn: It rests at noon.\nBob: It sleeps at night.\n"
    )
    assert run(path, "--model", scorer, "-n", 4) == 0
    lines = ["Ann: The snail is slow.", "Bob: The wall is high.", "Ann: It rests at noon.", "Bob: It sleeps at night."]
    assert capsys.readouterr().out.splitlines() == lines
    assert run(path, "--model", scorer, "-n", 4, "--json") == 0
    sentences = json.loads(capsys.readouterr().out)[0]["sentences"]
    assert [sentence["speaker"] for sentence in sentences] == ["Ann", "Bob", "Ann", "Bob"]
    assert sentences[0]["text"] == "The snail is slow."


def test_a_path_is_a_file(scorer: Path, document: Path) -> None:
    assert longspan.summarize(document, 2, scorer).sentences == longspan.summarize(TEXT, 2, scorer).sentences


@pytest.mark.slow
def test_a_short_file_is_read_without_pytorch(tmp_path: Path) -> None:
    """Importing it takes longer than everything else. The sentences and scores are those of `longspan.summarize`."""
    file = tmp_path / "topics.txt"
    file.write_text("\n\n".join(topics[name] for name in ("with", "try", "class")), encoding="utf-8")
    code = (
        "import sys; from longspan.cli import main; main(['summarize', sys.argv[1], '--json']); "
        "assert not {'torch', 'transformers', 'langdetect'}.intersection(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    (found,) = json.loads(result.stdout)
    expected = longspan.summarize(file)
    assert [sentence["text"] for sentence in found["sentences"]] == [sentence.text for sentence in expected.sentences]
    assert [sentence["score"] for sentence in found["sentences"]] == pytest.approx(
        [sentence.score for sentence in expected.sentences], abs=2e-4
    )
    assert found["tokens"] == expected.tokens


def test_one_model_for_many_texts(scorer: Path) -> None:
    loaded = load_summarizer(scorer)
    summary = longspan.summarize(TEXT, 2, loaded)
    assert len(summary.sentences) == 2
    assert len(summary.document) == 8
    assert str(summary) == summary.text
    assert longspan.summarize(CHINESE, 2, loaded).text.endswith("。")
    assert longspan.summarize("One word", model=loaded).text == "One word"


def test_english_is_told_from_other_latin_scripts() -> None:
    assert reads_english(TEXT * 3)
    assert not reads_english("Les marmottes vivent dans les montagnes et dorment tout l'hiver. " * 6)
    assert reads_english("Hola")


def test_bundled_model_notes_other_languages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "chinese.txt"
    path.write_text(CHINESE, encoding="utf-8")
    assert run(path, "-n", 2) == 0
    captured = capsys.readouterr()
    assert captured.out.count("。") == 2
    assert captured.err.count("does not know most words of this text") == 1


def test_bundled_model_finds_the_sentence_about_the_document() -> None:
    filler = "In {0} we changed the colour of door {0} and closed it again. "
    key = "In this paper we propose a new method for summarizing long documents, and results show that it works. "
    text = (
        "".join(filler.format(number) for number in range(40))
        + key
        + "".join(filler.format(number) for number in range(40, 80))
    )
    assert key.strip() in longspan.summarize(text, 3).text


@pytest.mark.slow
def test_the_work_of_a_summary_grows_with_the_document() -> None:
    """The network's, and that of the lines of Python around it; up to fifty thousand tokens."""
    from longspan_documents.cli.demo import python_reference

    text = python_reference()[:260_000]
    longspan.summarize(text[:10_000], 5)  # imports
    lines = [lines_run(longspan.summarize, text[:size], 5) for size in (30_000, 120_000)]
    assert exponent(*lines, times=4) <= 1.1
    short, long = Work(), Work()
    with short:
        longspan.summarize(text[:65_000], 5)
    with long:
        summary = longspan.summarize(text, 5)
    for kind in ("operations", "flops", "bytes"):
        assert exponent(getattr(short, kind), getattr(long, kind), times=4) <= 1.1, kind
    assert summary.tokens > 50_000
    assert all(text[one.start : one.end].split() == one.text.split() for one in summary.sentences)


def test_html_writes_one_page(document: Path, scorer: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run(document, "--model", scorer, "-n", 2, "--html", page) == 0
    assert run(document, "--model", scorer, "-n", 2, "--html", page) == 0  # replaced, as a picture is
    assert page.read_text(encoding="utf-8").count('<li id="pick-') == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["marmots.txt", "page.html"]


def test_html_shows_one_document_and_needs_a_name(document: Path, refused: Callable[..., str]) -> None:
    assert "shows one document, but 2 are given" in refused("summarize", document, document, "--html", "a.html")
    assert "let it end with .html" in refused("summarize", document, "--html", "a.txt")
    assert "is no folder" in refused("summarize", document, "--html", "missing/a.html")


def test_an_outline_goes_section_by_section(tmp_path: Path, scorer: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first, second, third = TEXT.split("\n\n")
    file, page = tmp_path / "a.md", tmp_path / "a.html"
    file.write_text(f"# Marmots\n\n{first}\n\n## Enemies\n\n{second}\n\n## Today\n\n{third}\n", encoding="utf-8")
    assert run(file, "--outline", "--model", scorer, "--html", page) == 0
    sections = capfd.readouterr().out.strip().split("\n\n")
    assert [section.splitlines()[0] for section in sections] == ["# Marmots", "## Enemies", "## Today"]
    for section, text in zip(sections, (first, second, third), strict=True):
        assert section.splitlines()[1] in text
    markup = page.read_text(encoding="utf-8")
    places = re.findall(r'href="#(at-\d+)"', markup)
    assert len(places) >= 6
    assert all(markup.count(f'id="{place}"') == 1 for place in places)
    assert run(file, "--outline", "--json", "--model", scorer) == 0
    record = json.loads(capfd.readouterr().out)[0]
    assert [(section["heading"], section["level"]) for section in record["outline"]] == [
        ("Marmots", 1),
        ("Enemies", 2),
        ("Today", 2),
    ]


MEETING = (
    "Chair: Good morning to all of you. Let us begin with the reports of the week. Ann has the weather.\n"
    "Ann: The spring was dry and the summer will be hot. Farmers expect a poor harvest of wheat.\n"
    "Chair: Thank you very much for this. Next on the list is the bridge over the river.\n"
    "Bob: The budget for the bridge was cut by half. The council decided to spend the rest on the school.\n"
    "Chair: We should hear the engineers on that. The weather report will be sent to all members.\n"
)


def test_a_query_says_what_the_summary_is_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "meeting.txt"
    path.write_text(MEETING, encoding="utf-8")
    for query, words in (("What became of the budget for the bridge?", "budget"), ("How was the spring?", "spring")):
        assert run(path, "-n", 1, "--query", query) == 0
        assert words in capsys.readouterr().out


def test_a_query_needs_words_and_the_bundled_model(
    document: Path, scorer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(document, "--query", "  ") == 2
    assert "query is blank" in capsys.readouterr().err
    assert run(document, "--model", scorer, "--query", "Why?", "--html", tmp_path / "page.html") == 2
    said = capsys.readouterr().err
    assert "reads no query" in said
    assert "'Why?'" in said
    assert not (tmp_path / "page.html").exists()


def test_the_weights_come_with_the_package() -> None:
    assert WEIGHTS.is_file()
