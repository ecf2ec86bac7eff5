"""Parts of a text: nothing is lost, each fits, and they are as even as sentences allow."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan_documents.inference.abstractive.parts import parts_of

pytest.importorskip("sentencex", reason="needs the 'documents' extra")


def words(text: str) -> int:
    return len(text.split())


@settings(max_examples=25)
@given(
    sentences=st.lists(st.integers(1, 40), max_size=30),
    room=st.integers(1, 60),
    gap=st.sampled_from([" ", "\n\n", "  "]),
)
def test_parts_hold_everything_and_fit(sentences: list[int], room: int, gap: str) -> None:
    text = gap.join("Snails " * (count - 1) + "sleep." for count in sentences)
    parts = parts_of(text, room, words)
    assert " ".join(parts).split() == text.split()
    assert all(0 < words(part) <= room for part in parts)


def test_parts_are_even_and_end_with_sentences() -> None:
    text = "The old snail moves slowly again. " * 50  # 300 words
    parts = parts_of(text, 71, words)
    assert len(parts) == 5  # four would have to be fuller than whole sentences make them
    assert all(part.endswith("again.") for part in parts)
    assert max(map(words, parts)) - min(map(words, parts)) <= 6


def test_what_stands_around_counts_in_each_part() -> None:
    parts = parts_of("The old snail moves. " * 12, 20, lambda text: words(text) + 10, around=10)
    assert all(words(part) <= 10 for part in parts)
    assert len(parts) == 6


@pytest.mark.parametrize(("text", "room"), [("a" * 100, 7), ("x" * 5 + " " + "y" * 50, 9), ("", 3), (" \n ", 3)])
def test_words_that_are_too_long_are_cut(text: str, room: int) -> None:
    parts = parts_of(text, room, len)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(0 < len(part) <= room for part in parts)
