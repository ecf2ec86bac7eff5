"""`longspan.answer`: what a model says becomes an answer with its place in the document."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import longspan
from longspan.data.questions.rows import QuestionRow, Span, plain_row
from longspan.errors import InputError
from longspan.inference.answer import BUNDLED, Reader, headed, load_reader, quote_of, whole_words
from longspan.models import LongspanConfig, LongspanForMaskedLM, LongspanForNaturalQuestions
from longspan.tasks.questions.answering import Answer
from longspan.tasks.questions.natural_questions import NaturalQuestions
from longspan.training.tokenizers import train_tokenizer

TEXT = (
    "Marmots live in the mountains.\nThey sleep in deep burrows — through the whole winter.\n\n"
    "Eagles are their main enemies.\n\n"
    "A whistle warns of danger: it can be heard\nover a kilometre — that is far."
)
QUESTION = "what are the main enemies of marmots?"
EAGLES = TEXT.index("Eagles")

needs_bundled = pytest.mark.skipif(not (BUNDLED / "model.safetensors").is_file(), reason="no bundled reader yet")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer([TEXT], 300)


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> LongspanForNaturalQuestions:
    torch.manual_seed(5)
    return LongspanForNaturalQuestions(small_config(len(tokenizer), **NaturalQuestions().model_fields())).eval()


@pytest.fixture(scope="module")
def reader(model: LongspanForNaturalQuestions, tokenizer: Any) -> Reader:
    return Reader(model, tokenizer, NaturalQuestions(max_tokens=64, stride=16, markers=False))


def small_config(vocab_size: int, **options: Any) -> LongspanConfig:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return LongspanConfig(vocab_size=vocab_size, position_embedding="sinusoidal", init_std=0.3, **sizes, **options)


def saying(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Let every model answer this, whatever it is asked."""

    def answer_row(model: Any, tokenizer: Any, row: QuestionRow, options: Any, batch_size: int = 1) -> Answer:
        return Answer(**{"candidate_probabilities": (0.125, 0.75, 0.0)} | fields)

    monkeypatch.setattr("longspan.tasks.questions.answering.answer_row", answer_row)


