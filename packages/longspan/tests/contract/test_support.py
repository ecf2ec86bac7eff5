"""The table of support is true: what it refuses is refused with its reason, and everything else is served."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from transformers.cache_utils import DynamicLayer

from longspan.attention import Attention, AttentionConfig, Tokens
from longspan.attention.features.memory import limit_keys
from longspan.attention.support import FEATURES, Unless, check_support, supports, why_not
from longspan.errors import InputError
from longspan.patterns import Prefix

from .forms import CONFIGS, FORMS, HEADS, WIDTH, Form


def states(length: int = 5) -> torch.Tensor:
    return torch.zeros(1, length, WIDTH)


def build(form: Form) -> Attention:
    return form.build(torch.float32)


def with_globals(form: Form) -> None:
    build(form)(states(), Tokens(is_global=torch.ones(1, 5, dtype=torch.bool)))


def with_state(form: Form) -> None:
    module = build(form)
    module(states(), state=module.new_state() if form.supports("state") else DynamicLayer())


def with_structure(form: Form) -> None:
    is_global = torch.arange(5)[None] == 1
    tokens = Tokens(is_global=is_global if form.supports("globals") else None, belongs_to=torch.zeros(1, 5).long() - 1)
    build(form)(states(), tokens)


USES: dict[str, Callable[[Form], object]] = {
    "bidirectional": lambda form: form.config.build(width=WIDTH, heads=HEADS, causal=False),
    "causal": lambda form: form.config.build(width=WIDTH, heads=HEADS, causal=True),
    "globals": with_globals,
    "state": with_state,
    "prefix": lambda form: build(form)(states(), Tokens(prefix=Prefix(2))),
    "structure": with_structure,
    "packed": lambda form: build(form)(states(), Tokens(documents=torch.zeros(1, 5).long())),
    "sharded": lambda form: check_support(form.config, "sharded", causal=form.causal),
    "same_length": lambda form: limit_keys(build(form), 3),
}
"""Feature → what it allows. Those that are missing here are laws that a file of their own tries."""


def cases(refused: bool) -> list[object]:
    return [
        pytest.param(form, feature, id=f"{form.name}-{feature}")
        for form in FORMS
        for feature in USES
        if form.supports(feature) != refused
    ]


@pytest.mark.parametrize(("form", "feature"), cases(refused=True))
def test_what_is_not_supported_is_refused_with_the_reason(form, feature):
    # Whether there is a form at all is asked of that form.
    causal = feature == "causal" or (form.causal and feature != "bidirectional")
    reason = why_not(form.config, feature, causal=causal)
    assert reason is not None
    with pytest.raises(InputError, match=re.escape(FEATURES[feature].refusal)) as refusal:
        USES[feature](form)
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("form", "feature"), cases(refused=False))
def test_what_is_supported_is_served(form, feature):
    USES[feature](form)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_what_a_configuration_states_is_a_row_with_a_reason_and_agrees_with_its_forms(config: AttentionConfig):
    assert set(config.support) <= set(FEATURES)
    for answer in config.support.values():
        reason = answer.reason if isinstance(answer, Unless) else answer
        assert reason is True or (isinstance(reason, str) and reason and reason[-1] != ".")
    for feature, has in (("bidirectional", config.bidirectional), ("causal", config.causal)):
        assert supports(config, feature, causal=feature == "causal") == has
    assert supports(config, "state", causal=True) <= config.incremental <= config.causal


def test_only_what_is_not_linear_costs_more_per_token_of_a_longer_input(config):
    more = config.scores_per_token(2**20) / config.scores_per_token(2**18)
    assert more == pytest.approx(1 if supports(config, "linear") else 4, rel=0.1)


def test_causal_forms_take_no_globals(causal_form):
    module, slots = causal_form.build(), torch.zeros(2, 1, dtype=torch.int64)
    with pytest.raises(InputError, match="no global tokens"):
        module(torch.zeros(2, 5, WIDTH).double(), Tokens(global_slots=slots))


def test_a_form_that_looks_both_ways_takes_no_state(two_way_form):
    module = two_way_form.build()
    with pytest.raises(InputError, match="pass state=None"):
        module(torch.zeros(2, 5, WIDTH).double(), state=DynamicLayer())
