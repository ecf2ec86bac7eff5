"""Which passages share words with a question: stems, BM25 (Robertson and Zaragoza 2009) and their rarity.

The words of passages and questions are stemmed by Snowball's rules for the language that the script tells, and function
words are left out of questions. In scripts without spaces, characters and pairs of neighbours stand for words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import cache
from itertools import pairwise

import numpy as np

from longspan.data.text.words import FUNCTION_WORDS, holders_of, is_unspaced, split_words
from longspan.extras import require

STEMMERS = {"en": "english", "ru": "russian", "ar": "arabic", "el": "greek", "hi": "hindi", "ta": "tamil"}
"""Language code, as the script tells it → the name of its stemmer; words of others are taken as they are."""


def stems_of(text: str, language: str) -> list[str]:
    """The stems of a text's words, in order; characters of scripts without spaces singly and with the one before."""
    words = split_words(text)
    pairs = [one + two for one, two in pairwise(words) if is_unspaced(one) and is_unspaced(two)]
    return [_stemmer(language)(word) for word in words] + pairs


def asked_of(question: str, language: str) -> list[str]:
    """The stems that a question is about: of its words without function words, or of all where nothing else is left."""
    words = " ".join(word for word in split_words(question) if word not in FUNCTION_WORDS)
    return stems_of(words or question, language)


@cache
def _stemmer(language: str) -> Callable[[str], str]:
    name = STEMMERS.get(language)
    if name is None:
        return str
    return require("Stemmer", extra="documents", purpose="`longspan answer`").Stemmer(name).stemWord


class WordIndex:
    """The words of some texts, to be searched.

    Attributes:
        language: code of the language whose rules find the stems.
    """

    def __init__(self, texts: Sequence[str], language: str) -> None:
        bm25s = require("bm25s", extra="documents", purpose="`longspan answer`")
        self.language = language
        stems = [stems_of(text, language) for text in texts]
        self._known = [frozenset(found) for found in stems]
        self._holders = holders_of(stems)
        self._index = bm25s.BM25()
        self._index.index([found or [""] for found in stems], show_progress=False)

    def scores(self, asked: Sequence[str]) -> np.ndarray:
        """BM25 of each text, float64 (N)."""
        words = [stem for stem in dict.fromkeys(asked) if stem in self._holders]
        if not words:
            return np.zeros(len(self._known))
        return np.asarray(self._index.get_scores(words), dtype=np.float64)

    def rarity(self, stem: str) -> float:
        """How much a stem tells: the log of the share of texts without it to those with it, at least 0."""
        count = len(self._known)
        return math.log(1 + (count - self._holders[stem] + 0.5) / (self._holders[stem] + 0.5))

    def share(self, asked: Sequence[str], known: Collection[str]) -> float:
        """The share of the asked stems that are among the known ones, each counted by its rarity."""
        weights = {stem: self.rarity(stem) for stem in asked}
        return sum(weight for stem, weight in weights.items() if stem in known) / (sum(weights.values()) or 1.0)
