"""Precision in short floats, and memory that grows with the length and not with its square."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from longspan.attention import AttentionConfig, FusionConfig, LongformerConfig, PoolingformerConfig, Tokens

CONFIGS = {
    "longformer": LongformerConfig(left_tokens=32, right_tokens=32),
    "longformer, dilated": LongformerConfig(left_tokens=32, right_tokens=32, dilation=(1, 3)),
    "poolingformer": PoolingformerConfig(left_tokens=32, right_tokens=32, init="normal"),
    "fusion": FusionConfig(left_tokens=32, right_tokens=32, init="normal"),
    "poolingformer, per query": PoolingformerConfig(
        left_tokens=32, right_tokens=32, init="normal", windows="per_query", pooling="max"
    ),
}
configs = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


def tokens_of(length: int) -> Tokens:
    """One padded row, the first token global."""
    mask, is_global = torch.ones(2, length, dtype=torch.bool), torch.zeros(2, length, dtype=torch.bool)
    mask[1, length // 2 :], is_global[:, 0] = False, True
    return Tokens(mask=mask, is_global=is_global).with_slots()


def dense(module, hidden: Tensor, tokens: Tokens) -> Tensor:
    """The same layer by dense weights, with local rows only."""
    values = module.split_heads(module.value(hidden))
    context = module.merge_heads(module.window_weights(hidden, tokens).to(values.dtype) @ values)
    if hasattr(module, "pooled_context") and module.config.has_pools:
        values = module.split_heads(module.second_level("value")(context))
        # The weights of the second level start from the first level's output, which this is.
        context = context + module.merge_heads(module._pooled_weights(context, tokens.mask).to(values.dtype) @ values)
    return module.output(context)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "config",
    [
        LongformerConfig(left_tokens=32, right_tokens=32, separate_global_projections=False),
        PoolingformerConfig(left_tokens=32, right_tokens=32, init="normal", separate_global_projections=False),
        FusionConfig(left_tokens=32, right_tokens=32, init="normal"),
        FusionConfig(left_tokens=32, right_tokens=32, two_level=False),
    ],
    ids=lambda config: config.mechanism,
)
def test_short_floats_err_no_more_than_twice_a_dense_layer(config: AttentionConfig, dtype: torch.dtype):
    exact = config.build(width=48, heads=2).double()
    hidden, tokens = torch.randn(2, 301, 48, dtype=torch.float64), tokens_of(301)
    with torch.no_grad():
        truth = exact(hidden, tokens)
        torch.testing.assert_close(dense(exact, hidden, tokens), truth)
        short = exact.to(dtype)
        ours, theirs = short(hidden.to(dtype), tokens).double(), dense(short, hidden.to(dtype), tokens).double()
    assert (ours - truth).abs().mean() <= 2 * (theirs - truth).abs().mean()


def memory(field: str) -> int:
    """Bytes of this process, as Linux counts them."""
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads peak memory from Linux's /proc")
@configs
def test_memory_stays_far_below_the_square_of_the_length(config: AttentionConfig):
    """A single T×T tensor of bytes, or one head's scores, would already break the bound."""
    length = 20011
    module, tokens = config.build(width=16, heads=2), tokens_of(length)
    module(torch.randn(2, 64, 16), tokens_of(64)).sum().backward()
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    module(torch.randn(2, length, 16, requires_grad=True), tokens).sum().backward()
    assert memory("VmHWM") - before < length**2 // 2
