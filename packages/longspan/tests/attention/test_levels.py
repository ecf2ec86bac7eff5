"""Any number of Poolingformer's levels, both ways and back only, against loops over queries, pools and taps."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from longspan.attention import FusionConfig, LongformerConfig, PoolingformerConfig, Tokens, attention_config
from longspan.attention.layers import reach
from longspan.errors import InputError

WIDTH, HEADS, HEAD_WIDTH = 6, 2, 3
POOLINGS = ("ldconv", "mean", "max")
GEOMETRIC = [
    {"left_tokens": 128, "right_tokens": 128},
    {"left_tokens": 512, "right_tokens": 512},
    {"left_tokens": 2048, "right_tokens": 2048, "kernel": 17, "stride": 16},
    {"left_tokens": 8192, "right_tokens": 8192, "kernel": 65, "stride": 64},
]
"""Windows and strides that grow by four from level to level."""


def looped(module, hidden: Tensor, mask: Tensor) -> Tensor:
    """The layer from its definition, one token, head and pool at a time: `(B, T, E)`."""
    total = looped_window(module, hidden, mask)
    for level, pools in enumerate(module.config.pools, 2):
        suffix = "" if level == 2 else f"_{level}"
        prefix, own = ("", "") if module.config.tie_levels else ("pooled_", suffix)
        query, key, value = (heads_of(getattr(module, f"{prefix}{name}{own}")(total)) for name in NAMES)
        weights = [
            getattr(module, f"pool_{name}_weight{suffix}") if pools.pooling == "ldconv" else None
            for name in ("key", "value")
        ]
        added = torch.zeros_like(total)
        for b, i in mask.nonzero().tolist():
            start = next(place for place in range(len(mask[b])) if mask[b, place])
            last = i + (0 if module.causal else pools.right_tokens)
            taps = {c: range(c - pools.kernel // 2, c - pools.kernel // 2 + pools.kernel) for c in centres(pools, mask)}
            seen = [
                c
                for c, places in taps.items()
                if (c - start) % pools.stride == 0 and places[0] >= i - pools.left_tokens and places[-1] <= last
                if c >= start and mask[b, c]
            ]
            for h in range(HEADS if seen else 0):
                keys, values = (
                    torch.stack([one_pool(each[b, :, h], mask[b], taps[c], c, pools.pooling, weight, h) for c in seen])
                    for each, weight in zip((key, value), weights, strict=True)
                )
                shares = (keys @ query[b, i, h] / HEAD_WIDTH**0.5).softmax(0)
                added[b, i, h * HEAD_WIDTH : (h + 1) * HEAD_WIDTH] = shares @ values
        total = total + added
    return module.output(total)


NAMES = ("query", "key", "value")


def heads_of(hidden: Tensor) -> Tensor:
    return hidden.unflatten(-1, (HEADS, HEAD_WIDTH))


def centres(pools, mask: Tensor) -> range:
    return range(mask.shape[1])


def one_pool(vectors: Tensor, real: Tensor, places: range, centre: int, pooling: str, weight, head: int) -> Tensor:
    """One pool of one head: `(T, D)` → `(D,)`."""
    taps = [(number, place) for number, place in enumerate(places) if 0 <= place < len(real) and real[place]]
    chosen = vectors[[place for _, place in taps]]
    if pooling == "ldconv":
        return (weight[head][[number for number, _ in taps]] @ vectors[centre]).softmax(0) @ chosen
    return chosen.amax(0) if pooling == "max" else chosen.mean(0)


def looped_window(module, hidden: Tensor, mask: Tensor) -> Tensor:
    query, key, value = (heads_of(getattr(module, name)(hidden)) for name in NAMES)
    context = torch.zeros_like(hidden)
    for b, i in mask.nonzero().tolist():
        first, last = i - module.config.left_tokens, i + (0 if module.causal else module.config.right_tokens)
        seen = [j for j in range(len(mask[b])) if first <= j <= last and mask[b, j]]
        for h in range(HEADS):
            shares = (key[b, seen, h] @ query[b, i, h] / HEAD_WIDTH**0.5).softmax(0)
            context[b, i, h * HEAD_WIDTH : (h + 1) * HEAD_WIDTH] = shares @ value[b, seen, h]
    return context


def build(config: PoolingformerConfig, causal: bool):
    """The module in float64, every weight random."""
    module = config.build(width=WIDTH, heads=HEADS, causal=causal).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def padded(length: int, kind: str) -> Tensor:
    """`(2, T)` bool: none padded, the second row's beginning or end, anywhere, or the whole second row."""
    mask = torch.ones(2, length, dtype=torch.bool)
    part = {"left": slice(length // 3 + 1), "right": slice(length - length // 3, None), "row": slice(None)}.get(kind)
    if part is not None:
        mask[1, part] = False
    return torch.rand(2, length) < 0.7 if kind == "anywhere" else mask


@st.composite
def configs(draw: st.DrawFn) -> PoolingformerConfig:
    """One to four levels: windows that grow by what the next level's pools need."""
    sizes = [draw(st.tuples(st.integers(1, 4), st.integers(1, 4), st.sampled_from(POOLINGS))) for _ in range(3)]
    sizes = sizes[: draw(st.integers(0, 3))]
    left = right = 1
    levels = []
    for kernel, stride, pooling in reversed(sizes):
        levels.append({"kernel": kernel, "stride": min(stride, kernel), "pooling": pooling})
    windows = []
    for number in range(len(levels) + 1):
        following = levels[len(levels) - 1 - number] if number < len(levels) else {"kernel": 1, "stride": 0}
        least = following["kernel"] + following["stride"]
        left, right = (max(side + draw(st.integers(0, 2)), least) for side in (left, right))
        windows.append({"left_tokens": left, "right_tokens": right})
    pools = [{}, *reversed(levels)]
    both = [window | each for window, each in zip(windows, pools, strict=True)]
    return PoolingformerConfig(levels=both, tie_levels=draw(st.booleans()), separate_global_projections=False)


PADDINGS = st.sampled_from(["none", "left", "right", "anywhere", "row"])


@settings(max_examples=25)
@given(config=configs(), causal=st.booleans(), length=st.integers(0, 14), kind=PADDINGS, seed=st.integers(0, 99))
def test_any_levels_equal_their_definition_with_all_gradients(config, causal, length, kind, seed):
    torch.manual_seed(seed)
    module, mask = build(config, causal), padded(length, kind)
    hidden = torch.randn(2, length, WIDTH, dtype=torch.float64, requires_grad=True)
    ours, theirs = module(hidden, Tokens(mask=mask)), looped(module, hidden, mask)
    torch.testing.assert_close(ours, theirs)
    inputs, upstream = [hidden, *module.parameters()], torch.randn_like(ours)
    options = {"allow_unused": True, "materialize_grads": True}
    torch.testing.assert_close(*(torch.autograd.grad(each, inputs, upstream, **options) for each in (ours, theirs)))


@pytest.mark.variant
@settings(max_examples=40)
@given(
    config=configs(), pieces=st.lists(st.integers(0, 9), min_size=1, max_size=8), kind=PADDINGS, seed=st.integers(0, 99)
)
@torch.no_grad()
def test_any_pieces_equal_the_whole_also_after_going_back(config, pieces, kind, seed):
    torch.manual_seed(seed)
    module, mask = build(config, True), padded(sum(pieces), kind)
    hidden = torch.randn(2, sum(pieces), WIDTH, dtype=torch.float64)
    state, outputs, seen = module.new_state(), [], 0
    for piece in pieces:
        wrong = torch.randn(2, 3, WIDTH, dtype=torch.float64)
        module(wrong, Tokens(mask=torch.cat([mask[:, :seen], torch.ones(2, 3, dtype=torch.bool)], 1)), state)
        state.crop(-3)
        outputs.append(module(hidden[:, seen : seen + piece], Tokens(mask=mask[:, : seen + piece]), state))
        seen += piece
    torch.testing.assert_close(torch.cat(outputs, 1), module(hidden, Tokens(mask=mask)))


def bits(module, hidden: Tensor, mask: Tensor) -> list[Tensor]:
    """Outputs and all gradients."""
    hidden = hidden.clone().requires_grad_()
    output = module(hidden, Tokens(mask=mask))
    inputs = [hidden, *module.parameters()]
    options = {"allow_unused": True, "materialize_grads": True}
    return [output, *torch.autograd.grad(output.square().sum(), inputs, **options)]


def check_same(one, other, length: int = 131) -> None:
    """The same weights by the same names, and the same results to the last bit."""
    other.load_state_dict(one.state_dict())
    assert list(one.state_dict()) == list(other.state_dict())
    hidden, mask = torch.randn(2, length, WIDTH), padded(length, "left")
    for ours, theirs in zip(bits(one, hidden, mask), bits(other, hidden, mask), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("causal", [False, True])
def test_one_level_is_the_window_bit_for_bit(causal):
    level = {"left_tokens": 5, "right_tokens": 3}
    one, other = (
        config.build(width=WIDTH, heads=HEADS, causal=causal)
        for config in (PoolingformerConfig(levels=[level]), LongformerConfig(**level))
    )
    check_same(one, other)


@pytest.mark.parametrize("causal", [False, True])
def test_two_levels_are_what_they_were_bit_for_bit(causal):
    second = {"left_tokens": 9, "right_tokens": 8, "kernel": 3, "stride": 2, "pooling": "max"}
    old = {"left_tokens": 5, "right_tokens": 5, "pooled_left_tokens": 9, "pooled_right_tokens": 8}
    first = {"left_tokens": 5, "right_tokens": 5}
    new = PoolingformerConfig(levels=[first, second], init="normal")
    before = PoolingformerConfig(**old, kernel=3, stride=2, pooling="max", init="normal")
    check_same(*(config.build(width=WIDTH, heads=HEADS, causal=causal) for config in (before, new)))
    assert new.reach() == before.reach()
    costs = [config.costs(length=53, width=WIDTH, heads=HEADS, causal=causal) for config in (new, before)]
    assert costs[0] == costs[1]


def test_the_third_level_has_weights_of_its_own_unless_levels_are_tied():
    names = {name for name, _ in PoolingformerConfig(levels=GEOMETRIC[:3]).build(width=6, heads=2).named_parameters()}
    assert {"pooled_key.weight", "pooled_key_3.weight", "pool_key_weight", "pool_value_weight_3"} <= names
    tied = PoolingformerConfig(levels=GEOMETRIC[:3], tie_levels=True).build(width=6, heads=2)
    assert not any(name.startswith("pooled_") for name, _ in tied.named_parameters())


def test_plain_data_says_either_levels_or_what_they_replace():
    config = PoolingformerConfig(levels=GEOMETRIC[:2], dropout=0.1)
    data = json.loads(json.dumps(config.to_dict()))
    assert data["levels"][1] == {**GEOMETRIC[1], "kernel": 5, "stride": 4, "pooling": "ldconv"}
    assert data["levels"][0] == GEOMETRIC[0]
    assert "left_tokens" not in data
    assert attention_config(data) == config
    assert "levels" not in PoolingformerConfig().to_dict()
    assert config.describe() == "poolingformer(levels=(128, 512/4 ldconv(5)))"


def test_levels_that_grow_geometrically_cost_the_same_each_and_reach_far():
    config = PoolingformerConfig(levels=GEOMETRIC)
    scores = config.level_scores(1 << 20)
    assert all(254 < each <= 257 for each in scores)
    assert 504 < sum(config.level_scores(1 << 20, causal=True)) <= 514
    assert config.reach().period == 64
    sides = zip(*(reach([config], length=24_001, token=token)[1] for token in range(12_000, 12_064)), strict=True)
    left, right = map(max, sides)
    assert (left, right) == (config.reach().left, config.reach().right)
    assert 128 + 512 + 2048 + 8192 - 16 < left <= 128 + 512 + 2048 + 8192


LEVEL, WIDE = {"left_tokens": 9, "right_tokens": 9}, {"left_tokens": 20, "right_tokens": 20}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": []}, "levels=.. names no level"),
        ({"levels": [LEVEL, {**LEVEL, "left_tokens": 7}]}, r"levels\[1\].left_tokens=7 is less than the 9"),
        ({"levels": [LEVEL, WIDE, {**WIDE, "right_tokens": 9}]}, r"levels\[2\].right_tokens=9 is less than the 20"),
        (
            {"levels": [{**LEVEL, "right_tokens": 8}, WIDE]},
            r"levels\[0\].right_tokens=8 is less than kernel \+ stride = 9",
        ),
        ({"levels": [LEVEL, {**WIDE, "stride": 6}]}, r"levels\[1\].stride=6 exceeds levels\[1\].kernel=5"),
        ({"levels": [LEVEL, {**LEVEL, "kernel": 20}]}, r"levels\[1\].kernel=20 does not fit"),
        ({"levels": [{**LEVEL, "kernel": 3}]}, r"levels\[0\].kernel=3, but the first level sees tokens"),
        ({"levels": [{"left_tokens": 3}]}, r"missing key 'levels\[0\].right_tokens'"),
        ({"levels": [LEVEL, {**WIDE, "strid": 4}]}, "did you mean 'stride'"),
        ({"levels": [LEVEL, {**WIDE, "pooling": "sum"}]}, r"levels\[1\].pooling is 'sum'"),
        ({"levels": 3}, r"levels is 3"),
        ({"levels": [LEVEL], "left_tokens": 7}, "left_tokens=7 and levels exclude each other"),
        ({"levels": [LEVEL, WIDE], "kernel": 7}, "kernel=7 and levels exclude each other"),
    ],
)
def test_levels_that_cannot_be_meant_are_named(options, message):
    with pytest.raises(InputError, match=message) as refusal:
        PoolingformerConfig(**options)
    assert "\n" not in str(refusal.value)


def test_plain_data_with_both_is_refused_even_where_they_agree():
    with pytest.raises(InputError, match=r"attention\.levels and attention\.left_tokens exclude each other"):
        attention_config({"mechanism": "poolingformer", "levels": [LEVEL], "left_tokens": 128})
    assert attention_config({"mechanism": "poolingformer", "levels": None, "left_tokens": 7}).left_tokens == 7


def test_what_has_no_causal_form_says_why():
    with pytest.raises(InputError, match="no causal form, since windows='per_query'"):
        PoolingformerConfig(windows="per_query").build(width=6, heads=2, causal=True)
    with pytest.raises(InputError, match="a pool of 5 tokens does not fit into a window that looks 3 back"):
        PoolingformerConfig(pooled_left_tokens=3).build(width=6, heads=2, causal=True)
    one = PoolingformerConfig(windows="per_query", levels=[LEVEL])  # which has no pools
    assert one.build(width=6, heads=2, causal=True).keeps_state
    with pytest.raises(InputError, match="state is a DynamicLayer, which keeps no pools"):
        PoolingformerConfig().build(width=6, heads=2, causal=True)(torch.zeros(1, 3, 6), state=DynamicLayer())


def test_relative_positions_are_those_of_the_first_level():
    config = FusionConfig(levels=[LEVEL, WIDE], relative_span=12)
    assert config.lengthening().first_level == FusionConfig(levels=[LEVEL], relative_span=12, two_level=False)
    with pytest.raises(InputError, match="left_tokens=9 exceeds relative_span=8"):
        FusionConfig(levels=[LEVEL], relative_span=8)
    with pytest.raises(InputError, match="two_level=False leaves the second level out, and levels has 2"):
        FusionConfig(levels=[LEVEL, WIDE], two_level=False)
    before = FusionConfig(left_tokens=9, right_tokens=9, pooled_left_tokens=20, pooled_right_tokens=20)
    torch.manual_seed(1)
    check_same(*(each.build(width=6, heads=2) for each in (before, FusionConfig(levels=[LEVEL, WIDE]))))


@pytest.mark.parametrize("init", ["zero_value", "normal"])
def test_a_level_that_is_added_to_trained_levels_starts_at_zero(init):
    old, new = (
        PoolingformerConfig(levels=GEOMETRIC[:count], init=init).build(width=WIDTH, heads=HEADS) for count in (2, 3)
    )
    missing = [name for name in new.state_dict() if name not in old.state_dict()]
    new.load_state_dict(old.state_dict(), strict=False)
    assert set(new.warm_start(missing)) == set(missing)
    hidden = torch.randn(1, 700, WIDTH)
    assert torch.equal(new(hidden), old(hidden))
    assert new.pooled_query_3.weight.any()
