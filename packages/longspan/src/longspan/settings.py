"""Converts plain data (YAML, the command line) to frozen dataclasses and back, and checks all values.

A type describes the values of a field; its limits are used by the check, the JSON schema and the documentation:

```python
@dataclass(frozen=True, kw_only=True)
class Optimisation:
    steps: Annotated[int, Range(1, 10**9)] | None = None
    betas: tuple[Annotated[float, Range(0, below=1)], ...] = (0.9, 0.999)
    schedule: Literal["linear", "cosine"] = "linear"

    def __post_init__(self) -> None:
        check(self)
```

Each value is checked once, at the entry: `from_plain` checks values from a file, `check` those of an object created in
Python, `check_arguments` the arguments of a function. Objects are not checked again. An unknown key, a wrong type, a
number that is not finite or out of its range raises one `InputError`.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from longspan.errors import InputError
from longspan.imports import find

Settings = TypeVar("Settings")
Entry = TypeVar("Entry")

SHOWN = 80
"""Characters of a value that an error shows."""

MOST_NAMED = 40
"""Number of names that an error lists."""


@dataclass(frozen=True)
class Range:
    """Limits of a number: `minimum` and `maximum` are inclusive, `above` and `below` are exclusive."""

    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None

    def __post_init__(self) -> None:
        """1e6 is 1000000: `Annotated` caches equal limits as one object, the first one written."""
        for name in ("minimum", "maximum", "above", "below"):
            limit = getattr(self, name)
            if isinstance(limit, float) and limit.is_integer():
                object.__setattr__(self, name, int(limit))

    def check(self, value: Any, path: str) -> None:
        """Raises `InputError` if a number is outside the limits."""
        limit, words = None, ""
        if self.minimum is not None and value < self.minimum:
            limit, words = self.minimum, "at least"
        elif self.above is not None and value <= self.above:
            limit, words = self.above, "above"
        elif self.maximum is not None and value > self.maximum:
            limit, words = self.maximum, "at most"
        elif self.below is not None and value >= self.below:
            limit, words = self.below, "below"
        if limit is not None:
            raise InputError(f"{path} is {show(value)}; it must be {words} {limit:,}")


@dataclass(frozen=True)
class Form:
    """The form of a string: a regular expression for the whole string, and its description."""

    pattern: str
    words: str
    longest: int = 10_000

    def check(self, value: Any, path: str) -> None:
        """Raises `InputError` if a string does not match."""
        if len(value.encode("utf-8", "replace")) > self.longest:
            raise InputError(f"{path} is {show(value)}; it must be at most {self.longest} bytes long")
        if not re.fullmatch(self.pattern, value):
            raise InputError(f"{path} is {show(value)}; it must be {self.words}")


@dataclass(frozen=True)
class Rule:
    """A further condition of a value: a function that checks it, and its description."""

    holds: Callable[[Any], bool]
    words: str

    def check(self, value: Any, path: str) -> None:
        """Raises `InputError` if the condition is false."""
        if not self.holds(value):
            raise InputError(f"{path} is {show(value)}; it must be {self.words}")


LARGEST = 2**31 - 1
"""The largest count of tokens, rows or entries."""

Count = Annotated[int, Range(1, LARGEST)]
Whole = Annotated[int, Range(0, LARGEST)]
Share = Annotated[float, Range(0, 1)]
Dropout = Annotated[float, Range(0, below=1)]
Seed = Annotated[int, Range(0, 2**32 - 1)]
Beams = Annotated[int, Range(1, 100)]
LengthPenalty = Annotated[float, Range(-10, 10)]
NewTokens = Annotated[int, Range(1, 1_000_000)]
"""Tokens that a model may write."""
BatchSize = Annotated[int, Range(1, 1_000_000)]
VOCABULARY = Range(261, 5_000_000)
"""Entries of a vocabulary that is trained: at least 256 bytes and 5 special tokens; all are allocated at once."""
FileName = Annotated[
    str, Form(r"\w([\w .+-]*[\w+-])?", "a name of letters, digits, '-', '_', '.', '+' and spaces, not a path", 100)
]
Split = Annotated[str, Form(r"\w[\w.+:%\[\]-]*", "the name of a split, such as train or validation, not a path", 100)]


def from_plain(settings: type[Settings], data: Any, path: str = "") -> Settings:
    """Builds the dataclass `settings` from the mapping `data`; `path` is the location of `data`, for error messages.

    A field can have `metadata={"key": ...}` if its YAML key is not a Python name. Unknown keys raise `InputError` with
    the key and the nearest known one; so do values of the wrong type and missing required keys.
    """
    if not isinstance(data, dict):
        raise InputError(f"{path or 'the recipe'} is {show(data)}; it must be a mapping of keys to values")
    known = {key_of(field): field for field in fields(settings)}  # pyright: ignore[reportArgumentType]
    check_keys(data, known, path)
    hints = hints_of(settings)
    values = {
        field.name: convert(hints[field.name], data[key], join(path, key))
        for key, field in known.items()
        if key in data
    }
    for key, field in known.items():
        if key not in data and field.default is MISSING and field.default_factory is MISSING:
            raise InputError(f"missing key {join(path, key)!r}; add it")
    made = object.__new__(settings)
    made.__dict__[_PARSED] = True
    made.__init__(**values)
    made.__dict__.pop(_PARSED, None)
    return made


def to_plain(value: Any) -> Any:
    """Reverses `from_plain`: returns dictionaries, lists and scalars only, including all defaults.

    A task or another nested spec has its name first, from its `to_dict`.
    """
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return {key_of(field): to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def check_keys(given: Iterable[Any], known: Iterable[str], path: str = "") -> None:
    """Raises `InputError` for the first unknown key, with a similar known one."""
    names = list(known)
    for key in given:
        if key not in names:
            raise InputError(f"unknown key {join(path, show_key(key))!r}; {near(str(key), names)}")


def from_spec(table: Mapping[str, type[Settings]], kind: str, spec: Any, path: str) -> Settings:
    """Returns the dataclass of a nested spec: a name, or a mapping with the name under `kind`.

    `table` has the classes by name, whose keys are the fields; `path` is the location of the spec, for error messages.
    """
    data = {kind: spec} if isinstance(spec, str) else spec
    if not isinstance(data, Mapping) or not isinstance(data.get(kind), str):
        raise InputError(f"{path} is {show(spec)}; give a name of {', '.join(table)}, or a mapping with it as {kind!r}")
    settings = entry(table, data[kind], path)
    options = {key: value for key, value in data.items() if key != kind}
    for name, others in getattr(settings, "replaces", {}).items():
        other = next((other for other in others if other in options), None)
        if options.get(name) is not None and other is not None:
            raise InputError(f"{path}.{name} and {path}.{other} exclude each other; leave one of them out")
    try:
        text = json.dumps(options)
    except (TypeError, ValueError, RecursionError):
        return from_plain(settings, options, path)
    return _from_text(settings, text, path)


@lru_cache(maxsize=1024)
def _from_text(settings: type[Settings], text: str, path: str) -> Settings:
    """Configurations of models store their specs as plain data, which every layer parses: the result is cached."""
    return from_plain(settings, json.loads(text), path)


def entry(table: Mapping[str, Entry], name: str, path: str) -> Entry:
    """Returns the entry of a table, including those of plugins; an unknown name raises `InputError` with a
    similar one.
    """
    value = find(table, name)
    if value is None:
        raise InputError(f"{path} is {show(name)}, which is unknown; {near(name, list(table))}")
    return value


def check(settings: Any) -> None:
    """Raises `InputError` for the first field of a dataclass whose value does not have its type, or is
    outside its limits.

    For `__post_init__`. Defaults, and fields that `from_plain` has parsed, are not checked.
    """
    if settings.__dict__.pop(_PARSED, False):
        return
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value is not field.default:
            convert(hints_of(type(settings))[field.name], value, key_of(field))


_PARSED = "_parsed_by_from_plain"
"""Marks an object whose fields `from_plain` has parsed, until `check` is called."""


def check_arguments(function: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Raises `InputError` for the first of the arguments `values` that its annotation in `function` does not allow."""
    hints = hints_of(function)
    for name, value in values.items():
        if name in hints:
            convert(hints[name], value, name)


