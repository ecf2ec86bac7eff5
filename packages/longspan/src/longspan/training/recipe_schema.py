"""The JSON schema of recipes, from the types, limits and docstrings of the settings."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from longspan.attention import MECHANISMS
from longspan.models.configuration import LongspanConfig
from longspan.models.fields import FIELDS
from longspan.models.heads import HEADS
from longspan.settings import Form, Range, hints_of, key_of
from longspan.tasks import TASKS, task_class
from longspan.training.recipe import Recipe
from longspan.training.shipped import EXTENDS
from longspan.training.trainer_section import option_hints

EXTENDS_HELP = (
    "A recipe of the package, by name, or a .yaml file in the same folder: this recipe contains only what it changes."
)
_ATTENTION = {"$ref": "#/$defs/attention"}
_KINDS = {int: "integer", float: "number", str: "string", bool: "boolean"}


def recipe_schema() -> dict[str, Any]:
    """Returns the JSON schema (draft 2020-12) of a recipe: complete, or the parts of one that extends another."""
    full = _full_recipe()
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Longspan recipe"}
    extends = {"type": "string", "minLength": 1, "description": EXTENDS_HELP}
    partial = _partial(full)
    partial["properties"] = {EXTENDS: extends, **partial["properties"]}
    return {
        **head,
        "type": "object",
        "required": ["name"],
        "if": {"required": [EXTENDS]},
        "then": partial,
        "else": full,
        "$defs": {"attention": _attention()},
    }


def _partial(schema: Any) -> Any:
    """Returns the schema of any part of what `schema` describes: only the items of lists, which are not merged, must be
    complete; the options of a spec are checked only if it names its kind.
    """
    if isinstance(schema, list):
        return [_partial(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema == _ATTENTION:
        return _partial(_attention())
    unchanged = ("items", "default", "enum", "const")
    parts = {key: value if key in unchanged else _partial(value) for key, value in schema.items() if key != "required"}
    if "if" in parts:
        parts["if"] = {**parts["if"], "required": list(parts["if"]["properties"])}
    return parts


def _full_recipe() -> dict[str, Any]:
    schema = _object(Recipe)
    properties = schema["properties"]
    properties["task"] |= {
        "type": "object",
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
    options = {name: schema_of(hint) for name, hint in option_hints().items()}
    properties["trainer"] |= {"properties": options, "additionalProperties": False}
    model = properties["model"]["properties"]
    model["new"] = {"anyOf": [_new_model(), {"type": "null"}], "description": model["new"]["description"]}
    several = {"type": "array", "items": _ATTENTION}
    model["attention"] |= {"anyOf": [_ATTENTION, several, {"type": "null"}]}
    return schema


@cache
def documentation(settings: Any) -> dict[str, str]:
    """Returns field → documentation: a docstring below the field, or a line under `Attributes:` of the class."""
    texts: dict[str, str] = {}
    for base in reversed(settings.__mro__):
        if not base.__module__.startswith(("longspan.", "longspan_")):
            continue
        section = re.search(r"Attributes:\n(.*?)(?:\n\s*\n|\Z)", inspect.getdoc(base) or "", re.DOTALL)
        if section is not None:
            for entry in re.split(r"\n(?=    \w)", "\n" + section[1]):
                names, _, text = entry.strip().partition(": ")
                texts |= {name.strip(): " ".join(text.split()) for name in names.split(",")}
        (made,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(made, ast.ClassDef)
        for field, text in zip(made.body, made.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                assert isinstance(text.value, ast.Constant)
                texts[field.target.id] = " ".join(str(text.value.value).split())
    return texts


def schema_of(hint: Any) -> dict[str, Any]:
    """Returns the JSON schema of a type."""
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
    if origin in (tuple, list):
        return {"anyOf": [schema_of(choices[0]), {"type": "array", "items": schema_of(choices[0])}]}
    if hint is type(None):
        return {"type": "null"}
    if is_dataclass(hint):
        return _object(hint)
    if hint in _KINDS:
        return {"type": _KINDS[hint]}
    return {"type": "object"} if origin is dict else {}


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
        "required": [key_of(field) for field in fields(settings) if is_required(field)],
        "additionalProperties": False,
    }


def is_required(field: Any) -> bool:
    """Whether a field has no default."""
    return field.default is MISSING and field.default_factory is MISSING


def _new_model() -> dict[str, Any]:
    texts = documentation(LongspanConfig)
    properties = {name: {**schema_of(hint), "description": texts.get(name, "")} for name, hint in FIELDS.items()}
    properties["head"] |= _spec({name: _object(head) for name, head in HEADS.items()}, "head")
    return {"type": "object", "properties": properties, "additionalProperties": False}


_LAYERS = {
    "description": "Which layers: a number, a text such as '0-5', '6-' or '0,2,-1', or a list of these.",
    "anyOf": [{"type": ["integer", "string"]}, {"type": "array", "items": {"type": ["integer", "string"]}}],
}


def _by_layer(option: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of an option with one value for all layers, or a mapping: `{per_layer: [...]}`, or a value
    for each range.
    """
    about = {name: option[name] for name in ("description", "default") if name in option}
    return {
        "anyOf": [{name: value for name, value in option.items() if name not in about}, {"type": "object"}],
        **about,
    }


def _attention() -> dict[str, Any]:
    layered = {name: _object(mechanism) for name, mechanism in MECHANISMS.items()}
    for schema in layered.values():
        options = {option: _by_layer(each) for option, each in schema["properties"].items()}
        schema["properties"] = {"layers": _LAYERS, **options}
    return _spec(layered, "mechanism")


def _spec(schemas: Mapping[str, dict[str, Any]], kind: str) -> dict[str, Any]:
    """Returns the schema of a nested spec: a name, or a mapping with it under `kind` and the options of the schema
    with that name.
    """
    kinds = []
    for name, schema in schemas.items():
        schema = {**schema, "properties": {kind: {"const": name}, **schema["properties"]}}
        kinds.append({"if": {"properties": {kind: {"const": name}}}, "then": schema})
    mapping = {"type": "object", "required": [kind], "properties": {kind: {"enum": list(schemas)}}}
    return {"anyOf": [{"enum": list(schemas)}, {**mapping, "allOf": kinds}]}


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
