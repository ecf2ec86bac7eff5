"""Saving and loading: safetensors only, tied weights once, Auto classes, mechanisms that change between the two."""

from __future__ import annotations

import copy
import json
import logging

import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from closeness import check_outputs, check_weights
from longspan import models
from longspan.errors import InputError
from longspan.models.heads import HEADS

AUTO = {
    models.LongspanModel: AutoModel,
    models.LongspanForMaskedLM: AutoModelForMaskedLM,
    models.LongspanForConditionalGeneration: AutoModelForSeq2SeqLM,
    models.LongspanForMultipleChoice: AutoModelForMultipleChoice,
    models.LongspanForSequenceClassification: AutoModelForSequenceClassification,
    models.LongspanForTokenClassification: AutoModelForTokenClassification,
    models.LongspanForQuestionAnswering: AutoModelForQuestionAnswering,
    models.LongspanForSentenceScoring: models.LongspanForSentenceScoring,
}


def load(kind, folder, **options):
    model, report = kind.from_pretrained(folder, output_loading_info=True, **options)
    return model.eval(), report


@pytest.mark.parametrize("kind", AUTO, ids=lambda kind: kind.__name__)
def test_round_trip(kind, make_config, tmp_path):
    config = make_config(
        decoder_layers=1, num_hidden_layers=3, pooler=True, attention=["longformer", "poolingformer", "fusion"]
    )
    saved = kind(config).eval()
    saved.save_pretrained(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".md", ".safetensors"}
    loaded, report = load(AUTO[kind], tmp_path)
    assert type(loaded) is kind
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert isinstance(AutoConfig.from_pretrained(tmp_path), models.LongspanConfig)
    check_weights(loaded, saved)


def test_tied_weights_are_saved_once_and_tied_again(make_config, tmp_path):
    model = models.LongspanForConditionalGeneration(make_config(decoder_layers=1))
    model.final_logits_bias.normal_()
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert "encoder.embeddings.token.weight" in names
    assert not names & {"decoder.embeddings.token.weight", "lm_head.weight"}
    loaded, _ = load(models.LongspanForConditionalGeneration, tmp_path)
    table = loaded.encoder.embeddings.token.weight
    assert loaded.decoder.embeddings.token.weight is table
    assert loaded.lm_head.weight is table
    assert torch.equal(loaded.final_logits_bias, model.final_logits_bias)


def test_untied_weights_stay_apart(make_config, tmp_path):
    model = models.LongspanForConditionalGeneration(make_config(decoder_layers=1, tie_word_embeddings=False))
    model.save_pretrained(tmp_path)
    loaded, report = load(models.LongspanForConditionalGeneration, tmp_path)
    assert not report["missing_keys"]
    assert not torch.equal(loaded.lm_head.weight, loaded.encoder.embeddings.token.weight)
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)


def test_the_encoder_comes_out_of_an_encoder_decoder(make_config, tmp_path):
    model = models.LongspanForConditionalGeneration(make_config(decoder_layers=1)).eval()
    model.save_pretrained(tmp_path)
    encoder, report = load(models.LongspanModel, tmp_path)
    assert not report["missing_keys"]
    assert report["unexpected_keys"] >= {"decoder.layers.0.attention.key.weight", "final_logits_bias"}  # and said
    ids = torch.randint(3, 61, (2, 13))
    assert all(torch.equal(weight, model.state_dict()[name]) for name, weight in encoder.state_dict().items())
    check_outputs(encoder(ids)[0], model.encoder(ids)[0])
    classifier, report = load(models.LongspanForSequenceClassification, tmp_path)
    assert all(name.startswith("classifier.") for name in report["missing_keys"])
    check_outputs(classifier.model(ids)[0], model.encoder(ids)[0])


@pytest.mark.parametrize("kind", [models.model_with(name) for name in HEADS], ids=lambda kind: kind.__name__)
def test_the_encoder_comes_out_of_every_head(kind, make_config, tmp_path):
    saved = kind(make_config())
    saved.save_pretrained(tmp_path)
    encoder, report = load(AutoModel, tmp_path)
    assert type(encoder) is models.LongspanModel
    assert not report["missing_keys"]
    assert all(not name.startswith("model.") for name in report["unexpected_keys"])
    trained = saved.base_model.state_dict()
    assert all(torch.equal(weight, trained[name]) for name, weight in encoder.state_dict().items())


WRITERS = {
    models.LongspanForCausalLM: "AutoModelForCausalLM",
    models.LongspanForPrefixLM: "LongspanForPrefixLM",
}


@pytest.mark.parametrize("kind", WRITERS, ids=lambda kind: kind.__name__)
def test_an_encoder_is_not_made_up_where_there_is_none(kind, make_config, tmp_path):
    """All of it would be random, and all that was trained left out."""
    kind(make_config(attention="full")).save_pretrained(tmp_path)
    for wrong in (AutoModel, models.LongspanForMaskedLM):
        with pytest.raises(
            InputError, match=f"holds {kind.__name__}, .*; load it with {WRITERS[kind]}, whose base_model"
        ):
            wrong.from_pretrained(tmp_path)
    models.LongspanModel(make_config(attention="full")).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"holds LongspanModel, .*; load it with AutoModel, whose"):
        kind.from_pretrained(tmp_path)


