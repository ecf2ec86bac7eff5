"""Long prompts in unmodified decoders: no tensor of the square of the length, and memory that grows with the length."""

from __future__ import annotations

import ctypes
import gc
import math
import re
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import StaticCache

from longspan import use_attention
from longspan.models.transformers_names import CACHE, cache_field

TOKENS = 32768
PATTERN = "window(1024) & causal | first(4)"


def small(decoder, name="llama", **options):
    """One layer for long texts, whose widest activation is the vocabulary's or the feed-forward block's."""
    return decoder(name, num_hidden_layers=1, max_position_embeddings=TOKENS, **options)


@pytest.mark.slow
@pytest.mark.parametrize("padding", [0, 1000])
@pytest.mark.parametrize("name", ["llama", "mistral with a window"])
@torch.no_grad()
def test_a_prompt_of_32768_tokens_makes_no_square(name, padding, decoder, memory):
    """Neither here nor in transformers before: all operations of the model are watched, with a cache and padding."""
    model = use_attention(small(decoder, name), PATTERN)
    mask = torch.ones(1, TOKENS, dtype=torch.long)
    mask[:, :padding] = 0
    with memory() as made:
        state = model(torch.randint(3, 61, (1, TOKENS)), attention_mask=mask, logits_to_keep=1)[CACHE]
        longer = torch.cat([mask, mask[:, -1:]], dim=1)
        model(torch.tensor([[5]]), attention_mask=longer, **cache_field(state), logits_to_keep=1)
    assert made.largest < TOKENS * 512


@torch.no_grad()
def test_padding_makes_no_square_under_full_attention(decoder, memory):
    model, mask = use_attention(small(decoder), "causal"), torch.ones(2, 4096, dtype=torch.long)
    mask[0, :700], mask[1, -700:] = 0, 0
    with memory() as made:
        model(torch.randint(3, 61, (2, 4096)), attention_mask=mask, logits_to_keep=1)
    assert made.largest < 4096 * 512


@pytest.mark.slow
def test_training_on_a_long_text_makes_no_square(decoder, memory):
    model, ids = use_attention(small(decoder), PATTERN), torch.randint(3, 61, (1, TOKENS // 2))
    with memory() as made:
        model(ids, labels=ids).loss.backward()
    assert made.largest < (TOKENS // 2) * 512


@torch.no_grad()
def test_a_step_makes_nothing_wider_than_what_it_sees(decoder):
    """Neither a copy of the cache nor keys repeated for each head of the queries: a static cache is read in place."""
    model = use_attention(small(decoder, num_attention_heads=8, num_key_value_heads=1), "window(100) | first(4)")
    state = StaticCache(config=model.config, max_cache_len=4096)
    model(torch.randint(3, 61, (1, 4000)), **cache_field(state), logits_to_keep=1)
    cached = state.layers[0].keys.numel()

    kept = {tensor.untyped_storage().data_ptr() for tensor in (state.layers[0].keys, state.layers[0].values)}

    class Made(TorchDispatchMode):
        """Looks at what is not the cache itself, which is written in place."""

        elements = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            new = isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in kept
            if new and result.is_floating_point() and result.ndim == 4:
                self.elements = max(self.elements, result.numel())
            return result

    with Made() as made:
        model(torch.tensor([[5]]), **cache_field(state))
    assert made.elements <= 105 * 8 < cached


def peak(model, length):
    """Bytes that one prefill of two rows needs beyond what the process holds."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before would otherwise be used again, unseen
    Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status")
    before = int(re.findall(r"VmRSS:\s+(\d+)", status.read_text())[0])
    model(torch.randint(3, 61, (2, length)), logits_to_keep=1, use_cache=False)
    return 1024 * (int(re.findall(r"VmHWM:\s+(\d+)", status.read_text())[0]) - before)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads peak memory from Linux's /proc")
@torch.no_grad()
def test_memory_grows_with_the_length(decoder):
    model = use_attention(small(decoder, head_dim=64, intermediate_size=512), PATTERN)
    peak(model, 64)
    short, long = peak(model, TOKENS // 8), peak(model, TOKENS)
    assert math.log(long / short) / math.log(8) <= 1.1
