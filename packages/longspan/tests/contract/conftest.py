"""The entries of the dictionaries as fixtures: a test that asks for one runs for every entry that its law applies to.

What does not apply to an entry is a "no" of the table of support, with the reason; `test_support.py` checks it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan.attention import MECHANISMS, AttentionConfig, EtcConfig
from working_set import LAW

from .forms import CONFIGS, FORMS, Form


def over(forms: list[Form]):
    return pytest.fixture(scope="session", params=forms, ids=lambda form: form.name)(lambda request: request.param)


PLAIN = [form for form in FORMS if form.name.removesuffix("-causal") == form.config.mechanism]
STATEFUL = [form for form in FORMS if form.supports("state")]

HARD = [
    Form(
        "etc-hard",
        EtcConfig(
            radius_tokens=8,
            window="blocks",
            block_tokens=5,
            clamp_tokens=None,
            hard_global_to_long=True,
            hard_long_to_global=True,
            projections="parts",
            shared_output=True,
        ),
        causal=False,
    ),
    Form("etc-hard-labels", EtcConfig(radius_tokens=3, clamp_tokens=2, hard_global_to_long=True), causal=False),
]
"""Forms that differ from others by what they make of structure."""

form = over(FORMS)
causal_form = over([form for form in FORMS if form.causal])
strict_form = over([form for form in FORMS if form.supports("strict")])
stateful_form = over(STATEFUL)
prefix_form = over([form for form in FORMS if form.supports("prefix")])
linear_form = over([form for form in FORMS if form.supports("linear")])
two_way_form = over([form for form in FORMS if not form.causal])
global_form = over([form for form in FORMS if len(form.globals) > 1])
bounded_form = over([form for form in FORMS if not form.causal and form.config.reach().left is not None])
unbounded_form = over([form for form in FORMS if not form.causal and form.config.reach().left is None])
no_prefix_form = over([form for form in FORMS if not form.supports("prefix")])
croppable_form = over([form for form in STATEFUL if form.build().new_state().is_croppable])
uncroppable_form = over([form for form in STATEFUL if not form.build().new_state().is_croppable])
structured_form = over([*(form for form in FORMS if form.supports("structure")), *HARD])
plain_global_form = over([form for form in PLAIN if len(form.globals) > 1])
plain_stateful_form = over([form for form in PLAIN if form in STATEFUL])
plain_form = over(PLAIN)

OF_MODELS = ("generation", "models", "recurrent", "saving", "stacked_models", "tasks")
"""Modules with laws of whole models, whose mechanisms are checked by themselves in the other modules."""


@pytest.hookimpl(tryfirst=True)  # before `-m` leaves tests out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the laws of mechanisms under other options than their defaults, several times as many, and names the
    mechanism of each other law, one of whose cases is run while working on the package."""
    defaults = {form.name for form in PLAIN} | set(MECHANISMS)
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is None or Path(__file__).parent not in item.path.parents:
            continue
        names = [name for value in callspec.params.values() if (name := _name(value)) is not None]
        if any(name not in defaults for name in names):
            item.add_marker("variant")
        elif names and item.path.stem.removeprefix("test_") not in OF_MODELS:
            item.stash[LAW] = names[0].removesuffix("-causal")


def _name(value: object) -> str | None:
    """The name of a form, or of a configuration; None for any other parameter."""
    if isinstance(value, Form):
        return value.name
    if isinstance(value, AttentionConfig):
        return next(name for name, config in CONFIGS.items() if config is value)
    return value if isinstance(value, str) and value in CONFIGS else None


@pytest.fixture(scope="session", params=CONFIGS.values(), ids=CONFIGS)
def config(request) -> AttentionConfig:
    """Every mechanism under every choice of options."""
    return request.param
