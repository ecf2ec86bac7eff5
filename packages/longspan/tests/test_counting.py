"""Counts agree with their nouns."""

from __future__ import annotations

from longspan.characters import counted


def test_one_and_several() -> None:
    assert [counted(number, "word") for number in (0, 1, 2, 2300)] == ["0 words", "1 word", "2 words", "2,300 words"]
    assert [counted(number, "entry", "entries") for number in (1, 2)] == ["1 entry", "2 entries"]
