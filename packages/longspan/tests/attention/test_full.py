"""Full attention against PyTorch's own, causal and step by step."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from longspan.attention import FullConfig, LinearConfig, Tokens

WIDTH, HEADS = 6, 2


@pytest.mark.parametrize("config", [FullConfig(), LinearConfig()], ids=lambda config: config.mechanism)
def test_global_tokens_change_nothing_where_every_token_is_seen(config):
    module, hidden = config.build(width=WIDTH, heads=HEADS), torch.randn(2, 7, WIDTH)
    assert torch.equal(module(hidden, Tokens(is_global=torch.rand(2, 7) < 0.5)), module(hidden))


def build(causal: bool = False):
    return FullConfig().build(width=WIDTH, heads=HEADS, causal=causal).double()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [0, 1, 7, 31])
def test_equals_torch(causal, length):
    module, hidden = build(causal), torch.randn(2, length, WIDTH, dtype=torch.float64)
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[1, max(1, length // 2) :] = False
    seen = mask[:, None, None, :].expand(2, 1, length, length)
    if causal:
        seen = seen & torch.ones(length, length, dtype=torch.bool).tril()
    context = scaled_dot_product_attention(*module.project(hidden), attn_mask=seen)
    torch.testing.assert_close(module(hidden, Tokens(mask=mask)), module.output(module.merge_heads(context)))
    weights = module.weights(hidden, Tokens(mask=mask))
    torch.testing.assert_close(weights @ module.project(hidden)[2], context)
