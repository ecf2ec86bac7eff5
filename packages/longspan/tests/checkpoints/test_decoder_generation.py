"""`generate()` of unmodified decoders under a pattern: what the same model writes under its dense mask."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from longspan import use_attention
from longspan.models.transformers_names import cache_field

PATTERN = "window(6) & causal | first(2)"
WAYS = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 0.8, "top_k": 20},
    "beams": {"num_beams": 3, "do_sample": False},
    "beams that sample": {"num_beams": 2, "do_sample": True},
    "in one static cache": {"do_sample": False, "cache_implementation": "static"},
    "beams in a static cache": {"num_beams": 2, "do_sample": False, "cache_implementation": "static"},
    "without a cache": {"do_sample": False, "use_cache": False},
    "prefilled in chunks": {"do_sample": False, "prefill_chunk_size": 7},
    "from the prompt's own n-grams": {"do_sample": False, "prompt_lookup_num_tokens": 3},
}
ONE_ROW = ("from the prompt's own n-grams",)


def prompts():
    """Three prompts of different lengths, padded on the left."""
    lengths, mask = (45, 19, 33), torch.ones(3, 45, dtype=torch.long)
    for row, length in enumerate(lengths):
        mask[row, : 45 - length] = 0
    ids = torch.randint(3, 9, mask.shape)  # few different tokens, so that n-grams come again
    return ids * mask, mask


def written(model, ids, mask, **options):
    torch.manual_seed(3)
    found = model.generate(
        ids, attention_mask=mask, max_new_tokens=20, return_dict_in_generate=True, output_logits=True, **options
    )
    return found.sequences[:, ids.shape[1] :], torch.stack(found.logits)


@pytest.mark.variant
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral with a window", "qwen2", "qwen3 with both kinds of layers"])
def test_writes_what_the_dense_mask_writes(name, way, decoder, by_hand):
    model, (ids, mask) = decoder(name), prompts()
    if way in ONE_ROW:
        ids, mask = ids[:1], mask[:1]
    want, want_logits = written(by_hand(model, PATTERN), ids, mask, **WAYS[way])
    have, have_logits = written(use_attention(model, PATTERN), ids, mask, **WAYS[way])
    assert torch.equal(have, want)
    torch.testing.assert_close(have_logits, want_logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "qwen3 with both kinds of layers"])
def test_a_batch_writes_what_each_prompt_writes_alone(name, decoder):
    model, (ids, mask) = use_attention(decoder(name), PATTERN), prompts()
    together, _ = written(model, ids, mask, do_sample=False)
    for row in range(3):
        one = mask[row].bool()
        alone, _ = written(model, ids[row : row + 1, one], mask[row : row + 1, one], do_sample=False)
        assert torch.equal(together[row : row + 1], alone)


def test_a_conversation_goes_on_in_its_cache(decoder):
    model, (ids, _) = use_attention(decoder("llama"), PATTERN), prompts()
    state = DynamicCache(config=model.config)
    first = model.generate(ids[:1], **cache_field(state), max_new_tokens=5, do_sample=False)
    longer = torch.cat([first, ids[:1, :11]], dim=1)
    whole = model.generate(longer, max_new_tokens=5, do_sample=False)
    assert torch.equal(model.generate(longer, **cache_field(state), max_new_tokens=5, do_sample=False), whole)


def test_another_model_may_guess_ahead(decoder):
    model, (ids, _) = use_attention(decoder("llama"), PATTERN), prompts()
    helper = use_attention(decoder("llama", num_hidden_layers=1), "window(3)")
    alone = model.generate(ids[:1], max_new_tokens=20, do_sample=False)
    assert torch.equal(model.generate(ids[:1], assistant_model=helper, max_new_tokens=20, do_sample=False), alone)
