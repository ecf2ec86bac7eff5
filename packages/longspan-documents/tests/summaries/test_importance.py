"""Importance: which words a summary names, a tagger that learns it, and what a summariser is shown of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import longspan
from longspan.data.summaries.rows import SummaryRow
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForConditionalGeneration
from longspan.tasks.summaries.importance import (
    UPPER_BOUND,
    Importance,
    Tagger,
    important_words,
    labels_of,
    load_tagger,
    tag_scores,
)
from longspan.tasks.summaries.summarization import Summarization
from longspan.tasks.tokenizers import encode, encode_placed
from longspan.training.tokenizers import train_tokenizer

TEXT = "Two studies of THE mice: each mouse was studied twice."
REFERENCE = "We study the mice. It is good that they were."
ROW = SummaryRow(id="mice", pieces=(TEXT,), references=(REFERENCE,))
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SIZES |= {"max_position_embeddings": 128, "attention": "full"}
STACK = {"stack": "top_down", "kernel": 5, "stride": 3, "pooling": "importance"}


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([TEXT, REFERENCE], 280)


def trained(folder: Path, tokenizer) -> str:
    """A tagger in a folder, as `longspan train` leaves one."""
    torch.manual_seed(5)
    fields = SIZES | Importance().model_fields() | {"vocab_size": len(tokenizer), "init_std": 0.5}
    Importance().model_class()(LongspanConfig(**fields)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_words_are_compared_by_their_lemmas_and_function_words_left_out():
    """The lemmas of "studies" and "studied" are "study", that of "mice" is "mouse"; "was" is "be", as "were" and "is"
    are, and a function word."""
    found = [TEXT[start:end] for start, end in important_words(TEXT, REFERENCE)]
    assert found == ["studies", "mice", "mouse", "studied"]
    assert important_words("", REFERENCE) == important_words(TEXT, "") == []
    assert important_words("xyz", "xyz", "tlh") == [(0, 3)]  # a language without a dictionary


def test_the_label_goes_to_all_sub_words_and_to_no_special_token(tokenizer):
    ids, places = encode_placed(tokenizer, TEXT, max_tokens=1000)
    assert (ids, len(ids)) == encode(tokenizer, TEXT, max_tokens=1000)
    labels = labels_of(places, TEXT, REFERENCE)
    inside = {at for start, end in important_words(TEXT, REFERENCE) for at in range(start, end)}
    for (start, end), label in zip(places, labels, strict=True):
        assert label == (-100 if start == end else int(bool(inside & set(range(start, end)))))
    assert labels[0] == labels[-1] == -100
    assert sum(label == 1 for label in labels) > 4
    cut, where = encode_placed(tokenizer, TEXT, max_tokens=9)
    assert cut == encode(tokenizer, TEXT, max_tokens=9)[0]
    assert where == [*places[:8], places[-1]]


def test_scores_worked_by_hand():
    gold, chances = np.array([True, False, True, False]), np.array([0.9, 0.8, 0.6, 0.1])
    found = tag_scores(gold, chances)
    assert found["average_precision"] == pytest.approx(100 * (1 + 2 / 3) / 2)
    assert (found["precision"], found["recall"], found["important"]) == pytest.approx((200 / 3, 100, 50))
    assert found["f1"] == pytest.approx(80)
    ties = tag_scores(gold, np.full(4, 0.3))
    assert (ties["average_precision"], ties["f1"]) == pytest.approx((50, 0))


def test_the_loss_is_binary_cross_entropy_over_real_tokens(tokenizer):
    task = Importance(max_tokens=64)
    batch = task.collator(tokenizer)(
        [task.features(ROW, tokenizer), task.features(replace(ROW, pieces=("Mice.",)), tokenizer)]
    )
    model = task.model_class()(LongspanConfig(vocab_size=len(tokenizer), **SIZES | task.model_fields())).eval()
    output = model(**batch)
    counted = batch["labels"] != -100
    chances = output.logits[..., 0].sigmoid()[counted]
    right = torch.where(batch["labels"][counted] == 1, chances, 1 - chances)
    torch.testing.assert_close(output.loss, -right.log().mean())
    outcome = task.evaluate(model, tokenizer, [ROW], batch_size=1)
    assert set(outcome.scores) == set(task.metrics.names)
    assert len(outcome.lines[0]["probabilities"]) == int(counted[0].sum())


def test_training_is_shown_labels_and_prediction_the_tagger(tokenizer, tmp_path):
    source = trained(tmp_path / "tagger", tokenizer)
    task = Summarization(max_source_tokens=128, importance="tagger", tagger=source)
    ids, places = encode_placed(tokenizer, TEXT, max_tokens=128)
    labels = labels_of(places, TEXT, REFERENCE)
    learning = task.dataset([ROW], tokenizer, training=True, seed=1, folder=tmp_path)[0]
    assert learning["importance"] == [float(label == 1) for label in labels]
    predicting = task.dataset([ROW], tokenizer, training=False, seed=1, folder=tmp_path)[0]
    tagger = load_tagger(source)
    with torch.no_grad():
        logits = tagger.model(torch.tensor([ids])).logits[0, :, 0]
    wanted = [float(logit.sigmoid()) * (end > start) for logit, (start, end) in zip(logits, places, strict=True)]
    assert predicting["importance"] == pytest.approx(wanted)
    asked = task.features(replace(ROW, question="What of the mice?"), tokenizer)
    question = len(tokenizer("What of the mice?")["input_ids"])
    assert not any(asked["importance"][: question - 1])
    assert any(asked["importance"][question:])


def test_an_evaluation_with_oracle_weights_says_so(tokenizer):
    options = SIZES | {"vocab_size": len(tokenizer), "decoder_layers": 1, "stack": STACK}
    model = LongspanForConditionalGeneration(LongspanConfig(**options, eos_token_id=tokenizer.eos_token_id)).eval()
    model.generation_config.max_new_tokens = 3
    task = Summarization(max_source_tokens=128, max_target_tokens=64, importance="labels")
    task.check_model(model.config)
    outcome = task.evaluate(model, tokenizer, [ROW], batch_size=1)
    assert outcome.flavour.endswith(UPPER_BOUND)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"importance": "tagger"}, "give the folder of a tagger with importance='tagger'"),
        ({"tagger": "runs/tagger"}, "task.importance is 'none' and task.tagger is 'runs/tagger'"),
    ],
)
def test_options_that_do_not_go_together_are_named(options, message):
    with pytest.raises(InputError, match=message):
        Summarization(**options)


def test_a_model_and_what_it_is_shown_go_together(tokenizer, tmp_path):
    weighing = LongspanConfig(**SIZES | {"stack": STACK})
    with pytest.raises(InputError, match="but the model weighs tokens by importance"):
        Summarization(max_source_tokens=128, max_target_tokens=64).check_model(weighing)
    with pytest.raises(InputError, match="but the model does not weigh tokens"):
        Summarization(max_source_tokens=128, max_target_tokens=64, importance="labels").check_model(LongspanConfig())


def test_a_tagger_that_does_not_fit_is_named_in_one_sentence(tokenizer, tmp_path):
    tagger = load_tagger(trained(tmp_path / "tagger", tokenizer))
    other = train_tokenizer(["Something else altogether is written here."], 280)
    with pytest.raises(InputError, match="was trained with another tokenizer"):
        tagger.check_tokenizer(other)
    asked = Summarization(max_source_tokens=128, max_target_tokens=64, importance="tagger", tagger=tagger.source)
    with pytest.raises(InputError, match="was trained with another tokenizer"):  # before the first step of training
        asked.dataset([], other, training=True, seed=0, folder=tmp_path)
    with pytest.raises(InputError, match=r"has 129 tokens, but the importance tagger .* reads at most 128"):
        tagger.probabilities([5] * 129, [(0, 1)] * 129)
    writer = LongspanForConditionalGeneration(LongspanConfig(**SIZES, vocab_size=len(tokenizer), decoder_layers=1))
    writer.save_pretrained(tmp_path / "writer")
    tokenizer.save_pretrained(tmp_path / "writer")
    with pytest.raises(InputError, match="LongspanForConditionalGeneration and no importance tagger"):
        load_tagger(str(tmp_path / "writer"))
    slow = Tagger(tagger.model, object(), "slow")
    with pytest.raises(InputError, match="does not return offsets of its tokens"):
        encode_placed(slow.tokenizer, TEXT, max_tokens=9)


def test_a_summariser_asks_the_tagger_that_its_recipe_names(tokenizer, tmp_path):
    source = trained(tmp_path / "tagger", tokenizer)
    fields = SIZES | {"vocab_size": len(tokenizer), "decoder_layers": 1, "stack": STACK, "init_std": 0.5}
    writer = LongspanForConditionalGeneration(LongspanConfig(**fields, eos_token_id=tokenizer.eos_token_id)).eval()
    writer.generation_config.max_new_tokens = 5
    writer.save_pretrained(tmp_path / "writer")
    tokenizer.save_pretrained(tmp_path / "writer")
    with pytest.raises(InputError, match="no recipe in its folder names a tagger"):
        longspan.summarize(TEXT, model=tmp_path / "writer")
    recipe = f"task: {{name: summarization, importance: tagger, tagger: {source}}}\n"
    (tmp_path / "writer" / "recipe.yaml").write_text(recipe, encoding="utf-8")
    ids, places = encode_placed(tokenizer, TEXT, max_tokens=128)
    weights = torch.tensor([load_tagger(source).probabilities(ids, places)])
    written = writer.generate(torch.tensor([ids]), importance=weights)
    wanted = tokenizer.decode(written[0], skip_special_tokens=True).strip()
    found = " ".join(sentence.text for sentence in longspan.summarize(TEXT, model=tmp_path / "writer").sentences)
    assert found.split() == wanted.split()
