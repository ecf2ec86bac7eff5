"""Patterns, mechanisms, tasks and readers of one's own: `register`, and packages that bring some.

A package says in its metadata which of its modules register something, and nobody needs to import it by hand::

    [project.entry-points."longspan.plugins"]
    anything = "my_package.my_module"

Such modules are imported the first time that a name is asked for which the library itself does not have.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from longspan.errors import InputError

GROUP = "longspan.plugins"
"""The group of entry points that packages use."""

READERS: dict[str, Callable[[str], Iterator[Any]]] = {}
"""Name → registered reader: a function from the name of a split to rows."""

Thing = TypeVar("Thing")
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_loaded: set[str] = set()


def register(thing: Thing, *, name: str | None = None) -> Thing:
    """Make a pattern, mechanism, task or reader known by its name, everywhere that names are read.

    Works as a decorator too. What is registered is found by recipes, by every command, in pattern texts, and by saved
    models that are loaded again, as long as the code that registers it has run (a package has it run by itself with an
    entry point, see `longspan.plugins`).

    Args:
        thing: a frozen dataclass derived from `longspan.patterns.Pattern`, whose fields are whole numbers; one derived
            from `longspan.attention.AttentionConfig`; one derived from `longspan.tasks.base.Task`; or a function
            `read(split)` that gives rows (`SummaryRow` for summaries, `QuestionRow` for questions).
        name: of a reader, the function's own by default, with "-" for "_". Classes have theirs: a pattern by its class
            (`EveryThird` is `every_third`), a mechanism by `mechanism`, a task by `name`.

    Returns:
        `thing` itself.

    Raises:
        InputError: it is none of these or unfinished, or its name is taken or no name.
    """
    table, own, kind = _place(thing)
    if name is not None and kind != "reader":
        raise InputError(f"name={name!r} is for readers; a {kind} has its own name, {own!r}")
    chosen = own if name is None else name
    if not isinstance(chosen, str) or not _NAME.fullmatch(chosen) or keyword.iskeyword(chosen):
        raise InputError(
            f"{kind} name {chosen!r} cannot be used; give small letters, digits, _ and -, beginning with a letter"
        )
    if (chosen in table and table[chosen] is not thing) or (kind == "reader" and chosen in _data_sets()):
        raise InputError(f"there is a {kind} {chosen!r} already; give yours another name")
    table[chosen] = thing
    return thing


def find(table: Mapping[str, Any], name: str) -> Any:
    """The entry of a table, after loading the plugins where the table itself does not have it; None without one."""
    if name not in table:
        load_plugins()
    return table.get(name)


def load_plugins() -> None:
    """Import what installed packages announce under `longspan.plugins`, each once.

    Raises:
        InputError: one of them cannot be loaded; the sentence names its package.
    """
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (_package(entry), entry.name)):
        key = f"{_package(entry)}:{entry.name}={entry.value}"
        if key in _loaded:
            continue
        _loaded.add(key)  # before loading: its own look-ups may come back here
        try:
            entry.load()
        except (Exception, SystemExit) as error:
            _loaded.discard(key)  # so that the next call says so again
            reason = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(". :")
            raise InputError(
                f"the plugin {entry.name!r} of package {_package(entry)!r} cannot be loaded ({reason}); repair or "
                "uninstall that package"
            ) from error


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value


def _place(thing: Any) -> tuple[MutableMapping[str, Any], str, str]:
    """The table that a thing belongs into, its own name, and what kind of thing it is."""
    from longspan.attention import MECHANISMS, AttentionConfig
    from longspan.patterns import Pattern
    from longspan.patterns.text import KINDS
    from longspan.tasks.base import TASKS, Task

    bases = thing.__mro__ if isinstance(thing, type) else ()
    if Pattern in bases:
        from longspan.patterns.base import text_name

        _check_pattern(thing)
        return KINDS, text_name(thing), "pattern"
    if AttentionConfig in bases:
        _check_class(
            thing, "mechanism", ("mechanism", "cost", "source"), ("build", "scores_per_token"), AttentionConfig
        )
        return MECHANISMS, thing.mechanism, "mechanism"
    if Task in bases:
        needed = ("model_class", "read", "corpus", "dataset", "collator", "evaluate")
        _check_class(thing, "task", ("name", "generates"), needed, Task)
        return TASKS, thing.name, "task"
    if callable(thing) and not isinstance(thing, type):
        return READERS, str(getattr(thing, "__name__", "")).replace("_", "-"), "reader"
    raise InputError(
        f"register got {thing!r}; give a class derived from Pattern, AttentionConfig or Task, or a function that reads "
        "rows"
    )


def _data_sets() -> set[str]:
    from longspan.data.question_readers import QUESTION_DATA_SETS, SYNTHETIC
    from longspan.data.readers import DATA_SETS

    return {*DATA_SETS, *QUESTION_DATA_SETS, SYNTHETIC}


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
    """Raise `InputError` unless a class is a frozen dataclass with these class values and methods of its own."""
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
