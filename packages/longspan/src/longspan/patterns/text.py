"""The text form of patterns: names, integers, `|`, `&` and brackets, parsed with Python's own grammar."""

from __future__ import annotations

import ast
import warnings
from functools import lru_cache
from inspect import signature

from longspan.errors import InputError
from longspan.imports import find
from longspan.patterns.base import Both, Either, Pattern, PerHead, shortened, text_name
from longspan.patterns.kinds import (
    Blocks,
    Causal,
    First,
    Fixed,
    Full,
    PooledWindow,
    Strided,
    Window,
)
from longspan.patterns.prefix import Prefix
from longspan.patterns.random_blocks import DrawnBlocks, PlannedBlocks, RandomBlocks
from longspan.settings import check_kind

_KINDS = (
    *(Full, Causal, Window, First, Blocks, Strided, Fixed, Prefix),
    *(RandomBlocks, DrawnBlocks, PlannedBlocks, PooledWindow),
)
_PER_HEAD = text_name(PerHead)
KINDS: dict[str, type] = {text_name(kind): kind for kind in (*_KINDS, PerHead)}
"""Name in text → kind of pattern; `longspan.register` adds to it."""


_LONGEST = 20_000
"""Maximum number of characters in the text of a pattern."""


def parse(text: str) -> Pattern:
    """Parses a pattern from text, such as `"window(128) | first(1)"` or `"causal() & (blocks(64) | strided(64))"`.

    Names are the class names in lower case with underscores. `window(128)` means 128 on each side. `per_head(…)` takes
    one pattern for each head.

    Raises:
        InputError: the text is not a pattern; the message lists the known names.
    """
    check_kind(text, "pattern", str, 'a text, such as "window(128) | first(1)"')
    return _parsed(text)


@lru_cache(maxsize=256)
def _parsed(text: str) -> Pattern:
    shown = shortened(repr(text))
    if len(text) > _LONGEST:
        raise InputError(f"pattern {shown} has {len(text)} characters; write it in at most {_LONGEST}")
    try:
        return _build(_read(text.strip(), shown), shown)
    except (RecursionError, MemoryError):
        raise InputError(f"pattern {shown} has too many parts inside each other; join fewer with | and &") from None


def _read(text: str, shown: str) -> ast.expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's warnings about its own grammar do not concern patterns
            return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        raise InputError(
            f'pattern {shown} cannot be read; write it like "window(128) | first(1)", with | & and brackets'
        ) from None


def text_of(pattern: Pattern) -> str:
    """Returns the text of a pattern, which `parse` reads; raises `InputError` if a part of it is not registered."""
    _check_known(pattern)
    return str(pattern)


known_text_of = lru_cache(maxsize=256)(text_of)
"""`text_of` with a cache, for calls outside of compiled graphs, which cannot trace one."""


def _check_known(pattern: Pattern) -> None:
    kind = type(pattern)
    if isinstance(pattern, (Either, Both)):
        parts: tuple[Pattern, ...] = (pattern.first, pattern.second)
    else:
        parts = pattern.patterns if isinstance(pattern, PerHead) else ()
        if KINDS.get(text_name(kind)) is not kind:
            raise InputError(
                f"pattern {kind.__name__} is not registered, so that its text cannot be read again; call "
                f"longspan.register({kind.__name__}) after its definition"
            )
    for part in parts:
        _check_known(part)


def _names() -> str:
    return ", ".join(sorted(KINDS))


def _build(node: ast.expr, shown: str) -> Pattern:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _build(node.left, shown) | _build(node.right, shown)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
        return _build(node.left, shown) & _build(node.right, shown)
    if isinstance(node, ast.Name):
        node = ast.Call(func=node, args=[], keywords=[])
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise InputError(f"pattern {shown} has a part that is no pattern; its parts are {_names()}")
    name = node.func.id
    if name == _PER_HEAD and not node.keywords:
        return PerHead([_build(part, shown) for part in node.args])
    if name == _PER_HEAD:
        raise InputError(f"per_head in pattern {shown} takes patterns and nothing by name; give one for each head")
    kind = find(KINDS, name)
    if kind is None:
        raise InputError(f"pattern {shown} names {shortened(repr(name))}, which does not exist; there are {_names()}")
    return _call(kind, node, shown)


def _call(kind: type[Pattern], node: ast.Call, shown: str) -> Pattern:
    values = [_number(part, shown) for part in node.args]
    if kind is Window and len(values) == 1 and not node.keywords:
        values *= 2
    named = {str(keyword.arg): _number(keyword.value, shown) for keyword in node.keywords}
    try:
        if len(named) < len(node.keywords):
            raise TypeError("one name twice")
        signature(kind).bind(*values, **named)
    except TypeError:
        wanted = ", ".join(signature(kind).parameters)
        takes = f"takes ({wanted}); give it those numbers" if wanted else "takes no numbers; leave them out"
        raise InputError(f"{text_name(kind)} in pattern {shown} {takes}") from None
    return kind(*values, **named)


def _number(node: ast.expr, shown: str) -> int:
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    inner = node.operand if negative and isinstance(node, ast.UnaryOp) else node
    if isinstance(inner, ast.Constant) and isinstance(inner.value, int) and not isinstance(inner.value, bool):
        return -inner.value if negative else inner.value
    part = shortened(repr(ast.unparse(node)))
    raise InputError(f"pattern {shown} has {part} where a whole number is needed")
