"""The model of an experiment: layers of one level and of two, and an encoder below another head."""

from __future__ import annotations

from typing import Any

import pytest

from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForConditionalGeneration, LongspanForMaskedLM, LongspanModel
from longspan.tasks.language_modelling.masked_lm import MaskedLM
from longspan.tasks.summaries.extraction import Extraction
from longspan.training.models import attention_of_layers, for_task

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


@pytest.mark.parametrize("kind", ["poolingformer", "fusion"])
def test_layers_without_the_second_level_keep_the_first(kind: str) -> None:
    spec = {"mechanism": kind, "left_tokens": 5, "right_tokens": 7, "pooled_left_tokens": 20}
    layers = attention_of_layers(spec, 3, [1])
    config = LongspanConfig(**{**SIZES, "attention": layers})
    found = [config.layer_attention(layer) for layer in range(3)]
    assert {(layer.left_tokens, layer.right_tokens) for layer in found} == {(5, 7)}
    two = [layer.mechanism == "poolingformer" or getattr(layer, "two_level", False) for layer in found]
    assert two == [False, True, False]
    assert found[1].pooled_left_tokens == 20
    # The levels are there in the weights, and nowhere else.
    model = LongspanModel(config)
    sizes = [sum(parameter.numel() for parameter in layer.parameters()) for layer in model.encoder.layers]
    assert sizes[0] == sizes[2] < sizes[1]


def test_mistakes_in_two_level_layers() -> None:
    with pytest.raises(InputError, match="needs attention 'poolingformer' or 'fusion', not 'longformer'"):
        attention_of_layers("longformer", 3, [1])
    with pytest.raises(InputError, match="has 3, but the encoder's layers are 0 to 2"):
        attention_of_layers("fusion", 3, [3])


def test_only_an_encoder_goes_below_another_head() -> None:
    pre_trained = LongspanForMaskedLM(LongspanConfig(**SIZES))
    assert for_task(pre_trained, MaskedLM(), "here") is pre_trained
    first = for_task(pre_trained, MaskedLM(global_tokens="first"), "here")
    assert first.config.global_tokens == "first"
    both = zip(first.state_dict().values(), pre_trained.state_dict().values(), strict=True)
    assert all(one.equal(other) for one, other in both)
    whole = LongspanForConditionalGeneration(LongspanConfig(**SIZES, decoder_layers=1))
    with pytest.raises(InputError, match="is 'here', a LongspanForConditionalGeneration; this task needs a"):
        for_task(whole, Extraction(), "here")
