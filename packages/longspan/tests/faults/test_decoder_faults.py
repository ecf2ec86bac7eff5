"""Decoders that are asked for what no pattern gives: one sentence that names the argument and the remedy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from longspan import InputError, use_attention

TINY = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
GPT2 = {"vocab_size": 11, "n_embd": 8, "n_layer": 1, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2}
IDS = torch.full((2, 6), 5)

MODELS: dict[str, tuple[str, dict[str, Any], str, list[str]]] = {
    "cross attention": ("GPT2Model", GPT2 | {"add_cross_attention": True}, "causal", ["GPT2Model", "cross-attention"]),
    "capped scores": ("Gemma2Model", TINY | {"head_dim": 4}, "causal", ["Gemma2Model", "softcap"]),
    "another mask": ("Llama4TextModel", TINY | {"num_local_experts": 1}, "causal", ["asks for another mask"]),
    "too many heads": ("LlamaModel", TINY, "per_head(causal, causal, full)", ["3 heads", "one pattern for each head"]),
    "no such pattern": ("LlamaModel", TINY, "windw(3)", ["'windw', which does not exist"]),
}

CALLS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "packed sequences": ({"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]])}, ["packed sequences"]),
    "a cached mask without the cache": ({"attention_mask": torch.ones(2, 9)}, ["covers 9 tokens", "6 keys"]),
    "a mask that ends early": ({"attention_mask": torch.ones(2, 4)}, ["attention_mask has 4 columns", "6 tokens"]),
    "a mask of scores": ({"attention_mask": torch.zeros(2, 1, 6, 6)}, ["4 dimensions", "(B, T)"]),
    "a mask of -100": ({"attention_mask": torch.full((2, 6), -100)}, ["attention_mask holds -100"]),
    "global tokens": ({"global_attention_mask": torch.ones(2, 6)}, ["no global_attention_mask"]),
    "weights": ({"output_attentions": True}, ["output_attentions=True", "never forms the weights"]),
}


@pytest.mark.parametrize(("name", "options", "pattern", "says"), MODELS.values(), ids=MODELS)
def test_a_model_or_pattern_that_does_not_fit(name, options, pattern, says):
    model = getattr(transformers, name)(getattr(transformers, name).config_class(**options))
    before = model.config._attn_implementation
    with pytest.raises(InputError) as caught:
        use_attention(model, pattern)
    assert all(part in str(caught.value) for part in says), str(caught.value)
    assert "\n" not in str(caught.value)
    assert (model.config._attn_implementation, getattr(model.config, "longspan_pattern", None)) == (before, None)


@pytest.mark.parametrize(("inputs", "says"), CALLS.values(), ids=CALLS)
def test_a_call_that_no_pattern_serves(inputs, says):
    model = use_attention(transformers.LlamaModel(transformers.LlamaConfig(**TINY)), "window(3) | first(1)")
    with pytest.raises(InputError) as caught:
        model(input_ids=IDS, use_cache=False, **inputs)
    assert all(part in str(caught.value) for part in says), str(caught.value)
    assert "\n" not in str(caught.value)
