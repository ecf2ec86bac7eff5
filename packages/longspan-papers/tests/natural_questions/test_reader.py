"""Models of questions: the words that they find, against sums over every pair; what is read, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForQuestionAnswering, BertConfig, BertForQuestionAnswering

import longspan
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForMaskedLM, LongspanForNaturalQuestions
from longspan.training.tokenizers import train_tokenizer
from longspan_documents.inference.answer import Answerer
from longspan_documents.inference.readers import LONGEST, WindowReader, load_reader, whole_words
from longspan_documents.questions.rows import QuestionRow, Span, plain_row
from longspan_documents.text.reading import document_of
from longspan_papers.natural_questions.answering import Answer
from longspan_papers.natural_questions.reader import ChunkReader, headed
from longspan_papers.natural_questions.task import NaturalQuestions

TEXT = (
    "Marmots live in the mountains.\nThey sleep in deep burrows — through the whole winter.\n\n"
    "Eagles are their main enemies.\n\n"
    "A whistle warns of danger: it can be heard\nover a kilometre — that is far."
)
QUESTION = "what are the main enemies of marmots?"
EAGLES = TEXT.index("Eagles")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer([TEXT], 300)


@pytest.fixture(scope="module")
def chunks(tokenizer: Any) -> LongspanForNaturalQuestions:
    torch.manual_seed(5)
    return LongspanForNaturalQuestions(small_config(len(tokenizer), **NaturalQuestions().model_fields())).eval()


def small_config(vocab_size: int, **options: Any) -> LongspanConfig:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return LongspanConfig(vocab_size=vocab_size, position_embedding="sinusoidal", init_std=0.3, **sizes, **options)


def bert(tokenizer: Any, positions: int = 256) -> BertForQuestionAnswering:
    torch.manual_seed(7)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = BertConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=positions,
        initializer_range=0.5,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        sep_token_id=tokenizer.sep_token_id,
        **sizes,
    )
    return BertForQuestionAnswering(config).eval()


def test_the_words_are_the_best_of_all_pairs(tokenizer: Any) -> None:
    """The sum over pairs is written out; the model is a real one."""
    model = bert(tokenizer)
    reader = WindowReader(model, tokenizer)
    encoded = tokenizer(QUESTION, TEXT, return_offsets_mapping=True, return_tensors="pt")
    spans = encoded.pop("offset_mapping")[0].tolist()
    with torch.inference_mode():
        output = model(**encoded)
    start, end = output.start_logits[0].double(), output.end_logits[0].double()
    inside = [i for i, of in enumerate(encoded.sequence_ids(0)) if of == 1 and spans[i][1] > spans[i][0]]
    pairs = {(i, j): float(start[i] + end[j]) for i in inside for j in inside if i <= j < i + LONGEST}
    (first, last), best = max(pairs.items(), key=lambda pair: pair[1])
    none = float(start[0] + end[0])
    found = reader.read(QUESTION, TEXT)
    total = torch.tensor([*pairs.values(), none], dtype=torch.float64).logsumexp(0)
    if none > best:
        assert found is None
    else:
        assert found is not None
        assert (found.start, found.end) == (spans[first][0], spans[last][1])
        assert found.probability == pytest.approx(float((best - total).exp()))


def test_no_answer_where_the_first_token_is_likelier(tokenizer: Any) -> None:
    length = len(tokenizer(QUESTION, TEXT)["input_ids"])
    sure = [9.0] + [0.0] * (length - 1)

    class Silent:
        config = SimpleNamespace(max_position_embeddings=500)
        device = torch.device("cpu")

        def __call__(self, **inputs: Any) -> Any:
            return SimpleNamespace(start_logits=torch.tensor([sure]), end_logits=torch.tensor([sure]))

    assert WindowReader(Silent(), tokenizer).read(QUESTION, TEXT) is None


def test_a_document_that_fits_is_read_whole_and_a_long_one_around_its_passages(tokenizer: Any) -> None:
    text = "\n\n".join(f"Letter {number} says that marmots number {number} whistle. " * 4 for number in range(40))
    document = document_of(text)
    found = Answerer([document]).answer("what does letter 31 say?")
    whole = WindowReader(bert(tokenizer, 10_000), tokenizer).stretches("letter 31", [document], found.passages)
    assert [(one.start, one.end) for one in whole] == [(0, len(text))]
    assert whole[0].weight == found.passages[0].probability
    small = WindowReader(bert(tokenizer, 200), tokenizer)
    parts = small.stretches("letter 31", [document], found.passages)
    assert len(parts) == len(found.passages)
    for part, passage in zip(parts, found.passages, strict=True):
        ids = tokenizer("letter 31", text[part.start : part.end])["input_ids"]
        assert len(ids) <= small.limit
        middle = (passage.quote.start + passage.quote.end) // 2
        assert part.start <= middle < part.end
    with pytest.raises(InputError, match="ask a shorter question"):
        small.stretches("why " * 300, [document], found.passages)


@pytest.mark.parametrize("lengthened", [False, True])
def test_a_checkpoint_of_transformers_reads(lengthened: bool, tokenizer: Any, tmp_path: Path) -> None:
    model: Any = bert(tokenizer)
    if lengthened:
        model = longspan.lengthen(model, max_tokens=512)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    found = longspan.answer(TEXT, QUESTION, tmp_path)
    assert found.passages
    if found.short is not None:
        assert found.short.quote.text == TEXT[found.short.quote.start : found.short.quote.end]
        assert 0 < found.short.probability <= 1
    if not lengthened:
        assert isinstance(AutoModelForQuestionAnswering.from_pretrained(tmp_path), BertForQuestionAnswering)


def saying(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Let every model for Natural Questions answer this, whatever it is asked."""

    def answer_row(model: Any, tokenizer: Any, row: QuestionRow, options: Any, batch_size: int = 1) -> Answer:
        return Answer(**{"candidate": 1, "probability": 0.9, "short_score": 2.0} | fields)

    monkeypatch.setattr("longspan_papers.natural_questions.answering.answer_row", answer_row)


