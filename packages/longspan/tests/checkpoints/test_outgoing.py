"""What came in goes back out unchanged; what transformers cannot represent is refused."""

from __future__ import annotations

import pytest
import torch
import transformers

import longspan
from longspan import InputError, LongspanConfig
from longspan.checkpoints import from_transformers, lengthen, to_transformers


def test_a_model_returns_as_the_architecture_that_it_came_from(published):
    ours = from_transformers(published("XLMRobertaForMaskedLM"))
    assert isinstance(to_transformers(ours), transformers.XLMRobertaForMaskedLM)
    assert isinstance(to_transformers(ours, architecture="roberta"), transformers.RobertaForMaskedLM)
    # With windows it is Longformer's, whatever it came from.
    windowed = from_transformers(published("XLMRobertaForMaskedLM"), attention={"mechanism": "longformer"})
    assert isinstance(to_transformers(windowed), transformers.LongformerForMaskedLM)


def test_a_model_made_here_can_leave(widest):
    config = LongspanConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        decoder_layers=1,
        max_position_embeddings=32,
        max_decoder_position_embeddings=16,
        position_offset=0,
        attention={"mechanism": "longformer", "left_tokens": 3, "right_tokens": 3},
        global_tokens="first",
    )
    ours = longspan.LongspanForConditionalGeneration(config).eval()
    theirs = to_transformers(ours)
    assert isinstance(theirs, transformers.LEDForConditionalGeneration)
    assert theirs.config.attention_window == [6, 6]
    ids = torch.randint(3, 40, (2, 17))
    marked = torch.zeros_like(ids).index_fill(1, torch.tensor([0]), 1)
    start = ids[:, :4]
    want = theirs(ids, decoder_input_ids=start, global_attention_mask=marked).logits
    assert widest(want, ours(ids, decoder_input_ids=start).logits) <= 1e-5


def test_a_lengthened_bart_leaves_as_led(published, batch, widest):
    """LED's tables have no reserved rows; BART's are never read, so they can go."""
    theirs = published("BartForConditionalGeneration")
    ours = lengthen(theirs, "longformer", max_tokens=96, left_tokens=4, right_tokens=4)
    led = to_transformers(ours)
    assert led.config.max_encoder_position_embeddings == 96
    assert led.config.max_decoder_position_embeddings == 53
    inputs = batch(theirs, 61, globals=True)
    want, got = led(**inputs).logits, ours(**inputs).logits
    assert widest(want, got) <= 1e-5


def test_positions_that_leds_padding_does_not_reach_are_said(published, batch, caplog):
    """transformers pads to a multiple of the window: 100 positions serve 96 tokens there, and 100 here."""
    theirs = published("BartForConditionalGeneration")
    to_transformers(lengthen(theirs, "longformer", max_tokens=96, left_tokens=4, right_tokens=4))
    assert not caplog.records
    ours = lengthen(theirs, "longformer", max_tokens=100, left_tokens=4, right_tokens=4)
    led = to_transformers(ours)
    (record,) = caplog.records
    assert "a multiple of the window, here 8, and fails on those of more than 96 tokens" in record.getMessage()
    assert "such as 104, to use all 100 there" in record.getMessage()
    led(**batch(theirs, 96, globals=True))
    with pytest.raises(IndexError):
        led(**batch(theirs, 97, globals=True))
    assert ours(**batch(theirs, 100, globals=True)).logits.isfinite().all()


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        ("poolingformer", "layer 0 has attention 'poolingformer'"),
        ({"mechanism": "longformer", "left_tokens": 3, "right_tokens": 4}, "left_tokens=3 and right_tokens=4"),
        ({"mechanism": "longformer", "dilation": 2}, "dilation=2"),
        ({"mechanism": "longformer", "separate_global_projections": False}, "separate_global_projections=False"),
        ([{"mechanism": "longformer"}, "full"], "layer 1 has attention 'full'"),
        ({"mechanism": "longformer", "dropout": 0.5}, "attention="),
    ],
)
def test_what_transformers_lacks_is_refused(attention, message, published):
    for name in ("RobertaForMaskedLM", "BartForConditionalGeneration"):
        ours = from_transformers(published(name), attention=attention)
        with pytest.raises(InputError, match=message):
            to_transformers(ours)


def test_settings_that_an_architecture_lacks_are_refused(published):
    ours = from_transformers(published("RobertaForMaskedLM"))
    with pytest.raises(InputError, match="max_position_embeddings=53 cannot be represented by transformers' bert"):
        to_transformers(ours, architecture="bert")
    with pytest.raises(InputError, match="model_type='t5' is not supported"):
        to_transformers(ours, architecture="t5")
    with pytest.raises(InputError, match="no counterpart among the bart classes"):
        to_transformers(ours, architecture="bart")
    with pytest.raises(InputError, match="layer 0 has attention 'full'"):
        to_transformers(ours, architecture="longformer")
    with pytest.raises(InputError, match="is not a Longspan model"):
        to_transformers(published("BertModel"))
