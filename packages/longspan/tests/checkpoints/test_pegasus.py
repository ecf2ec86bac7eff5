"""Pegasus and Marian in, out and longer, against their own classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from longspan import InputError
from longspan.checkpoints import from_transformers, lengthen, to_transformers
from longspan.models.embeddings import HalvedSinusoids

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Pegasus": ("PegasusForConditionalGeneration", {}),
    "Pegasus, unscaled and of gelu": (
        "PegasusForConditionalGeneration",
        {"scale_embedding": False, "activation_function": "gelu"},
    ),
    "Marian": ("MarianMTModel", {}),
    "Marian, scaled and of swish": ("MarianMTModel", {"scale_embedding": True, "activation_function": "swish"}),
    "Marian of an odd width": ("MarianMTModel", {"d_model": 15, "decoder_attention_heads": 3}),
}


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_on_disk_is_equal_and_goes_back(case, published, batch, widest, tmp_path):
    name, options = CASES[case]
    theirs = published(name, **options)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = from_transformers(tmp_path / "theirs")
    ours.save_pretrained(tmp_path / "ours")
    ours = type(ours).from_pretrained(tmp_path / "ours").eval()
    to_transformers(ours).save_pretrained(tmp_path / "back")
    back = type(theirs).from_pretrained(tmp_path / "back").eval()
    for tokens in (1, 17, 53):
        inputs = batch(theirs, tokens)
        want = theirs(**inputs).logits
        assert widest(want, ours(**inputs).logits) <= 1e-5
        assert widest(want, back(**inputs).logits) <= 1e-5


@torch.no_grad()
@pytest.mark.parametrize("case", ["Pegasus", "Marian"])
def test_a_lengthened_one_keeps_short_inputs_and_reads_long_ones(case, published, batch, widest):
    theirs = published(CASES[case][0])
    model = lengthen(theirs, "longformer", 400, left_tokens=53, right_tokens=53)
    report = model.report
    assert (report.tokens_before, report.tokens_after) == (53, 400)
    assert max(report.parity_hidden, report.parity_logits) <= 1e-5
    inputs = batch(theirs, 53)
    assert widest(theirs(**inputs).logits, model(**inputs).logits) <= 1e-5
    # Told by a mask of pairs to look as far, a longer table of their own sinusoids gives the same.
    narrow = lengthen(theirs, "longformer", 400, left_tokens=3, right_tokens=5)
    longer = published(CASES[case][0], max_position_embeddings=400)
    weights = {name: tensor for name, tensor in theirs.state_dict().items() if "embed_positions" not in name}
    longer.load_state_dict(weights, strict=False)
    ids, written = torch.randint(3, 61, (2, 211)), torch.randint(3, 61, (2, 9))
    offset = torch.arange(211)[None] - torch.arange(211)[:, None]
    band = ((offset >= -3) & (offset <= 5)).expand(2, 1, -1, -1)
    states = longer.get_encoder()(ids, attention_mask=band)
    expected = longer(encoder_outputs=states, decoder_input_ids=written).logits
    without = torch.zeros_like(ids)
    assert widest(expected, narrow(ids, global_attention_mask=without, decoder_input_ids=written).logits) <= 1e-5


def test_it_writes_the_same_words(published, batch):
    for name, _ in (CASES["Pegasus"], CASES["Marian"]):
        theirs = published(name)
        ours, inputs = from_transformers(theirs), batch(theirs, 41)
        del inputs["decoder_input_ids"]
        for beams in (1, 3):
            options = {"num_beams": beams, "max_new_tokens": 9, "min_new_tokens": 9}
            assert theirs.generate(**inputs, **options).tolist() == ours.generate(**inputs, **options).tolist()


@pytest.mark.variant
def test_sinusoids_are_those_of_their_tables(published):
    theirs, ours = published("MarianMTModel", max_position_embeddings=9000), None
    ours = from_transformers(theirs)
    position = ours.encoder.embeddings.position
    assert isinstance(position, HalvedSinusoids)
    found = position(torch.arange(9000)[None])[0]
    torch.testing.assert_close(found, theirs.model.encoder.embed_positions.weight, atol=1e-7, rtol=0)


def test_what_cannot_come_in(published):
    theirs = published("MarianMTModel")
    with torch.no_grad():
        theirs.model.encoder.embed_positions.weight.add_(1.0)
    with pytest.raises(InputError, match="does not hold the sinusoids of marian"):
        from_transformers(theirs)
    apart = published("MarianMTModel", share_encoder_decoder_embeddings=False, tie_word_embeddings=False)
    with pytest.raises(InputError, match="different vocabularies for encoder and decoder"):
        from_transformers(apart)
