"""How near each sentence of a document is to a query: by its words, by its meaning, and by what stands around it."""

from __future__ import annotations

import math

import numpy as np

from longspan.data.text.words import contents_of, holders_of
from longspan.tasks.summaries.clues import Sentences, standardised

AROUND = 3
"""Sentences on each side that a sentence is seen with: what answers a question is often said around it."""
GIST = frozenset(contents_of("summarize summary meeting discussion discuss think thought opinion whole main"))
"""Words of a query that tell what is asked for, not of what."""


def relevance(document: Sentences, query: str, vector: np.ndarray) -> np.ndarray:
    """How near each sentence is to a query, `(N,)`, in standard deviations of the document's.

    Args:
        document: its sentences.
        query: a question or some words.
        vector: `(D,)` of length 1, of the query.
    """
    near = standardised(document.vectors @ vector) + standardised(_shared(document, query))
    weights = np.exp(-np.abs(np.arange(-AROUND, AROUND + 1)) / 2)
    around = np.convolve(np.pad(near, AROUND, mode="edge"), weights / weights.sum(), mode="valid")
    return standardised(near + around)


def _shared(document: Sentences, query: str) -> np.ndarray:
    """The words that each sentence shares with the query, the rarer in the document the more, `(N,)`."""
    count = len(document)
    holders = holders_of(document.contents)
    asked = {word for word in contents_of(query) if word not in GIST} or set(contents_of(query))
    rarity = {word: math.log(1 + count / holders[word]) for word in asked if holders[word]}
    return np.array([sum(rarity.get(word, 0.0) for word in set(words)) for words in document.contents], float)
