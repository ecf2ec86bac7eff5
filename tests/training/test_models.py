"""The model of an experiment: layers of one level and of two, and an encoder below another head."""

from __future__ import annotations

from typing import Any

import pytest

from longspan.attention import attention_config
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForConditionalGeneration, LongspanForMaskedLM, LongspanModel
from longspan.tasks.language_modelling.masked_lm import MaskedLM
from longspan.tasks.summaries.extraction import Extraction
from longspan.training.models import for_task

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


@pytest.mark.parametrize("kind", ["poolingformer", "fusion"])
def test_layers_without_the_second_level_keep_the_first(kind: str) -> None:
    two_level = attention_config({"mechanism": kind, "left_tokens": 5, "right_tokens": 7, "pooled_left_tokens": 20})
    layers = [two_level.first_level(), two_level, two_level.first_level()]
    config = LongspanConfig(**{**SIZES, "attention": layers})
    assert [config.layer_attention(layer) for layer in range(3)] == layers
    # The levels are there in the weights, and nowhere else.
    model = LongspanModel(config)
    sizes = [sum(parameter.numel() for parameter in layer.parameters()) for layer in model.encoder.layers]
    assert sizes[0] == sizes[2] < sizes[1]


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
