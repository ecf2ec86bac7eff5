"""Fusion against a loop over pairs, against transformers' DeBERTa, and against plain Poolingformer."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longspan.attention import (
    FusionConfig,
    LongformerConfig,
    PoolingformerConfig,
    RelativePositions,
    RelativeTables,
    Tokens,
)
from longspan.attention.fusion import FusionAttention
from longspan.attention.parts.relative import bucket, near_row
from longspan.errors import InputError

from .conftest import flags

WIDTH, HEADS, HEAD_WIDTH = 6, 2, 3
SMALL = {"left_tokens": 2, "right_tokens": 3, "relative_span": 4, "global_buckets": 3, "global_span": 7}
LATER = {
    "none": {},
    "buckets": {"position_buckets": 4, "relative_span": 9, "left_tokens": 11, "right_tokens": 12},
    "norm": {"position_norm_eps": 1e-3},
    "tied": {"tie_position_projections": True},
    "all": {"position_buckets": 3, "relative_span": 8, "position_norm_eps": 1e-3, "tie_position_projections": True},
}
"""What DeBERTa-v2 brought."""
POOLED = {"pooled_left_tokens": 9, "pooled_right_tokens": 9, "init": "normal"}


def build(config: FusionConfig) -> FusionAttention:
    """The module in float64, with all weights random and different."""
    module = config.build(width=WIDTH, heads=HEADS).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def naive_bucket(r: int, buckets: int, span: int) -> int:
    if r >= 0:
        return buckets + min(buckets - 1, r * buckets // span)
    return buckets - 1 - min(buckets - 1, (-r - 1) * buckets // span)


def naive_row(r: int, config: FusionConfig) -> int:
    """Row of the table of the window: clipped, or by DeBERTa-v2's buckets."""
    rows, distance = config.position_buckets or config.relative_span, abs(r)
    exact = rows // 2
    if config.position_buckets and distance > exact:
        further = math.log(distance / exact) / math.log((config.relative_span - 1) / exact) * (exact - 1)
        r = (exact + math.ceil(round(further, 6))) * (1 if r > 0 else -1)
    return min(max(r + rows, 0), 2 * rows - 1)


def naive_window(module: FusionAttention, hidden: Tensor, mask: Tensor, is_global: Tensor) -> Tensor:
    """One pair at a time, straight from the definition; every projection applied to one vector."""
    config, (batch, length, _) = module.config, hidden.shape
    assert module.positions is not None
    tables, is_global, context = module.positions(), is_global & mask, torch.zeros_like(hidden)
    for b in range(batch):
        for i in range(length):
            if not mask[b, i]:
                continue
            own = is_global[b, i]
            prefix = "global_" if own and module.separate else ""
            project = {name: getattr(module, prefix + name) for name in ("query", "key", "value")}
            near = range(i - config.left_tokens, i + config.right_tokens + 1)
            seen = [j for j in range(length) if mask[b, j] and (own or is_global[b, j] or j in near)]
            for h in range(HEADS):
                part = slice(h * HEAD_WIDTH, (h + 1) * HEAD_WIDTH)
                scores, query = [], project["query"](hidden[b, i])[part]
                for j in seen:
                    key = project["key"](hidden[b, j])[part]
                    if own or is_global[b, j]:
                        rows = [tables.far[naive_bucket(i - j, config.global_buckets, config.global_span)]] * 2
                        names = ("global_position_key", "global_position_query")
                    else:
                        third = i - j if config.p2c_index == "code" else j - i
                        rows = [tables.near[naive_row(r, config)] for r in (i - j, third)]
                        names = ("position_key", "position_query")
                    names = ("key", "query") if config.tie_position_projections else names
                    position_key, position_query = (
                        getattr(module, name)(row)[part] for name, row in zip(names, rows, strict=True)
                    )
                    scores.append(query @ key + query @ position_key + key @ position_query)
                weights = (torch.stack(scores) / (3 * HEAD_WIDTH) ** 0.5).softmax(0)
                context[b, i, part] = weights @ project["value"](hidden[b, seen])[:, part]
    return context


@pytest.mark.slow
@settings(max_examples=60)
@given(
    length=st.integers(0, 15),
    globals_=st.sampled_from(["none", "all", "first", "anywhere", "row"]),
    padded=st.sampled_from(["none", "anywhere", "row"]),
    p2c=st.sampled_from(["code", "paper"]),
    separate=st.booleans(),
    later=st.sampled_from(list(LATER)),
    seed=st.integers(0, 99),
)
def test_the_first_level_equals_the_definition(length, globals_, padded, p2c, separate, later, seed):
    torch.manual_seed(seed)
    options = SMALL | LATER[later] | {"separate_global_projections": separate, "two_level": False}
    module = build(FusionConfig(**options, p2c_index=p2c))
    mask, is_global = ~flags(length, padded), flags(length, globals_)
    hidden, tokens = torch.randn(2, length, WIDTH, dtype=torch.float64), Tokens(mask=mask, is_global=is_global)
    with torch.no_grad():
        expected = naive_window(module, hidden, mask, is_global)
        torch.testing.assert_close(module.window_context(hidden, tokens), expected)
        weights = module.weights(hidden, tokens)
    real = mask[:, None, :, None].expand((*weights.shape[:3], 1))
    torch.testing.assert_close(weights.sum(-1, keepdim=True), real.double())
    if not separate:
        context = module.merge_heads(weights @ module.split_heads(module.value(hidden)))
        torch.testing.assert_close(context, expected)


