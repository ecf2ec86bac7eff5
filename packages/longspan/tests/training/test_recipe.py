"""Recipes: every key known, every type checked, changes by dotted path, and the recipes of this repository."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from installed import needs_papers
from longspan.errors import InputError
from longspan.settings import from_plain, to_plain
from longspan.training.recipe import Recipe, check_memory
from longspan.training.recipe_file import load_recipe
from longspan.training.shipped import read_recipe, shipped_recipes
from longspan.training.train import train

RECIPES = sorted(shipped_recipes().values())
TEXT = """
name: small
task: {name: summarization}
data: {train: synthetic, validation: [synthetic]}
model: {new: {hidden_size: 32, num_attention_heads: 4, decoder_layers: 1}}
tokenizer: {train: 400}
optimisation: {steps: 4, learning_rate: 2e-4}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(TEXT)
    return path


def test_defaults_types_and_round_trip(file: Path) -> None:
    recipe = load_recipe(file)
    assert recipe.optimisation.learning_rate == 2e-4  # YAML reads `2e-4` as a text
    assert recipe.data.train == recipe.data.validation == ("synthetic",)
    assert recipe.optimisation.betas == (0.9, 0.999)
    plain = to_plain(recipe)
    assert plain["model"]["from"] is None
    assert from_plain(Recipe, plain) == recipe


def test_changes_reach_every_depth(file: Path) -> None:
    changes = ["optimisation.seed=7", "model.new.num_hidden_layers=3", "generation.beams=4", "data.train=[a, b]"]
    recipe = load_recipe(file, changes)
    assert recipe.optimisation.seed == 7
    assert recipe.model.new == {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "decoder_layers": 1,
        "num_hidden_layers": 3,
    }
    assert recipe.generation.beams == 4
    assert recipe.data.train == ("a", "b")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("optimisation.steps=many", ["optimisation.steps", "'many'", "whole number"]),
        ("optimisation.bf16=1", ["optimisation.bf16", "true or false"]),
        ("optimisation.epochs=2", ["exactly one of 'epochs' and 'steps'"]),
        ("optimisation.evaluate_every=7", ["evaluate_every is 7", "multiple of"]),
        ("optimisation.batch_size=0", ["batch_size is 0", "at least 1"]),
        ("optimisation.micro_batch_size=3", ["batch_size is 8", "multiple of"]),
        ("optimisation.betas=[0.9]", ["betas", "two numbers"]),
        ("optimisation.warmup_fraction=1", ["warmup_fraction is 1", "below 1"]),
        ("optimisation={steps: 9, warmup_steps: 1, warmup_fraction: 0.1}", ["at most one of 'warmup_steps'"]),
        ("model.from=somewhere", ["exactly one of 'from'", "'new'"]),
        ("tokenizer=null", ["tokenizer", "must be a mapping"]),
        ("tokenizer.train=null", ["needs a tokenizer"]),
        ("model.new=3", ["model.new is 3", "mapping"]),
        ("generation=3", ["generation is 3", "mapping"]),
    ],
)
def test_a_mistake_is_one_sentence_that_names_it(file: Path, change: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        load_recipe(file, [change])
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


EXPECTED: dict[str, tuple[float, float, float]] = {
    "ablation-128-256-conv": (38.39, 14.34, 33.67),
    "ablation-128-512-conv": (38.75, 14.58, 34.13),
    "ablation-128-512-max": (38.42, 14.45, 33.84),
    "ablation-128-512-mean": (38.68, 14.60, 34.05),
    "ablation-window-128": (38.27, 14.39, 33.72),
    "ablation-window-256": (38.54, 14.43, 33.89),
    "ablation-window-512": (38.08, 14.38, 33.61),
    "led-arxiv-16k": (46.63, 19.62, 41.83),
    "led-arxiv-4k": (44.40, 17.94, 39.76),
    "poolingformer-arxiv-16k": (48.47, 20.23, 42.69),
    "poolingformer-arxiv-4k": (47.86, 19.54, 42.35),
    "poolingformer-pubmed-4k": (46.72, 20.86, 42.00),
}


STAGED = ("longformer-enwik8-large", "longformer-enwik8-small", "longformer-text8-small")
"""Recipes whose model is laid out for each of five stages."""


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in STAGED)) for path in RECIPES]
)
def test_recipes_of_this_repository_are_valid(path: Path) -> None:
    full, small = load_recipe(path), load_recipe(path, smoke=True)
    assert full.name == path.stem
    assert small.data.train == ("synthetic",)
    assert full.task.name == small.task.name == read_recipe(path)["task"]["name"]


