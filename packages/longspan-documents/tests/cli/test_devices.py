"""`--device` and `--dtype`: one pair of options for every verb that runs a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from longspan.cli import COMMANDS
from longspan.cli.options import annotation_of, expanded
from longspan.options import Computing, fields_of

COMPUTES_NOTHING = ("lengthen", "plan", "draw")
"""Commands that take a model, whose weights they copy, count or draw."""


def options_of(command: str) -> dict[str, tuple[object, str | None]]:
    """The options of a command: name → type and help."""
    parameters = inspect.signature(expanded(COMMANDS[command])).parameters.values()
    return {one.name: _stated(one.annotation) for one in parameters}


def _stated(annotation: Any) -> tuple[object, str | None]:
    kind, option = get_args(annotation)[:2]
    return kind, option.help


DEVICE, DTYPE = (_stated(annotation_of(field)) for field in fields_of(Computing, "command"))


RUN_MODELS = [one for one in COMMANDS if one != "map" and {"model", "encoder"} & set(options_of(one))]
"""The help of `map` names the verbs of each option."""


@pytest.mark.parametrize("command", RUN_MODELS)
def test_every_verb_that_runs_a_model_says_where(command: str) -> None:
    options = options_of(command)
    assert (options.get("device") == DEVICE) == (command not in COMPUTES_NOTHING)
    # The type of `index` is that of the states that it stores; it computes in float32.
    assert (options.get("dtype") == DTYPE) == (command not in (*COMPUTES_NOTHING, "index"))


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
