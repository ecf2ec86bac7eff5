"""What a release was to remove is not in it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from packaging.version import Version

import longspan

SOURCES = sorted((Path(__file__).parents[1] / "packages").glob("*/src/**/*.py"))
MARKS = ("deprecated", "renamed_parameter")


def wrong_marks(text: str, version: str) -> list[int]:
    """Lines of a source that deprecate something which a version, or a pre-release of it, was not to have any more, or
    whose removal is announced for no later major release."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", None)) in MARKS:
            given = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
            since, removed_in = Version(given["since"]), Version(given["removed_in"])
            if removed_in <= Version(Version(version).base_version) or removed_in.major <= since.major:
                found.append(node.lineno)
    return found


def test_nothing_stays_that_was_to_be_removed() -> None:
    late = {path.name: wrong_marks(path.read_text(encoding="utf-8"), longspan.__version__) for path in SOURCES}
    assert len(late) > 100
    assert {name: lines for name, lines in late.items() if lines} == {}


@pytest.mark.parametrize(
    ("version", "lines"), [("1.9.3", [6]), ("2.0.dev0", [2, 6]), ("2.0rc1", [2, 6]), ("3.1", [2, 4, 6])]
)
def test_it_would_be_found(version: str, lines: list[int]) -> None:
    text = """
@deprecated(since="1.1", removed_in="2.0.0", use="b")
def a(): ...
@deprecation.renamed_parameter("c", "d", since="1.1", removed_in="3.0.0")
def e(): ...
@deprecated(since="3.1", removed_in="3.2", use="b")
class F: ...
"""
    assert wrong_marks(text, version) == lines
