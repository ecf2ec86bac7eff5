"""Whatever makes parsers slow takes time in proportion to its length: read, cut and cut into passages.

Two megabytes of the worst take less than ten seconds of processor time.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from longspan.data.questions.rows import plain_row
from longspan.data.text.reading import read, sentences_of
from longspan.errors import InputError

HUGE = 2_000_000
LARGE = {"md": 48_000, "html": 200_000, "txt": 200_000}
"""Characters; Markdown of more than twice as many marks is read as plain text."""
QUICK = {"html": ["<a ", "<!--", "<x", "&"], "txt": ['"', "`", "(", ".", "7", "a"]}
"""Two megabytes take tenths of a second, so that only there would a quadratic parser be seen."""
HEAVY = {"md": ["![", "|\n", "*a "], "html": ["<div>word ", "<ul><li>w "], "txt": ["“a ", "a\n"]}
"""Elements, words and lines, each of which costs: a part of two megabytes shows how the time grows."""


def named(kinds: dict[str, list[str]]) -> dict[str, tuple[str, str]]:
    return {f"{kind}: {unit!r}": (kind, unit) for kind, units in kinds.items() for unit in units}


def seconds(path: Path, text: str) -> float:
    path.write_text(text, encoding="utf-8")
    begin = time.process_time()
    try:
        document = read(path)
    except InputError:
        document = None  # markup without a word
    if document:
        assert sentences_of(document)
        assert plain_row(document.text, "why?").candidates
    return time.process_time() - begin


def repeated(unit: str, size: int) -> str:
    return unit * (size // len(unit))


@pytest.fixture(scope="module", autouse=True)
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the first document of a kind imports is no part of its time."""
    for kind, text in {"md": "*word*", "html": "<p>word</p>", "txt": "word"}.items():
        seconds(tmp_path_factory.mktemp("first") / f"a.{kind}", text)


@pytest.mark.slow
@pytest.mark.parametrize("case", named(QUICK).values(), ids=named(QUICK))
def test_two_megabytes(case: tuple[str, str], tmp_path: Path) -> None:
    kind, unit = case
    assert seconds(tmp_path / f"a.{kind}", repeated(unit, HUGE)) < 10


@pytest.mark.slow
@pytest.mark.parametrize("case", named(HEAVY).values(), ids=named(HEAVY))
def test_eight_times_as_long(case: tuple[str, str], tmp_path: Path) -> None:
    kind, unit = case
    texts = {size: repeated(unit, size) for size in (LARGE[kind] // 8, LARGE[kind])}
    small, large = (min(seconds(tmp_path / f"a.{kind}", text) for _ in range(2)) for text in texts.values())
    # Eight-fold is linear, 12-fold an exponent of 1.2, 64-fold quadratic; the rest is for the clock of a busy machine.
    assert large < 12 * small + 0.5


@pytest.mark.parametrize("marks", [80_000, 2_000_000])
def test_a_heading_of_marks(marks: int, tmp_path: Path) -> None:
    assert seconds(tmp_path / "a.md", "# " + "#" * marks + "\n\nword") < 2
