"""Commands that need a model say in one sentence where one comes from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from longspan.training.shipped import shipped_recipes

Refused = Callable[..., str]


@pytest.mark.parametrize("command", ["classify", "coref", "generate"])
def test_without_a_model(command: str, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The snail sleeps.", encoding="utf-8")
    sentence = refused(command, *([] if command == "generate" else [tmp_path / "a.txt"]))
    assert "is missing" in sentence
    (recipe,) = re.findall(r"`longspan train ([\w-]+)`", sentence)
    assert recipe in shipped_recipes()


def test_a_text_in_the_place_of_the_model(refused: Refused) -> None:
    sentence = refused("generate", "It was a dark night")
    assert (
        "MODEL is 'It was a dark night', which is no folder; train one with `longspan train novels-small`" in sentence
    )


def test_a_language_model_that_was_not_trained_here(refused: Refused, tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    sentence = refused("generate", tmp_path, "It was a dark night")
    assert "is a GPT2LMHeadModel, which was not trained here; it is a language model" in sentence
    assert "`longspan summarize --model` if it has a chat template" in sentence
