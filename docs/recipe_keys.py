"""The page that lists every key of a recipe, from the types, limits and docstrings of the settings."""

from __future__ import annotations

import json
import types
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from longspan.attention import MECHANISMS
from longspan.models.configuration import LongspanConfig
from longspan.models.fields import FIELDS
from longspan.models.heads import HEADS
from longspan.settings import Form, hints_of, key_of
from longspan.tasks import TASKS, task_class
from longspan.tasks.distilling import Distilling
from longspan.tasks.language_modelling.scoring import Scoring
from longspan.tasks.language_modelling.streams import Reading
from longspan.training.optimisation import Lora, Optimisation, Parallel
from longspan.training.recipe import Recipe
from longspan.training.recipe_schema import EXTENDS_HELP, documentation, is_required
from longspan.training.sections import Data, Generation, Model, Published, Tokenizer
from longspan.training.shipped import EXTENDS
from longspan.training.trainer_section import KEYS, REASONS

SECTIONS: dict[str, Any] = {
    "published": Published,
    "data": Data,
    "model": Model,
    "tokenizer": Tokenizer,
    "optimisation": Optimisation,
    "optimisation.lora": Lora,
    "optimisation.parallel": Parallel,
    "generation": Generation,
}
"""Key → its settings, in the order of a recipe."""

_WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false"}


def recipe_keys() -> str:
    """The page of the documentation that lists every key."""
    parts = [
        "# Every key of a recipe",
        "",
        "Made from the settings in the code by `python docs/figures.py`; what a value may be is what is checked. "
        "A key without a default must be given. `longspan recipes --schema` prints the same for editors.",
    ]
    parts += _table("The recipe", Recipe, "")
    more = (
        "See [Recipes that extend another](../../packages/longspan/docs/guides/train.md#recipes-that-extend-another)."
    )
    parts.append(f"| `{EXTENDS}` | a name or a path |  | {EXTENDS_HELP} {more} |")
    for path, settings in SECTIONS.items():
        parts += _table(f"`{path}`", settings, f"{path}.")
    parts += _trainer()
    parts += _table("`task.distillation`", Distilling, "task.distillation.")
    parts += _table("`task.evaluation` with `name: language_model`", Scoring, "task.evaluation.")
    parts += _table("`task.evaluation` with `name: language_stream`", Reading, "task.evaluation.")
    for name in TASKS:
        parts += _table(f"`task` with `name: {name}`", task_class(name), "task.")
    parts += _table("`model.new`", LongspanConfig, "model.new.")
    for name, head in HEADS.items():
        if fields(head):
            parts += _table(f"`model.new.head` with `head: {name}`", head, "")
    for name, mechanism in MECHANISMS.items():
        parts += _table(f"`model.attention` with `mechanism: {name}`", mechanism, "")
    return "\n".join(parts) + "\n"


def _trainer() -> list[str]:
    """The section `trainer`: the arguments of transformers that are not passed on."""
    link = "https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments"
    lines = ["", "## `trainer`", ""]
    lines += [
        f"Any argument of transformers' [TrainingArguments]({link}) except these. Its type is checked, and "
        "`longspan recipes --schema` lists those of the installed version."
    ]
    keys = {name: f"`{key}`" if key.startswith("optimisation.") else key for name, key in KEYS.items()}
    for title, table in {"set instead": keys, "cannot be set, because": REASONS}.items():
        names: dict[str, list[str]] = {}
        for name, text in table.items():
            names.setdefault(text, []).append(f"`{name}`")
        lines += ["", f"| arguments | {title} |", "|---|---|"]
        lines += [f"| {', '.join(together)} | {text} |" for text, together in names.items()]
    return lines


def words_of(hint: Any) -> str:
    """A type in words."""
    origin, choices = get_origin(hint), get_args(hint)
    if origin is Annotated:
        limits = " ".join(_limit_words(limit) for limit in choices[1:])
        return limits if isinstance(choices[1], Form) else f"{words_of(choices[0])} {limits}".strip()
    if origin in (Union, types.UnionType):
        return " or ".join(words_of(choice) for choice in choices)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in choices)
    if origin is tuple:
        return f"list of: {words_of(choices[0])}"
    if hint is type(None):
        return "null"
    if is_dataclass(hint) or origin is dict:
        return "mapping"
    return _WORDS.get(hint, "see below")


def _limit_words(limit: Any) -> str:
    if isinstance(limit, Form):
        return limit.words
    low = f"from {limit.minimum:,}" if limit.minimum is not None else f"above {limit.above:,}"
    high = f"to {limit.maximum:,}" if limit.maximum is not None else f"to below {limit.below:,}"
    return f"{low} {high}"


def _table(title: str, settings: Any, prefix: str) -> list[str]:
    texts = documentation(settings)
    hints = FIELDS if settings is LongspanConfig else hints_of(settings)
    lines = ["", f"## {title}", "", "| key | value | default | meaning |", "|---|---|---|---|"]
    for field in fields(settings):
        if field.name not in hints:
            continue
        cells = (
            f"`{prefix}{key_of(field)}`",
            words_of(hints[field.name]),
            _default(field),
            texts.get(field.name, "as in transformers"),
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


def _default(field: Any) -> str:
    if is_required(field):
        return ""
    value = field.default if field.default is not MISSING else field.default_factory()
    if is_dataclass(value):
        return ""
    return f"`{json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)}`"
