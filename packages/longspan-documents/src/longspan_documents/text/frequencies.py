"""Word frequency ranks in English, from the vocabulary of the bundled encoder, which is sorted by frequency."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from itertools import dropwhile
from math import inf
from pathlib import Path

VOCABULARY = Path(__file__).parents[1] / "bundled" / "encoder" / "tokenizer.json"

_ENTRY = re.compile(r'"([^"\\\W\d_]+)": ?(\d+)')


class CommonWords:
    """Lower-case words with their ranks, grouped by prefix in strings: a tenth of the memory of a `dict`, which would
    be most of the memory for reading a short PDF file.

    Args:
        ranked: the words and their ranks.
    """

    def __init__(self, ranked: Iterable[tuple[str, str]]) -> None:
        self._lines: dict[str, str] = {}
        for word, rank in ranked:
            self._lines[word[:2]] = f"{self._lines.get(word[:2], ' ')}{word}:{rank} "

    def __contains__(self, word: str) -> bool:
        return f" {word}:" in self._lines.get(word[:2], "")

    def rank(self, word: str) -> float:
        """Returns the number of more frequent words; infinite for unknown words."""
        _, found, behind = self._lines.get(word[:2], "").partition(f" {word}:")
        return int(behind.partition(" ")[0]) if found else inf


@cache
def common_words() -> CommonWords:
    """Returns the whole words of the vocabulary, about 28,000."""
    # Line by line: a JSON parser would take many times the size of the file.
    with VOCABULARY.open(encoding="utf-8") as file:
        entries = dropwhile(lambda line: '"vocab"' not in line, file)
        return CommonWords((match[1], match[2]) for line in entries for match in _ENTRY.finditer(line))