def check_kind(value: Any, name: str, kinds: type | tuple[type, ...], wanted: str) -> None:
    """Raises `InputError` for a value of other classes; `wanted` is the remedy.

    True and false count as numbers only if `bool` is among the classes.
    """
    named = kinds if isinstance(kinds, tuple) else (kinds,)
    if not isinstance(value, named) or (isinstance(value, bool) and bool not in named):
        raise InputError(f"{name} is {show(value)}, of type {type(value).__name__}; give {wanted}")


def check_several(values: Any, name: str, wanted: str) -> None:
    """Raises `InputError` for a value that is not a sequence, such as a mapping or bytes."""
    try:
        iter(values)
        several = not isinstance(values, Mapping | bytes | bytearray)
    except TypeError:  # also an array of no dimension
        several = False
    if not several:
        raise InputError(f"{name} is {show(values)}, of type {type(values).__name__}; give {wanted}")


@lru_cache(maxsize=256)
def hints_of(annotated: Any) -> dict[str, Any]:
    """Returns the resolved annotations of a class or a function, including limits."""
    return get_type_hints(annotated, include_extras=True)


def key_of(field: Field[Any]) -> str:
    return field.metadata.get("key", field.name)


def join(path: str, key: Any) -> str:
    """Joins `a.b` and `c` to `a.b.c`."""
    return f"{path}.{key}" if path else str(key)


