"""Counted costs against what real modules do: their projections, their dense masks, PyTorch's own counter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from longspan.attention import AttentionConfig, FullConfig, FusionConfig, LongformerConfig, PoolingformerConfig
from longspan.attention.parts.costs import attention_cost
from longspan.attention.parts.reach import seen_tokens
from longspan.errors import InputError
from longspan.patterns import PooledWindow, Window

WIDTH, HEADS = 12, 3
POOLS = PoolingformerConfig(left_tokens=5, right_tokens=3, pooled_left_tokens=17, pooled_right_tokens=13)


def projected(config: AttentionConfig, length: int) -> int:
    """Multiply-adds of the linear layers that a forward pass calls."""
    module, counted = config.build(width=WIDTH, heads=HEADS), []
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.register_forward_hook(lambda linear, _, out: counted.append(out.numel() * linear.in_features))
    module(torch.zeros(1, length, WIDTH))
    return sum(counted)


@pytest.mark.parametrize("length", [1, 7, 53])
@pytest.mark.parametrize(
    "config",
    [FullConfig(), LongformerConfig(left_tokens=5, right_tokens=5), POOLS, replace(POOLS, tie_levels=True)],
    ids=["full", "longformer", "poolingformer", "tied"],
)
def test_projections_are_those_that_run(config: AttentionConfig, length: int) -> None:
    assert attention_cost(config, length=length, width=WIDTH, heads=HEADS).projections == projected(config, length)


def test_full_attention_agrees_with_pytorchs_counter() -> None:
    length = 31
    module = FullConfig().build(width=WIDTH, heads=HEADS)
    hidden = torch.zeros(1, length, WIDTH)
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        module(hidden)
    cost = attention_cost(FullConfig(), length=length, width=WIDTH, heads=HEADS)
    assert counter.get_total_flops() == 2 * cost.multiply_adds


@pytest.mark.parametrize("length", [1, 7, 53])
def test_scores_are_the_visible_pairs(length: int) -> None:
    near = int(Window(5, 3).dense(length).sum())
    pools = int(PooledWindow(17, 13, 5, 4).dense(length, -(-length // 4)).sum())
    cost = attention_cost(POOLS, length=length, width=WIDTH, heads=HEADS)
    assert cost.scores == near + pools
    assert cost.mixing == (near + pools) * 2 * WIDTH
    assert cost.weights == (near + pools) * HEADS
    each = replace(POOLS, windows="per_query")
    own = sum(int(seen_tokens(each, token, length)[1].sum()) for token in range(length))
    assert attention_cost(each, length=length, width=WIDTH, heads=HEADS).scores == near + own


def test_pooling_by_hand() -> None:
    """53 tokens have 14 pools of 5 taps and 12 channels, for keys and for values; LDConv predicts the weights too."""
    mean = attention_cost(replace(POOLS, pooling="mean"), length=53, width=WIDTH, heads=HEADS)
    assert mean.pooling == 2 * 14 * 5 * 12
    assert attention_cost(POOLS, length=53, width=WIDTH, heads=HEADS).pooling == 2 * mean.pooling
    each = attention_cost(replace(POOLS, windows="per_query"), length=53, width=WIDTH, heads=HEADS)
    assert each.pooling == 2 * 2 * 53 * 5 * 12
    assert attention_cost(FullConfig(), length=53, width=WIDTH, heads=HEADS).pooling == 0


def test_the_published_comparison() -> None:
    """Far from the ends: 8.39 M multiply-adds ×2 for four projections at width 1024, 6.29 M for three more (thesis)."""
    length = 1 << 20
    two = attention_cost(PoolingformerConfig(), length=length, width=1024, heads=16)
    led = attention_cost(LongformerConfig(left_tokens=512, right_tokens=512), length=length, width=1024, heads=16)
    assert 2 * led.projections / length / 1e6 == pytest.approx(8.39, abs=0.01)
    assert 2 * (two.projections - led.projections) / length / 1e6 == pytest.approx(6.29, abs=0.01)
    assert 2 * led.mixing / length / 1e6 == pytest.approx(4.20, abs=0.01)
    assert 2 * two.mixing / length / 1e6 == pytest.approx(2.10, abs=0.01)


def test_an_unknown_mechanism_is_refused() -> None:
    class Other(AttentionConfig):
        mechanism = "other"

    with pytest.raises(InputError, match="'other' has no known cost"):
        attention_cost(Other(), length=4, width=8, heads=2)
    with pytest.raises(InputError, match="'fusion' has no known cost"):
        attention_cost(FusionConfig(), length=4, width=8, heads=2)
