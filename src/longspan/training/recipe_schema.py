"""What a recipe may say, from the types, limits and docstrings of the settings: a JSON schema, and a page of keys."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
import types
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from longspan.attention import MECHANISMS
from longspan.models.configuration import LongspanConfig
from longspan.models.fields import LIMITS
from longspan.settings import Form, Range, hints_of, key_of
from longspan.tasks import TASKS, task_class
from longspan.training.recipe import Data, Generation, Lora, Model, Optimisation, Published, Recipe, Tokenizer

SECTIONS: dict[str, Any] = {
    "published": Published,
    "data": Data,
    "model": Model,
    "tokenizer": Tokenizer,
    "optimisation": Optimisation,
    "optimisation.lora": Lora,
    "generation": Generation,
}
"""Key → its settings, in the order of a recipe."""

_KINDS = {int: "integer", float: "number", str: "string", bool: "boolean"}
_WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false"}


def recipe_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a recipe."""
    schema = _object(Recipe)
    properties = schema["properties"]
    properties["task"] |= {
        "required": ["name"],
        "properties": {"name": {"enum": list(TASKS)}},
        "allOf": [
            {
                "if": {"properties": {"name": {"const": name}}},
                "then": {"properties": {"name": True, **_object(task_class(name))["properties"]}}
                | {"additionalProperties": False},
            }
            for name in TASKS
        ],
    }
    model = properties["model"]["properties"]
    model["new"] = {"anyOf": [_new_model(), {"type": "null"}], "description": model["new"]["description"]}
    one = {"$ref": "#/$defs/attention"}
    model["attention"] |= {"anyOf": [one, {"type": "array", "items": one}, {"type": "null"}]}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Longspan recipe"}
    return {**head, **schema, "$defs": {"attention": _attention()}}


def recipe_keys() -> str:
    """The page of the documentation that lists every key."""
    parts = [
        "# Every key of a recipe",
        "",
        "Made from the settings in the code by `python docs/figures.py`; what a value may be is what is checked. "
        "A key without a default must be given. `longspan recipes --schema` prints the same for editors.",
    ]
    parts += _table("The recipe", Recipe, "")
    for path, settings in SECTIONS.items():
        parts += _table(f"`{path}`", settings, f"{path}.")
    for name in TASKS:
        parts += _table(f"`task` with `name: {name}`", task_class(name), "task.")
    parts += _table("`model.new`", LongspanConfig, "model.new.")
    for name, mechanism in MECHANISMS.items():
        parts += _table(f"`model.attention` with `mechanism: {name}`", mechanism, "")
    return "\n".join(parts) + "\n"


@cache
def documentation(settings: Any) -> dict[str, str]:
    """Field → what its docstring says: a text below the field, or a line under `Attributes:` of the class."""
    found: dict[str, str] = {}
    for base in reversed(settings.__mro__):
        if not base.__module__.startswith("longspan."):
            continue
        section = re.search(r"Attributes:\n(.*?)(?:\n\s*\n|\Z)", inspect.getdoc(base) or "", re.DOTALL)
        if section is not None:
            for entry in re.split(r"\n(?=    \w)", "\n" + section[1]):
                names, _, text = entry.strip().partition(": ")
                found |= {name.strip(): " ".join(text.split()) for name in names.split(",")}
        (made,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(made, ast.ClassDef)
        for field, text in zip(made.body, made.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                assert isinstance(text.value, ast.Constant)
                found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def schema_of(hint: Any) -> dict[str, Any]:
    """The JSON schema of a type."""
    origin, choices = get_origin(hint), get_args(hint)
    if origin is Annotated:
        schema = schema_of(choices[0])
        for limit in choices[1:]:
            schema |= _limits(limit)
        return schema
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(choice) for choice in choices]}
    if origin is Literal:
        return {"enum": list(choices)}
    if origin is tuple:
        return {"anyOf": [schema_of(choices[0]), {"type": "array", "items": schema_of(choices[0])}]}
    if hint is type(None):
        return {"type": "null"}
    if is_dataclass(hint):
        return _object(hint)
    if hint in _KINDS:
        return {"type": _KINDS[hint]}
    return {"type": "object"} if origin is dict else {}


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


