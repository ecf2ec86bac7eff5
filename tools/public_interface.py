"""Writes the public interface of each package, which a test compares with the code.

    python tools/public_interface.py

What the pages of `docs/reference/` document is public: names, the parameters of functions, constructors and methods
with their kinds and defaults (not their types), and the options of commands. `tests/interface/` has one file for each
package, one line for each name, so that a change of the interface is a line of a diff. Run it after adding something.
A line that is removed or changed breaks programs of users: keep the old form with `longspan.deprecation`, and remove
it in a later major release.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
FILES = ROOT / "tests" / "interface"
PACKAGES = ("longspan", "longspan_documents", "longspan_papers")

_DIRECTIVE = re.compile(r"^::: (?P<name>[\w.]+)\n(?:    options: (?P<options>\{.*\})\n)?", re.MULTILINE)


def interface() -> dict[str, list[str]]:
    """Package → its lines, sorted."""
    lines: dict[str, set[str]] = {package: set() for package in PACKAGES}
    for name, value, members in names():
        home = getattr(value, "__module__", name).partition(".")[0]
        lines[home if home in lines else name.partition(".")[0]] |= set(lines_of(name, value, members))
    for home, line in commands():
        lines[home].add(line)
    return {package: sorted(found) for package, found in lines.items()}


def names() -> Iterator[tuple[str, Any, Any]]:
    """Each documented name, with its value and the members that its page shows: a list, False (none) or None (all)."""
    for page in sorted((ROOT / "docs" / "reference").glob("*.md")):
        for match in _DIRECTIVE.finditer(page.read_text(encoding="utf-8")):
            options = yaml.safe_load(match["options"] or "{}")
            value, members = resolved(match["name"]), options.get("members")
            if not isinstance(value, ModuleType):
                yield match["name"], value, members
                continue
            hidden = [rule.removeprefix("!") for rule in options.get("filters", ["!^_"])]
            for member in members or members_of(value):
                if not any(re.search(rule, member) for rule in hidden):
                    yield f"{match['name']}.{member}", getattr(value, member), None


def resolved(name: str) -> Any:
    """Returns what a dotted name stands for."""
    parts = name.split(".")
    value: Any = import_module(parts[0])
    for number, part in enumerate(parts[1:], 2):
        try:
            value = getattr(value, part)
        except AttributeError:
            value = import_module(".".join(parts[:number]))
    return value


def members_of(module: ModuleType) -> Iterable[str]:
    """Returns the names that a module offers, or those that it defines if it does not list them."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return getattr(module, "__all__", own)


def lines_of(name: str, value: Any, members: Any) -> Iterator[str]:
    """Yields the line of a name, and those of the methods that a page shows of a class: its own that have a docstring,
    or those of `members`, or none if that is False."""
    if not callable(value):
        yield name
        return
    yield f"{name}{parameters(value)}"
    if not isinstance(value, type) or members is False:
        return
    for member, found in vars(value).items():
        method = getattr(found, "__func__", found)
        if member.startswith("_") or not getattr(method, "__doc__", None) or member not in (members or (member,)):
            continue
        if inspect.isfunction(method):
            yield f"{name}.{member}{parameters(method)}"
        elif isinstance(found, property):
            yield f"{name}.{member}"


def is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in PACKAGES


def parameters(function: Any) -> str:
    """Returns the parameters of a function or class without types; without fields that a base of other libraries adds
    to a dataclass, since they change with its version."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a class whose constructor is written in C
        return "(...)"
    foreign: set[str] = set()
    if isinstance(function, type) and is_dataclass(function):
        own = {name for base in function.__mro__ if is_ours(base) for name in inspect.get_annotations(base)}
        foreign = {field.name for field in fields(function)} - own
    kept = [each for each in signature.parameters.values() if each.name not in foreign]
    plain = [each.replace(annotation=inspect.Parameter.empty, default=shown(each.default)) for each in kept]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def shown(default: Any) -> Any:
    """Returns a default; of a function its name, since it is written with its address in memory."""
    return Bare(default.__name__) if inspect.isfunction(default) else default


class Bare(str):
    """A text that is written without quotes."""

    __repr__ = str.__str__


def commands() -> Iterator[tuple[str, str]]:
    """Yields the package of each command, and the line of its arguments and options."""
    import typer

    from longspan.cli import COMMANDS
    from longspan.cli.options import expanded

    for name, function in COMMANDS.items():
        app = typer.Typer(add_completion=False)
        app.command(name)(expanded(function))
        command = typer.main.get_command(app)
        context = command.make_context(name, [], resilient_parsing=True)
        shown = [each for each in command.params if each.param_type_name == "argument" or each.get_help_record(context)]
        words = [
            str(each.name).upper() if each.param_type_name == "argument" else "/".join(each.opts + each.secondary_opts)
            for each in shown
        ]
        yield function.__module__.partition(".")[0], " ".join(["$ longspan", name, *words])


def main() -> None:
    FILES.mkdir(exist_ok=True)
    for package, lines in interface().items():
        (FILES / f"{package}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{package}: {len(lines)} lines")


if __name__ == "__main__":
    main()
