"""The configuration refuses what no model can be, and stores plain data."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import fields

import pytest
import torch

import longspan
from installed import needs_documents
from longspan import settings
from longspan.attention import LongformerConfig
from longspan.errors import InputError
from longspan.models import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForConditionalGeneration,
    LongspanForMaskedLM,
    LongspanModel,
)
from longspan.models.fields import ModelFields


def test_attention_is_stored_as_plain_data_with_every_option(make_config):
    config = make_config(attention=LongformerConfig(left_tokens=7, dilation=(1, 2, 3)))
    assert config.attention == json.loads(json.dumps(config.attention))
    assert config.attention["mechanism"] == "longformer"
    assert config.attention["left_tokens"] == 7
    assert config.attention["dilation"] == [1, 2, 3]
    assert config.layer_attention(0) == LongformerConfig(left_tokens=7, dilation=(1, 2, 3))


def test_a_saved_model_says_which_version_wrote_it(make_config, tmp_path):
    LongspanModel(make_config()).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["longspan_version"] == longspan.__version__
    assert not hasattr(LongspanConfig.from_pretrained(tmp_path), "longspan_version")


@needs_documents
@pytest.mark.parametrize("name", ["encoder", "passages"])
def test_bundled_models_leave_no_option_to_a_default(name):
    from longspan_documents.inference.encoders import BUNDLED

    stored = json.loads((BUNDLED.parent / name / "config.json").read_text(encoding="utf-8"))
    whole = LongspanConfig.from_dict(stored)
    own = {field.name: getattr(whole, field.name) for field in fields(ModelFields)}
    assert {name: stored.get(name, "left out") for name in own} == own


def test_one_attention_per_layer(make_config):
    config = make_config(attention=["full", {"mechanism": "longformer", "left_tokens": 2}])
    model = LongspanModel(config)
    names = [layer.attention.config.mechanism for layer in model.encoder.layers]
    assert names == ["full", "longformer"]


def test_attention_dropout_reaches_specs_that_choose_none(make_config):
    chosen = {"mechanism": "longformer", "dropout": 0.0}
    config = make_config(attention=["full", chosen], attention_dropout=0.3)
    assert [config.layer_attention(layer).dropout for layer in range(2)] == [0.3, 0.0]
    config.attention_dropout = 0.1
    assert config.layer_attention(0).dropout == 0.1


def test_round_trip_through_a_file(make_config, tmp_path):
    config = make_config(attention=["full", "poolingformer"], decoder_layers=3, decoder_attention_heads=2, pooler=True)
    config.save_pretrained(tmp_path)
    loaded = LongspanConfig.from_pretrained(tmp_path)
    assert {**loaded.to_dict(), "transformers_version": None} == {**config.to_dict(), "transformers_version": None}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention": ["full"] * 3}, "3 mechanisms for 2 layers"),
        ({"attention": []}, "0 mechanisms for 2 layers"),
        ({"attention": {"mechanism": "longformer", "left_tokens": -1}}, "left_tokens is -1"),
        ({"num_attention_heads": 5}, "num_attention_heads=5 does not divide hidden_size=24"),
        ({"decoder_attention_heads": 7}, "decoder_attention_heads=7 does not divide hidden_size=24"),
        ({"hiden_size": 8}, "did you mean 'hidden_size'"),
        ({"window": 8}, "unknown key 'window'"),
        ({"normalization": "both"}, "normalization is 'both'"),
        ({"global_tokens": "cls"}, "global_tokens is 'cls'"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"head": {"head": "sequence_classification", "layers": "pooler"}}, "pooler=True"),
        ({"head": "masked_llm"}, "head is 'masked_llm', which is unknown; did you mean 'masked_lm'"),
        ({"head": {"activation": "relu"}}, "head is {'activation': 'relu'}; give a name of masked_lm, "),
        (
            {"head": {"head": "masked_lm", "activaton": "relu"}},
            "did you mean 'activation'",
        ),
        ({"head": 3}, "head is 3; give a name"),
        ({"dropout": "a"}, "dropout is 'a'; it must be a number"),
        ({"pooler": "yes"}, "pooler is 'yes'; it must be true or false"),
        ({"layer_norm_eps": "1e-5"}, "layer_norm_eps is '1e-5'; it must be a number"),
        ({"eos_token_id": [2, -1]}, r"eos_token_id\[1\] is -1"),
        ({"positions_skip_padding": True, "position_offset": 0}, "position_offset"),
        ({"dropout": 1.5}, "dropout is 1.5"),
        ({"position_embedding": "rotary"}, "position_embedding is 'rotary'"),
        ({"position_embedding": "sinusoidal", "position_period": 1}, "position_period is 1"),
        (
            {"head": {"head": "sentence_scoring", "layers": 2, "attention": ["full"]}},
            "1 mechanisms for 2 layers",
        ),
    ],
)
def test_mistakes_are_named(make_config, changes, words):
    with pytest.raises(InputError, match=words):
        make_config(**changes)


def test_an_unknown_activation_is_named(make_config):
    with pytest.raises(InputError, match="activation_function='gelo'"):
        LongspanModel(make_config(activation_function="gelo"))


OTHERS = {
    "hidden_act": ("activation_function", "relu"),
    "hidden_dropout_prob": ("dropout", 0.2),
    "attention_probs_dropout_prob": ("attention_dropout", 0.3),
    "d_model": ("hidden_size", 48),
    "n_layer": ("num_hidden_layers", 3),
    "encoder_ffn_dim": ("intermediate_size", 17),
    "initializer_range": ("init_std", 0.5),
}


@pytest.mark.parametrize("name", OTHERS)
def test_fields_have_the_names_of_other_models_too(name, make_config, tmp_path):
    field, value = OTHERS[name]
    plain = make_config()
    data = {key: getattr(plain, key) for key in vars(plain) if key in {one.name for one in fields(LongspanConfig)}}
    config = LongspanConfig(**{key: value for key, value in data.items() if key != field}, **{name: value})
    assert getattr(config, field) == getattr(config, name) == value
    setattr(config, name, getattr(plain, field))
    assert getattr(config, field) == getattr(plain, field)
    config.save_pretrained(tmp_path)
    assert name not in json.loads((tmp_path / "config.json").read_text())


def test_two_names_of_a_field_must_agree():
    assert LongspanConfig(d_model=48, hidden_size=48).hidden_size == 48
    with pytest.raises(InputError, match="d_model=48 and hidden_size=96 are one field"):
        LongspanConfig(d_model=48, hidden_size=96)


def test_labels_are_counted_as_in_every_configuration():
    config = LongspanConfig(num_labels=5)
    assert len(config.id2label) == config.num_labels == 5


PLACES = {"attention_window": "left_tokens", "classifier_dropout": "head", "block_size": "block_tokens"}


@pytest.mark.parametrize("name", PLACES)
def test_what_has_another_place_here_is_told_which(name, make_config):
    with pytest.raises(InputError, match=f"unknown key '{name}'; .*{PLACES[name]}"):
        make_config(**{name: 3})
    with pytest.raises(InputError, match=f"{name}=3 is no field of LongspanConfig; .*{PLACES[name]}"):
        setattr(make_config(), name, 3)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (LongspanModel, {"stack": "top_down"}),
        (LongspanForMaskedLM, {"attention": ["poolingformer", "full"]}),
        (LongspanForCausalLM, {"stack": "recurrent"}),
        (LongspanForConditionalGeneration, {"decoder_layers": 2}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_model_parses_nothing_while_it_computes(make_config, kind, fields):
    """Its configuration was parsed when it was made."""
    model, ids, parsed = kind(make_config(**fields)), torch.randint(3, 61, (2, 11)), Counter()
    parsing = {each.__code__ for each in (settings.check, settings.convert, settings.from_plain, settings.from_spec)}

    def count(frame, event, argument):
        if event == "call" and frame.f_code in parsing:
            parsed[frame.f_code.co_name] += 1

    labels = {} if kind is LongspanModel else {"labels": ids}
    sys.setprofile(count)
    try:
        outputs = model(ids, **labels)
        if labels:
            outputs.loss.backward()
    finally:
        sys.setprofile(None)
    assert not parsed
