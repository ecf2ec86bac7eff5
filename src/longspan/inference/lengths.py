"""How long a summary is asked to be: in sentences, in words, or short, medium, long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, get_args

from longspan.data.text.words import split_words
from longspan.errors import InputError
from longspan.settings import LARGEST, check_kind, show

Length = Literal["short", "medium", "long"]

SLACK = 1.1
"""A summary of N words has at most so many times N."""
SPARE = 20
"""Further sentences, in order of preference, among which what is missing in words is looked for."""
SHORTEST = 5
"""Words of the shortest pieces that are counted as sentences where one asks how long these usually are."""

Pick = Callable[[int], list[int]]
"""From a number of sentences to the indices of the best ones."""


@dataclass(frozen=True, kw_only=True)
class Extent:
    """The length of a summary, in at most one of three ways; without any, it is medium.

    Attributes:
        sentences: number of sentences.
        words: number of words, counted as `split_words` does: whole sentences, as near as possible to it and at most a
            tenth above, unless not even one sentence is as short.
        length: medium is half the square root of the document's sentences, between 3 and 20; short a quarter of that;
            long four times as much, but no more than a third of the document where that is above medium.
    """

    sentences: int | None = None
    words: int | None = None
    length: Length | None = None

    def __post_init__(self) -> None:
        """Refuse two lengths at once, and lengths that are none."""
        for name in ("sentences", "words"):
            value = getattr(self, name)
            if value is not None:
                check_kind(value, name, Integral, "a whole number")
        if self.length is not None:
            check_kind(self.length, "length", str, "short, medium or long")
        given = [f"{name}={show(value)}" for name, value in vars(self).items() if value is not None]
        if len(given) > 1:
            raise InputError(f"{' and '.join(given)} ask for two lengths; give one of sentences, words and length")
        for name in ("sentences", "words"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name}={value} is no length of a summary; give at least 1")
            if value is not None and value > LARGEST:
                raise InputError(f"{name} is {show(value)}, more than any document has; give at most {LARGEST:,}")
        if self.length is not None and self.length not in get_args(Length):
            raise InputError(f"length={self.length!r} is unknown; give short, medium or long")

    @property
    def given(self) -> str | None:
        """What was asked for, as messages say it; None where nothing was."""
        return next((f"{name}={value!r}" for name, value in vars(self).items() if value is not None), None)

    def count(self, sentences: int) -> int:
        """How many sentences to take of so many, where words do not say it."""
        from longspan.tasks.summaries.selection import default_count

        if self.sentences is not None:
            return self.sentences
        medium = default_count(sentences)
        if self.length == "short":
            return max(1, round(medium / 4))
        return max(medium, min(4 * medium, sentences // 3)) if self.length == "long" else medium

    def expected_words(self, texts: Sequence[str]) -> int:
        """How many words a summary of these sentences will have, about: those asked for, or of as many usual ones."""
        if self.words is not None:
            return self.words
        lengths = sorted(length for length in map(len, map(split_words, texts)) if length >= SHORTEST)
        return self.count(len(texts)) * (lengths[len(lengths) // 2] if lengths else SHORTEST)

    def take(self, texts: Sequence[str], pick: Pick) -> list[int]:
        """The indices of the sentences to take, in order.

        Args:
            texts: the document's sentences.
            pick: gives the best ones, as many as it is asked for.
        """
        if self.words is None:
            return pick(self.count(len(texts)))
        return _of_words([len(split_words(text)) for text in texts], self.words, pick)


def extent_of(sentences: int | Extent | None) -> Extent:
    """A length as it is; a number of sentences, or None, as a length."""
    return sentences if isinstance(sentences, Extent) else Extent(sentences=sentences)


def _of_words(lengths: Sequence[int], words: int, pick: Pick) -> list[int]:
    """As many of the best sentences as fit, and then of the next ones those that bring the total nearer to `words`."""
    most = SLACK * words

    def total(indices: Sequence[int]) -> int:
        return sum(lengths[index] for index in indices)

    low, high = 0, 1
    while high < len(lengths) and total(pick(high)) <= most:
        low, high = high, 2 * high
    high = min(high, len(lengths) + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if total(pick(middle)) <= most else (low, middle)
    taken = pick(low) if low else []
    spare = [index for index in pick(low + SPARE) if index not in taken]
    while spare:
        best = min(spare, key=lambda index: abs(words - total([*taken, index])))
        added = total([*taken, best])
        if added > most or abs(words - added) >= abs(words - total(taken)):
            break
        spare.remove(best)
        taken.append(best)
    return sorted(taken) or pick(1)
