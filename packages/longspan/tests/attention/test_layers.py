"""Layers that differ, written once: ranges, options by layer, and back to short plain data."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.attention import MECHANISMS, LongformerConfig, attention_config
from longspan.attention.layers import layer_specs, parse_layers, plain_layers, ranges, samples
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanModel


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (3, [3]),
        (-1, [5]),
        ("0-2", [0, 1, 2]),
        ("4-", [4, 5]),
        ("-2-", [4, 5]),
        ("-6--4", [0, 1, 2]),
        ("1--2", [1, 2, 3, 4]),
        (" 0 , 2-3,-1", [0, 2, 3, 5]),
        ([5, "0-1", "3,3"], [0, 1, 3, 5]),
        (range(2), [0, 1]),
        ([], []),
    ],
)
def test_layers_in_words(given_: Any, expected: list[int]) -> None:
    assert parse_layers(given_, 6) == expected


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (6, "layers names layer 6, but there are layers 0 to 5"),
        ("-7-", "layers names layer -7"),
        ("3-2", "has the range 3-2, which is empty"),
        ("", "layers='' is not understood"),
        ("upper", "layers='upper' is not understood"),
        ("12345", "of up to four digits"),
        (True, "layers=True is not understood"),
        (0.5, "layers=0.5 is not understood"),
        (None, "layers=None is not understood"),
    ],
)
def test_mistakes_in_layers(given_: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_layers(given_, 6)


def test_ranges_and_options_by_layer() -> None:
    spec = [
        {"layers": "0-2,5", "mechanism": "longformer", "left_tokens": {"per_layer": [3, 5, 7, 9]}, "dilation": [1, 2]},
        {"layers": "3-4", "mechanism": "longformer", "right_tokens": {"3": 1, "-2": 2}},
    ]
    layers = [attention_config(each) for each in layer_specs(spec, 6)]
    assert [layer.left_tokens for layer in layers] == [3, 5, 7, 256, 256, 9]
    assert [layer.right_tokens for layer in layers] == [256, 256, 256, 1, 2, 256]
    assert [layer.dilation for layer in layers] == [(1, 2)] * 3 + [1, 1, (1, 2)]
    growing = {"mechanism": "longformer", "left_tokens": {"per_layer": [1, 2]}}
    assert [each["left_tokens"] for each in layer_specs(growing, 2)] == [1, 2]
    assert layer_specs(LongformerConfig(left_tokens=4), 2) == [layer_specs("longformer", 1)[0] | {"left_tokens": 4}] * 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (["full"] * 2, "attention lists 2 mechanisms for 3 layers; give one each, or give"),
        (
            [{"layers": "0-1", "mechanism": "full"}],
            "attention leaves layer 2 without a mechanism; name every",
        ),
        ({"layers": "1-", "mechanism": "full"}, "attention leaves layer 0 without"),
        ([{"layers": "0-", "mechanism": "full"}, "full"], "with layers and without"),
        ([{"layers": "0-1", "mechanism": "full"}, {"layers": "1-", "mechanism": "full"}], "names layer 1 twice"),
        (
            {"mechanism": "longformer", "left_tokens": {"per_layer": [1, 2]}},
            "must be a list of 3 values, one per",
        ),
        ({"mechanism": "longformer", "left_tokens": {"per_layer": "abc"}}, "must be a list of 3 values"),
        ({"mechanism": "longformer", "left_tokens": {"0-1": 3}}, "has no value for layer 2"),
        ({"mechanism": "longformer", "left_tokens": {"0-1": 3, "1-2": 4}}, "layer 1 is named twice"),
        ({"mechanism": "longformer", "left_tokens": {"per_layer": [1, -2, 3]}}, "left_tokens is -2"),
        ([{"layers": "0-", "mechanism": "longfromer"}], "did you mean 'longformer'"),
    ],
)
def test_mistakes_in_specs(spec: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        layer_specs(spec, 3)
    assert "\n" not in str(error.value)


@given(st.lists(st.sampled_from([*MECHANISMS, "narrow"]), min_size=1, max_size=9))
def test_short_data_says_the_same(names: list[str]) -> None:
    spec = [{"mechanism": "longformer", "left_tokens": 3} if name == "narrow" else name for name in names]
    specs = layer_specs(spec, len(names))
    short = ranges(specs)
    assert layer_specs(short, len(names)) == specs
    assert plain_layers(spec, len(names)) == plain_layers(short, len(names)) == short
    assert (len(short) if isinstance(short, list) else 1) == len(set(names))


def test_samples_need_no_number_of_layers() -> None:
    spec = [{"layers": "7-", "mechanism": "longformer", "left_tokens": {"per_layer": [5, 6]}}, "full"]
    assert samples(spec) == [{"mechanism": "longformer", "left_tokens": 5}, "full"]
    assert samples("full") == ["full"]


def test_a_model_keeps_its_layers_in_few_words(tmp_path) -> None:
    sizes = {"vocab_size": 11, "hidden_size": 4, "num_attention_heads": 2, "intermediate_size": 4}
    spec = [{"layers": "0-2", "mechanism": "longformer", "left_tokens": 3}, {"layers": "3-", "mechanism": "full"}]
    config = LongspanConfig(**sizes, num_hidden_layers=5, attention=spec)
    assert [entry["layers"] for entry in config.attention] == ["0-2", "3-4"]
    assert [config.layer_attention(layer).mechanism for layer in range(5)] == ["longformer"] * 3 + ["full"] * 2
    LongspanModel(config).save_pretrained(tmp_path)
    loaded = LongspanModel.from_pretrained(tmp_path)
    assert loaded.config.attention == config.attention
    assert loaded.encoder.layers[2].attention.config.left_tokens == 3