def test_the_answer_comes_with_its_passage_and_its_place(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    short = (Span(EAGLES, EAGLES + 6),)
    saying(monkeypatch, candidate=1, probability=0.9, short=short, short_score=2.0)
    found = longspan.answer(TEXT, f"  {QUESTION}\n", reader)
    assert found.answered
    assert found.question == QUESTION
    assert found.text == str(found) == str(found.short) == "Eagles"
    assert found.passage.text == "Eagles are their main enemies."
    assert (found.passage.first_line, found.passage.last_line) == (4, 4)
    assert found.short is not None
    assert (found.short.start, found.short.end) == (EAGLES, EAGLES + 6)
    # The dash before it is one character and three bytes.
    assert (found.short.start_byte, found.short.end_byte) == (EAGLES + 2, EAGLES + 8)
    assert found.passage.page is None
    assert [piece.score for piece in found.passages] == [0.125, 0.75, 0.0]
    assert [TEXT[piece.start : piece.end] for piece in found.passages] == [piece.text for piece in found.passages]


def test_a_passage_may_answer_without_a_short_answer(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    saying(monkeypatch, candidate=0, probability=0.9, short=(Span(0, 7),), short_score=-0.1)
    found = longspan.answer(TEXT, QUESTION, reader)
    assert found.answered
    assert found.short is None
    assert found.text == "Marmots live in the mountains. They sleep in deep burrows — through the whole winter."
    assert (found.passage.first_line, found.passage.last_line) == (1, 2)


@pytest.mark.parametrize(
    ("part", "whole"),
    [("agl", "Eagles"), ("Eagles", "Eagles"), ("s are th", "Eagles are their"), ("emies.", "enemies.")],
)
def test_a_short_answer_is_whole_words(part: str, whole: str) -> None:
    row = plain_row(TEXT, QUESTION)
    start = TEXT.index(part, EAGLES)
    found = whole_words(row, Span(start, start + len(part)), 1)
    assert row.answer(found) == whole


def test_the_bundled_reader_gives_sentences(
    model: LongspanForNaturalQuestions, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(model, tokenizer, NaturalQuestions(max_tokens=64, stride=16, markers=False), bundled=True)
    place = TEXT.index("deep")
    saying(monkeypatch, candidate=0, probability=0.9, short=(Span(place, place + 2),), short_score=2.0)
    assert longspan.answer(TEXT, QUESTION, reader).text == "They sleep in deep burrows — through the whole winter."
    # A passage of one sentence is shown as what it is.
    saying(monkeypatch, candidate=1, probability=0.9, short=(Span(EAGLES, EAGLES + 6),), short_score=2.0)
    assert longspan.answer(TEXT, QUESTION, reader).short is None


def test_scripts_without_spaces_keep_their_short_answers() -> None:
    row = plain_row("土拨鼠生活在山区。它们在洞穴里过冬。", "?")
    assert whole_words(row, Span(0, 3), 0) == Span(0, 3)


def test_no_answer_shows_the_nearest_passage(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    saying(monkeypatch, candidate=2, probability=0.49, short=(Span(EAGLES, EAGLES + 6),), short_score=2.0, yes_no="no")
    found = longspan.answer(TEXT, QUESTION, reader)
    assert not found.answered
    assert found.text == "no answer in this document"
    assert found.short is None
    assert found.yes_no == "none"
    assert found.passage.text.startswith("A whistle")
    # From the threshold on it is one.
    assert longspan.answer(TEXT, QUESTION, reader, threshold=0.49).text == "no"


def test_yes_and_no(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    saying(monkeypatch, candidate=1, probability=0.9, yes_no="yes", short_score=1.0)
    assert longspan.answer(TEXT, QUESTION, reader).text == "yes"


def test_headings_belong_to_the_passage_below_them() -> None:
    text = "Title\n\nChapter One\n\nIt rained.\n\nIt stopped\nat noon\n\nThe end"
    row = headed(plain_row(text, "?"))
    assert [row.answer(one.span) for one in row.candidates] == [
        "Title\n\nChapter One\n\nIt rained.",
        "It stopped\nat noon",
        "The end",
    ]
    assert [one.span for one in headed(plain_row("a\n\nb", "?")).candidates] == [Span(0, 4)]


def test_lines_and_bytes_agree_with_the_file() -> None:
    row = plain_row(TEXT, QUESTION)
    data = TEXT.encode()
    for start in range(len(TEXT)):
        for end in range(start + 1, len(TEXT) + 1, 7):
            quote = quote_of(row, Span(start, end))
            assert data[quote.start_byte : quote.end_byte].decode() == quote.text == TEXT[start:end]
            assert quote.first_line == TEXT[:start].count("\n") + 1
            assert quote.last_line == TEXT[: end - 1].count("\n") + 1


def test_pages_begin_where_they_are_said_to() -> None:
    row = plain_row(TEXT, QUESTION)
    starts = (0, EAGLES - 1, EAGLES, len(TEXT) - 1)
    pages = [quote_of(row, Span(start, start + 1), [0, EAGLES]).page for start in starts]
    assert pages == [1, 1, 2, 2]


def test_a_real_model_answers_from_the_document(reader: Reader) -> None:
    found = longspan.answer(TEXT, QUESTION, reader, threshold=0.0)
    assert found.answered
    assert found.passage.text in TEXT
    assert 0 <= found.probability <= 1
    assert len(found.passages) == 3
    assert found.tokens > 30
    assert found.seconds > 0
    if found.short is not None:
        assert found.passage.start <= found.short.start < found.short.end <= found.passage.end


def test_a_document_of_one_token(reader: Reader) -> None:
    found = longspan.answer("x", QUESTION, reader, threshold=0.0)
    assert (found.passage.text, found.passage.start, found.passage.end, found.tokens) == ("x", 0, 1, 1)


def test_an_empty_document_is_refused(reader: Reader) -> None:
    with pytest.raises(InputError, match="the document is empty"):
        longspan.answer(" \n ", QUESTION, reader)


def test_every_passage_of_a_long_document_competes(model: LongspanForNaturalQuestions, tokenizer: Any) -> None:
    text = "\n\n".join(f"{number} marmots live here." for number in range(70))
    found = Reader(model, tokenizer, NaturalQuestions(max_tokens=64, stride=32, markers=False)).answer(text, QUESTION)
    assert len(found.passages) == 70
    assert all(piece.score is not None and piece.score > 0 for piece in found.passages)


def test_a_path_is_a_file_and_a_text_is_a_text(reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "marmots.md"
    path.write_text("# **Marmots**\n\n" + TEXT, encoding="utf-8")
    found = longspan.answer(path, QUESTION, reader)
    assert found.passages[0].text.split() == ["#", "**Marmots**", *TEXT[: TEXT.index("\n\n")].split()]
    assert longspan.answer(str(path), QUESTION, reader).passage.text == str(path)


def test_a_folder_is_loaded_with_the_task_of_its_recipe(
    model: LongspanForNaturalQuestions, tokenizer: Any, tmp_path: Path
) -> None:
    for name in ("bare", "run"):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    (tmp_path / "run" / "recipe.yaml").write_text(
        "name: r\ntask: {name: natural_questions, max_tokens: 64, stride: 16, markers: false, max_answer_tokens: 3}\n"
        "data: {train: [synthetic], validation: [synthetic]}\nmodel: {new: {}}\ntokenizer: {train: 300}\n"
        "optimisation: {steps: 1}\n"
    )
    loaded = load_reader(tmp_path / "run")
    assert (loaded.task.max_tokens, loaded.task.max_answer_tokens, loaded.task.max_candidates) == (64, 3, None)
    assert longspan.answer(TEXT, QUESTION, tmp_path / "run").passage.text in TEXT
    assert load_reader(tmp_path / "bare").task == NaturalQuestions(markers=False, max_candidates=None)


def test_no_question_is_cut(model: LongspanForNaturalQuestions, tokenizer: Any) -> None:
    task = NaturalQuestions(max_tokens=64, stride=16, markers=False, max_question_tokens=3)
    reader = Reader(model, tokenizer, task)
    short, long = (reader.answer(TEXT, question).probability for question in ("marmots", "marmots and eagles and snow"))
    assert short != long
    with pytest.raises(InputError, match="max_tokens=64"):
        reader.answer(TEXT, "marmots? " * 40)


def test_a_model_of_another_kind_is_named(tokenizer: Any, tmp_path: Path) -> None:
    LongspanForMaskedLM(small_config(len(tokenizer))).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="LongspanForMaskedLM, which cannot answer questions"):
        longspan.answer(TEXT, QUESTION, tmp_path)


def test_markers_keep_the_limit_that_they_were_trained_with(model: LongspanForNaturalQuestions, tokenizer: Any) -> None:
    task = NaturalQuestions(markers=True, max_candidates=20)
    assert Reader(model, tokenizer, task).task.max_candidates == 20
    assert Reader(model, tokenizer, replace(task, max_candidates=48)).task.max_candidates is None


@needs_bundled
def test_the_bundled_reader_is_small_and_complete() -> None:
    names = {"README.md", "config.json", "model.safetensors", "recipe.yaml", "tokenizer.json"}
    assert {file.name for file in BUNDLED.iterdir()} >= names
    assert sum(file.stat().st_size for file in BUNDLED.iterdir()) <= 8 * 2**20


@needs_bundled
def test_the_bundled_reader_answers_and_knows_when_it_cannot() -> None:
    from pydoc_data.topics import topics

    found = longspan.answer(topics["with"], "which method is invoked on the context manager?")
    assert found.answered
    assert "method is invoked" in found.passage.text
    assert not longspan.answer(topics["with"], "who discovered penicillin?").answered
    assert longspan.answer("土拨鼠生活在山区。", "土拨鼠生活在哪里？").note is not None
