"""Reading a recipe: YAML without surprises, `--smoke`, and `key=value` changes by dotted path."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from longspan.errors import InputError
from longspan.training.recipe import Recipe

RECIPE = "recipe.yaml"
"""The recipe that a run keeps beside its model."""

SMOKE = {
    "data.train": "synthetic",
    "data.validation": "synthetic",
    "data.train_rows": 12,
    "data.validation_rows": 3,
    "optimisation.epochs": None,
    "optimisation.steps": 4,
    "optimisation.batch_size": 2,
    "optimisation.micro_batch_size": 1,
    "optimisation.warmup_steps": 1,
    "optimisation.warmup_fraction": 0.0,
    "optimisation.log_every": 1,
    "optimisation.evaluate_every": 2,
    "optimisation.bf16": False,
    "optimisation.workers": 0,
    "generation.beams": 2,
    "generation.max_tokens": 16,
}
"""What `--smoke` changes in every recipe, before the recipe's own `smoke` section."""

SMOKE_CHECKPOINT = {
    "model.from": "random-bart",
    "model.max_tokens": 1024,
    "task.max_source_tokens": 1024,
    "task.max_target_tokens": 32,
}
"""And in recipes that summarise from a published checkpoint: a tiny random BART, made on the spot, takes its place."""

SMOKE_PRETRAINED = {
    "model.from": None,
    "model.new": {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48},
    "tokenizer.from": None,
    "tokenizer.train": 600,
}
"""And in recipes of other tasks that start from a run of their own, such as pre-training: a tiny new encoder."""


def load_recipe(path: str | Path, changes: Iterable[str] = (), *, smoke: bool = False) -> Recipe:
    """Read a recipe file, apply `--smoke` and then the `key=value` changes.

    Raises `InputError` for a file that cannot be read, an unknown key (naming the near match), a wrong type.
    """
    data = _read(Path(path))
    if smoke:
        for key, value in _smoke_changes(data).items():
            assign(data, key, value)
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key:
            raise InputError(f"change {change!r} is not of the form key=value, for instance optimisation.seed=3")
        assign(data, key, _yaml(text, f"the value of {key}"))
    return Recipe.from_dict(data)


def assign(data: dict[str, Any], key: str, value: Any) -> None:
    """Set the dotted `key` in nested mappings, creating sections that are absent."""
    *sections, last = key.split(".")
    for depth, section in enumerate(sections):
        inner = data.setdefault(section, {})
        if inner is None:
            inner = data[section] = {}
        if not isinstance(inner, dict):
            raise InputError(
                f"{key!r} cannot be set, because {'.'.join(sections[: depth + 1])!r} is {inner!r} and not a mapping"
            )
        data = inner
    data[last] = value


def _smoke_changes(data: dict[str, Any]) -> dict[str, Any]:
    model, own = data.get("model"), data.get("smoke") or {}
    if not isinstance(own, dict):
        raise InputError(f"smoke is {own!r}; it must be a mapping of dotted keys to values")
    task = data.get("task")
    summarises = isinstance(task, dict) and task.get("name") == "summarization"
    begun = SMOKE_CHECKPOINT if summarises else SMOKE_PRETRAINED
    published = isinstance(model, dict) and model.get("from") is not None
    return {**SMOKE, **(begun if published else {}), **own}


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"recipe {str(path)!r} is not a file; give the path of a .yaml file, such as recipes/*.yaml")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"recipe {str(path)!r} is not UTF-8 text; give a .yaml file") from error
    data = _yaml(text, f"recipe {str(path)!r}")
    if not isinstance(data, dict):
        raise InputError(f"recipe {str(path)!r} holds no mapping of keys to values; see recipes/ for examples")
    return data


def _yaml(text: str, what: str) -> Any:
    """Parse YAML; a syntax error or a key given twice raises `InputError`."""
    try:
        import yaml
    except ImportError:
        raise InputError("recipes need the 'train' extra; install it with: pip install 'longspan[train]'") from None

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            for key in keys:
                if keys.count(key) > 1:
                    raise InputError(f"{what} gives the key {key!r} twice (line {node.start_mark.line + 1}); keep one")
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise InputError(f"{what} is not valid YAML{where}: {getattr(error, 'problem', error)}") from error
