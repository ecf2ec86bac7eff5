"""Rows to features to batches to summaries to scores, with hand-made rows, real rows and a tiny model."""

import logging
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from longspan.checkpoints.loading import check_tokenizer
from longspan.data.summaries.readers import read_rows
from longspan.data.summaries.rows import SummaryRow
from longspan.errors import InputError
from longspan.tasks import task_class
from longspan.tasks.summaries.summarization import Summarization, as_lines
from longspan.training.tokenizers import train_tokenizer

ROWS = [
    SummaryRow(id="a", pieces=("The cat sat on the mat.", "It slept."), references=("A cat sat.\nIt slept.",)),
    SummaryRow(id="b", pieces=("Dogs bark.",), references=("Dogs bark.", "They bark."), question="What do dogs do?"),
    SummaryRow(id="c", pieces=("",), references=("Nothing.",)),
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer([text for row in ROWS for text in (row.source, row.reference)], 300)


def test_the_task_is_known_by_name() -> None:
    assert task_class("summarization") is Summarization
    assert Summarization.generates


def test_features_of_a_plain_row(tokenizer: Any) -> None:
    features = Summarization().features(ROWS[0], tokenizer)
    assert features["input_ids"] == tokenizer("The cat sat on the mat. It slept.")["input_ids"]
    assert features["labels"] == tokenizer("A cat sat.\nIt slept.")["input_ids"]
    assert tokenizer.decode(features["labels"], skip_special_tokens=True) == "A cat sat.\nIt slept."
    assert features["global_tokens"] == 1


def test_question_and_prefix_come_first(tokenizer: Any) -> None:
    task = Summarization(prefix="sum: ", global_tokens="question")
    features = task.features(ROWS[1], tokenizer)
    assert features["input_ids"] == tokenizer("sum: What do dogs do?", "Dogs bark.")["input_ids"]
    assert features["global_tokens"] == len(tokenizer("sum: What do dogs do?")["input_ids"])
    assert task.features(ROWS[0], tokenizer)["global_tokens"] == 1
    assert Summarization(global_tokens="none").features(ROWS[0], tokenizer)["global_tokens"] == 0
    plain = Summarization(prefix="sum: ").features(ROWS[0], tokenizer)
    assert tokenizer.decode(plain["input_ids"], skip_special_tokens=True).startswith("sum: The cat")


def test_cut_sequences_stay_closed_and_are_told_of_once(tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    task = Summarization(max_source_tokens=9, max_target_tokens=4)
    with caplog.at_level(logging.WARNING):
        features = [task.features(row, tokenizer) for row in (ROWS[0], ROWS[0])]
    assert caplog.text.count("max_source_tokens=9 and are cut") == 1
    whole = tokenizer(ROWS[0].source)["input_ids"]
    assert features[0]["input_ids"] == [*whole[:8], tokenizer.eos_token_id]
    assert len(whole) > 9
    assert len(features[0]["labels"]) == 4
    assert features[0]["labels"][-1] == tokenizer.eos_token_id


def test_only_the_document_is_cut_never_the_question(tokenizer: Any) -> None:
    question = tokenizer("What do dogs do?")["input_ids"]
    features = Summarization(max_source_tokens=len(question) + 3).features(ROWS[1], tokenizer)
    assert features["input_ids"][: len(question)] == question
    assert len(features["input_ids"]) == len(question) + 3
    with pytest.raises(InputError, match=r"the question of row 'b' has .* max_source_tokens=6"):
        Summarization(max_source_tokens=6).features(ROWS[1], tokenizer)


def test_batch_has_bool_masks_and_ignored_padding(tokenizer: Any) -> None:
    task = Summarization(pad_to_multiple_of=8)
    features = [task.features(row, tokenizer) for row in ROWS]
    batch = task.collator(tokenizer)(features)
    assert batch["input_ids"].dtype == batch["labels"].dtype == torch.int64
    assert batch["attention_mask"].dtype == batch["global_attention_mask"].dtype == torch.bool
    assert batch["input_ids"].shape[1] % 8 == batch["labels"].shape[1] % 8 == 0
    for index, feature in enumerate(features):
        length, target = len(feature["input_ids"]), len(feature["labels"])
        assert batch["input_ids"][index, :length].tolist() == feature["input_ids"]
        assert (batch["input_ids"][index, length:] == tokenizer.pad_token_id).all()
        assert batch["attention_mask"][index].nonzero().flatten().tolist() == list(range(length))
        assert batch["global_attention_mask"][index].nonzero().flatten().tolist() == [0]
        assert batch["labels"][index, :target].tolist() == feature["labels"]
        assert (batch["labels"][index, target:] == -100).all()


def test_documents_without_summary_make_a_batch_without_labels(tokenizer: Any) -> None:
    task = Summarization()
    alone = task.features(SummaryRow(id="x", pieces=("One.",)), tokenizer)
    assert "labels" not in alone
    assert "labels" not in task.collator(tokenizer)([alone, alone])
    with pytest.raises(InputError, match="only 1 of 2 rows in a batch have a summary"):
        task.collator(tokenizer)([alone, task.features(ROWS[0], tokenizer)])


def test_predictions_become_texts_and_scores(tokenizer: Any) -> None:
    task = Summarization()
    ids = [tokenizer(text)["input_ids"] for text in ("A cat sat.\nIt slept.", "They bark. Dogs too.", "")]
    width = max(map(len, ids)) + 2
    predictions = np.array([[2, *row, *[-100] * (width - len(row))] for row in ids])
    texts = task.texts(predictions, ROWS, tokenizer)
    assert texts == ["A cat sat.\nIt slept.", "They bark.\nDogs too.", ""]
    scores = task.scores(texts, ROWS)
    # Rows: 100; the better reference "They bark." has P 2/4, R 2/2; the empty prediction 0.
    assert scores["rouge1"] == pytest.approx(100 * (1 + 2 / 3 + 0) / 3)
    assert list(scores) == ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    mean = Summarization(references="mean").scores(texts, ROWS)
    assert mean["rouge1"] == pytest.approx(100 * (1 + (2 / 3 + 2 / 3) / 2 + 0) / 3)
    assert "max over references" in task.rouge.flavour
    with pytest.raises(InputError, match="3 predictions for 2 rows"):
        task.texts(predictions, ROWS[:2], tokenizer)
    with pytest.raises(InputError, match="row 'x' has no reference"):
        task.scores(["a"], [SummaryRow(id="x", pieces=("One.",))])


def test_summaries_without_line_breaks_are_cut_into_sentences() -> None:
    assert as_lines(" One here. Two there. ") == "One here.\nTwo there."
    assert as_lines("One. And two.\n\n Three. ") == "One. And two.\nThree."
    assert as_lines("今天天气很好。我们去公园吧！") == "今天天气很好。\n我们去公园吧！"
    assert as_lines(" \n ") == ""


def test_tokenizer_without_needed_marks_is_refused(tokenizer: Any) -> None:
    for name, message in (("pad_token", "has no pad_token"), ("eos_token", "has no eos_token")):
        broken = train_tokenizer(["text"], 300)
        setattr(broken, name, None)
        task = Summarization()
        with pytest.raises(InputError, match=message):
            task.collator(broken)([task.features(ROWS[0], broken)])


def test_target_is_closed_even_if_the_tokenizer_does_not(tokenizer: Any) -> None:
    from tokenizers import processors

    bare = train_tokenizer(["text"], 300)
    bare.backend_tokenizer.post_processor = processors.ByteLevel()
    labels = Summarization(max_target_tokens=3).features(ROWS[0], bare)["labels"]
    assert len(labels) == 3
    assert labels[-1] == bare.eos_token_id
    assert bare.bos_token_id not in labels


def test_tokenizer_of_another_model_is_refused(tokenizer: Any) -> None:
    size = len(tokenizer)

    def config(**values: Any) -> SimpleNamespace:
        return SimpleNamespace(
            **({"vocab_size": size, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2} | values)
        )

    check_tokenizer(tokenizer, config())
    check_tokenizer(tokenizer, config(vocab_size=size + 64, bos_token_id=None))
    for values, message in (
        ({"vocab_size": size - 1}, f"has {size} entries but the model's vocabulary {size - 1}"),
        ({"vocab_size": 50265}, "the model's vocabulary 50265"),
        ({"pad_token_id": 0}, "pad_token_id is 1 but the model's is 0"),
    ):
        with pytest.raises(InputError, match=message):
            check_tokenizer(tokenizer, config(**values))


def test_tiny_model_learns_from_batches_and_generates_whatever_the_padding(tokenizer: Any) -> None:
    from longspan.models import LongspanConfig

    task = Summarization(max_target_tokens=12)
    torch.manual_seed(0)
    config = LongspanConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        decoder_layers=1,
        decoder_attention_heads=2,
        decoder_intermediate_size=32,
        max_position_embeddings=64,
        attention={"mechanism": "longformer", "left_tokens": 3, "right_tokens": 3},
    )
    model = task.model_class()(config).eval()
    features = [task.features(row, tokenizer) for row in ROWS]
    batch = task.collator(tokenizer)(features)
    padded = Summarization(pad_to_multiple_of=32).collator(tokenizer)(features)
    loss = model(**batch).loss
    loss.backward()
    assert torch.isfinite(loss)
    torch.testing.assert_close(model(**padded).loss, loss)
    inputs = [{name: value for name, value in each.items() if name != "labels"} for each in (batch, padded)]
    first, second = (model.generate(**each, max_new_tokens=6) for each in inputs)
    assert first.tolist() == second.tolist()
    assert len(task.texts(first.numpy(), ROWS, tokenizer)) == 3


@pytest.mark.skipif(not os.environ.get("LONGSPAN_DATA"), reason="LONGSPAN_DATA is not set")
def test_real_rows_of_every_kind(tokenizer: Any) -> None:
    task = Summarization(max_source_tokens=512, global_tokens="question")
    for name in ("pubmed", "squality-questions", "qmsum", "crd3"):
        rows = list(read_rows(name, "validation", limit=2))
        batch = task.collator(tokenizer)([task.features(row, tokenizer) for row in rows])
        assert batch["input_ids"].shape == (2, 512)
        assert batch["labels"].shape[1] <= 256
        perfect = task.scores([row.reference for row in rows], rows)
        assert all(value == pytest.approx(100) for value in perfect.values())
