"""The JSON schema of recipes agrees with what is checked, and the pages made from the settings are current."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from longspan.cli import main
from longspan.training.recipe_schema import documentation, recipe_schema
from longspan.training.shipped import read_recipe, shipped_recipes

ROOT = Path(__file__).parents[1]
TINY: dict[str, Any] = {
    "name": "tiny",
    "task": {"name": "summarization"},
    "data": {"train": "synthetic", "validation": ["synthetic"]},
    "model": {"new": {"hidden_size": 32}, "attention": "longformer"},
    "optimisation": {"steps": 2},
}
BAD: dict[str, Any] = {
    "name": "../evil",
    "nam": "unknown key",
    "task.name": "summarisation",
    "task.max_sorce_tokens": 3,
    "task.max_source_tokens": 0,
    "task.stemmer": "yes",
    "data.train_rows": -1,
    "data.on_error": "ignore",
    "data.validation_split": "../x",
    "model.new.hidden_size": 0,
    "model.new.hiden_size": 8,
    "model.attention": "longformr",
    "model.attention.mechanism": "longformer",
    "model.max_tokens": "long",
    "optimisation.learning_rate": 0,
    "optimisation.betas": [1.0, 0.9],
    "optimisation.seed": -1,
    "optimisation.lora": {"rank": 0},
    "generation.beams": 0,
    "tokenizer.train": 100,
}


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = recipe_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_recipe_fits(name: str, validator: jsonschema.Draft202012Validator) -> None:
    validator.validate(yaml.safe_load(shipped_recipes()[name].read_text(encoding="utf-8")))
    validator.validate(read_recipe(shipped_recipes()[name]))


@pytest.mark.parametrize("path", BAD)
def test_a_mistake_in_one_that_extends_another_does_not(path: str, validator: jsonschema.Draft202012Validator) -> None:
    """What is written is checked; what is left out is the other's."""
    recipe: dict[str, Any] = {"name": "own", "extends": "led-arxiv-4k", "task": {"name": "summarization"}}
    validator.validate(recipe)
    validator.validate({**recipe, "model": {"attention": {"left_tokens": 3}}, "data": {"train_rows": 3}})
    assert not validator.is_valid(_with_mistake(recipe, path))


@pytest.mark.parametrize("path", BAD)
def test_a_mistake_does_not(path: str, validator: jsonschema.Draft202012Validator) -> None:
    validator.validate(TINY)
    assert not validator.is_valid(_with_mistake(TINY, path))


def _with_mistake(valid: dict[str, Any], path: str) -> dict[str, Any]:
    recipe = json.loads(json.dumps(valid))
    if path == "model.attention.mechanism":
        recipe.setdefault("model", {})["attention"] = {"mechanism": "longformer", "left_tokens": -1}
    else:
        *sections, last = path.split(".")
        place = recipe
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = BAD[path]
    return recipe


def test_every_key_is_explained() -> None:
    from recipe_keys import SECTIONS

    from longspan.attention import MECHANISMS
    from longspan.tasks import TASKS, task_class
    from longspan.training.recipe import Recipe

    for settings in (Recipe, *SECTIONS.values(), *map(task_class, TASKS), *MECHANISMS.values()):
        texts = documentation(settings)
        for field in fields(settings):
            assert texts.get(field.name), f"{settings.__name__}.{field.name} has no docstring"


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="runs in a checkout, not from an installed package")
def test_committed_pages_are_current(monkeypatch) -> None:
    spec = importlib.util.spec_from_file_location("figures", ROOT / "docs/figures.py")
    assert spec is not None
    assert spec.loader is not None
    figures = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "figures", figures)  # where its dataclasses look for their annotations
    spec.loader.exec_module(figures)
    for path, text in figures.texts().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is stale; run python docs/figures.py"


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == recipe_schema()
