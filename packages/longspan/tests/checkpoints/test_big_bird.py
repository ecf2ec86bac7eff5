"""BigBird in and out, in both of transformers' modes, against its own classes."""

from __future__ import annotations

import pytest
import torch

import longspan
from longspan import InputError
from longspan.checkpoints import from_transformers, to_transformers

KINDS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
CASES = {f"BigBird{kind}": {} for kind in (*KINDS, "ForPreTraining")} | {
    "BigBirdModel in full": {"attention_type": "original_full"},
    "BigBirdForMaskedLM in full": {"attention_type": "original_full", "hidden_act": "relu"},
    "BigBirdForMaskedLM rescaled": {"rescale_embeddings": True, "num_random_blocks": 2},
    "BigBirdForMaskedLM untied": {"tie_word_embeddings": False},
    "BigBirdForSequenceClassification of five": {"num_labels": 5, "classifier_dropout": 0.3},
}
NAMES = ("logits", "prediction_logits", "last_hidden_state")
LENGTHS = (7, 28, 29, 53)
"""Up to 28 tokens transformers leaves its block-sparse path; 29 and 53 are no multiples of a block."""


@pytest.fixture
def bird(published):
    """`bird(case)` → the tiny model of that case, in float64."""
    return lambda case: published(case.split(" ")[0], **CASES[case]).double()


def output(model, inputs):
    """What the head says; a model of transformers first forgets that it left its block-sparse path before."""
    if not isinstance(model, longspan.models.LongspanPreTrainedModel):
        model.base_model.set_attention_type(model.config.attention_type)
    found = model(**inputs)
    return next(found[name] for name in NAMES if name in found)


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_on_disk_is_equal_at_every_length_and_goes_back(case, bird, batch, widest, tmp_path):
    theirs = bird(case)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = from_transformers(tmp_path / "theirs")
    ours.save_pretrained(tmp_path / "ours")
    ours = type(ours).from_pretrained(tmp_path / "ours")
    to_transformers(ours).save_pretrained(tmp_path / "back")
    back = type(to_transformers(ours)).from_pretrained(tmp_path / "back").eval()
    for tokens in LENGTHS:
        inputs = batch(theirs, tokens)
        want = output(theirs, inputs)
        assert widest(want, output(ours, inputs), inputs["attention_mask"]) <= 1e-10
        assert widest(want, output(back, inputs), inputs["attention_mask"]) <= 1e-10
        assert widest(output(theirs.float(), inputs), output(ours.float(), inputs), inputs["attention_mask"]) <= 1e-5
        theirs.double(), ours.double()
    for name, value in CASES[case].items():
        assert getattr(back.config, name) == value


@pytest.mark.parametrize("tokens", [29, 53])
def test_training_draws_the_blocks_of_every_layer_as_transformers_does(tokens, published, batch, widest):
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    theirs = published("BigBirdForMaskedLM", num_hidden_layers=3, num_random_blocks=1, **quiet).double()
    ours, inputs = from_transformers(theirs).train(), batch(theirs, tokens)
    real = inputs["attention_mask"][..., None]
    want, got = theirs.train()(**inputs), ours(**inputs)
    assert widest(want.logits, got.logits, inputs["attention_mask"]) <= 1e-10
    (want.logits * real).square().sum().backward()
    (got.logits * real).square().sum().backward()
    torch.testing.assert_close(
        theirs.bert.embeddings.word_embeddings.weight.grad, ours.model.encoder.embeddings.token.weight.grad
    )
    assert not torch.equal(output(ours.eval(), inputs), got.logits)


@torch.no_grad()
def test_projections_without_biases_come_in_and_go_out_with_zeros(published, batch, widest):
    theirs = published("BigBirdModel", use_bias=False)
    ours, inputs = from_transformers(theirs), batch(theirs, 41)
    for model in (ours, to_transformers(ours)):
        assert widest(output(theirs, inputs), output(model, inputs), inputs["attention_mask"]) <= 1e-5


@torch.no_grad()
def test_the_blocks_of_the_paper_can_take_the_place_of_those_of_transformers(published, batch, widest):
    theirs = published("BigBirdModel")
    spec = {"mechanism": "bigbird", "block_tokens": 4, "random_blocks": 1}
    ours, inputs = from_transformers(theirs, attention=spec), batch(theirs, 17)
    alone = {name: tensor[1:2, :9] for name, tensor in inputs.items()}
    assert widest(output(ours, inputs)[1:2, :9], output(ours, alone)) <= 1e-5
    with pytest.raises(InputError, match="random='paper' draws other blocks"):
        to_transformers(ours, "big_bird")


def test_a_head_for_questions_is_refused(published):
    with pytest.raises(InputError, match="'BigBirdForQuestionAnswering' has no counterpart"):
        from_transformers(published("BigBirdForQuestionAnswering"))
