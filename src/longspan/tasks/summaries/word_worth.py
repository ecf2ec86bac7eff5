"""How often a summary of a document names each of its words: what a summary should cover.

For each content word, logistic regressions tell from how often it occurs, where, in what sentences, and how long the
summary is to be, the chance that the summary names it at least once, twice, three and five times. So a name that a
story turns on is worth saying again, and a word of the margin is not worth saying at all.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from longspan.data.text.words import contents_of
from longspan.tasks.summaries.clues import Sentences, standardised

TIMES = (1, 2, 3, 5)
"""How many times a summary names a word, at least: one regression for each."""
EARLY = 0.15
"""Share of the document that is its beginning."""
PARTS = 8
"""A document without headings is taken for so many sections."""


@dataclass(frozen=True, kw_only=True)
class WordTable:
    """The content words of a document.

    Attributes:
        words: W different ones.
        places: for each, the indices of the sentences that have it, rising.
        numbers: `(W, F)` float32, what is known of each.
    """

    words: tuple[str, ...]
    places: tuple[np.ndarray, ...]
    numbers: np.ndarray


def word_table(document: Sentences) -> WordTable:
    """The content words of a document, in the order of their first places."""
    count = len(document)
    near = standardised(document.vectors @ document.vectors.mean(0))
    sections = document.sections if document.headings else np.arange(count) * PARTS // max(count, 1)
    several = max(len(np.unique(sections)), 1)
    places: dict[str, list[int]] = {}
    times: Counter[str] = Counter()
    for index, words in enumerate(document.contents):
        times.update(words)
        for word in dict.fromkeys(words):
            places.setdefault(word, []).append(index)
    in_headings = {word for heading in document.headings for word in contents_of(heading)}
    in_title = set(contents_of(document.title))
    rows = []
    for word, found in places.items():
        holders = len(found)
        log, central = math.log1p(holders), near[found]
        row = [
            *(log, log**2, holders / count, math.sqrt(holders / count), holders == 1, holders == 2),
            *(math.log(times[word] / holders), found[0] / count, 1 / (1 + found[0] / 5)),
            *(float(central.mean()), float(central.max()), len(np.unique(sections[found])) / several),
            *(word in in_headings, word in in_title, len(word) / 10, len(word) <= 3),
            *(math.log1p(sum(place < EARLY * count for place in found)), math.log1p(count)),
        ]
        rows.append(row)
    return WordTable(
        words=tuple(places),
        places=tuple(np.array(found) for found in places.values()),
        numbers=np.array(rows, np.float32).reshape(len(rows), 18),
    )


def with_length(table: WordTable, words: int) -> np.ndarray:
    """The numbers of each word beside the length of the summary in words, `(W, F + 4)`."""
    log = math.log(max(words, 20))
    expected = table.numbers[:, 2] * words
    more = [np.full(len(expected), log), table.numbers[:, 0] * log, expected, np.minimum(expected, 20)]
    return np.concatenate([table.numbers, np.stack(more, axis=1)], axis=1)


def worth_of_sentences(document: Sentences, table: WordTable, chances: np.ndarray) -> np.ndarray:
    """Mean, sum and largest chance of each sentence's words to be named, `(N, 3)`; `chances` `(W,)`."""
    total, most, kinds = (np.zeros(len(document)) for _ in range(3))
    for places, chance in zip(table.places, chances, strict=True):
        total[places] += chance
        kinds[places] += 1
        most[places] = np.maximum(most[places], chance)
    return np.stack([total / np.maximum(kinds, 1), total, most], axis=1)
