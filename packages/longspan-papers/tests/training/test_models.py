"""The model of an experiment: layers of one level and of two, and an encoder below another head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from longspan.attention import attention_config
from longspan.checkpoints import from_transformers, lengthen
from longspan.errors import InputError
from longspan.models import (
    LongspanConfig,
    LongspanForConditionalGeneration,
    LongspanForMaskedLM,
    LongspanForPrefixLM,
    LongspanModel,
)
from longspan.patterns import Prefix
from longspan.tasks.language_modelling.masked_lm import MaskedLM
from longspan.training.models import for_task
from longspan_documents.summaries.extraction import Extraction
from longspan_papers.dialogue.denoising import DialogueDenoising

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
    layers = [two_level.lengthening().first_level, two_level, two_level.lengthening().first_level]
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


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_an_encoder_becomes_the_single_stack_of_a_prefix_language_model(kind, caplog):
    """UniLM's start: what the stack makes of a source alone is what the encoder makes of it, layer by layer."""
    sizes = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 40, "max_position_embeddings": 40, "initializer_range": 0.4}
    torch.manual_seed(3)
    theirs = getattr(transformers, f"{kind}ForMaskedLM")(getattr(transformers, f"{kind}Config")(**sizes)).eval()
    encoder = from_transformers(theirs).double()
    task = DialogueDenoising(model="prefix", pseudo_masks=True, max_source_tokens=20, max_target_tokens=4)
    model = for_task(encoder, task, "source").double().eval()
    assert isinstance(model, LongspanForPrefixLM)
    assert model.config.pseudo_masks
    assert not model.new_weights
    ids = torch.randint(5, 61, (2, 17))
    states = encoder.model(ids, output_hidden_states=True).hidden_states
    embeds = model.decoder.embeddings.of_tokens(ids)
    found = model.decoder(None, inputs_embeds=embeds, prefix=Prefix(17), use_cache=False, output_hidden_states=True)
    for ours, other in zip(found.hidden_states, states, strict=True):
        torch.testing.assert_close(ours, other)
    table = model.decoder.embeddings.token.weight
    assert model.lm_head.weight is table
    hybrid = [
        {"layers": "0-2", "mechanism": "sinkhorn", "target_attention": "full"},
        {"layers": "3", "mechanism": "full"},
    ]
    sorted_ = for_task(lengthen(encoder.float(), hybrid, 64), task, "source")
    layer = sorted_.decoder.layers[0].attention
    assert torch.equal(layer.source_key.weight, layer.key.weight)  # as the encoder's, and not drawn
    assert not sorted_.new_weights
    assert not caplog.messages


def test_pseudo_masks_are_of_a_single_stack():
    with pytest.raises(InputError, match="pseudo_masks=True is of model='prefix', and model is 'encoder_decoder'"):
        DialogueDenoising(pseudo_masks=True)
