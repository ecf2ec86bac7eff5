"""What a mechanism says does not apply to it is refused with its reason; what it does not say is not refused."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from transformers.cache_utils import DynamicLayer

from longspan.attention import Attention, AttentionConfig, Tokens
from longspan.errors import InputError

from .forms import CONFIGS, HEADS, WIDTH


def build(config: AttentionConfig, causal: bool | None = None) -> Attention:
    return config.build(width=WIDTH, heads=HEADS, causal="bidirectional" in config.exempt if causal is None else causal)


def with_globals(config: AttentionConfig) -> None:
    build(config)(torch.zeros(1, 5, WIDTH), Tokens(is_global=torch.ones(1, 5, dtype=torch.bool)))


def with_state(config: AttentionConfig) -> None:
    module = build(config, causal="causal" not in config.exempt)
    module(torch.zeros(1, 5, WIDTH), state=module.new_state() if config.incremental else DynamicLayer())


LAWS: dict[str, Callable[[AttentionConfig], object]] = {
    "bidirectional": lambda config: build(config, causal=False),
    "causal": lambda config: build(config, causal=True),
    "globals": with_globals,
    "state": with_state,
}
"""Law → what it allows."""


def reason_of(config: AttentionConfig, law: str) -> str | None:
    reason = config.exempt.get(law)
    return reason or ("would see the future" if law == "globals" and "bidirectional" in config.exempt else None)


def cases(refused: bool) -> list[object]:
    return [
        pytest.param(config, law, id=f"{name}-{law}")
        for name, config in CONFIGS.items()
        for law in LAWS
        if (reason_of(config, law) is not None) == refused
    ]


@pytest.mark.parametrize(("config", "law"), cases(refused=True))
def test_what_does_not_apply_is_refused_with_the_reason(config, law):
    with pytest.raises(InputError, match=re.escape(reason_of(config, law))) as refusal:
        LAWS[law](config)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("config", "law"), cases(refused=False))
def test_what_applies_is_served(config, law):
    LAWS[law](config)


def test_exemptions_and_what_the_class_says_agree(config):
    assert set(config.exempt) <= {*LAWS, "linear", "future"}
    assert all(reason and reason[-1] != "." for reason in config.exempt.values())
    assert config.bidirectional == ("bidirectional" not in config.exempt)
    assert config.causal == ("causal" not in config.exempt)
    assert config.incremental == ("state" not in config.exempt)


def test_only_what_is_not_linear_costs_more_per_token_of_a_longer_input(config):
    more = config.scores_per_token(2**20) / config.scores_per_token(2**18)
    assert more == pytest.approx(4 if "linear" in config.exempt else 1, rel=0.1)


def test_causal_forms_take_no_globals(causal_form):
    module, slots = causal_form.build(), torch.zeros(2, 1, dtype=torch.int64)
    with pytest.raises(InputError, match="no global tokens"):
        module(torch.zeros(2, 5, WIDTH).double(), Tokens(global_slots=slots))


def test_a_form_that_looks_both_ways_takes_no_state(two_way_form):
    module = two_way_form.build()
    with pytest.raises(InputError, match="state="):
        module(torch.zeros(2, 5, WIDTH).double(), state=DynamicLayer())
