"""In what order sentences enter a summary: each time the one that adds most to what those before it say.

What a sentence adds is the expected number of the summary's words that it brings, for its length (a concept-based
summariser, Gillick and Favre 2009, whose concepts are words with learned chances), and what the sentence scorer makes
of it. A word that was said counts again as often as a summary is likely to say it again.
"""

from __future__ import annotations

import numpy as np

from longspan.tasks.summaries.word_worth import WordTable

FADING = 0.7
"""What is left of a word's worth each time it is said more than five times."""
OFFSET = 3.0
"""Words that each sentence is charged beside its own."""
SHORTEST = 5
"""Sentences of fewer words come last."""
PICKED = 1000
"""Sentences that are picked one by one; the others follow by what they would add then."""


def cover(table: WordTable, chances: np.ndarray, own: np.ndarray, lengths: np.ndarray) -> list[int]:
    """All sentences in the order in which they enter a summary.

    Args:
        table: the words of the document.
        chances: `(W, 4)`, for each word the chance that a summary names it at least 1, 2, 3 and 5 times.
        own: `(N,)`, what a sentence is worth for itself, in expected words of the summary per word.
        lengths: `(N,)`, their words.

    Returns:
        N indices, the best first.
    """
    count = len(lengths)
    # What it adds to name a word for the first, second … fifth time.
    steps = np.stack([*chances[:, :3].T, chances[:, 2:].mean(1), chances[:, 3]], axis=1)
    words_of: list[list[int]] = [[] for _ in range(count)]
    worth = np.zeros(count)
    for word, places in enumerate(table.places):
        worth[places] += steps[word, 0]
        for place in places:
            words_of[place].append(word)
    said = np.zeros(len(table.words), int)
    own = own - 5.0 * (lengths < SHORTEST)
    free = np.ones(count, bool)
    order: list[int] = []
    while len(order) < min(count, PICKED):
        best = int(np.where(free, worth / (lengths + OFFSET) + own, -np.inf).argmax())
        order.append(best)
        free[best] = False
        for word in words_of[best]:
            before = _step(steps[word], said[word])
            said[word] += 1
            worth[table.places[word]] -= before - _step(steps[word], said[word])
    rest = np.flatnonzero(free)
    return order + rest[np.argsort(-(worth / (lengths + OFFSET) + own)[rest], kind="stable")].tolist()


def _step(steps: np.ndarray, said: int) -> float:
    """What it adds to name a word that was said so many times."""
    last = len(steps) - 1
    return float(steps[min(said, last)] * FADING ** max(said - last, 0))
