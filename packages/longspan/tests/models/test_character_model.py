"""The character model of Longformer: widths per layer, dilation per head and relative positions, all at once, against
dense attention with a mask; and text that is written far beyond the windows in memory that does not grow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache

from longspan.attention import LongformerConfig, Tokens
from longspan.attention.parts import sinusoidal_relative
from longspan.models import LongspanConfig, LongspanForCausalLM

WIDTH, HEADS = 12, 3
LEFT, DILATION = (2, 5, 7), ((1, 1, 1), (1, 1, 2), (1, 3, 4))
FURTHEST = 7 * 4


def model() -> LongspanForCausalLM:
    torch.manual_seed(3)
    config = LongspanConfig(
        vocab_size=29,
        hidden_size=WIDTH,
        num_hidden_layers=len(LEFT),
        num_attention_heads=HEADS,
        intermediate_size=16,
        normalization="pre",
        position_embedding="none",
        dropout=0.0,
        init_std=0.3,
        attention={
            "mechanism": "longformer",
            "positions": "relative",
            "left_tokens": {"per_layer": list(LEFT)},
            "dilation": {"per_layer": [list(heads) for heads in DILATION]},
        },
    )
    return LongspanForCausalLM(config).double().eval()


def dense(layer: Any, number: int) -> Callable[..., Tensor]:
    """Dai et al. 2019, section 3.3, pair by pair, over the pairs of Longformer's window: `(B, T, E)` → `(B, T, E)`."""

    def forward(hidden: Tensor, tokens: Tokens | None = None, state: Any = None) -> Tensor:
        assert state is None
        assert tokens is not None
        assert tokens.relative is not None
        length, head_width = hidden.shape[1], WIDTH // HEADS
        q, k, v = (part(hidden).view(-1, length, HEADS, head_width) for part in (layer.query, layer.key, layer.value))
        content_bias, position_bias = tokens.relative
        behind = torch.arange(length)[:, None] - torch.arange(length)
        angle = behind[..., None].double() / 10000 ** (torch.arange(0, WIDTH, 2).double() / WIDTH)
        sinusoids = torch.cat([angle.sin(), angle.cos()], -1)
        places = (sinusoids @ layer.position.weight.T).view(length, length, HEADS, head_width)
        scores = torch.einsum("bihd,bjhd->bhij", q + content_bias, k)
        scores = (scores + torch.einsum("bihd,ijhd->bhij", q + position_bias, places)) / head_width**0.5
        for head, step in enumerate(DILATION[number]):
            seen = (behind >= 0) & (behind <= LEFT[number] * step) & (behind % step == 0)
            scores[:, head] = scores[:, head].masked_fill(~seen, -torch.inf)
        return layer.output(torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2))

    return forward


def with_dense_layers() -> LongspanForCausalLM:
    """The same weights, with attention as it is defined."""
    other = model()
    for number, block in enumerate(other.decoder.layers):
        block.attention.forward = dense(block.attention, number)
    return other


@pytest.mark.parametrize("length", [1, 5, 83])
def test_outputs_and_gradients_equal_dense_attention_with_a_mask(length: int) -> None:
    ids = torch.randint(29, (2, length))
    upstream = torch.randn(2, length, 29, dtype=torch.float64)
    found = []
    for network in (model(), with_dense_layers()):
        logits = network(input_ids=ids, use_cache=False).logits
        names, weights = zip(*network.named_parameters(), strict=True)
        gradients = torch.autograd.grad(logits, weights, upstream)
        found.append((logits, dict(zip(names, gradients, strict=True))))
    torch.testing.assert_close(*found)
    if length > 5:
        assert all(gradient.any() for name, gradient in found[0][1].items() if "position" in name or "content" in name)


def test_each_head_projects_the_distances_of_its_own_dilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """W + 1 of them, although the furthest is 4·W away."""
    layer = LongformerConfig(positions="relative", left_tokens=7, dilation=DILATION[2], share_biases=False)
    attention = layer.build(width=WIDTH, heads=HEADS, causal=True)
    projected: list[tuple[int, int]] = []

    def linear(rows: Tensor, weight: Tensor, *given: Any) -> Tensor:
        projected.append((len(rows), len(weight)))
        return functional.linear(rows, weight, *given)

    monkeypatch.setattr(sinusoidal_relative, "linear", linear)
    attention(torch.randn(1, 90, WIDTH))
    assert projected == [(8, WIDTH // HEADS)] * HEADS
    projected.clear()
    attention(torch.randn(1, 18, WIDTH))  # a window wider than the text: 7, 5 and 4 steps fit
    assert projected == [(rows, WIDTH // HEADS) for rows in (8, 6, 5)]
    assert layer.costs(length=90, width=WIDTH, heads=HEADS, causal=True).projections == (4 * 90 + 8) * WIDTH**2


def kept(cache: DynamicCache) -> list[int]:
    """Numbers that each layer holds."""
    return [sum(value.numel() for value in vars(layer).values() if isinstance(value, Tensor)) for layer in cache.layers]


@pytest.mark.slow
@torch.no_grad()
def test_text_far_beyond_the_windows_is_written_in_constant_memory() -> None:
    """Steps of one token and of several equal the whole pass; what is kept is bounded by the reach of each layer."""
    network, length = model(), 500
    ids = torch.randint(29, (2, length))
    whole, cache = network(input_ids=ids).logits, DynamicCache()
    place, sizes, most = 0, [], [0] * len(LEFT)
    for step in [40, 1, 3, *[1] * 60, 160, *[1] * 80, 37, *[1] * 60, 59]:
        found = network(input_ids=ids[:, place : place + step], cache=cache, use_cache=True)
        cache = found.cache
        torch.testing.assert_close(found.logits, whole[:, place : place + step])
        place += step
        sizes.append(kept(cache))
        most = [max(each) for each in zip(most, sizes[-1], strict=True)]
    assert place == length
    # Two buffers, keys and values, with room for twice the reach and what assisted decoding takes back.
    reaches = [left * max(heads) for left, heads in zip(LEFT, DILATION, strict=True)]
    bounds = [2 * 2 * WIDTH * 2 * (reach + 64) + WIDTH * (reach + 1) for reach in reaches]
    assert all(size <= bound for size, bound in zip(most, bounds, strict=True))
    assert sizes[-1] == sizes[len(sizes) // 2]
    assert len(cache.layers) == len(LEFT)


@torch.no_grad()
def test_generated_text_is_that_of_whole_passes() -> None:
    network, ids = model(), torch.randint(29, (1, 3))
    written = network.generate(ids, max_new_tokens=FURTHEST + 40, do_sample=False, eos_token_id=None, pad_token_id=0)
    logits = network(input_ids=written).logits
    assert torch.equal(logits[:, 2:-1].argmax(-1), written[:, 3:])
