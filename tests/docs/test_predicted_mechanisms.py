"""The table of predictions is that of its file, and holds the law that nothing is slower than full attention."""

from __future__ import annotations

import json

import predicted_mechanisms
import pytest
from predicted_mechanisms import (
    DEVICE,
    FILE,
    MILLION,
    PAGE,
    continued,
    crossing,
    forms,
    predicted_table,
    with_table,
)

from longspan.attention import MECHANISMS
from longspan.hardware import DEVICES
from tracing import layer_seconds

FOUND = json.loads(FILE.read_text(encoding="utf-8"))
QUADRATIC = ("full", "explicit_sparse", "synthesizer")
"""Look at all pairs, and more."""
FROM = 16_384
"""Tokens from which on all others must be predicted to be faster."""


def test_the_page_has_the_table_of_the_file() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page, predicted_table(FOUND)) == page
    assert "Nobody has measured these numbers" in page


def test_linear_mechanisms_are_predicted_to_beat_full_attention() -> None:
    for name, row in FOUND.items():
        full = FOUND["full, causal" if name.endswith("causal") else "full"]
        if name.partition(",")[0] not in QUADRATIC:
            first = crossing(row, full)
            assert first is not None, name
            assert first <= FROM, (name, first)


def test_every_mechanism_has_its_rows() -> None:
    names = {name + ", causal" * causal for name, causal in forms()}
    assert set(FOUND) <= names
    assert {name.partition(",")[0] for name in FOUND} == set(MECHANISMS)


def test_a_million_tokens_are_continued_and_a_crossing_is_found() -> None:
    """Of 2 + 3x + 4x² by hand, in units of 16,384 tokens."""

    def cost(unit: int) -> float:
        return 2.0 + 3 * unit + 4 * unit**2

    row = {str(16_384 * unit): cost(unit) for unit in (1, 2, 4)}
    assert continued(row) == pytest.approx(cost(MILLION // 16_384))
    line = {str(16_384 * unit): 2.0 + unit for unit in (1, 2, 4)}
    assert continued(line) == pytest.approx(2.0 + 64)
    assert crossing({"1": 5.0, "2": 5.0, "4": 5.0}, {"1": 1.0, "2": 6.0, "4": 20.0}) == 2
    assert crossing({"1": 5.0}, {"1": 1.0}) is None


def test_what_is_followed_now_is_not_slower_than_the_file() -> None:
    for name in ("longformer", "linear", "bigbird"):
        config = MECHANISMS[name](**MECHANISMS[name].defaults_for(16_384, {}))
        seconds = layer_seconds(config, DEVICES[DEVICE], tokens=16_384, in_model=True)
        assert 1e3 * seconds <= 1.05 * FOUND[name]["16384"], name


@pytest.mark.slow
def test_nothing_that_is_followed_now_is_slower_than_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicted_mechanisms, "FOLLOWED", (4096, 16_384))
    monkeypatch.setattr(predicted_mechanisms, "continued", lambda row: 0.0)
    monkeypatch.setattr(predicted_mechanisms, "million", lambda *_: 0.0)
    for name, row in predicted_mechanisms.predict().items():
        for tokens in ("4096", "16384"):
            assert row[tokens] <= 1.05 * FOUND[name][tokens] + 0.01, (name, tokens)
