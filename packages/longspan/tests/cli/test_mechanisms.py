"""`longspan mechanisms`: the table and the JSON list every mechanism with the facts of its configuration."""

from __future__ import annotations

import json

import pytest

from longspan.attention import MECHANISMS, attention_config
from longspan.cli import main


def test_table_names_every_mechanism(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mechanisms"]) == 0
    table = capsys.readouterr().out
    for name in MECHANISMS:
        assert name in table
    assert max(map(len, table.splitlines())) <= 80


def test_json_holds_the_facts_and_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mechanisms", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == list(MECHANISMS)
    for name, config in MECHANISMS.items():
        assert rows[name]["causal"] is config.causal
        assert rows[name]["cost"] == config.cost
        assert rows[name]["source"]
        assert attention_config({"mechanism": name, **rows[name]["options"]}) == config()
