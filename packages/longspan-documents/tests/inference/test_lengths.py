"""Lengths of summaries: counts worked out by hand, and words that are met in whole sentences."""

from __future__ import annotations

from itertools import combinations

import pytest

import longspan
from longspan.errors import InputError
from longspan_documents.inference.results import Extent


@pytest.mark.parametrize(
    ("sentences", "short", "medium", "long"),
    # Half the square root, from 3 to 20; a quarter of it; four times as much, or a third of the document.
    [(2, 1, 2, 2), (12, 1, 3, 4), (144, 2, 6, 24), (400, 2, 10, 40), (90_000, 5, 20, 80)],
)
def test_short_medium_and_long(sentences: int, short: int, medium: int, long: int) -> None:
    assert Extent(length="short").count(sentences) == short
    assert Extent(length="medium").count(sentences) == Extent().count(sentences) == medium
    assert Extent(length="long").count(sentences) == long


def taken(lengths: list[int], words: int) -> list[int]:
    """What is taken of sentences of such lengths, the first being the best."""
    return Extent(words=words).take(["word " * n for n in lengths], lambda count: list(range(min(count, len(lengths)))))


@pytest.mark.parametrize(
    ("lengths", "words", "expected"),
    [
        ([10, 10, 10, 10], 20, [0, 1]),
        ([10, 10, 10, 10], 28, [0, 1, 2]),  # 30 is within a tenth above 28
        ([10, 10, 10, 10], 27, [0, 1]),  # 30 is not within a tenth above 27
        ([10, 30, 8, 5], 20, [0, 2]),  # the second would be too much, the third brings nearest
        ([30, 9], 10, [1]),  # the best alone is too long, another fits
        ([30, 40], 10, [0]),  # none fits
        ([10, 10], 500, [0, 1]),
        ([], 5, []),
    ],
)
def test_words_are_met_in_whole_sentences(lengths: list[int], words: int, expected: list[int]) -> None:
    assert taken(lengths, words) == expected


def test_words_are_never_far_above_and_seldom_far_below() -> None:
    lengths = [(7 * n) % 31 + 3 for n in range(60)]
    for words in range(10, 400, 13):
        total = sum(lengths[index] for index in taken(lengths, words))
        assert total <= 1.1 * words
        assert words - total <= 3  # sentences of three words are among those that are left


def test_two_lengths_are_refused() -> None:
    wanted = {"sentences": 3, "words": 50, "length": "short"}
    for pair in combinations(wanted, 2):
        with pytest.raises(InputError, match="two lengths"):
            longspan.summarize("A sentence.", **{name: wanted[name] for name in pair})  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"sentences": 0}, {"words": -1}, {"length": "tiny"}])
def test_lengths_that_are_none_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match="; give"):
        Extent(**wrong)  # type: ignore[arg-type]
