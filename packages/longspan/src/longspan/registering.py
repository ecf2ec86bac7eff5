"""Extension points: `register` adds a pattern, mechanism, head, task, reader of rows or kind of file to its table."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from longspan.errors import InputError
from longspan.settings import show

Thing = TypeVar("Thing")
_NAME = re.compile(r"[a-z][a-z0-9_-]*")


def register(thing: Thing, *, name: str | None = None) -> Thing:
    """Registers a pattern, mechanism, head, task, reader or kind of file under its name, wherever such names are read.

    Also works as a decorator. Registered objects are available in recipes, in every command, in pattern texts, and in
    saved models that are loaded again, provided that the code that registers them has run (for a package, an entry
    point runs it, see `longspan.plugins`).

    Args:
        thing: a frozen dataclass derived from `longspan.patterns.Pattern`, whose fields are integers; one derived
            from `longspan.attention.AttentionConfig`; one derived from `longspan.models.heads.HeadSpec`, whose `model`
            names the model class in its module; one derived from `longspan.tasks.base.Task`; a function `read(split)`
            that returns rows (`SummaryRow` for summaries, `QuestionRow` for questions); or a
            `longspan_documents.text.kinds.table.FileKind`, a kind of document file.
        name: name of a reader, by default that of the function, with "-" for "_". Classes define theirs: a pattern by
            its class (`EveryThird` is `every_third`), a mechanism by `mechanism`, a head by `head`, a task and a kind
            of file by `name`.

    Returns:
        `thing` itself.

    Raises:
        InputError: it is none of these or incomplete, or its name is taken or invalid.
    """
    table, own, kind = _place(thing)
    if name is not None and kind != "reader":
        raise InputError(f"name={show(name)} is for readers; a {kind} has its own name, {own!r}")
    chosen = own if name is None else name
    if not isinstance(chosen, str) or not _NAME.fullmatch(chosen) or keyword.iskeyword(chosen):
        raise InputError(
            f"{kind} name {show(chosen)} cannot be used; give small letters, digits, _ and -, beginning with a letter"
        )
    if (chosen in table and table[chosen] is not thing) or (kind == "reader" and chosen in _data_sets()):
        raise InputError(f"there is a {kind} {chosen!r} already; give yours another name")
    if kind == "head":
        _check_head(thing)
    table[chosen] = thing
    if kind == "head" and "longspan.checkpoints" in sys.modules:  # which has registered all others with transformers
        from longspan.models import tell_of_head

        tell_of_head(table[chosen])
    return thing


def _place(thing: Any) -> tuple[MutableMapping[str, Any], str, str]:
    """Returns the table of an object, its own name, and what kind of object it is."""
    if (registered_in := getattr(type(thing), "registered_in", None)) is not None:
        return registered_in(thing)
    from longspan.attention import MECHANISMS, AttentionConfig, PatternConfig
    from longspan.models.heads import HEADS, HeadSpec
    from longspan.patterns import Pattern
    from longspan.patterns.text import KINDS
    from longspan.tasks import TASKS
    from longspan.tasks.base import Task

    bases = thing.__mro__ if isinstance(thing, type) else ()
    if Pattern in bases:
        from longspan.patterns.base import text_name

        _check_pattern(thing)
        return KINDS, text_name(thing), "pattern"
    if AttentionConfig in bases:
        _check_class(thing, "mechanism", ("mechanism", "source"), ("build", "scores_per_token"), AttentionConfig)
        if PatternConfig in bases:
            _check_class(thing, "mechanism", (), ("pattern",), PatternConfig)
        return MECHANISMS, thing.mechanism, "mechanism"
    if HeadSpec in bases:
        _check_class(thing, "head", ("head", "model"), (), HeadSpec)
        return HEADS, thing.head, "head"
    if Task in bases:
        needed = (*(() if thing.head else ("model_class",)), "read", "corpus", "dataset", "collator", "evaluate")
        _check_class(thing, "task", ("name",), needed, Task)
        return TASKS, thing.name, "task"
    if callable(thing) and not isinstance(thing, type):
        from longspan.data.sources import READERS

        return READERS, str(getattr(thing, "__name__", "")).replace("_", "-"), "reader"
    raise InputError(
        f"register got {show(thing)}; give a class derived from Pattern, AttentionConfig, HeadSpec or Task, a function "
        "that reads rows, or a FileKind"
    )


def _check_head(thing: Any) -> None:
    """Raises `InputError` for a head whose model class, or Auto class, belongs to another: loading would be
    ambiguous."""
    from longspan.models.heads import HEADS

    for other in HEADS.values():
        for what in ("model", "auto"):
            value = getattr(thing, what)
            if other.head != thing.head and value is not None and value == getattr(other, what):
                raise InputError(
                    f"head {thing.head!r} has {what} = {value!r}, as has the head {other.head!r}; give yours another "
                    "one, or no Auto class"
                )


def _data_sets() -> set[str]:
    from longspan.data.catalogue import KNOWN
    from longspan.data.sources import SYNTHETIC

    return {SYNTHETIC, *KNOWN, *(name for known in KNOWN.values() for name in known.names)}


def _check_pattern(kind: type) -> None:
    from longspan.patterns import Pattern

    _check_class(kind, "pattern", (), ("visible",), Pattern)
    for field in fields(kind):
        if field.type not in (int, "int"):
            raise InputError(
                f"field {field.name!r} of pattern {kind.__name__} is {field.type!r}; patterns travel as text with "
                "whole numbers, so make it int"
            )


def _check_class(kind: type, what: str, values: tuple[str, ...], methods: tuple[str, ...], base: type) -> None:
    """Raises `InputError` unless a class is a frozen dataclass that defines these class values and methods."""
    name = kind.__name__
    parameters = kind.__dict__.get("__dataclass_params__")
    if not is_dataclass(kind) or parameters is None or not parameters.frozen:
        raise InputError(f"{what} {name} is no frozen dataclass; write @dataclass(frozen=True) above it")
    for value in values:
        if not hasattr(kind, value):
            raise InputError(f"{what} {name} has no {value!r}; set it in the class")
    for method in methods:
        if getattr(kind, method, None) is getattr(base, method, None):
            raise InputError(f"{what} {name} does not define {method}(); write it")
    for field in fields(kind):
        if hasattr(base, field.name) and field.name not in {base_field.name for base_field in fields(base)}:
            raise InputError(f"field {field.name!r} of {what} {name} hides {base.__name__}.{field.name}; rename it")
