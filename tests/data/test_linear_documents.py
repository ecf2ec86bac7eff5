"""Two megabytes of whatever makes parsers slow: read, cut and cut into passages in ten seconds of processor time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from longspan.data.documents import read_document
from longspan.data.questions import plain_row
from longspan.data.sentences import split_sentences
from longspan.errors import InputError

SIZE = 2_000_000
UNITS = {
    "md": ["![", "|\n", "*a "],
    "html": ["<a ", "<!--", "<x", "&", "<div>word ", "<ul><li>w "],
    "txt": ['"', "`", "(", ".", "7", "a", "“a ", "a\n"],
}
CASES = {f"{kind}: {unit!r}": (kind, unit) for kind, units in UNITS.items() for unit in units}


def seconds(path: Path, text: str) -> float:
    path.write_text(text, encoding="utf-8")
    begin = time.process_time()
    try:
        read = read_document(path)
    except InputError:
        read = ""  # markup without a word
    if read:
        assert split_sentences(read)
        assert plain_row(read, "why?").candidates
    return time.process_time() - begin


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_megabytes(case: str, tmp_path: Path) -> None:
    kind, unit = CASES[case]
    small, large = (seconds(tmp_path / f"a.{kind}", unit * (size // len(unit))) for size in (SIZE // 8, SIZE))
    assert large < 10
    # Eight-fold is linear, 12-fold an exponent of 1.2; the rest is for the clock of a busy machine.
    assert large < 12 * small + 2


@pytest.mark.parametrize("marks", [80_000, 2_000_000])
def test_a_heading_of_marks(marks: int, tmp_path: Path) -> None:
    assert seconds(tmp_path / "a.md", "# " + "#" * marks + "\n\nword") < 2
