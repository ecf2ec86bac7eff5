"""A mechanism answers for itself: nobody outside its room tests its type or its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import longspan
import longspan_documents
import longspan_papers
from longspan.attention import MECHANISMS

KNOWING = ("longspan/attention/", "longspan/checkpoints/architectures/", "longspan/data/", "longspan_documents/text/")
BELOW = ("longspan/ops/", "longspan/patterns/")
"""Below attention nothing knows of mechanisms, and `"full"` there is a way to compute."""
MODULES = {kind.__module__ for kind in MECHANISMS.values()}
CLASSES = {kind.__name__ for kind in MECHANISMS.values()}
PACKAGES = [Path(package.__file__).parent for package in (longspan, longspan_documents, longspan_papers)]
FILES = {path.relative_to(package.parent).as_posix(): path for package in PACKAGES for path in package.rglob("*.py")}


def defaults(tree: ast.AST) -> Iterator[ast.AST]:
    """Default values of arguments and of fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments):
            yield from (value for value in (*node.defaults, *node.kw_defaults) if value is not None)
        elif isinstance(node, ast.ClassDef):
            yield from (each.value for each in node.body if isinstance(each, ast.AnnAssign) and each.value is not None)


def mentions(text: str) -> list[tuple[int, str]]:
    """Lines of a file that name a mechanism or its classes, and the names; not in documentation or default values."""
    tree = ast.parse(text)
    allowed = set(map(id, defaults(tree)))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in allowed:
            quoted = [name for name in MECHANISMS if f"'{name}'" in node.value or f'"{name}"' in node.value]
            names = [node.value] if node.value in MECHANISMS else quoted if "\n" not in node.value else []
        elif isinstance(node, ast.Name):
            names = [node.id] if node.id in CLASSES else []
        elif isinstance(node, ast.Attribute):
            names = [node.attr] if node.attr in CLASSES else []
        elif isinstance(node, ast.ImportFrom):
            names = [node.module] if node.module in MODULES else []
            names += [alias.name for alias in node.names if alias.name in CLASSES]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name in MODULES]
        else:
            continue
        found += [(node.lineno, str(name)) for name in names]
    return found


@pytest.mark.parametrize("file", [file for file in FILES if not file.startswith((*KNOWING, *BELOW))])
def test_no_mechanism_is_named(file: str) -> None:
    assert mentions(FILES[file].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "line",
    [
        "if spec['mechanism'] == 'longformer': pass",
        "from longspan.attention import FusionConfig",
        "from longspan.attention.fusion import FusionAttention",
        "import longspan.attention.poolingformer",
        "isinstance(config, attention.PoolingformerConfig)",
        "raise ValueError(f\"choose 'fusion' for {name}\")",
        "TWO = ('poolingformer', 'fusion')",
    ],
)
def test_it_would_be_found(line: str) -> None:
    assert mentions(line)


@pytest.mark.parametrize(
    "line", ["def lengthen(attention='poolingformer'): pass", "class A:\n    b: str = 'longformer'"]
)
def test_defaults_are_data(line: str) -> None:
    assert not mentions(line)