@pytest.mark.parametrize("kind", [*WRITERS, models.LongspanForConditionalGeneration], ids=lambda kind: kind.__name__)
def test_what_writes_has_a_model_below_its_head(kind, make_config, tmp_path):
    """Over the same weights, which have the same names in its folder; and back."""
    decoder = {"decoder_layers": 1} if kind is models.LongspanForConditionalGeneration else {}
    model = kind(make_config(attention="full", **decoder)).eval()
    before, trunk = dict(model.state_dict()), model.base_model
    assert isinstance(trunk, models.LongspanTrunk)
    assert trunk is model.base_model is getattr(model, model.base_model_prefix)
    assert model.state_dict().keys() == before.keys()
    heads = {"lm_head.weight", "final_logits_bias"}
    assert trunk.state_dict().keys() == before.keys() - heads
    assert {id(weight) for weight in trunk.parameters()} <= {id(weight) for weight in model.parameters()}
    copied = copy.deepcopy(model)
    assert copied.base_model.decoder is copied.decoder
    model.save_pretrained(tmp_path / "whole")
    trunk.save_pretrained(tmp_path / "trunk")
    alone, report = load(models.LongspanTrunk, tmp_path / "whole")
    assert not report["missing_keys"]
    again, report = load(kind, tmp_path / "trunk")
    assert report["missing_keys"] <= heads
    for loaded in (alone, again.base_model):
        found = loaded.state_dict()
        assert all(torch.equal(found[name], before[name]) for name in trunk.state_dict())


def test_a_trunk_reads_what_its_model_reads(make_config):
    ids, mask = torch.randint(3, 61, (2, 13)), torch.ones(2, 13).long()
    mask[1, 9:] = 0
    causal = models.LongspanForCausalLM(make_config()).eval()
    states = causal.base_model(ids, mask, output_hidden_states=True)
    torch.testing.assert_close(causal.lm_head(states[0]), causal(ids, mask).logits)
    assert len(states.hidden_states) == 3
    with pytest.raises(InputError, match="leave out the other inputs"):
        causal.base_model(ids, decoder_input_ids=ids)
    pair = models.LongspanForConditionalGeneration(make_config(decoder_layers=1, global_tokens="first")).eval()
    states = pair.base_model(ids, mask, decoder_input_ids=ids[:, :5])
    wanted = pair(ids, mask, decoder_input_ids=ids[:, :5])
    torch.testing.assert_close(pair.lm_head(states[0]), wanted.logits)
    torch.testing.assert_close(states.encoder_last_hidden_state, wanted.encoder_last_hidden_state)
    with pytest.raises(InputError, match="give decoder_input_ids"):
        pair.base_model(ids)


def test_a_second_level_that_was_not_saved_starts_by_its_own_rules(make_config, tmp_path):
    """A window model loaded as Poolingformer keeps every weight, and the new level has no effect yet."""
    window = models.LongspanModel(make_config()).eval()
    with torch.no_grad():
        window.encoder.layers[0].attention.global_query.weight.add_(1)
    window.save_pretrained(tmp_path)
    spec = {"mechanism": "poolingformer", "left_tokens": 3, "right_tokens": 5}
    pooling, report = load(models.LongspanModel, tmp_path, attention=spec)
    assert report["missing_keys"]
    assert all("pool" in name for name in report["missing_keys"])
    attention = pooling.encoder.layers[0].attention
    assert torch.equal(attention.global_query.weight, window.encoder.layers[0].attention.global_query.weight)
    assert attention.pooled_value.weight.abs().max() == 0
    ids = torch.randint(3, 61, (2, 13))
    torch.testing.assert_close(pooling(ids)[0], window(ids)[0], atol=1e-5, rtol=1e-5)


def test_half_precision(make_config, tmp_path):
    model = models.LongspanModel(make_config(global_tokens="first")).eval()
    model.save_pretrained(tmp_path)
    loaded, _ = load(models.LongspanModel, tmp_path, dtype=torch.bfloat16)
    ids = torch.randint(3, 61, (2, 13))
    hidden = loaded(ids)[0]
    assert hidden.dtype == torch.bfloat16
    torch.testing.assert_close(hidden.float(), model(ids)[0], atol=0.15, rtol=0.1)


def test_a_vocabulary_may_grow_and_shrink(make_config):
    model = models.LongspanForConditionalGeneration(make_config(decoder_layers=1)).eval()
    model.final_logits_bias.normal_()
    bias = model.final_logits_bias.clone()
    for size in (67, 59):
        model.resize_token_embeddings(size, mean_resizing=False)
        ids = torch.randint(3, size, (2, 5))
        assert model(ids, decoder_input_ids=ids).logits.shape == (2, 5, size)
        assert model.lm_head.weight is model.encoder.embeddings.token.weight
        assert model.config.vocab_size == size
    assert torch.equal(model.final_logits_bias, bias[:, :59])


def test_an_unknown_option_of_a_saved_configuration_is_named(make_config, tmp_path):
    make_config().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"left_tokens"', '"left_tokenz"'))
    with pytest.raises(InputError, match="left_tokenz"):
        AutoConfig.from_pretrained(tmp_path)


def test_a_note_in_a_saved_configuration_is_kept_and_said(make_config, tmp_path, caplog):
    """What Longspan saved it reads again; the constructor stays strict."""
    config = make_config()
    config.note = "x"
    with caplog.at_level(logging.WARNING):
        for again in ("once", "twice"):
            caplog.clear()
            models.LongspanModel(config).save_pretrained(tmp_path / again)
            config = AutoConfig.from_pretrained(tmp_path / again)
            assert config.note == "x"
            assert "'note' of a saved configuration is kept and means nothing here" in caplog.text
    models.LongspanModel.from_pretrained(tmp_path / "twice")
    with pytest.raises(InputError, match="unknown key 'note'"):
        make_config(note="x")


@pytest.mark.parametrize("key", ["to_dict", "attention_window"])
def test_a_key_of_a_file_that_cannot_be_kept_is_refused(key, make_config, tmp_path):
    make_config().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: 3}))
    with pytest.raises(InputError, match=f"unknown key '{key}'"):
        AutoConfig.from_pretrained(tmp_path)
