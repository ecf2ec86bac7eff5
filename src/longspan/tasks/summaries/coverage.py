"""In what order sentences enter a summary: each time the one that adds most to what those before it say.

What a sentence adds is the expected number of the summary's words that it brings, for its length (a concept-based
summariser, Gillick and Favre 2009, whose concepts are words with learned chances), and what the sentence scorer makes
of it. A word that was said counts again as often as a summary is likely to say it again. A sentence that hangs on those
before it is weighed together with them, and enters after them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from longspan.tasks.summaries.word_worth import WordTable

FADING = 0.7
"""What is left of a word's worth each time it is said more than five times."""
OFFSET = 6.0
"""Words that each sentence is charged beside its own."""
PICKED = 1000
"""Sentences that are picked one by one; the others follow by what they would add then."""
ALIKE = 0.92
"""Cosine from which on a sentence says the same as one that was picked."""
LAST = 5.0
"""What a sentence that says the same again is held back by: it comes after all others."""


def cover(
    table: WordTable,
    chances: np.ndarray,
    own: np.ndarray,
    lengths: np.ndarray,
    needs: Sequence[tuple[int, ...]],
    vectors: np.ndarray,
    words: int,
) -> list[int]:
    """All sentences in the order in which they enter a summary.

    Args:
        table: the words of the document.
        chances: `(W, 4)`, for each word the chance that a summary names it at least 1, 2, 3 and 5 times.
        own: `(N,)`, what a sentence is worth for itself, in expected words of the summary per word.
        lengths: `(N,)`, their words.
        needs: for each sentence the indices, rising, of those that must stand before it.
        vectors: `(N, D)` of length 1.
        words: length of the summary; those who need others enter it only where all of them have room.

    Returns:
        N indices, the best first.
    """
    said = _Said(table, chances, len(lengths))
    own = own.copy()
    free = np.ones(len(lengths), bool)
    needed = np.zeros((len(lengths), max(map(len, needs), default=0)), int)
    wanted = np.zeros(needed.shape, bool)
    for index, before in enumerate(needs):
        needed[index, : len(before)], wanted[index, : len(before)] = before, True
    order: list[int] = []
    left = float(words)
    while len(order) < min(len(lengths), PICKED):
        missing = wanted & free[needed]
        size = lengths + (lengths[needed] * missing).sum(1)
        worth = said.worth + (said.worth[needed] * missing).sum(1)
        value = worth / (size + OFFSET) + (own + (own[needed] * missing).sum(1)) / (1 + missing.sum(1))
        if left > 0:
            value = np.where(missing.any(1) & (size > left), -np.inf, value)
        best = int(np.where(free, value, -np.inf).argmax())
        group = [*needed[best][missing[best]].tolist(), best]
        for index in group:
            said.say(index)
            own -= LAST * (vectors @ vectors[index] > ALIKE)
        free[group] = False
        left -= size[best]
        order += group
    rest = np.flatnonzero(free)
    return order + rest[np.argsort(-(said.worth / (lengths + OFFSET) + own)[rest], kind="stable")].tolist()


class _Said:
    """How many times each word was said so far, and what each sentence would add.

    Attributes:
        worth: `(N,)`, expected words of the summary that a sentence would add.
    """

    def __init__(self, table: WordTable, chances: np.ndarray, sentences: int) -> None:
        # What it adds to name a word for the first, second … fifth time.
        self.steps = np.stack([*chances[:, :3].T, chances[:, 2:].mean(1), chances[:, 3]], axis=1)
        self.places = table.places
        self.times = np.zeros(len(table.words), int)
        self.words: list[list[int]] = [[] for _ in range(sentences)]
        self.worth = np.zeros(sentences)
        for word, places in enumerate(table.places):
            self.worth[places] += self.steps[word, 0]
            for place in places:
                self.words[place].append(word)

    def say(self, sentence: int) -> None:
        """Take a sentence into the summary."""
        for word in self.words[sentence]:
            before = self._step(word)
            self.times[word] += 1
            self.worth[self.places[word]] -= before - self._step(word)

    def _step(self, word: int) -> float:
        """What it adds to name a word once more."""
        last = self.steps.shape[1] - 1
        return float(self.steps[word, min(self.times[word], last)] * FADING ** max(self.times[word] - last, 0))