def deberta_pair(span: int, dtype: torch.dtype):
    """A full-attention layer of transformers and ours with a window that covers the input, with the same weights.

    Theirs computes its scale in float32, which is exact only where 3 times the head width is a square.
    """
    from transformers import DebertaConfig
    from transformers.models.deberta.modeling_deberta import DisentangledSelfAttention

    heads, head_width = 3, 12
    width = heads * head_width
    config = DebertaConfig(
        hidden_size=width,
        num_attention_heads=heads,
        relative_attention=True,
        max_relative_positions=span,
        pos_att_type=["c2p", "p2c"],
    )
    theirs = DisentangledSelfAttention(config).to(dtype).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    options = FusionConfig(left_tokens=span, right_tokens=span, relative_span=span, two_level=False)
    ours = options.build(width=width, heads=heads).to(dtype).eval()
    ours.share_positions()
    fused = theirs.in_proj.weight.view(heads, 3, head_width, width)
    with torch.no_grad():
        for which, name in enumerate(("query", "key", "value")):
            getattr(ours, name).weight.copy_(fused[:, which].flatten(0, 1))
            getattr(ours, name).bias.zero_()
        ours.query.bias.copy_(theirs.q_bias)
        ours.value.bias.copy_(theirs.v_bias)
        ours.position_key.load_state_dict(theirs.pos_proj.state_dict())
        ours.position_query.load_state_dict(theirs.pos_q_proj.state_dict())
    return theirs, ours


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("length", [1, 2, 12, 13, 14])
def test_equals_the_layer_of_transformers(length, dtype, tolerance):
    from transformers.models.deberta.modeling_deberta import build_relative_position

    theirs, ours = deberta_pair(13, dtype)
    hidden = torch.randn(2, length, ours.width, dtype=dtype, requires_grad=True)
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[1, length // 2 + 1 :] = False
    near = torch.randn(26, ours.width, dtype=dtype, requires_grad=True)
    tokens = Tokens(mask=mask, relative=RelativeTables(near, torch.zeros(128, ours.width, dtype=dtype)))
    place = torch.zeros(1, 1, length, 1)
    expected, weights = theirs(
        hidden,
        mask[:, None, None, :] & mask[:, None, :, None],
        output_attentions=True,
        relative_pos=build_relative_position(place, place),
        rel_embeddings=near,
    )
    real = mask[:, :, None]  # a padded row gathers nothing here, and everything there
    found = ours.window_context(hidden, tokens)
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(found, expected * real, **close)
    torch.testing.assert_close(ours.weights(hidden, tokens), weights * real[:, None], **close)
    upstream = torch.randn_like(found) * real
    inputs = [hidden, near]
    theirs_grads = torch.autograd.grad(expected, inputs, upstream)
    for mine, other in zip(torch.autograd.grad(found, inputs, upstream), theirs_grads, strict=True):
        torch.testing.assert_close(mine, other, rtol=10 * tolerance, atol=10 * tolerance)


def test_the_table_of_the_paper_is_the_mirror_of_that_of_the_code():
    """δ(j, i) is δ(i, j) with the sign turned round, except for the last row, which stands for k and k − 1."""
    code, paper = (build(FusionConfig(**SMALL, p2c_index=index, two_level=False)) for index in ("code", "paper"))
    paper.load_state_dict(code.state_dict())
    hidden = torch.randn(1, 11, WIDTH, dtype=torch.float64)
    assert not torch.allclose(code(hidden), paper(hidden))
    torch.nn.init.zeros_(code.position_query.weight)
    torch.nn.init.zeros_(paper.position_query.weight)
    torch.testing.assert_close(code(hidden), paper(hidden))


@given(buckets=st.integers(1, 70), extra=st.integers(0, 200))
def test_buckets_are_monotone_and_onto(buckets, extra):
    span = buckets + extra
    offsets = torch.arange(-2 * span, 2 * span + 1)
    codes = bucket(offsets, buckets, span)
    assert codes.tolist() == [naive_bucket(r, buckets, span) for r in offsets.tolist()]
    assert bool((codes[1:] >= codes[:-1]).all())
    assert codes.unique().tolist() == list(range(2 * buckets))
    assert codes[2 * span].item() == buckets  # b(0)
    assert codes[2 * span - 1].item() == buckets - 1  # b(−1)


def test_buckets_of_published_size_hold_64_offsets_each():
    codes = bucket(torch.arange(-4096, 4096), 64, 4096)
    assert torch.bincount(codes).tolist() == [64] * 128


def test_clipped_offsets_are_deberta_s():
    assert near_row(torch.tensor([-9, -4, -1, 0, 3, 4, 9]), 4).tolist() == [0, 0, 3, 4, 7, 7, 7]


def test_rows_for_buckets_start_at_the_middle_of_each():
    positions = RelativePositions(4, 1, buckets=3)
    positions.near.weight.data = torch.arange(8.0)[:, None]
    positions.copy_to_buckets(6)  # buckets of two offsets: −6 −5 | −4 −3 | −2 −1 | 0 1 | 2 3 | 4 5
    assert positions.far.weight[:, 0].tolist() == [0, 1, 3, 5, 7, 7]


def test_an_encoder_shares_its_tables():
    alone = build(FusionConfig(**SMALL, two_level=False))
    shared = build(FusionConfig(**SMALL, two_level=False))
    shared.load_state_dict(alone.state_dict())
    positions = alone.positions
    assert positions is not None
    shared.share_positions()
    assert not any("positions" in name for name, _ in shared.named_parameters())
    hidden = torch.randn(2, 13, WIDTH, dtype=torch.float64)
    tokens = Tokens(is_global=flags(13, "first"))
    given_tables = Tokens(is_global=tokens.is_global, relative=positions())
    torch.testing.assert_close(shared(hidden, given_tables), alone(hidden, tokens))
    shared(hidden, given_tables).sum().backward()
    assert positions.near.weight.grad is not None
    assert positions.far.weight.grad is not None
    with pytest.raises(InputError, match="relative=None of Tokens"):
        shared(hidden, tokens)
    wrong = RelativeTables(positions.near.weight[1:], positions.far.weight)
    with pytest.raises(InputError, match=r"relative.near has shape \(7, 6\).*\(8, 6\)"):
        shared(hidden, Tokens(relative=wrong))


def test_only_fusion_has_tables_to_share():
    assert LongformerConfig().shared_tables() is None
    assert PoolingformerConfig().shared_tables() is None
    tables = FusionConfig(relative_span=128, global_buckets=5).make_tables(6)()
    assert (tables.near.shape, tables.far.shape) == ((256, 6), (10, 6))


def test_one_level_has_no_weights_of_the_second():
    names = {name for name, _ in FusionConfig(two_level=False).build(width=WIDTH, heads=HEADS).named_parameters()}
    assert not any("pool" in name for name in names)
    assert "position_key.bias" not in names
    assert FusionConfig(two_level=False).level_scores(1000) == FusionConfig().level_scores(1000)[:1]
    module = FusionConfig(two_level=False).build(width=WIDTH, heads=HEADS)
    with pytest.raises(InputError, match=r"level=2.*two_level=False"):
        module.weights(torch.zeros(1, 3, WIDTH), level=2)


def test_dropped_positions_change_training_only():
    module = build(FusionConfig(**SMALL, position_dropout=0.5, two_level=False))
    hidden, tokens = torch.randn(1, 9, WIDTH, dtype=torch.float64), Tokens(is_global=flags(9, "first")[:1])
    still = build(FusionConfig(**SMALL, two_level=False))
    still.load_state_dict(module.state_dict())
    assert not torch.equal(module(hidden, tokens), module(hidden, tokens))
    assert torch.equal(module.eval()(hidden, tokens), still(hidden, tokens))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"right_tokens": 513}, "right_tokens=513 exceeds relative_span=512"),
        ({"relative_span": 0}, "relative_span is 0; it must be at least 1"),
        ({"global_buckets": 0}, "global_buckets is 0"),
        ({"global_span": 63}, "global_span=63 is fewer than global_buckets=64"),
        ({"p2c_index": "both"}, "p2c_index is 'both'; choose 'code' or 'paper'"),
        ({"two_level": 1}, "two_level is 1; it must be true or false"),
        ({"position_buckets": True}, "position_buckets is True"),
        ({"position_buckets": 256, "relative_span": 129}, "position_buckets=256 leaves no offset of relative_span=129"),
        ({"position_norm_eps": True}, "position_norm_eps is True"),
        ({"position_dropout": 1.0}, "position_dropout is 1.0; it must be below 1"),
    ],
)
def test_wrong_options_are_one_sentence(options, message):
    with pytest.raises(InputError, match=message) as caught:
        FusionConfig(**options)
    assert "\n" not in str(caught.value)
