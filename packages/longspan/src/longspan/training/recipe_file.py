"""Reads recipes: safe YAML, `--smoke`, and `key=value` changes by dotted path."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from longspan.changes import STAGES, assign, is_factor
from longspan.errors import InputError
from longspan.plain_yaml import read_yaml
from longspan.settings import check_keys, check_kind, check_several, from_plain, key_of, show, show_key
from longspan.tasks import TASKS, task_class
from longspan.tasks.writing import WritingTask
from longspan.training.recipe import Recipe, check_key
from longspan.training.shipped import EXTENDS, find_recipe, read_recipe
from longspan.training.trainer_section import SECTION

SMOKE = {
    "data.train": "synthetic",
    "data.validation": "synthetic",
    "data.train_rows": 12,
    "data.validation_rows": 3,
    "data.stopping_strategy": "all_exhausted",
    "data.streaming": False,
    "optimisation.epochs": None,
    "optimisation.steps": 4,
    "optimisation.batch_size": 2,
    "optimisation.micro_batch_size": 1,
    "optimisation.warmup_steps": 1,
    "optimisation.warmup_fraction": 0.0,
    "optimisation.warmup_limit": None,
    "optimisation.log_every": 1,
    "optimisation.evaluate_every": 2,
    "optimisation.bf16": False,
    "optimisation.float32_attention": False,
    "optimisation.workers": 0,
    "generation.beams": 2,
    "generation.max_tokens": 16,
}
"""Changes of `--smoke` in every recipe, before the recipe's own `smoke` section."""

SMOKE_TRAINER = {"fp16": False, "tf32": None}
"""Changes of `--smoke` for options of Trainer that need a GPU, if a recipe has them."""

SMOKE_CHECKPOINT = {
    "model.from": "random-bart",
    "model.max_tokens": 1024,
    "task.max_source_tokens": 1024,
    "task.max_target_tokens": 32,
}
"""Changes for generative recipes with a published checkpoint: a tiny random BART replaces it."""

SMOKE_PREFIX = {
    "model.from": "random-roberta",
    "model.max_tokens": 512,
    "task.max_source_tokens": 256,
}
"""Changes for prefix language models: a tiny random RoBERTa."""

SMOKE_PRETRAINED = {
    "model.from": None,
    "model.new": {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48},
    "tokenizer.from": None,
    "tokenizer.train": 600,
}
"""Changes for other tasks that start from a previous run, such as pre-training: a tiny new encoder."""


def load_recipe(recipe: str | Path, changes: Iterable[str] = (), *, smoke: bool = False) -> Recipe:
    """Reads a recipe, applies `--smoke` and then the `key=value` changes, and checks the result.

    Args:
        recipe: a file, or the name of a recipe of the package, see `find_recipe`.
        changes: strings such as `optimisation.seed=3`; values are YAML.
        smoke: make it small, with `SMOKE` and the recipe's own `smoke` section.

    Raises:
        InputError: a file that cannot be read, an unknown key (with a similar known one), a wrong type, a value out of
            its range, or any other reason for which the recipe cannot run.
    """
    check_kind(recipe, "recipe", (str, Path), "a file, or the name of a recipe")
    check_several([] if isinstance(changes, str) else changes, "changes", "texts, such as ['optimisation.seed=3']")
    data = read_recipe(find_recipe(recipe))
    check_keys(data, (EXTENDS, *map(key_of, fields(Recipe))))  # first, so that a misspelt `extends` is named
    own = data.get("smoke") or {}
    if not isinstance(own, dict):
        raise InputError(f"smoke is {show(own)}; it must be a mapping of dotted keys to values")
    for key in own:
        check_key(key, "smoke")
    if smoke:
        for key, value in _smoke_changes(data, own).items():
            assign(data, key, copy.deepcopy(value))  # later changes must not modify the tables above
    for key, value in parse_changes(changes, "optimisation.seed=3").items():
        check_key(key, "")
        assign(data, key, value)
    settings = from_plain(Recipe, data)
    _ = settings.runs  # the checks that need the task and the model; `train` does not repeat them
    return settings


def parse_changes(changes: Iterable[str], example: str) -> dict[str, Any]:
    """Parses `key=value` strings, whose values are YAML; the last one of a key counts.

    Raises:
        InputError: a string of another form.
    """
    values: dict[str, Any] = {}
    for change in [changes] if isinstance(changes, str) else changes:
        check_kind(change, "change", str, f"a text, such as {example}")
        key, equals, text = change.partition("=")
        if not equals or not key:
            raise InputError(f"change {show(change)} is not of the form key=value, such as {example}")
        values.pop(key, None)
        values[key] = read_yaml(text, f"the value of {show_key(key)}")
    return values


def _smoke_changes(data: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    model, task = data.get("model"), data.get("task")
    name = task.get("name") if isinstance(task, dict) else None
    writes = isinstance(name, str) and name in TASKS and issubclass(task_class(name), WritingTask)
    begun = SMOKE_CHECKPOINT if writes else SMOKE_PRETRAINED
    if isinstance(task, dict) and task.get("model") == "prefix":
        from longspan.models.fields import ModelFields

        # The default attention of a prefix language model is that of a decoder.
        begun = SMOKE_CHECKPOINT | SMOKE_PREFIX | {"model.attention": ModelFields.decoder_attention}
    published = isinstance(model, dict) and model.get("from") is not None
    changes = {**SMOKE, **(begun if published else {}), **own}
    if isinstance(trainer := data.get(SECTION), dict):
        changes = {f"{SECTION}.{name}": value for name, value in SMOKE_TRAINER.items() if name in trainer} | changes
    stages = data.get(STAGES)
    if isinstance(stages, list) and all(isinstance(stage, dict) for stage in stages) and STAGES not in own:
        # Stages keep their factors, but no absolute size of what is made small.
        changes[STAGES] = [
            {key: value for key, value in stage.items() if is_factor(value) or key not in changes} for stage in stages
        ]
    return changes