@needs_papers
def test_a_change_to_one_smoke_recipe_stays_there() -> None:
    path = next(path for path in RECIPES if path.stem == "poolingformer-nq")
    changed = load_recipe(path, ["model.new.num_hidden_layers=1"], smoke=True)
    again = load_recipe(path, smoke=True)
    assert [recipe.model.new["num_hidden_layers"] for recipe in (changed, again) if recipe.model.new] == [1, 4]


@pytest.mark.parametrize("name", EXPECTED)
def test_each_published_row_has_its_recipe(name: str) -> None:
    recipe = load_recipe(next(path for path in RECIPES if path.stem == name))
    assert recipe.published is not None
    assert tuple(recipe.published.scores[key] for key in ("rouge1", "rouge2", "rougeL")) == EXPECTED[name]
    spec: dict[str, Any] = recipe.model.attention
    assert recipe.model.max_tokens == recipe.task.max_source_tokens == (16384 if name.endswith("16k") else 4096)
    if "ablation-128" in name:
        _, near, far, kind = name.split("-")
        assert (spec["left_tokens"], spec["pooled_left_tokens"]) == (int(near), int(far))
        assert spec["pooling"] == {"conv": "ldconv"}.get(kind, kind)


@pytest.mark.parametrize("name", ["longformer-mlm-base", "longformer-mlm-small"])
def test_a_schedule_may_end_before_or_where_its_warm_up_does(name: str) -> None:
    """One step of a warm-up of 500 is no division by zero; a polynomial without a step behind its warm-up is one."""
    assert load_recipe(name, ["optimisation.steps=1"]).optimisation.steps == 1
    changes = ["optimisation.steps=5", "optimisation.warmup_steps=5", "optimisation.schedule=polynomial"]
    with pytest.raises(InputError, match=r"polynomial', which needs a step after its warm-up, and .*steps=5 are all"):
        load_recipe(name, changes)
    assert load_recipe(name, [*changes, "optimisation.steps=6"]).optimisation.warmup_steps == 5
    share = ["optimisation.steps=1", "optimisation.warmup_steps=0", "optimisation.warmup_fraction=0.1"]
    with pytest.raises(InputError, match="needs a step after its warm-up"):
        load_recipe(name, [*share, "optimisation.schedule=polynomial"])


def test_a_model_is_weighed_by_what_the_processes_of_a_machine_hold(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, gradients and two moments in float32 are 16 bytes a weight, whole or divided."""
    recipe = load_recipe(file, ["model.new.num_hidden_layers=3"])
    weights = sum(weight.numel() for weight in recipe.task.model_class()(recipe.smallest_config).parameters())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def check(machine: int, *changes: str, processes: int = 1, here: int = 1) -> None:
        monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": machine}.__getitem__)
        monkeypatch.setenv("WORLD_SIZE", str(processes))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(here))
        check_memory(load_recipe(file, ["model.new.num_hidden_layers=3", *changes]))

    check(16 * weights)
    check(12 * weights, "optimisation.optimizer=adagrad")
    check(2 * weights, "optimisation.parallel.shard=true", processes=64, here=8)
    with pytest.raises(InputError, match=rf"^model.new has {weights:,} weights, whose training takes .*shard=true$"):
        check(16 * weights - 1)
    with pytest.raises(InputError, match="whose training by 8 processes takes"):
        check(16 * 8 * weights - 1, processes=64, here=8)
    with pytest.raises(InputError, match=r"train it with more machines$"):
        check(2 * weights - 1, "optimisation.parallel.shard=true", processes=64, here=8)
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    with pytest.raises(InputError, match="whose training takes"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
