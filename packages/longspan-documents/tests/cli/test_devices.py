"""`--device` and `--dtype`: one pair of options for every verb that runs a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from longspan.cli import COMMANDS
from longspan.cli.options import Device, Dtype

COMPUTES_NOTHING = ("lengthen", "plan", "draw")
"""Commands that take a model, whose weights they copy, count or draw."""


def options_of(command: str) -> dict[str, object]:
    function = COMMANDS[command]
    return {name: one.annotation for name, one in inspect.signature(function).parameters.items()}


@pytest.mark.parametrize("command", [one for one in COMMANDS if {"model", "encoder"} & set(options_of(one))])
def test_every_verb_that_runs_a_model_says_where(command: str) -> None:
    options = options_of(command)
    assert (options.get("device") == Device) == (command not in COMPUTES_NOTHING)
    # The type of `index` is that of the states that it stores; it computes in float32.
    assert (options.get("dtype") == Dtype) == (command not in (*COMPUTES_NOTHING, "index"))


def test_a_device_that_is_not_there_is_one_sentence(document: Path, refused: Callable[..., str]) -> None:
    for words in (
        ("summarize", document),
        ("answer", document, "who?"),
        ("embed", document),
        ("importance", document),
        ("index", document, "--output", document.parent / "index"),
    ):
        assert "device='cuda:99' is not on this machine; give 'cpu'" in refused(*map(str, words), "--device", "cuda:99")
    assert not (document.parent / "index").exists()
