"""Counted costs against what real modules do: their projections, their dense masks, PyTorch's own counter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from longspan.attention import (
    AttentionConfig,
    CompressedConfig,
    FullConfig,
    FusionConfig,
    LinearConfig,
    LinformerConfig,
    LongformerConfig,
    PerformerConfig,
    PoolingformerConfig,
)
from longspan.errors import InputError

WIDTH, HEADS = 12, 3
POOLS = PoolingformerConfig(left_tokens=5, right_tokens=3, pooled_left_tokens=17, pooled_right_tokens=13)


PERFORMERS = [PerformerConfig(features=10, hyperbolic=twice) for twice in (False, True)]


@pytest.mark.parametrize(
    "config",
    [
        FullConfig(),
        LinearConfig(),
        LinformerConfig(slots=7),
        LinformerConfig(slots=7, compress_input=True),
        LinformerConfig(slots=7, compress_input=True, sharing="layerwise"),
        LinformerConfig(slots=7, sharing="none"),
        *PERFORMERS,
        CompressedConfig(),
    ],
    ids=lambda config: config.describe(),
)
def test_multiply_adds_are_those_that_pytorch_counts(config: AttentionConfig) -> None:
    module, hidden = config.build(width=WIDTH, heads=HEADS), torch.zeros(1, 131, WIDTH)
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        module(hidden)
    cost = config.costs(length=131, width=WIDTH, heads=HEADS)
    assert counter.get_total_flops() == 2 * (cost.projections + cost.mixing + cost.pooling)


def test_pooling_by_hand() -> None:
    """53 tokens have 14 pools of 5 taps and 12 channels, for keys and for values; LDConv predicts the weights too."""
    mean = replace(POOLS, pooling="mean").costs(length=53, width=WIDTH, heads=HEADS)
    assert (mean.pooling, mean.mixing) == (2 * 14 * 5 * 12, 2 * WIDTH * mean.scores)
    assert POOLS.costs(length=53, width=WIDTH, heads=HEADS).pooling == 2 * mean.pooling
    each = replace(POOLS, windows="per_query").costs(length=53, width=WIDTH, heads=HEADS)
    assert each.pooling == 2 * 2 * 53 * 5 * 12
    assert FullConfig().costs(length=53, width=WIDTH, heads=HEADS).pooling == 0
    blocks = LinformerConfig(projection="mean", slots=4, max_tokens=64).costs(length=53, width=WIDTH, heads=HEADS)
    assert (blocks.scores, blocks.pooling) == (53 * 4, 2 * 53 * 12)  # blocks of 16 tokens


def test_the_published_comparison() -> None:
    """Far from the ends: 8.39 M multiply-adds ×2 for four projections at width 1024, 6.29 M for three more (thesis)."""
    length = 1 << 20
    two = PoolingformerConfig().costs(length=length, width=1024, heads=16)
    led = LongformerConfig(left_tokens=512, right_tokens=512).costs(length=length, width=1024, heads=16)
    assert 2 * led.projections / length / 1e6 == pytest.approx(8.39, abs=0.01)
    assert 2 * (two.projections - led.projections) / length / 1e6 == pytest.approx(6.29, abs=0.01)
    assert 2 * led.mixing / length / 1e6 == pytest.approx(4.20, abs=0.01)
    assert 2 * two.mixing / length / 1e6 == pytest.approx(2.10, abs=0.01)


def test_relative_terms_by_hand() -> None:
    """Of 53 tokens 5 before and 3 after are seen, in pairs of four products of 12 instead of two, by 9 rows of the
    table that two projections read; the pools are Poolingformer's."""
    fusion = FusionConfig(left_tokens=5, right_tokens=3, pooled_left_tokens=17, pooled_right_tokens=13)
    cost = fusion.costs(length=53, width=WIDTH, heads=HEADS)
    plain = POOLS.costs(length=53, width=WIDTH, heads=HEADS)
    near = 9 * 53 - (1 + 2 + 3 + 4 + 5) - (1 + 2 + 3)
    assert (cost.scores, cost.pooling, cost.weights) == (plain.scores, plain.pooling, plain.weights)
    assert cost.mixing == plain.mixing + 2 * 12 * near
    assert cost.projections == plain.projections + 2 * 9 * 12 * 12


def test_a_mechanism_that_says_nothing_of_its_field_is_refused() -> None:
    class Other(AttentionConfig):
        mechanism = "other"

    with pytest.raises(InputError, match="'other' has no known receptive field; define its depends_on"):
        Other().depends_on(torch.ones(3, dtype=torch.bool))
    assert Other().reach().left is None
    assert Other().lengthening(1).covers
    assert not Other().lengthening(2).covers
