"""The small language of patterns: names, whole numbers, `|`, `&` and brackets, read with Python's own grammar."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache
from inspect import signature
from typing import TYPE_CHECKING, Any

from longspan.errors import InputError

if TYPE_CHECKING:
    from longspan.patterns import Pattern


def read_pattern(text: str, kinds: Mapping[str, Any]) -> Pattern:
    """Build the pattern that `text` describes out of the classes in `kinds`, by name."""
    return _read_cached(text, tuple(kinds.items()))


@lru_cache(maxsize=256)
def _read_cached(text: str, kinds: tuple[tuple[str, Any], ...]) -> Pattern:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise InputError(
            f'pattern {text!r} cannot be read; write it like "window(128) | first(1)", with | & and brackets'
        ) from None
    return _build(tree, text, dict(kinds))


def _build(node: ast.expr, text: str, kinds: dict[str, Any]) -> Pattern:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _build(node.left, text, kinds) | _build(node.right, text, kinds)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
        return _build(node.left, text, kinds) & _build(node.right, text, kinds)
    if isinstance(node, ast.Name):
        node = ast.Call(func=node, args=[], keywords=[])
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise InputError(f"pattern {text!r} has a part that is no pattern; its parts are {', '.join(sorted(kinds))}")
    name = node.func.id
    if name not in kinds:
        raise InputError(f"pattern {text!r} names {name!r}, which does not exist; there are {', '.join(sorted(kinds))}")
    if name == "per_head":
        return kinds[name]([_build(part, text, kinds) for part in node.args])
    return _call(name, kinds[name], node, text)


def _call(name: str, kind: Any, node: ast.Call, text: str) -> Pattern:
    values = [_number(part, text) for part in node.args]
    if name == "window" and len(values) == 1 and not node.keywords:
        values *= 2
    named = {str(k.arg): _number(k.value, text) for k in node.keywords}
    parameters = signature(kind).parameters
    try:
        signature(kind).bind(*values, **named)
    except TypeError:
        wanted = ", ".join(parameters)
        raise InputError(f"{name} in pattern {text!r} takes ({wanted}); give it those numbers") from None
    return kind(*values, **named)


def _number(node: ast.expr, text: str) -> int:
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    inner = node.operand if negative and isinstance(node, ast.UnaryOp) else node
    if isinstance(inner, ast.Constant) and isinstance(inner.value, int) and not isinstance(inner.value, bool):
        return -inner.value if negative else inner.value
    raise InputError(f"pattern {text!r} has {ast.unparse(node)!r} where a whole number is needed")