def _object(settings: Any) -> dict[str, Any]:
    hints, texts = hints_of(settings), documentation(settings)
    properties = {}
    for field in fields(settings):
        schema = schema_of(hints[field.name])
        if text := texts.get(field.name):
            schema = {**schema, "description": text}
        if field.default is not MISSING:
            schema = {**schema, "default": field.default}
        properties[key_of(field)] = json.loads(json.dumps(schema))
    return {
        "type": "object",
        "properties": properties,
        "required": [key_of(field) for field in fields(settings) if _is_required(field)],
        "additionalProperties": False,
    }


def _is_required(field: Any) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _new_model() -> dict[str, Any]:
    texts = documentation(LongspanConfig)
    properties = {name: {**schema_of(hint), "description": texts.get(name, "")} for name, hint in LIMITS.items()}
    properties |= {"attention": {}, "sentence_attention": {}}
    return {"type": "object", "properties": properties, "additionalProperties": False}


_LAYERS = {
    "description": "Which layers: a number, a text such as '0-5', '6-' or '0,2,-1', or a list of these.",
    "anyOf": [{"type": ["integer", "string"]}, {"type": "array", "items": {"type": ["integer", "string"]}}],
}


def _by_layer(option: dict[str, Any]) -> dict[str, Any]:
    """An option that is one value for all layers, or a mapping: `{per_layer: [...]}`, or a value for each range."""
    about = {name: option[name] for name in ("description", "default") if name in option}
    return {
        "anyOf": [{name: value for name, value in option.items() if name not in about}, {"type": "object"}],
        **about,
    }


def _attention() -> dict[str, Any]:
    kinds = []
    for name, mechanism in MECHANISMS.items():
        schema = _object(mechanism)
        options = {option: _by_layer(each) for option, each in schema["properties"].items()}
        schema["properties"] = {"mechanism": {"const": name}, "layers": _LAYERS, **options}
        kinds.append({"if": {"properties": {"mechanism": {"const": name}}}, "then": schema})
    mapping = {"type": "object", "required": ["mechanism"], "properties": {"mechanism": {"enum": list(MECHANISMS)}}}
    return {"anyOf": [{"enum": list(MECHANISMS)}, {**mapping, "allOf": kinds}]}


def _limits(limit: Any) -> dict[str, Any]:
    if isinstance(limit, Form):
        return {"pattern": f"^(?:{limit.pattern})$", "maxLength": limit.longest}
    if not isinstance(limit, Range):
        return {}
    named = {
        "minimum": limit.minimum,
        "maximum": limit.maximum,
        "exclusiveMinimum": limit.above,
        "exclusiveMaximum": limit.below,
    }
    return {name: value for name, value in named.items() if value is not None}


def _limit_words(limit: Any) -> str:
    if isinstance(limit, Form):
        return limit.words
    low = f"from {limit.minimum:,}" if limit.minimum is not None else f"above {limit.above:,}"
    high = f"to {limit.maximum:,}" if limit.maximum is not None else f"to below {limit.below:,}"
    return f"{low} {high}"


def _table(title: str, settings: Any, prefix: str) -> list[str]:
    texts = documentation(settings)
    hints = LIMITS | {"attention": Any, "sentence_attention": Any} if settings is LongspanConfig else hints_of(settings)
    lines = ["", f"## {title}", "", "| key | value | default | meaning |", "|---|---|---|---|"]
    for field in fields(settings):
        if field.name not in hints or (settings is LongspanConfig and field.name not in LIMITS | {"attention": 0}):
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
    if _is_required(field):
        return ""
    value = field.default if field.default is not MISSING else field.default_factory()
    if is_dataclass(value):
        return ""
    return f"`{json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)}`"
