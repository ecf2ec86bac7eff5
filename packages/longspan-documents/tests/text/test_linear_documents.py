"""Whatever makes parsers slow takes work in proportion to its length: read, cut and cut into passages.

Lines of Python are counted. What C does is not seen there, so there is so much of the worst of it that a test would not
live to see its square.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from counted import lines_run
from longspan.errors import InputError
from longspan_documents.questions.rows import plain_row
from longspan_documents.text.reading import read, sentences_of

HUGE = 4_000_000
LARGE = {"md": 16_000, "html": 100_000, "txt": 100_000}
"""Characters, whose work is compared with that of a quarter of them."""
QUICK = {"html": ["<a ", "<!--", "<x", "&"], "txt": ['"', "`", "(", ".", "7", "a"]}
"""Read by C for the most part, in tenths of a second for a megabyte."""
HEAVY = {"md": ["![", "|\n", "*a "], "html": ["<div>word ", "<ul><li>w "], "txt": ["“a ", "a\n"]}
"""Elements, words and lines, each of which costs some lines of Python."""


def named(kinds: dict[str, list[str]]) -> dict[str, tuple[str, str]]:
    return {f"{kind}: {unit!r}": (kind, unit) for kind, units in kinds.items() for unit in units}


def cut(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    try:
        document = read(path)
    except InputError:
        document = None  # markup without a word
    if document:
        assert sentences_of(document)
        assert plain_row(document.text, "why?").candidates


def repeated(unit: str, size: int) -> str:
    return unit * (size // len(unit))


@pytest.fixture(scope="module", autouse=True)
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the first document of a kind imports is no part of its work."""
    for kind, text in {"md": "*word*", "html": "<p>word</p>", "txt": "word"}.items():
        cut(tmp_path_factory.mktemp("first") / f"a.{kind}", text)


@pytest.mark.slow
@pytest.mark.parametrize("case", named(QUICK).values(), ids=named(QUICK))
def test_four_megabytes(case: tuple[str, str], tmp_path: Path) -> None:
    kind, unit = case
    cut(tmp_path / f"a.{kind}", repeated(unit, HUGE))


@pytest.mark.slow
@pytest.mark.parametrize("case", (named(QUICK) | named(HEAVY)).values(), ids=named(QUICK) | named(HEAVY))
def test_four_times_as_long(case: tuple[str, str], tmp_path: Path) -> None:
    kind, unit = case
    small, large = (
        lines_run(cut, tmp_path / f"a.{kind}", repeated(unit, size)) for size in (LARGE[kind] // 4, LARGE[kind])
    )
    assert large < 4.4 * small


def test_a_heading_of_marks(tmp_path: Path) -> None:
    def read_marks(marks: int) -> None:
        cut(tmp_path / "a.md", "# " + "#" * marks + "\n\nword")

    assert lines_run(read_marks, 80_000) < 10 * lines_run(read_marks, 10_000)
    read_marks(2_000_000)
