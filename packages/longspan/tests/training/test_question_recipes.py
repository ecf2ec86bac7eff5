"""The recipes for questions: the thesis's settings, its published numbers, and a run of each with `--smoke`."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan.attention import attention_config
from longspan.attention.layers import layer_specs
from longspan.cli import main
from longspan.models import LongspanForNaturalQuestions
from longspan.training.recipe import Recipe
from longspan.training.recipe_file import load_recipe

THESIS = {"poolingformer-nq": 48.7, "fusion-nq": 50.1}


def recipe_of(name: str, *, smoke: bool = False) -> Recipe:
    return load_recipe(name, smoke=smoke)


@pytest.mark.parametrize("name", THESIS)
def test_the_settings_are_those_of_the_thesis(name: str) -> None:
    recipe = recipe_of(name)
    task, settings = recipe.task, recipe.optimisation
    assert (task.max_tokens, task.stride, task.keep_negatives) == (4096, 1568, 0.5)
    assert (settings.epochs, settings.batch_size, settings.learning_rate) == (2, 32, 3e-5)
    assert (settings.schedule, settings.warmup_fraction) == ("polynomial", 0.1)
    assert recipe.published is not None
    assert recipe.published.scores == {"short_precision": THESIS[name]}


@pytest.mark.parametrize("name", THESIS)
def test_each_starts_from_the_pre_training_of_its_kind(name: str) -> None:
    source = recipe_of(name).model.source
    assert source is not None
    before = recipe_of(Path(source).name)
    kind = name.removesuffix("-nq")
    assert before.task.name == "masked_lm"
    layers = [attention_config(spec) for spec in layer_specs(before.model.attention, 24)]
    assert [layer for layer, spec in enumerate(layers) if spec.lengthening().first_level != spec] == [
        15,
        16,
        17,
        18,
        19,
        20,
    ]
    assert layers[15].mechanism == kind
    assert before.model.new is not None
    sizes = [before.model.new[key] for key in ("num_hidden_layers", "hidden_size", "num_attention_heads")]
    assert sizes == [24, 1024, 16]
    # The smoke run has the same mechanism in its two-level layers.
    assert recipe_of(name, smoke=True).model.attention["mechanism"] == kind


def test_tydi_has_the_numbers_of_the_abstract() -> None:
    recipe = recipe_of("poolingformer-tydiqa")
    assert recipe.published is not None
    assert recipe.published.scores == {"passage_f1": 79.5, "minimal_f1": 67.6}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*THESIS, "poolingformer-tydiqa", "nq-places"])
def test_smoke(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert main(["train", name, "--smoke", "--output", str(folder)]) == 0
    assert "best checkpoint: step" in capsys.readouterr().out
    model = LongspanForNaturalQuestions.from_pretrained(folder)
    layers = model.config.num_hidden_layers
    assert layers == (2 if name == "nq-places" else 4)
    upper = {model.config.layer_attention(layer).mechanism for layer in range(layers // 2, layers)}
    assert upper == {"fusion" if name == "fusion-nq" else "poolingformer"}
