"""Divides a text into consecutive parts that fit a model's input, as equal in length as its sentences allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from longspan.data.text.sentences import split_sentences

Count = Callable[[str], int]
"""Returns the number of tokens of a text, special tokens and prompt included."""


def parts_of(text: str, room: int, count: Count, *, around: int = 0, language: str | None = None) -> list[str]:
    """Divide a text into consecutive parts, which together contain all of it except white space between them.

    Args:
        text: the whole text.
        room: maximum number of tokens of a part, as `count` counts them.
        count: counts the tokens of a text; a single character must have at most `room`.
        around: how many of these tokens every text has in addition, such as special tokens and the prompt.
        language: ISO 639-1 code for sentence splitting; None guesses it by the script.
    """
    units = _units(text, language)
    lengths = [count(unit) - around for unit in units]
    # The end of a part is at most half a sentence away from its share, so shares that are smaller than the room by this
    # much never overflow.
    free = room - around
    spare = min(max(lengths, default=0), free // 4)
    number = max(1, -(-sum(lengths) // max(1, free - spare)))
    share = sum(lengths) / number
    groups: list[list[str]] = [[] for _ in range(number)]
    before = 0
    for unit, length in zip(units, lengths, strict=True):
        groups[min(number - 1, int((before + length / 2) / max(share, 1)))].append(unit)
        before += length
    return [part for group in groups for part in _fitting(group, room, count)]


def _units(text: str, language: str | None) -> list[str]:
    """Split a text into sentences with their trailing white space."""
    edges = [*(sentence.start for sentence in split_sentences(text, language)), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


def _fitting(units: Sequence[str], room: int, count: Count) -> Iterator[str]:
    """Yield the units joined, or in halves if they are too long; a single long unit is split, between words if
    possible."""
    part = "".join(units).strip()
    if not part:
        return
    if len(part) == 1 or count(part) <= room:
        yield part
        return
    if len(units) == 1:
        middle = len(part) // 2
        before, after = part.rfind(" ", 1, middle), part.find(" ", middle, len(part) - 1)
        cuts = [place for place in (before, after) if place > 0] or [middle]
        cut = min(cuts, key=lambda place: abs(place - middle))
        units = [part[:cut], part[cut:]]
    half = len(units) // 2
    yield from _fitting(units[:half], room, count)
    yield from _fitting(units[half:], room, count)
