"""Plain data (from YAML) to frozen dataclasses and back; an unknown key or a wrong type is one clear error."""

from __future__ import annotations

import types
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from longspan.errors import InputError

Settings = TypeVar("Settings")


def from_plain(settings: type[Settings], data: Any, path: str = "") -> Settings:
    """Build the dataclass `settings` from the mapping `data`; `path` is where `data` stands, for error messages.

    A field may carry `metadata={"key": ...}` where its YAML key is no Python name. Unknown keys raise `InputError`
    naming the key and the nearest known one; so do values of the wrong type and missing required keys.
    """
    if not isinstance(data, dict):
        raise InputError(f"{path or 'the recipe'} is {data!r}; it must be a mapping of keys to values")
    known = {key_of(field): field for field in fields(settings)}  # pyright: ignore[reportArgumentType]
    for key in data:
        if key not in known:
            raise InputError(f"unknown key {join(path, key)!r}; {_near(str(key), list(known))}")
    hints = get_type_hints(settings)
    values = {
        field.name: convert(hints[field.name], data[key], join(path, key))
        for key, field in known.items()
        if key in data
    }
    for key, field in known.items():
        if key not in data and field.default is MISSING and field.default_factory is MISSING:
            raise InputError(f"missing key {join(path, key)!r}; add it")
    return settings(**values)


def to_plain(value: Any) -> Any:
    """The reverse of `from_plain`: dictionaries, lists and scalars only, every default written out."""
    if is_dataclass(value) and not isinstance(value, type):
        return {key_of(field): to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def key_of(field: Field[Any]) -> str:
    """The YAML key of a dataclass field."""
    return field.metadata.get("key", field.name)


def join(path: str, key: Any) -> str:
    """`a.b` and `c` → `a.b.c`."""
    return f"{path}.{key}" if path else str(key)


def convert(hint: Any, value: Any, path: str) -> Any:
    """`value` as an instance of the type `hint`, or `InputError` naming `path`, the value and the type wanted."""
    if hint is Any:
        return value
    if is_dataclass(hint) and isinstance(hint, type):
        return from_plain(hint, value, path)
    origin, choices = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _union(choices, value, path)
    if origin is tuple:
        return _tuple(choices[0], value, path)
    if origin is dict:
        if not isinstance(value, dict):
            raise InputError(f"{path} is {value!r}; it must be a mapping")
        return dict(value)
    return _scalar(hint, value, path)


def _union(choices: tuple[Any, ...], value: Any, path: str) -> Any:
    if value is None and type(None) in choices:
        return None
    errors = []
    for choice in choices:
        if choice is type(None):
            continue
        try:
            return convert(choice, value, path)
        except InputError as error:
            errors.append(error)
    raise errors[0]


def _tuple(item: Any, value: Any, path: str) -> tuple[Any, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(convert(item, element, f"{path}[{index}]") for index, element in enumerate(value))
    return (convert(item, value, path),)  # one value stands for a list of one


def _scalar(hint: Any, value: Any, path: str) -> Any:
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    exact = isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool)
    if exact:
        return value
    if hint is float and isinstance(value, (int, str)) and not isinstance(value, bool):
        # YAML 1.1 reads `2e-4` (no dot) as a text.
        try:
            return float(value)
        except ValueError:
            pass
    raise InputError(f"{path} is {value!r}; it must be {words.get(hint, hint.__name__)}")


def _near(key: str, known: list[str]) -> str:
    near = get_close_matches(key, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known keys here: {', '.join(known)}"
