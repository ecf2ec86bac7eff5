"""Sentence scoring: labels, features, batches, selection, and the same scores however a document is fed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan.data.summaries.rows import SummaryRow, synthetic_rows
from longspan.data.text.sentences import split_words
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForSentenceScoring
from longspan.models.heads import sentence_network
from longspan.tasks import task_class
from longspan.tasks.tokenizers import encode_sentences
from longspan.training.tokenizers import train_tokenizer
from longspan_documents.summaries.clues import is_whole
from longspan_documents.summaries.extraction import Extraction, salience, soft_labels, words_of
from longspan_documents.summaries.selection import choose, default_count, fill, ranking

SENTENCES = ("The cat sat on the mat.", "Dogs were barking all night long.", "It rained.", "A cat on a mat is happy.")
ROW = SummaryRow(id="a", pieces=SENTENCES, references=("The cat sat on the mat.", "A cat was sitting on mats."))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    rows = synthetic_rows(6, seed=0)
    return train_tokenizer([*SENTENCES, *(row.source for row in rows)], 400, simplify=True)


def tiny(vocab_size: int, **options: Any) -> LongspanForSentenceScoring:
    window = {"left_tokens": 3, "right_tokens": 3, "separate_global_projections": False}
    pooled = {
        "mechanism": "poolingformer",
        **window,
        "pooled_left_tokens": 11,
        "pooled_right_tokens": 11,
        "init": "normal",
    }
    fields: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "normalization": "pre",
        "position_embedding": "sinusoidal",
        "position_period": 40,
        "attention": pooled,
        "head": {"head": "sentence_scoring", "layers": 2, "attention": pooled},
        "init_std": 0.3,
    }
    return LongspanForSentenceScoring(LongspanConfig(**(fields | options))).eval()


def test_task_is_known_by_name() -> None:
    assert task_class("extraction") is Extraction


def test_salience_worked_by_hand() -> None:
    reference = ["a", "b", "c", "d"]
    sentences = [["a", "b", "x"], ["c", "y", "z", "w"], ["a", "b"], ["p", "q", "r"]]
    # (2/6 + 1/5), (1/7 + 0), too short, nothing shared
    assert salience(sentences, [reference]) == pytest.approx([2 / 6 + 1 / 5, 1 / 7, 0, 0])
    both = salience(sentences, [reference, ["q"]])
    assert both == pytest.approx([(2 / 6 + 1 / 5) / 2, 1 / 14, 0, (1 / 6) / 2])
    assert salience(sentences, []) == pytest.approx([0, 0, 0, 0])


def test_words_are_those_of_rouge() -> None:
    from rouge_score.tokenizers import DefaultTokenizer

    text = "Running dogs don't RUN: 12 studies (2003) showed caresses & ponies."
    assert words_of(text) == DefaultTokenizer(use_stemmer=True).tokenize(text)
    assert words_of("长文本 café") == ["长", "文", "本", "café"]


@given(st.lists(st.floats(0, 2), min_size=0, max_size=30))
def test_labels_keep_the_order_and_stay_between_0_and_1(values: list[float]) -> None:
    labels = soft_labels(np.array(values))
    assert ((labels >= 0) & (labels <= 1)).all()
    assert (np.diff(labels[np.argsort(values)]) >= 0).all()


def test_features_cover_every_sentence(tokenizer: Any) -> None:
    features = Extraction().features(ROW, tokenizer)
    assert sorted(set(features["sentence_ids"])) == [0, 1, 2, 3]
    assert len(features["input_ids"]) == len(features["sentence_ids"])
    assert np.argmax(features["labels"]) == 0
    assert "labels" not in Extraction().features(SummaryRow(id="b", pieces=SENTENCES), tokenizer)


def test_features_of_odd_documents(tokenizer: Any) -> None:
    assert Extraction().features(SummaryRow(id="e", pieces=(), references=("x",)), tokenizer)["input_ids"] == []
    assert encode_sentences([], tokenizer) == []
    # A sentence that the tokenizer leaves nothing of still has one token, hence a score.
    assert encode_sentences(["<cit>"], tokenizer)[0]


def test_token_limit_cuts_between_sentences(tokenizer: Any) -> None:
    whole = Extraction().features(ROW, tokenizer)
    first = whole["sentence_ids"].count(0)
    cut = Extraction(max_source_tokens=first + 1).features(ROW, tokenizer)
    assert set(cut["sentence_ids"]) == {0}
    assert cut["labels"] == whole["labels"][:1]
    assert Extraction(max_source_tokens=1).features(ROW, tokenizer)["sentence_ids"] == [0] * first


@pytest.mark.parametrize("option", ["max_source_tokens", "summary_words"])
def test_empty_limits_are_refused(option: str) -> None:
    with pytest.raises(InputError, match=f"{option} is 0"):
        Extraction(**{option: 0})


def test_padding_changes_no_score_and_no_loss(tokenizer: Any) -> None:
    task, model = Extraction(), tiny(len(tokenizer))
    rows = [ROW, *synthetic_rows(2, seed=1, sentences=7)]
    collate = task.collator(tokenizer)
    features = [task.features(row, tokenizer) for row in rows]
    with torch.inference_mode():
        together = model(**collate(features))
        alone = [model(**collate([feature])) for feature in features]
    counts = [len(row.sentences) for row in rows]
    for index, count in enumerate(counts):
        torch.testing.assert_close(together.scores[index, :count], alone[index].scores[0], atol=1e-5, rtol=1e-5)
        assert together.scores[index, count:].eq(float("-inf")).all()
    loss = sum(one.loss * count for one, count in zip(alone, counts, strict=True)) / sum(counts)
    torch.testing.assert_close(together.loss, loss, atol=1e-5, rtol=1e-5)


def test_texts_from_padded_predictions(tokenizer: Any) -> None:
    predictions = np.array([[0.1, 3.0, 2.0, -1.0, -100.0, float("-inf")]])
    text = Extraction(summary_words=7).texts(predictions, [ROW], tokenizer)
    assert text == ["Dogs were barking all night long.\nIt"]
    scores = Extraction().scores(["The cat sat on the mat."], [ROW])
    assert scores["rouge1"] == scores["rouge2"] == 100


@pytest.mark.parametrize("length", [1, 5, 16, 997])
def test_a_document_in_pieces_scores_as_in_one(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(97)
    ids = torch.randint(3, 97, (length,))
    sentence = torch.arange(length) // 7
    with torch.inference_mode():
        whole = model(ids[None], sentence_ids=sentence[None]).scores[0]
    assert length < 100 or whole.std() > 1e-3
    monkeypatch.setattr(sentence_network, "SEGMENT", 130)
    torch.testing.assert_close(model.score_document(ids, sentence), whole, atol=1e-5, rtol=1e-5)


def test_pieces_need_a_bounded_reach() -> None:
    assert sentence_network.reach_of(tiny(50).config) == (2 * (3 + 11), 4)
    assert sentence_network.reach_of(tiny(50, attention="full").config) is None
    assert sentence_network.reach_of(tiny(50, attention="longformer").config) == (2 * 256, 1)
    assert sentence_network.reach_of(tiny(50, position_embedding="learned").config) is None
    model = tiny(50, attention="full")
    ids, sentence = torch.randint(3, 50, (40,)), torch.arange(40) // 5
    with torch.inference_mode():
        whole = model(ids[None], sentence_ids=sentence[None]).scores[0]
    torch.testing.assert_close(model.score_document(ids, sentence), whole, atol=1e-5, rtol=1e-5)


def test_an_empty_document_has_no_scores() -> None:
    nothing = torch.zeros(0, dtype=torch.long)
    assert tiny(50).score_document(nothing, nothing).shape == (0,)


def test_choose_takes_the_best_in_order_without_repeats() -> None:
    sentences = [
        "One two three four five.",
        "Six seven eight nine ten.",
        "Well, one two three four six.",
        "A b c d e f.",
    ]
    assert choose(sentences, [3, 1, 2, 0], 2) == [0, 1]
    assert choose(sentences, [3, 1, 2, 0], 2, block_repeats=False) == [0, 2]
    assert choose(sentences, [3, 1, 2, 0], 9) == [0, 1, 2, 3]
    assert choose([], [], 3) == []


def test_choose_prefers_prose() -> None:
    pieces = [
        "1 Introduction to everything",
        "This sentence says what matters.",
        "x = f(y) + 12 * (z - 4) / 3.",
        "Yes.",
    ]
    assert choose(pieces, [9, 1, 8, 7], 1) == [1]
    assert choose(pieces, [9, 1, 8, 7], 2) == [0, 1]
    assert is_whole("长文档的摘要很有用。", split_words("长文档的摘要很有用。"))
    assert is_whole("“He said so (twice).”", ["he", "said", "so", "twice"])


def test_fill_gives_exactly_the_words_asked_for() -> None:
    sentences = ["One two three.", "***", "Four five six seven.", "Eight nine."]
    assert fill(sentences, [2, 1, 0, 3], 5) == ["One", "Four five six seven."]
    assert fill(sentences, [0, 1, 2, 3], 100) == ["One two three.", "Four five six seven.", "Eight nine."]
    assert fill(sentences, [0], 0) == []


def test_default_count_and_ranking() -> None:
    assert [default_count(number) for number in (0, 1, 2, 10, 100, 400, 10_000)] == [0, 1, 2, 3, 5, 10, 20]
    assert ranking([1.0, 5.0, 5.0, float("-inf")]) == [1, 2, 0, 3]


@pytest.mark.slow
def test_a_tiny_model_learns_what_is_notable(tokenizer: Any) -> None:
    task = Extraction()
    head = {"head": "sentence_scoring", "layers": 1}
    model = tiny(len(tokenizer), init_std=0.05, num_hidden_layers=1, head=head, dropout=0.0).train()
    rows = synthetic_rows(8, seed=0, sentences=16)
    batch = task.collator(tokenizer)([task.features(row, tokenizer) for row in rows])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(60):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.inference_mode():
        scores = model.eval()(**batch).scores.numpy()
    assert task.scores(task.texts(scores, rows, tokenizer), rows)["rouge1"] > 90
