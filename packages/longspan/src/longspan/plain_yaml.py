"""YAML as plain data: mappings with text keys, lists, texts, numbers, true, false, null.

PyYAML's own loader reads YAML 1.1, where `no` is false, `1:30` is 90 and `2026-01-02` a date; it expands aliases
without limit and recurses as deep as the text. Here the scalars are those of YAML 1.2's core schema, no other objects
are created, and size and depth are limited; every violation is one `InputError`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from longspan.errors import InputError
from longspan.settings import show

LARGEST_FILE = 256 * 1024
"""In bytes; a recipe has about two thousand."""
DEEPEST = 24
"""Maximum nesting depth of mappings and lists."""
MOST = 20_000
"""Maximum number of values, counting each use of an alias."""

_SCALARS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+",
    "float": r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
}
"""Patterns of scalars without quotes by kind; the first match is used."""
_TAG = "tag:yaml.org,2002:"
_FOLDED = "<<"
"""The key that merges another mapping."""


def read_yaml_file(path: Path, what: str) -> Any:
    """Reads plain data from a YAML file; `what` names it in errors."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise InputError(f"{what} cannot be read ({(error.strerror or str(error)).lower()}); check the path") from None
    if len(data) > LARGEST_FILE:
        raise InputError(f"{what} is larger than {LARGEST_FILE // 1024} KiB, which no recipe is; give a recipe")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{what} is not UTF-8 text; save it as UTF-8, or give another file") from None
    return read_yaml(text, what)


def read_yaml(text: str, what: str) -> Any:
    """Parses plain data from a YAML text; `what` names it in errors."""
    try:
        import yaml
    except ImportError:
        raise InputError("recipes need the 'train' extra; install it with: pip install 'longspan[train]'") from None

    try:
        # The graph of nodes: aliases are not expanded, and no objects are created.
        node = yaml.compose(text, _core(yaml.SafeLoader, {}))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        raise InputError(f"{what} is not valid YAML{where}: {' '.join(str(reason).split())}") from None
    except RecursionError:
        raise _too_deep(what) from None
    except (ValueError, OverflowError):  # `chr` is limited to U+10FFFF
        raise InputError(f"{what} is not valid YAML: an escape names a character beyond U+10FFFF; correct it") from None
    return None if node is None else _Reader(what).value(node, 0)


def write_yaml(data: Any) -> str:
    """Returns a YAML text from which `read_yaml` reads equal data."""
    import yaml

    # Values that YAML 1.1 would read differently are quoted too, for other programs that read the file.
    dumper = _core(yaml.SafeDumper, yaml.SafeDumper.yaml_implicit_resolvers)
    return yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=True)


def _core(base: Any, resolvers: dict[Any, Any]) -> Any:
    """Returns a loader or a dumper class of PyYAML with the scalars of `resolvers` and of `_SCALARS`."""

    class Core(base):
        yaml_implicit_resolvers = {first: list(rules) for first, rules in resolvers.items()}  # noqa: RUF012

    for kind, pattern in _SCALARS.items():
        Core.add_implicit_resolver(_TAG + kind, re.compile(rf"(?:{pattern})\Z"), None)
    return Core


class _Reader:
    """Converts nodes to values, and counts them."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.left = MOST

    def value(self, node: Any, depth: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise InputError(f"{self.what} has more than {MOST:,} values, aliases counted; write fewer")
        if depth > DEEPEST:  # an alias inside its own anchor is infinite
            raise _too_deep(self.what)
        if node.id == "scalar":
            return self._scalar(node)
        if node.tag != _TAG + ("map" if node.id == "mapping" else "seq"):
            raise self._bad_tag(node)
        if node.id == "sequence":
            return [self.value(item, depth + 1) for item in node.value]
        return self._mapping(node, depth)

    def _mapping(self, node: Any, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.id == "scalar" and key_node.value == _FOLDED and not key_node.style:
                value = self.value(value_node, depth + 1)
                for mapping in reversed(value if isinstance(value, list) else [value]):
                    if not isinstance(mapping, dict):
                        raise self._wrong(value_node, f"{_FOLDED} merges {show(mapping)}; it must be a mapping")
                    merged |= mapping
                continue
            key = self.value(key_node, depth + 1)
            if not isinstance(key, str):
                raise self._wrong(key_node, f"the key {show(key)} is no text; put it in quotes, or correct it")
            if key in values:
                raise self._wrong(node, f"it gives the key {show(key)} twice; keep one")
            values[key] = self.value(value_node, depth + 1)
        return {**merged, **values}

    def _scalar(self, node: Any) -> Any:
        text = node.value
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            raise self._wrong(node, f"the text {show(text)} holds NUL or a surrogate; remove it")
        kind = node.tag.removeprefix(_TAG)
        plain = {"null": None, "bool": text.lower() == "true", "str": text}
        if kind in plain:
            return plain[kind]
        if kind not in ("int", "float"):
            raise self._bad_tag(node)
        try:
            if kind == "float":
                return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
            return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
        except ValueError:
            raise self._wrong(node, f"{show(text)} is no number that can be used; correct it") from None

    def _bad_tag(self, node: Any) -> InputError:
        return self._wrong(node, f"the tag {show(node.tag)} is not allowed; write plain values")

    def _wrong(self, node: Any, problem: str) -> InputError:
        return InputError(f"{self.what}, line {node.start_mark.line + 1}: {problem}")


def _too_deep(what: str) -> InputError:
    return InputError(f"{what} is nested deeper than {DEEPEST} levels, or contains itself; make it flatter")