def test_a_model_of_natural_questions_gives_whole_words(
    chunks: LongspanForNaturalQuestions, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = ChunkReader(chunks, tokenizer, NaturalQuestions(max_tokens=64, stride=16, markers=False))
    saying(monkeypatch, short=(Span(EAGLES + 1, EAGLES + 4),))
    found = longspan.answer(TEXT, QUESTION, reader)
    assert found.text == "Eagles"
    assert found.short is not None
    assert (found.short.quote.start, found.short.probability) == (EAGLES, 0.9)
    saying(monkeypatch, short=(Span(EAGLES, EAGLES + 6),), short_score=-0.1)
    assert longspan.answer(TEXT, QUESTION, reader).short is None
    saying(monkeypatch, short=(Span(EAGLES, EAGLES + 6),), probability=0.49)
    assert longspan.answer(TEXT, QUESTION, reader).short is None
    saying(monkeypatch, yes_no="yes")
    assert longspan.answer(TEXT, QUESTION, reader).text == "yes"


def test_passages_without_a_probability_are_read(
    chunks: LongspanForNaturalQuestions, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How sure an answer is was measured on English, so that passages of other languages have none."""
    reader = ChunkReader(chunks, tokenizer, NaturalQuestions(max_tokens=64, stride=16, markers=False))
    saying(monkeypatch, short=(Span(0, 5),))
    found = longspan.answer("Сурки спят зимой. Они живут в норах.", "Кто спит зимой?", reader)
    assert [passage.probability for passage in found.passages] == [None]
    assert found.text == "Сурки"


def test_a_real_model_of_natural_questions_reads(chunks: LongspanForNaturalQuestions, tokenizer: Any) -> None:
    reader = ChunkReader(chunks, tokenizer, NaturalQuestions(max_tokens=64, stride=16, markers=False))
    found = longspan.answer(TEXT, QUESTION, reader, threshold=0.0)
    if found.short is not None:
        assert found.short.quote.text in TEXT
    with pytest.raises(InputError, match="max_tokens=64"):
        longspan.answer(TEXT, "marmots? " * 40, reader)


def test_a_folder_is_loaded_with_the_task_of_its_recipe(
    chunks: LongspanForNaturalQuestions, tokenizer: Any, tmp_path: Path
) -> None:
    for name in ("bare", "run"):
        chunks.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    (tmp_path / "run" / "recipe.yaml").write_text(
        "name: r\ntask: {name: natural_questions, max_tokens: 64, stride: 16, markers: false, max_answer_tokens: 3}\n"
        "data: {train: [synthetic], validation: [synthetic]}\nmodel: {new: {}}\ntokenizer: {train: 300}\n"
        "optimisation: {steps: 1}\n"
    )
    loaded: Any = load_reader(tmp_path / "run")
    assert (loaded.task.max_tokens, loaded.task.max_answer_tokens, loaded.task.max_candidates) == (64, 3, None)
    bare: Any = load_reader(tmp_path / "bare")
    assert bare.task == NaturalQuestions(markers=False, max_candidates=None)


def test_markers_keep_the_limit_that_they_were_trained_with(
    chunks: LongspanForNaturalQuestions, tokenizer: Any
) -> None:
    task = NaturalQuestions(markers=True, max_candidates=20)
    assert ChunkReader(chunks, tokenizer, task).task.max_candidates == 20
    assert ChunkReader(chunks, tokenizer, replace(task, max_candidates=48)).task.max_candidates is None


def test_a_model_of_another_kind_is_named(tokenizer: Any, tmp_path: Path) -> None:
    LongspanForMaskedLM(small_config(len(tokenizer))).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="LongspanForMaskedLM, which cannot answer questions"):
        longspan.answer(TEXT, QUESTION, tmp_path)


@pytest.mark.parametrize(
    ("part", "whole"),
    [("agl", "Eagles"), ("Eagles", "Eagles"), ("s are th", "Eagles are their"), ("emies.", "enemies.")],
)
def test_a_short_answer_is_whole_words(part: str, whole: str) -> None:
    start = TEXT.index(part, EAGLES)
    first, last = whole_words(TEXT, start, start + len(part))
    assert TEXT[first:last] == whole


def test_scripts_without_spaces_keep_their_short_answers() -> None:
    assert whole_words("土拨鼠生活在山区。它们在洞穴里过冬。", 0, 3) == (0, 3)


def test_headings_belong_to_the_passage_below_them() -> None:
    text = "Title\n\nChapter One\n\nIt rained.\n\nIt stopped\nat noon\n\nThe end"
    row = headed(plain_row(text, "?"))
    assert [row.answer(one.span) for one in row.candidates] == [
        "Title\n\nChapter One\n\nIt rained.",
        "It stopped\nat noon",
        "The end",
    ]
    assert [one.span for one in headed(plain_row("a\n\nb", "?")).candidates] == [Span(0, 4)]
