"""The recipes of classification: the paper's settings, its numbers, and a run of each with `--smoke`."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan.cli import main
from longspan.models import LongspanForSequenceClassification
from longspan.training.recipe_file import load_recipe

PAPER = {"longformer-imdb": {"accuracy": 95.7}, "longformer-hyperpartisan": {"f1_hyperpartisan": 94.8}}


@pytest.mark.parametrize("name", PAPER)
def test_the_settings_are_those_of_the_paper(name: str) -> None:
    recipe = load_recipe(name)
    task, settings = recipe.task, recipe.optimisation
    assert task.max_tokens == 4096
    assert (settings.epochs, settings.batch_size, settings.learning_rate) == (15, 32, 3e-5)
    assert (settings.schedule, settings.warmup_fraction) == ("linear", 0.1)
    assert recipe.published is not None
    assert recipe.published.scores == PAPER[name]


@pytest.mark.variant
@pytest.mark.parametrize("name", [*PAPER, "hyperpartisan-small"])
def test_smoke(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert main(["train", name, "--smoke", "--output", str(folder)]) == 0
    assert "best checkpoint: step" in capsys.readouterr().out
    config = LongspanForSequenceClassification.from_pretrained(folder).config
    assert config.global_tokens == "first"
    assert config.id2label == {0: "bad", 1: "good"}
