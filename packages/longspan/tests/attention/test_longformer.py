"""Longformer against a loop over queries, against transformers' own layer, and against itself step by step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from longspan.attention import LongformerConfig, Tokens
from longspan.attention.parts.windowed import WindowedAttention
from longspan.errors import InputError

from .conftest import flags

WIDTH, HEADS, HEAD_WIDTH = 6, 2, 3


def naive_window(module: WindowedAttention, hidden: Tensor, mask: Tensor, is_global: Tensor) -> Tensor:
    """One query at a time, straight from the definition: window, globals, then separate rows for global queries."""
    config, (batch, length, _) = module.config, hidden.shape
    dilation = getattr(config, "dilation", 1)
    dilations = dilation if isinstance(dilation, tuple) else (dilation,) * module.heads
    context = torch.zeros_like(hidden)
    is_global = is_global & mask
    for b in range(batch):
        for i in range(length):
            own = is_global[b, i]
            prefix = "global_" if own and module.separate else ""
            query, key, value = (
                getattr(module, f"{prefix}{name}")(hidden[b]).view(length, module.heads, -1)
                for name in ("query", "key", "value")
            )
            for h in range(module.heads):
                right = 0 if module.causal else config.right_tokens
                steps = {i + dilations[h] * m for m in range(-config.left_tokens, right + 1)}
                seen = [j for j in range(length) if mask[b, j] and (own or is_global[b, j] or j in steps)]
                if not mask[b, i] or not seen:
                    continue
                weights = (key[seen, h] @ query[i, h] / module.head_width**0.5).softmax(0)
                context[b, i, h * module.head_width : (h + 1) * module.head_width] = weights @ value[seen, h]
    return context


def build(config: LongformerConfig, causal: bool = False) -> WindowedAttention:
    """The module in float64, with all projections random and different."""
    module = config.build(width=WIDTH, heads=HEADS, causal=causal).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


kinds = st.sampled_from(["none", "all", "first", "ragged", "anywhere", "row"])


@pytest.mark.slow
@given(
    length=st.integers(0, 17),
    left=st.integers(0, 9),
    right=st.integers(0, 9),
    dilation=st.sampled_from([1, 2, 3, (1, 3), (2, 2)]),
    padding=kinds,
    globals_=kinds,
    separate=st.booleans(),
    causal=st.booleans(),
    seed=st.integers(0, 99),
)
def test_equals_the_definition(length, left, right, dilation, padding, globals_, separate, causal, seed):
    torch.manual_seed(seed)
    config = LongformerConfig(
        left_tokens=left, right_tokens=right, dilation=dilation, separate_global_projections=separate
    )
    module = build(config, causal)
    hidden = torch.randn(2, length, WIDTH, dtype=torch.float64)
    mask, is_global = ~flags(length, padding), flags(length, "none" if causal else globals_)
    tokens = Tokens(mask=mask, is_global=None if causal else is_global)
    expected = naive_window(module, hidden, mask, is_global)
    torch.testing.assert_close(module.context(hidden, tokens), expected)
    weights = module.weights(hidden, tokens)
    assert weights.shape == (2, HEADS, length, length)
    if not (separate and is_global.any()):
        values = module.split_heads(module.value(hidden))
        torch.testing.assert_close(module.merge_heads(weights @ values), expected)


@pytest.mark.parametrize("globals_", ["none", "first", "ragged", "anywhere"])
@pytest.mark.parametrize("padding", ["none", "row-end"])
def test_equals_the_layer_of_transformers(globals_, padding):
    from transformers import LongformerConfig as TheirConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    window, length = 8, 40
    theirs = LongformerSelfAttention(
        TheirConfig(hidden_size=24, num_attention_heads=4, attention_window=[window], vocab_size=8), layer_id=0
    ).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    config = LongformerConfig(left_tokens=window // 2, right_tokens=window // 2)
    ours = config.build(width=24, heads=4).eval()
    state = {k.replace("query_global", "global_query"): v for k, v in theirs.state_dict().items()}
    state = {k.replace("key_global", "global_key").replace("value_global", "global_value"): v for k, v in state.items()}
    missing = ours.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys
    assert missing.missing_keys == ["output.weight", "output.bias"]

    mask, is_global = torch.ones(2, length, dtype=torch.bool), flags(length, globals_)
    if padding == "row-end":
        mask[1, 23:] = False
    is_global &= mask
    # Their layer reads one number per token: negative for padding, 0 for local, positive for global.
    theirs_mask = torch.where(mask, is_global.float(), -1.0) * 10000
    hidden = torch.randn(2, length, 24)
    (expected,) = theirs(
        hidden,
        attention_mask=theirs_mask,
        is_index_masked=~mask,
        is_index_global_attn=is_global,
        is_global_attn=bool(is_global.any()),
    )[:1]
    context = ours.context(hidden, Tokens(mask=mask, is_global=is_global))
    torch.testing.assert_close(context[mask], expected[mask], rtol=1e-5, atol=1e-5)
    assert not context[~mask].any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"left_tokens": -1}, "left_tokens is -1"),
        ({"right_tokens": 2.5}, "right_tokens is 2.5"),
        ({"dilation": 0}, "dilation is 0"),
        ({"dilation": (1, 0)}, r"dilation\[1\] is 0"),
        ({"dilation": ()}, r"dilation=\(\)"),
        ({"dropout": 1.0}, "dropout is 1.0"),
    ],
)
def test_mistakes_in_the_configuration_are_named(options, message):
    with pytest.raises(InputError, match=message):
        LongformerConfig(**options)


def test_one_dilation_per_head_needs_as_many_heads():
    with pytest.raises(InputError, match="3 entries for 2 heads"):
        LongformerConfig(dilation=(1, 2, 3)).build(width=WIDTH, heads=HEADS)
