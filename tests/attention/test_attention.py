"""What holds for every mechanism of the registry, and the types they share."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan.attention import MECHANISMS, AttentionConfig, LongformerConfig, Tokens, attention_config
from longspan.errors import InputError

WIDTH, HEADS = 6, 2


@pytest.fixture(params=sorted(MECHANISMS))
def config(request) -> AttentionConfig:
    return MECHANISMS[request.param]()


def test_the_registry_is_consistent(config):
    assert MECHANISMS[config.mechanism] is type(config)
    assert config.source
    assert config.cost
    assert config.bidirectional or config.causal
    assert config.scores_per_token(4096) > 0
    assert config.scores_per_token(0) >= 0


def test_configurations_survive_json(config):
    again = attention_config(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert hash(again) == hash(config)


def test_options_survive_json():
    config = LongformerConfig(left_tokens=3, dilation=(1, 2), dropout=0.1)
    assert attention_config(json.loads(json.dumps(config.to_dict()))) == config


def test_a_configuration_is_read_from_a_name_data_or_itself():
    assert attention_config("longformer") == LongformerConfig()
    assert attention_config({"mechanism": "longformer", "left_tokens": 7}) == LongformerConfig(left_tokens=7)
    assert attention_config(LongformerConfig(left_tokens=7)) == LongformerConfig(left_tokens=7)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("longfromer", "did you mean 'longformer'"),
        ("dense", "choose one of full"),
        ({"mechanism": "longformer", "window": 3}, "no option 'window'"),
        ({"left_tokens": 3}, "is no mechanism"),
        (7, "attention=7 is no mechanism"),
        ({"mechanism": "full", "dropout": "high"}, "dropout is 'high'"),
    ],
)
def test_a_wrong_specification_is_named(spec, message):
    with pytest.raises(InputError, match=message):
        attention_config(spec)


def test_heads_must_divide_the_width(config):
    with pytest.raises(InputError, match="heads=4 does not divide width=6"):
        config.build(width=6, heads=4)
    with pytest.raises(InputError, match="heads=0"):
        config.build(width=6, heads=0)


@pytest.mark.parametrize("length", [0, 1, 13])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_length_and_kind_of_number(config, length, dtype):
    module = config.build(width=WIDTH, heads=HEADS).to(dtype)
    hidden = torch.randn(2, length, WIDTH, dtype=dtype, requires_grad=True)
    is_global = torch.zeros(2, length, dtype=torch.bool)
    is_global[:, :1] = True
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[1] = False
    out = module(hidden, Tokens(mask=mask, is_global=is_global))
    assert out.shape == hidden.shape
    assert out.dtype == dtype
    out.sum().backward()
    assert hidden.grad.isfinite().all()
    assert module.weights(hidden, Tokens(mask=mask, is_global=is_global)).shape == (2, HEADS, length, length)


def test_autocast_trains(config):
    """What the Trainer does with `bf16=True`: float32 weights, short floats inside."""
    module, hidden = config.build(width=WIDTH, heads=HEADS), torch.randn(2, 13, WIDTH, requires_grad=True)
    is_global = torch.zeros(2, 13, dtype=torch.bool)
    is_global[:, 0] = True
    tokens = Tokens(mask=torch.arange(13) < torch.tensor([[13], [7]]), is_global=is_global)
    exact = module(hidden, tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = module(hidden, tokens)
    torch.testing.assert_close(out.float(), exact, rtol=0.05, atol=0.02)
    out.float().sum().backward()
    assert hidden.grad.isfinite().all()
    assert module.query.weight.grad.dtype == torch.float32


def test_an_empty_batch_is_fine(config):
    module = config.build(width=WIDTH, heads=HEADS)
    flags = torch.ones(0, 5, dtype=torch.bool)
    assert module(torch.zeros(0, 5, WIDTH), Tokens(mask=flags, is_global=flags)).shape == (0, 5, WIDTH)


def test_dropout_acts_in_training_only(config):
    module = type(config)(dropout=0.5).build(width=WIDTH, heads=HEADS)
    if hasattr(module, "pooled_value"):
        torch.nn.init.normal_(module.pooled_value.weight)
    hidden, is_global = torch.randn(1, 31, WIDTH), torch.zeros(1, 31, dtype=torch.bool)
    is_global[:, 0] = True
    tokens = Tokens(is_global=is_global)
    assert not torch.equal(module.train()(hidden, tokens), module(hidden, tokens))
    assert torch.equal(module.eval()(hidden, tokens), module(hidden, tokens))


@given(length=st.integers(0, 23), seed=st.integers(0, 99), padded=st.booleans(), spare=st.integers(0, 3))
def test_slots_are_the_real_globals_in_order(length, seed, padded, spare):
    torch.manual_seed(seed)
    is_global = torch.rand(3, length) < 0.3
    mask = torch.rand(3, length) < 0.7 if padded else None
    real = is_global if mask is None else is_global & mask
    most = int(real.sum(1).max()) if length else 0
    tokens = Tokens(mask=mask, is_global=is_global).with_slots()
    assert (tokens.global_slots is None) == (most == 0)
    fixed = Tokens(mask=mask, is_global=is_global).with_slots(most + spare)
    for slots in (tokens.global_slots, fixed.global_slots):
        if slots is None:
            continue
        assert [[s for s in row if s >= 0] for row in slots.tolist()] == [row.nonzero()[:, 0].tolist() for row in real]
        from_slots = Tokens(mask=mask, global_slots=slots)
        assert torch.equal(from_slots.global_mask(length), real)
    assert most + spare == 0 or fixed.global_slots.shape == (3, most + spare)


def test_too_many_globals_for_the_slots_is_an_error():
    with pytest.raises(InputError, match="max_globals=2 is fewer than the 3 global tokens"):
        Tokens(is_global=torch.ones(1, 3, dtype=torch.bool)).with_slots(2)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ({"mask": torch.ones(1, 3)}, "mask is torch.float32"),
        ({"is_global": torch.ones(3, dtype=torch.bool)}, r"is_global is torch.bool of shape \(3,\)"),
        ({"global_slots": torch.ones(1, 3)}, "global_slots is torch.float32"),
    ],
)
def test_tokens_of_the_wrong_kind_are_named(tokens, message):
    with pytest.raises(InputError, match=message):
        Tokens(**tokens)


def test_tokens_of_the_wrong_shape_are_named(config):
    module = config.build(width=WIDTH, heads=HEADS)
    for name in ("mask", "is_global"):
        with pytest.raises(InputError, match=rf"{name} has shape \(1, 4\), but the sequence needs \(1, 5\)"):
            module(torch.zeros(1, 5, WIDTH), Tokens(**{name: torch.ones(1, 4, dtype=torch.bool)}))
