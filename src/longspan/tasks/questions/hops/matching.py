"""Which words of the paragraphs a question leads to, by spelling alone: its own, and those that stand beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from longspan.tasks.questions.document import asked_words, stem, words_in

BESIDE = 3
"""The type of a word that stands beside one of the question; see `match_types` for the others."""

RARE = 3
"""A word is rare that stands in one of so many paragraphs at most, or in two."""


def word_types(question: str, paragraphs: Sequence[Sequence[str]], steps: int) -> dict[str, int]:
    """Stem → type: 2 for the question's words; with two steps, 3 for rare words in a text with a rare one of these.

    The second step is what query expansion does, or following a link: a name beside the one that was asked for often
    titles the next paragraph. Words that stand everywhere would lead everywhere, so they lead nowhere.

    Args:
        question: in words.
        paragraphs: the texts of each that the model sees: title and sentences.
        steps: 1 or 2.
    """
    asked = asked_words(question)
    if steps < 2:
        return asked
    texts = [[set(map(stem, words_in(text))) for text in paragraph] for paragraph in paragraphs]
    counts = Counter(word for paragraph in texts for word in set[str]().union(*paragraph))
    rare = {word for word, count in counts.items() if count <= max(2, len(texts) // RARE)}
    beside = set[str]().union(*(text for paragraph in texts for text in paragraph if text & rare & asked.keys()))
    return dict.fromkeys(beside & rare, BESIDE) | asked
