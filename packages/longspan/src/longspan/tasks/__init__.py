"""Tasks: the features, loss, metric and decoded answer of rows; a folder for each family.

`TASKS` lists them by name; each is imported on first access, so that a recipe does not need the dependencies
of other tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longspan.changes import stages_of
from longspan.errors import InputError
from longspan.imports import Table
from longspan.plain_yaml import read_yaml_file
from longspan.settings import entry, from_plain, show

RECIPE = "recipe.yaml"
"""The file of the recipe in a run's model folder."""

TASKS: Table[Any] = Table(
    "tasks",
    {
        "summarization": "longspan.tasks.summaries.summarization:Summarization",
        "importance": "longspan.tasks.summaries.importance:Importance",
        "language_model": "longspan.tasks.language_modelling.language_model:LanguageModel",
        "language_stream": "longspan.tasks.language_modelling.streams:LanguageStream",
        "masked_lm": "longspan.tasks.language_modelling.masked_lm:MaskedLM",
        "pair_labels": "longspan.tasks.classification.pairs:PairLabels",
        "algorithmic": "longspan.tasks.exercises.task:Algorithmic",
        "stories": "longspan.tasks.exercises.task:Stories",
        "classification": "longspan.tasks.classification.classification:Classification",
    },
)
"""Name → the task's dataclass; `longspan.register` and installed packages add to them."""


def task_class(name: str) -> Any:
    """Returns the dataclass of the task `name`; an unknown name raises `InputError` with a similar one."""
    return entry(TASKS, name, "task.name")


def build_task(options: Any) -> Any:
    """Returns the task of the `task` section of a recipe, a mapping of its `name` and its options.

    Raises:
        InputError: an unknown task or option, or a value out of range.
    """
    if not isinstance(options, Mapping):
        raise InputError(f"task is {show(options)}; it must be a mapping")
    name = options.get("name")
    if not isinstance(name, str):
        raise InputError(f"task.name is {show(name)}; give a task, such as summarization")
    return from_plain(task_class(name), {key: value for key, value in options.items() if key != "name"}, "task")


def task_of_folder(folder: Path) -> Any | None:
    """Returns the task that a model was trained for, from the recipe in its folder; None if there is none."""
    if not (folder / RECIPE).is_file():
        return None
    what = f"recipe {show(str(folder / RECIPE))}"
    recipe = read_yaml_file(folder / RECIPE, what)
    if not isinstance(recipe, dict) or not isinstance(recipe.get("task"), dict):
        raise InputError(f"{what} has no section `task`; put back the recipe that the model was trained with")
    return build_task(stages_of(recipe)[-1]["task"])
