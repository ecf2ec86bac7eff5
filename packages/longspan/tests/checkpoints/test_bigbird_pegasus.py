"""BigBird-Pegasus in and out, in both of transformers' modes, against its own classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from longspan import InputError
from longspan.checkpoints import from_transformers, lengthen, to_transformers
from longspan.checkpoints.architectures import ARCHITECTURES
from longspan.models import LongspanPreTrainedModel

GENERATION = "BigBirdPegasusForConditionalGeneration"
CASES: dict[str, dict[str, Any]] = {
    "as published": {},
    "with biases": {"use_bias": True},
    "in full": {"attention_type": "original_full"},
    "of relu, unscaled": {"activation_function": "relu", "scale_embedding": False, "num_random_blocks": 2},
    "untied": {"tie_word_embeddings": False},
}
LENGTHS = (7, 28, 29, 53)
"""Up to 28 tokens, 36 with two random blocks, transformers leaves its block-sparse path; no multiples of a block."""


def output(model, inputs):
    """What the head says; a model of transformers first forgets that it left its block-sparse path before."""
    if not isinstance(model, LongspanPreTrainedModel):
        model.get_encoder().set_attention_type(model.config.attention_type)
    return model(**inputs).logits


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_on_disk_is_equal_at_every_length_and_goes_back(case, published, batch, widest, tmp_path):
    theirs = published(GENERATION, **CASES[case]).double()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = from_transformers(tmp_path / "theirs")
    ours.save_pretrained(tmp_path / "ours")
    ours = type(ours).from_pretrained(tmp_path / "ours").eval()
    to_transformers(ours).save_pretrained(tmp_path / "back")
    back = type(theirs).from_pretrained(tmp_path / "back").eval()
    for tokens in LENGTHS:
        inputs = batch(theirs, tokens)
        want = output(theirs, inputs)
        assert widest(want, output(ours, inputs)) <= 1e-10
        assert widest(want, output(back, inputs)) <= 1e-10
    for name, value in CASES[case].items():
        assert getattr(back.config, name) == value
    assert widest(output(theirs.float(), inputs), output(ours.float(), inputs)) <= 1e-5


@torch.no_grad()
def test_a_bare_model_gains_the_tied_head(published, batch, widest):
    theirs = published("BigBirdPegasusModel").double()
    ours, inputs = from_transformers(theirs), batch(theirs, 41)
    states = theirs(**inputs).last_hidden_state
    assert widest(states @ theirs.shared.weight.T, ours(**inputs).logits) <= 1e-9


def test_training_draws_the_blocks_of_every_layer_as_transformers_does(published, batch, widest):
    theirs = published(GENERATION, dropout=0.0, encoder_layers=3).double()
    ours, inputs = from_transformers(theirs).train(), batch(theirs, 53)
    want, got = theirs.train()(**inputs).logits, ours(**inputs).logits
    assert widest(want, got) <= 1e-10
    want.square().sum().backward()
    got.square().sum().backward()
    found = ours.get_parameter("encoder.layers.1.attention.key.weight").grad
    torch.testing.assert_close(theirs.model.encoder.layers[1].self_attn.self.key.weight.grad, found)
    assert not torch.equal(output(ours.eval(), inputs), got)


def test_it_writes_the_same_words(published, batch):
    theirs = published(GENERATION)
    ours, inputs = from_transformers(theirs), batch(theirs, 53)
    del inputs["decoder_input_ids"]
    for beams in (1, 3):
        want = theirs.generate(**inputs, num_beams=beams, max_new_tokens=9, min_new_tokens=9)
        assert want.tolist() == ours.generate(**inputs, num_beams=beams, max_new_tokens=9, min_new_tokens=9).tolist()


def test_other_heads_and_other_blocks_are_refused(published):
    with pytest.raises(InputError, match="'BigBirdPegasusForQuestionAnswering' has no counterpart"):
        from_transformers(published("BigBirdPegasusForQuestionAnswering"))
    ours = from_transformers(published(GENERATION), attention={"mechanism": "bigbird", "block_tokens": 4})
    with pytest.raises(InputError, match="random='paper' draws other blocks"):
        to_transformers(ours, "bigbird_pegasus")
    assert set(ARCHITECTURES["bigbird_pegasus"].heads) == {GENERATION, "BigBirdPegasusModel"}


@torch.no_grad()
def test_one_that_keeps_its_blocks_reads_more_and_the_same_of_short_texts(published, batch, widest):
    theirs = published(GENERATION).double()
    longer = lengthen(theirs, "bigbird", 4 * theirs.config.max_position_embeddings)
    inputs = batch(theirs, 29)
    assert widest(output(theirs, inputs), output(longer, inputs)) <= 1e-10
    ids = torch.randint(5, 30, (1, 2 * theirs.config.max_position_embeddings))
    assert output(longer, {"input_ids": ids, "decoder_input_ids": ids[:, :3]}).isfinite().all()
