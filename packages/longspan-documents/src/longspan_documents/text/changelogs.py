"""Changelogs: lists of changes under the number or the date of each release, the newest first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate, pairwise

from longspan.data.text.sentences import count_words

_RELEASE = re.compile(
    r"(?:\A\n?|\n[ \t]*\n)(?P<line>(?=.{1,99}(?:\n|\Z))[^\w\n]*(?:[A-Za-z][\w’'-]*[ \t:,-]+){0,5}?"
    r"[\[(]?v?(?:(?P<version>\d{1,4}(?:\.\d+)+)|(?P<date>\d{4}-\d\d-\d\d)))"
)
"""A short line below an empty one, with a version or a date: "## [1.4.0] - 2024-05-01", "What's New in IDLE 3.13.0",
"2022-12-14 Ann"."""
FEWEST = 4
"""Minimum number of releases of a changelog."""
OPENING = 4_000
"""Characters before the first release, which may introduce the project."""


def newest_releases(text: str, words: int) -> range | None:
    """Returns the characters of a changelog from the first release on, up to the end of one by which they have at least
    `words` words; `None` if a text is no changelog.

    The number of each release is lower than that of the release above. Sections that are numbered rise.
    """
    places = list(_releases(text))
    if len(places) < FEWEST or places[0] > OPENING or places[-1] < len(text) / 2:
        return None
    counts = accumulate(count_words(text[start:end]) for start, end in pairwise(places))
    ends = (end for end, count in zip(places[1:], counts, strict=True) if count >= words)
    return range(places[0], next(ends, len(text)))


def _releases(text: str) -> Iterator[int]:
    """Yields where each release begins: a version or date of the same form as the first, and below the last one."""
    last: tuple[bool, tuple[int, ...]] | None = None
    for match in _RELEASE.finditer(text):
        dated = match["version"] is None
        number = tuple(map(int, re.split(r"[.-]", match["date"] if dated else match["version"])))
        if last is None or (dated == last[0] and number < last[1]):
            yield match.start("line")
            last = dated, number
