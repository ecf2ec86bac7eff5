"""Whether a text opens with a summary of itself that no heading names: an abstract, as in papers without marks.

The beginning is compared with other stretches of the same text: an abstract names what the text names most, nearly all
of its words come again, it says "we" and "this paper", and it cites little.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from longspan.data.text.words import holders_of

STRETCH = 150
"""Words of a stretch, about: an abstract has as many, or more."""
COMPARED = 12
"""Stretches that the beginning is compared with, about."""
FEWEST = 5
"""A text of fewer stretches needs no abstract."""
COMMONEST = 40
"""Words that most sentences of the text have in common."""
BETWEEN = 80, 300
"""Words of an opening that ends where a paragraph does."""
_PRESENTS = re.compile(
    r"\b(?:we|our|this (?:paper|article|study|work|proposal|document|report|enhancement|[a-zA-Z]?[A-Z]{2,4})"
    r"|propos(?:es?|ed)|introduces?|describes?|presents?)\b",
    re.IGNORECASE,
)
_CITES = re.compile(r"\(\D{0,60}(?:19|20)\d\d|\[\d|\bet al\b|\b[Ff]ig|\bTable\b")
_LEAST_SPREAD = np.array([0.03, 0.03, 0.1, 0.3, 0.3, 0.03, 2.0])


def signs_of_an_abstract(texts: Sequence[str], contents: Sequence[Sequence[str]]) -> np.ndarray | None:
    """By how much the beginning of a text is unlike its other stretches, `(7,)` in their standard deviations.

    Args:
        texts: its sentences.
        contents: their content words.

    Returns:
        The share of the text's commonest words that it names; the share of its words that come again, and how often;
        "we" and the like; citations; different words, each for a word; words of a sentence. None for short texts.
    """
    stretches = _stretches(texts)
    if len(stretches) < FEWEST:
        return None
    holders = holders_of(contents)
    common = [word for word, _ in holders.most_common(COMMONEST)]
    # The one after the beginning may still be a part of it.
    others = stretches[2 :: max(1, len(stretches) // COMPARED)]
    rows = np.array([_numbers(stretch, texts, contents, holders, common) for stretch in (stretches[0], *others)])
    return (rows[0] - rows[1:].mean(0)) / (rows[1:].std(0) + _LEAST_SPREAD)


def _numbers(
    stretch: Sequence[int],
    texts: Sequence[str],
    contents: Sequence[Sequence[str]],
    holders: Counter[str],
    common: Sequence[str],
) -> list[float]:
    inside = holders_of(contents[index] for index in stretch)
    again = np.array([holders[word] - times for word, times in inside.items()] or [0])
    text = " ".join(texts[index] for index in stretch)
    words = max(len(text.split()), 1)
    return [
        *(sum(word in inside for word in common) / COMMONEST, float((again > 0).mean()), float(np.log1p(again).mean())),
        *(100 * len(_PRESENTS.findall(text)) / words, 100 * len(_CITES.findall(text)) / words),
        *(len(inside) / words, words / len(stretch)),
    ]


def _stretches(texts: Sequence[str]) -> list[list[int]]:
    """Sentences in runs of about `STRETCH` words."""
    found: list[list[int]] = [[]]
    words = 0
    for index, text in enumerate(texts):
        found[-1].append(index)
        words += len(text.split())
        if words >= STRETCH:
            found.append([])
            words = 0
    return found[:-1]


def end_of_opening(texts: Sequence[str], paragraphs: np.ndarray, sections: np.ndarray) -> int:
    """How many sentences an opening abstract has: up to a heading or the end of a paragraph, else `STRETCH` words."""
    least, most = BETWEEN
    words = np.cumsum([len(text.split()) for text in texts])
    for index in range(min(len(texts) - 1, int(np.searchsorted(words, most)))):
        long_enough = words[index] >= least and paragraphs[index + 1] != paragraphs[index]
        if long_enough or sections[index + 1] != sections[index]:
            return index + 1
    return int(np.searchsorted(words, STRETCH)) + 1
