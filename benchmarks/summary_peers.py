"""TextRank, LexRank and LSA as `sumy` computes them, over matrices: its own classes loop over pairs of sentences.

Each gives a score for every sentence instead of a choice; `tests/benchmarks/test_summary_peers.py` compares them with
sumy's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
from sumy.nlp.stemmers import Stemmer
from sumy.utils import get_stop_words

STOP_WORDS = frozenset(get_stop_words("english"))
DAMPING, CLOSE = 0.85, 1e-4
"""TextRank's share of steps along an edge, and when its power method stops."""
ALIKE, NEAR_ENOUGH = 0.1, 0.1
"""LexRank's cosine from which on two sentences are neighbours, and when its power method stops."""
SMOOTHING = 0.4
"""What every word of the document counts in every sentence for LSA."""
_WORD = re.compile(r"[^\W\d_]+(?:'\w+)?")
_stem = cache(Stemmer("english"))


def words_of(text: str) -> list[str]:
    """Lower-case words, as sumy is given them."""
    return _WORD.findall(text.lower())


def textrank(sentences: Sequence[str]) -> np.ndarray:
    """Mihalcea and Tarau 2004: `(N,)` shares of a random walk over sentences that share words."""
    found = _counts([_content(text) for text in sentences])
    logs = np.log(np.maximum(found.sum(1), 1))
    shared = found @ found.T
    lengths = logs[:, None] + logs
    single = np.isclose(lengths, 0)
    shared /= np.where(single, 1, lengths)
    shared /= shared.sum(1, keepdims=True) + 1e-7
    share, change = np.full(len(found), 1 / len(found)), 1.0
    while change > CLOSE:
        after = DAMPING * (shared.T @ share) + (1 - DAMPING) / len(found) * share.sum()
        share, change = after, np.linalg.norm(after - share)
    return share


def lexrank(sentences: Sequence[str]) -> np.ndarray:
    """Erkan and Radev 2004: `(N,)`, how central each is among sentences whose weighted words are alike."""
    found = _counts([_content(text) for text in sentences])
    rarity = np.log(len(found) / (1 + (found > 0).sum(0)))
    found *= rarity / np.maximum(found.max(1, keepdims=True), 1)
    length = np.linalg.norm(found, axis=1, keepdims=True)
    found /= np.where(length > 0, length, 1)
    neighbours = (found @ found.T > ALIKE).astype(np.float64)
    neighbours /= np.maximum(neighbours.sum(1, keepdims=True), 1)
    share, change = np.full(len(found), 1 / len(found)), 1.0
    while change > NEAR_ENOUGH:
        after = neighbours.T @ share
        after /= np.linalg.norm(after)
        share, change = after, np.linalg.norm(after - share)
    return share


def lsa(sentences: Sequence[str]) -> np.ndarray:
    """Steinberger and Ježek 2004: `(N,)`, the length of each sentence in the space of topics.

    sumy keeps all topics, so the length is that of the sentence's column of words, and no decomposition is needed.
    """
    known = {stem for text in sentences for stem in _content(text)}
    stems = [[stem for word in words_of(text) if (stem := _stem(word)) in known] for text in sentences]
    found = _counts(stems)
    most = found.max(1, keepdims=True)
    smooth = SMOOTHING + (1 - SMOOTHING) * found / np.maximum(most, 1)
    return np.linalg.norm(np.where(most > 0, smooth, 0), axis=1)


def _content(text: str) -> list[str]:
    """Stems of the words that are no stop words."""
    return [_stem(word) for word in words_of(text) if word not in STOP_WORDS]


def _counts(sentences: Sequence[Sequence[str]]) -> np.ndarray:
    """How often each sentence has each word, `(N, W)` float64."""
    places: dict[str, int] = {}
    for words in sentences:
        for word in words:
            places.setdefault(word, len(places))
    found = np.zeros((len(sentences), max(len(places), 1)))
    for row, words in zip(found, sentences, strict=True):
        for word, times in Counter(words).items():
            row[places[word]] = times
    return found
