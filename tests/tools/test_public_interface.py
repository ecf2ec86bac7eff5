"""The public interface is the one that is written down, so that no name or parameter goes unnoticed."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

import longspan

public_interface = pytest.importorskip("public_interface", reason="runs in a checkout, not from an installed package")

ROOT = Path(__file__).parents[2]
FILES = ROOT / "tests" / "interface"
REMEDY = (
    "Write it anew with `python tools/public_interface.py`. A line that starts with - breaks programs of users: keep "
    "the old form with `longspan.deprecation`, and name the change in CHANGELOG.md."
)


@pytest.fixture(scope="module")
def current() -> dict[str, list[str]]:
    return public_interface.interface()


@pytest.mark.parametrize("package", public_interface.PACKAGES)
def test_the_public_interface_is_the_one_written_down(current: dict[str, list[str]], package: str) -> None:
    written = (FILES / f"{package}.txt").read_text(encoding="utf-8").splitlines()
    changed = "\n".join(difflib.unified_diff(written, current[package], lineterm="", n=0))
    assert not changed, f"the public interface of {package} has changed:\n{changed}\n{REMEDY}"


def test_every_name_of_longspan_is_in_it(current: dict[str, list[str]]) -> None:
    names = {line.partition("(")[0] for lines in current.values() for line in lines}
    elsewhere = {"__version__", "patterns"} | {name for name in dir(longspan) if f"longspan.models.{name}" in names}
    assert {f"longspan.{name}" for name in dir(longspan) if name not in elsewhere} <= names


def test_lines_have_kinds_and_defaults_without_types() -> None:
    def example(first: int, *rest: str, option: float = 0.5, count=len, key=example_key) -> None: ...

    class Example:
        def __init__(self, size: int = 3) -> None: ...

        def shown(self, other: int) -> None:
            """It has a docstring."""

        def hidden(self) -> None: ...

    assert list(public_interface.lines_of("a.example", example, None)) == [
        "a.example(first, *rest, option=0.5, count=<built-in function len>, key=example_key)"
    ]
    lines = ["a.Example(size=3)", "a.Example.shown(self, other)"]
    assert list(public_interface.lines_of("a.Example", Example, None)) == lines
    assert list(public_interface.lines_of("a.Example", Example, False)) == lines[:1]


def example_key() -> None: ...
