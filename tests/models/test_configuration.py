"""The configuration refuses what no model can be, and stores plain data."""

from __future__ import annotations

import json

import pytest

from longspan.attention import LongformerConfig
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanModel


def test_attention_is_stored_as_plain_data_with_every_option(make_config):
    config = make_config(attention=LongformerConfig(left_tokens=7, dilation=(1, 2, 3)))
    assert config.attention == json.loads(json.dumps(config.attention))
    assert config.attention["mechanism"] == "longformer"
    assert config.attention["left_tokens"] == 7
    assert config.attention["dilation"] == [1, 2, 3]
    assert config.layer_attention(0) == LongformerConfig(left_tokens=7, dilation=(1, 2, 3))


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
