"""Poolingformer's second level against a loop over queries that pools each window by itself, and its invariants."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longspan.attention import LongformerConfig, PoolingformerConfig, Tokens
from longspan.attention.poolingformer import PoolingformerAttention
from longspan.errors import InputError

WIDTH, HEADS, HEAD_WIDTH = 6, 2, 3
POOLINGS = ("ldconv", "mean", "max")


def centres_of(config: PoolingformerConfig, query: int, start: int, length: int) -> list[int]:
    """The centres whose whole kernel lies in the query's window (also where the window leaves the sequence, whose first
    real token is `start`)."""
    first, last = query - config.pooled_left_tokens, query + config.pooled_right_tokens
    before, after = config.kernel // 2, config.kernel - 1 - config.kernel // 2
    if config.windows == "per_query":
        centres = list(range(first + before, last - after + 1, config.stride))
        reach = config.pooled_left_tokens + config.pooled_right_tokens + 1
        assert len(centres) == (reach - config.kernel) // config.stride + 1
    else:
        centres = [c for c in range(start, length, config.stride) if c - before >= first and c + after <= last]
    return [c for c in centres if 0 <= c < length]


def naive_pool(vectors: Tensor, taps: list[int], centre: int, kernel: int, pooling: str, weight: Tensor | None):
    """One pool of one head: `vectors` (T, D), the valid `taps`."""
    if pooling == "mean":
        return vectors[taps].mean(0)
    if pooling == "max":
        return vectors[taps].amax(0)
    rows = [t - centre + kernel // 2 for t in taps]
    return (weight[rows] @ vectors[centre]).softmax(0) @ vectors[taps]


def naive_second_level(module: PoolingformerAttention, first: Tensor, mask: Tensor) -> Tensor:
    """One query and one head at a time, straight from the definition, given the first level's output."""
    config, (batch, length, _) = module.config, first.shape
    context = torch.zeros_like(first)
    query, key, value = (
        module.projection(name)(first).view(batch, length, HEADS, HEAD_WIDTH) for name in ("query", "key", "value")
    )
    for b in range(batch):
        start = next((place for place in range(length) if mask[b, place]), 0)
        for i in range(length):
            centres = [c for c in centres_of(config, i, start, length) if mask[b, c]]
            if not mask[b, i] or not centres:
                continue
            for h in range(HEADS):
                pools = []
                for vectors, name in ((key, "key"), (value, "value")):
                    weight = getattr(module, f"pool_{name}_weight")[h] if config.pooling == "ldconv" else None
                    reach = range(-(config.kernel // 2), config.kernel - config.kernel // 2)
                    taps = {c: [c + o for o in reach if 0 <= c + o < length and mask[b, c + o]] for c in centres}
                    row = [
                        naive_pool(vectors[b, :, h], taps[c], c, config.kernel, config.pooling, weight) for c in centres
                    ]
                    pools.append(torch.stack(row))
                weights = (pools[0] @ query[b, i, h] / HEAD_WIDTH**0.5).softmax(0)
                context[b, i, h * HEAD_WIDTH : (h + 1) * HEAD_WIDTH] = weights @ pools[1]
    return context


def build(config: PoolingformerConfig) -> PoolingformerAttention:
    """The module in float64, with all projections and pooling weights random and different."""
    module = config.build(width=WIDTH, heads=HEADS).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def padding(length: int, kind: str) -> Tensor:
    """`(2, T)` bool: none padded, the second row's end, anywhere, or the whole second row."""
    mask = torch.ones(2, length, dtype=torch.bool)
    if kind == "end":
        mask[1, length // 3 :] = False
    elif kind == "anywhere":
        mask = torch.rand(2, length) > 0.3
    elif kind == "row":
        mask[1] = False
    return mask


@st.composite
def configs(draw: st.DrawFn) -> PoolingformerConfig:
    kernel = draw(st.integers(1, 5))
    left, right = draw(st.integers(0, 11)), draw(st.integers(0, 11))
    return PoolingformerConfig(
        left_tokens=draw(st.integers(0, 3)),
        right_tokens=draw(st.integers(0, 3)),
        pooled_left_tokens=left,
        pooled_right_tokens=max(right, kernel - 1 - left),
        kernel=kernel,
        stride=draw(st.integers(1, kernel)),
        pooling=draw(st.sampled_from(POOLINGS)),
        windows=draw(st.sampled_from(["shared", "per_query"])),
        tie_levels=draw(st.booleans()),
    )


paddings = st.sampled_from(["none", "end", "anywhere", "row"])


@pytest.mark.slow
@settings(max_examples=150)
@given(config=configs(), length=st.integers(0, 19), padded=paddings, seed=st.integers(0, 99))
def test_the_second_level_equals_the_definition(config, length, padded, seed):
    torch.manual_seed(seed)
    module, mask = build(config), padding(length, padded)
    first = torch.randn(2, length, WIDTH, dtype=torch.float64, requires_grad=True)
    found, expected = module.pooled_context(first, Tokens(mask=mask)), naive_second_level(module, first, mask)
    torch.testing.assert_close(found, expected)
    if padded == "none":
        torch.testing.assert_close(module.pooled_context(first, Tokens()), expected)
    if length <= 13 and expected.requires_grad:
        inputs = [first, *(parameter for name, parameter in module.named_parameters() if name.startswith("pool"))]
        upstream = torch.randn_like(found)
        options = {"allow_unused": True, "materialize_grads": True}
        ours, theirs = (torch.autograd.grad(each, inputs, upstream, **options) for each in (found, expected))
        torch.testing.assert_close(ours, theirs)


def test_the_other_starts():
    copied = PoolingformerConfig(init="copy").build(width=WIDTH, heads=HEADS)
    for name in ("query", "key", "value"):
        assert torch.equal(getattr(copied, f"pooled_{name}").weight, getattr(copied, name).weight)
    normal = PoolingformerConfig(init="normal").build(width=60, heads=HEADS)
    assert 0.015 < normal.pooled_value.weight.std() < 0.025
    assert not normal.pooled_value.bias.any()
    tied = PoolingformerConfig(tie_levels=True).build(width=WIDTH, heads=HEADS)
    assert not any(name.startswith("pooled_") for name, _ in tied.named_parameters())


def test_loaded_weights_are_not_initialised_again():
    module = PoolingformerConfig(init="copy").build(width=WIDTH, heads=HEADS)
    before = module.pooled_query.weight.detach().clone().fill_(3.0)
    module.pooled_query.weight.data.copy_(before)
    module.pooled_query.weight._is_hf_initialized = True
    module.init_extra_weights()
    assert torch.equal(module.pooled_query.weight, before)


@pytest.mark.parametrize("windows", ["shared", "per_query"])
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_weights_are_the_shares_of_tokens(windows, pooling, side):
    config = PoolingformerConfig(
        left_tokens=2, right_tokens=2, pooled_left_tokens=7, pooled_right_tokens=5, windows=windows, pooling=pooling
    )
    module, hidden = build(config), torch.randn(2, 19, WIDTH, dtype=torch.float64)
    mask = padding(19, "end")
    tokens = Tokens(mask=mask if side == "right" else mask.flip(1))
    first = module.window_context(hidden, tokens)
    second = module.weights(hidden, tokens, level=2)
    assert not second[1][:, ~tokens.mask[1]].any()
    assert not second[1][:, :, ~tokens.mask[1]].any()
    if pooling != "max":
        values = module.split_heads(module.projection("value")(first))
        torch.testing.assert_close(module.merge_heads(second @ values), module.pooled_context(first, tokens))
    both = module.weights(hidden, tokens)
    torch.testing.assert_close(both, (module.weights(hidden, tokens, level=1) + second) / 2)
    with pytest.raises(InputError, match="level=3"):
        module.weights(hidden, tokens, level=3)


def test_published_geometry():
    config = PoolingformerConfig(windows="per_query")
    assert sum(config.pools[0].phase()[1:]) + 1 == 256
    first, second = config.level_scores(16384)
    assert first == pytest.approx(257, rel=0.01)
    assert second == pytest.approx(256, rel=0.02)
    assert config.scores_per_token(16384) == first + second
    led = LongformerConfig(left_tokens=512, right_tokens=512)
    assert config.scores_per_token(16384) / led.scores_per_token(16384) == pytest.approx(0.5, rel=0.02)


@given(config=configs(), length=st.integers(0, 40))
def test_scores_are_counted_exactly(config, length):
    seen = sum(len(centres_of(config, i, 0, length)) for i in range(length))
    assert config.level_scores(length)[1] * length == pytest.approx(seen)
    near = sum(min(length - 1, i + config.right_tokens) - max(0, i - config.left_tokens) + 1 for i in range(length))
    assert config.level_scores(length)[0] * length == pytest.approx(near)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": 0}, "kernel is 0"),
        ({"stride": 0}, "stride is 0"),
        ({"stride": 6}, "stride=6 exceeds kernel=5"),
        ({"pooled_left_tokens": -1}, "pooled_left_tokens is -1"),
        ({"left_tokens": True}, "left_tokens is True"),
        ({"pooling": "median"}, "pooling is 'median'"),
        ({"windows": "both"}, "windows is 'both'"),
        ({"init": "xavier"}, "init is 'xavier'"),
        ({"pooled_left_tokens": 1, "pooled_right_tokens": 1}, "kernel=5 does not fit"),
        ({"separate_global_projections": "no"}, "separate_global_projections is 'no'"),
    ],
)
def test_mistakes_in_the_configuration_are_named(options, message):
    with pytest.raises(InputError, match=message):
        PoolingformerConfig(**options)