def show(value: Any) -> str:
    """Formats a value for an error: its beginning, for any size, without control characters."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"a number of about {int(value.bit_length() * math.log10(2)) + 1:,} digits"
    if isinstance(value, (dict, list, tuple)):
        text = _SHORT.repr(value)
    elif isinstance(value, (str, bytes)):
        text = repr(value[: SHOWN + 1])
    else:
        text = " ".join(_SHOWN_WHOLE.repr_instance(value, 0).split())  # arrays have lines
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


_SHORT = reprlib.Repr()
"""Formats containers: their beginning, for any size and depth."""
_SHORT.maxlevel = 4
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = SHOWN

_SHOWN_WHOLE = reprlib.Repr()
"""Formats other values, also if their `__repr__` raises."""
_SHOWN_WHOLE.maxother = 1_000_000


def show_key(key: Any) -> str:
    """Formats a key for an error."""
    text = key if isinstance(key, str) and key.isprintable() else show(key)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def convert(hint: Any, value: Any, path: str) -> Any:
    """Converts `value` to the type `hint`, or raises `InputError` with `path`, the value and the expected type."""
    origin, choices = get_origin(hint), get_args(hint)
    if origin is Annotated:
        converted = convert(choices[0], value, path)
        for limit in choices[1:]:
            if isinstance(limit, Range | Form | Rule):
                limit.check(converted, path)
        return converted
    if origin in (Union, types.UnionType):
        return _union(choices, value, path)
    if origin is Literal:
        plain = isinstance(value, str | int | float)
        if not plain or not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in choices):
            raise InputError(f"{path} is {show(value)}; choose {', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}")
        return value
    if origin in (tuple, list):
        return origin(_items(choices[0], value, path))
    if origin is dict:
        if not isinstance(value, dict):
            raise InputError(f"{path} is {show(value)}; it must be a mapping")
        return dict(value)
    if is_dataclass(hint) and isinstance(hint, type) and not isinstance(value, hint):
        return from_plain(hint, value, path)
    return _scalar(hint, value, path) if hint in _WORDS else value


def near(key: str, known: list[str]) -> str:
    """Returns the remedy for an unknown key: a similar known one, or all of them."""
    matches = get_close_matches(key[:SHOWN], known, n=1)
    if not matches and len(known) > MOST_NAMED:
        return f"none of the {len(known)} known ones is like it"
    return f"did you mean {matches[0]!r}?" if matches else f"choose one of {', '.join(known)}"


_NO_TEXT = re.compile("[\\0\\ud800-\\udfff]")
_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def _union(choices: tuple[Any, ...], value: Any, path: str) -> Any:
    if value is None and type(None) in choices:
        return None
    fitting = choices
    if isinstance(value, list | tuple):
        fitting = [choice for choice in choices if get_origin(choice) in (tuple, list)]
    elif isinstance(value, dict):  # so that the error is that of its keys
        fitting = [choice for choice in choices if is_dataclass(choice)]
    errors = []
    for choice in fitting or choices:
        if choice is type(None):
            continue
        try:
            return convert(choice, value, path)
        except InputError as error:
            errors.append(error)
    raise errors[0]


def _items(item: Any, value: Any, path: str) -> Iterator[Any]:
    if not isinstance(value, (list, tuple)):
        yield convert(item, value, path)  # one value is accepted as a list of one
        return
    for index, element in enumerate(value):
        yield convert(item, element, f"{path}[{index}]")


def _scalar(hint: Any, value: Any, path: str) -> Any:
    converted: Any = value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        with suppress(OverflowError):
            converted = float(value)
    if not isinstance(converted, hint) or (isinstance(converted, bool) and hint is not bool):
        raise InputError(f"{path} is {show(value)}; it must be {_WORDS[hint]}")
    if hint is float and not math.isfinite(converted):
        raise InputError(f"{path} is {show(value)}; it must be a finite number")
    if isinstance(converted, str) and _NO_TEXT.search(converted):
        raise InputError(f"{path} is {show(value)}; it must be a text without NUL or surrogate characters")
    return converted
