"""Static caches: the same text token for token where layers keep keys and values, one sentence where they do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CompileConfig, GenerationConfig

import longspan
from longspan import MECHANISMS, InputError, LongspanConfig

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 97,
    "init_std": 0.3,
}
IDS = torch.randint(3, 61, (2, 19), generator=torch.Generator().manual_seed(1))
MASK = (torch.arange(19) >= torch.tensor([[0], [5]])).long()
PREALLOCATED = {"full", "longformer", "adaptive_span", "sparse", "explicit_sparse", "sinkhorn", "synthesizer"}
CAUSAL = [name for name, config in MECHANISMS.items() if config.causal]


def writer(attention: Any, kind: str = "LongspanForCausalLM", **options: Any) -> Any:
    torch.manual_seed(0)
    return getattr(longspan, kind)(LongspanConfig(attention=attention, **(SIZES | options))).eval()


def written(model: Any, **options: Any) -> Tensor:
    given = {"input_ids": IDS.masked_fill(MASK == 0, 1), "attention_mask": MASK, "do_sample": False}
    return model.generate(**given, max_new_tokens=13, min_new_tokens=13, **options)


def test_every_causal_mechanism_is_known_here() -> None:
    assert set(CAUSAL) >= PREALLOCATED


@pytest.mark.parametrize("name", CAUSAL)
def test_a_static_cache_writes_the_same_text_or_is_refused(name: str) -> None:
    model = writer(name)
    if name not in PREALLOCATED:
        with pytest.raises(
            InputError, match=rf"cache_implementation='static' .* attention '{name}' keeps something else"
        ):
            written(model, cache_implementation="static")
        assert torch.equal(written(model, cache_implementation="dynamic"), written(model))
    else:
        assert torch.equal(written(model, cache_implementation="static"), written(model))
        beams = {"num_beams": 3, "num_return_sequences": 2}
        assert torch.equal(written(model, cache_implementation="static", **beams), written(model, **beams))


def test_beside_an_encoder_and_by_the_generation_configuration() -> None:
    window = {"mechanism": "longformer", "left_tokens": 3, "right_tokens": 3}
    sizes = {"decoder_layers": 2, "decoder_attention": {"mechanism": "longformer", "left_tokens": 4}}
    model = writer(window, "LongspanForConditionalGeneration", **sizes)
    expected = written(model)
    assert torch.equal(written(model, cache_implementation="static"), expected)
    settings = GenerationConfig(cache_implementation="static", max_new_tokens=13, min_new_tokens=13, eos_token_id=2)
    settings.decoder_start_token_id, settings.pad_token_id = 2, 1
    given = {"input_ids": IDS.masked_fill(MASK == 0, 1), "attention_mask": MASK}
    assert torch.equal(model.generate(**given, generation_config=settings), expected)


def test_steps_are_not_compiled_and_asking_for_it_is_refused() -> None:
    model = writer("full")
    with pytest.raises(InputError, match="no step of decoding is one graph here"):
        written(model, cache_implementation="static", compile_config=CompileConfig())
    everywhere = CompileConfig()
    everywhere._compile_all_devices = True  # as on a GPU
    model.generation_config.compile_config = everywhere
    with pytest.raises(InputError, match="compile_config was given"):
        written(model, cache_implementation="static")
