"""The task of classification: labels of the training rows, a global first token by construction, scores and lines."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from longspan.data.labelled import LabelledRow, synthetic_labelled
from longspan.errors import InputError
from longspan.models import LongspanConfig
from longspan.tasks.classification.classification import Classification
from longspan.training.tokenizers import train_tokenizer

ROWS = synthetic_labelled(7, seed=0)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer((row.text for row in ROWS), 400)


def model_of(task: Classification, tokenizer, **changes):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    attention = {"mechanism": "longformer", "left_tokens": 2, "right_tokens": 2}
    fields = {**sizes, "attention": attention, **task.model_fields(), **changes}
    return task.model_class()(LongspanConfig(vocab_size=len(tokenizer), **fields)).eval()


def test_labels_come_from_the_training_rows() -> None:
    task = Classification().of_rows(ROWS)
    assert task.labels == ("bad", "good")
    assert Classification(labels=("good", "bad")).of_rows(ROWS).labels == ("good", "bad")
    config = LongspanConfig(vocab_size=9, hidden_size=8, num_attention_heads=1, **task.model_fields())
    assert (config.num_labels, config.id2label, config.label2id) == (2, {0: "bad", 1: "good"}, {"bad": 0, "good": 1})
    assert Classification().of_model(config) == task


def test_the_first_token_is_global_in_batches_and_in_the_model(tokenizer) -> None:
    task = Classification(max_tokens=23).of_rows(ROWS)
    data = task.dataset(ROWS, tokenizer, training=True, seed=1, folder=Path())
    batch = task.collator(tokenizer)([data[0], {**data[1], "input_ids": data[1]["input_ids"][:11]}])
    assert batch["input_ids"].shape == (2, 23)
    assert batch["labels"].tolist() == [1, 0]
    assert batch["global_attention_mask"].nonzero().tolist() == [[0, 0], [1, 0]]
    assert batch["attention_mask"].sum(1).tolist() == [23, 11]
    assert data[0]["input_ids"][-1] == tokenizer.eos_token_id  # cut before the token that ends it
    # Without the mask the model does the same.
    model = model_of(task, tokenizer)
    with torch.no_grad():
        without = model(batch["input_ids"], batch["attention_mask"]).logits
        torch.testing.assert_close(model(**batch).logits, without)
        # What stands at the end, far outside the window, changes the label.
        changed = batch["input_ids"].clone()
        changed[0, 20] += 1
        moved = model(changed, batch["attention_mask"]).logits
    assert not torch.equal(moved[0], without[0])
    assert torch.equal(moved[1], without[1])


def test_scores_do_not_depend_on_batches_and_lines_tell_all(tokenizer) -> None:
    task = Classification(max_tokens=40).of_rows(ROWS)
    model = model_of(task, tokenizer)
    one, several = (Classification(max_tokens=40).evaluate(model, tokenizer, ROWS, batch_size=size) for size in (1, 3))
    assert one.scores == pytest.approx(several.scores, abs=1e-4)
    assert set(one.scores) == {"accuracy", "macro_f1", "micro_f1", "f1_good", "f1_bad", "calibration_error", "brier"}
    right = [line["prediction"] == line["label"] for line in one.lines]
    assert one.scores["accuracy"] == pytest.approx(100 * sum(right) / len(right))
    assert all(sum(line["probabilities"].values()) == pytest.approx(1, abs=1e-5) for line in one.lines)


def test_cleaning_is_a_part_of_the_task(tokenizer) -> None:
    text = "soooo  good!!! https://a.b"
    assert Classification(clean=True).encode(text, tokenizer) == Classification().encode("so good!", tokenizer)


def test_what_cannot_be_learned_or_scored(tokenizer) -> None:
    with pytest.raises(InputError, match="the label is 'good' in all of 4 training rows"):
        Classification().of_rows(ROWS[::2])
    with pytest.raises(InputError, match=r"task\.labels is \['a'\]"):
        Classification(labels=("a",))
    with pytest.raises(InputError, match=r"task\.labels is \['a', 'a'\]"):
        Classification(labels=("a", "a"))
    other = [LabelledRow(id="new:3", text="words", label="ugly")]
    task = Classification(max_tokens=40).of_rows(ROWS)
    with pytest.raises(InputError, match=r"row 'new:3' has the label 'ugly', which was not seen in training"):
        task.dataset(other, tokenizer, training=False, seed=0, folder=Path())
    with pytest.raises(InputError, match="not seen in training"):
        task.evaluate(model_of(task, tokenizer), tokenizer, other, batch_size=1)
    with pytest.raises(InputError, match="positions for 16 tokens"):
        task.check_model(LongspanConfig(vocab_size=9, hidden_size=8, num_attention_heads=1, max_position_embeddings=16))
