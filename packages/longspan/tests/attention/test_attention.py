"""What holds for every mechanism of the registry, and the types they share."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan.attention import LongformerConfig, Tokens, attention_config
from longspan.errors import InputError

WIDTH, HEADS = 6, 2


def test_a_configuration_is_read_from_a_name_data_or_itself():
    assert attention_config("longformer") == LongformerConfig()
    assert attention_config({"mechanism": "longformer", "left_tokens": 7}) == LongformerConfig(left_tokens=7)
    assert attention_config(LongformerConfig(left_tokens=7)) == LongformerConfig(left_tokens=7)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("longfromer", "did you mean 'longformer'"),
        ("dense", "choose one of full"),
        ({"mechanism": "longformer", "window": 3}, "unknown key 'attention.window'"),
        ({"left_tokens": 3}, "attention is .*give a name of full"),
        (7, "attention is 7; give a name of full"),
        ({"mechanism": "full", "dropout": "high"}, "dropout is 'high'"),
    ],
)
def test_a_wrong_specification_is_named(spec, message):
    with pytest.raises(InputError, match=message):
        attention_config(spec)


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
