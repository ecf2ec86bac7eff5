"""A text in consecutive parts that a model can read one by one, as even as its sentences allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from longspan.data.text.sentences import split_sentences

Count = Callable[[str], int]
"""How many tokens a text has as a model reads it, with all that stands around it."""


def parts_of(text: str, room: int, count: Count, *, around: int = 0, language: str | None = None) -> list[str]:
    """Consecutive parts of a text, which together hold all of it but white space between them.

    Args:
        text: the whole.
        room: most tokens of a part by `count`.
        count: tells the tokens of a text; of a character at most `room`.
        around: how many of them stand around any text.
        language: ISO 639-1 code for cutting sentences; None guesses by the script.
    """
    units = _units(text, language)
    lengths = [count(unit) - around for unit in units]
    # A part ends within half a sentence of its share, so that shares this much smaller than the room never overflow.
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
    """The sentences of a text, each with the white space behind it."""
    edges = [*(sentence.start for sentence in split_sentences(text, language)), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


def _fitting(units: Sequence[str], room: int, count: Count) -> Iterator[str]:
    """The units as one part, or in halves where that is too long; a unit alone is cut between words if it has some."""
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
