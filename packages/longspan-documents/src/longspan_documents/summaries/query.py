"""How near each sentence of a document is to a query: by words, meaning, who says it, and what stands around it.

Two things are scored apart. Whether a place is about the query is read off a long stretch: how often the query's words
occur there, and whether a speaker whom it names speaks there. Which sentence of the place answers is read off the
sentence alone. And a summary about a query names other words than one of the whole document: those of the query, and
those of the places that are about it, so that the chances of words are changed too (see
`longspan_documents.summaries.selection`).

The weights were fitted by `tools/bundled/query_weights.py` on the training queries of QMSum, whose annotators marked
the turns that answer each, and do not depend on the length of the document.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from longspan.data.text.sentences import contents_of, holders_of, split_words
from longspan_documents.summaries.clues import Sentences, standardised
from longspan_documents.summaries.selection import WordTable

STRETCH, SHORT, TURNS = 30, 15, 4
"""After so many sentences what one says of the place that it stands in has fallen to 1/e: for a topic, for all words of
the query coming together, and for a speaker."""
GIST = frozenset(
    contents_of(
        "summarize summary meeting discussion discuss talk talking think thought opinion say said tell mention "
        "introduce introduction presentation appear detail elaborate decide decision conclude conclusion group team "
        "member whole main mainly first second given according regarding related concerning"
    )
)
"""Words of a query that tell what is asked for, not of what."""
NAMED, AS_NAMED = 0.45, 0.2
"""What share of a speaker's name a query must have, rarer words counting more; and how much less than another's."""
PLACE = {"words around": 0.19, "together": 0.11, "speaker around": 0.15, "speaker on it": 0.18}
"""Weights of the features that tell that a place of the document is about the query."""
SENTENCE = {"meaning": 0.3, "words": 0.15, "words around": 0.05, "speaker on it": 0.07}
"""Weights of the features that tell that a sentence says what is asked."""
WORD = {"chance": 0.333, "squared": -0.014, "asked": 1.272, "in place": 0.644, "": -1.503}
"""Of a word, the weights of the logit of its chance in a summary of the whole document, of that squared, of whether it
stands in the query, and of the log of how often it does in the places that are about it; last the constant."""
PLACES = 60
"""Places are weighed as if they were so many sentences."""


class Relevance(NamedTuple):
    """What a document's sentences are to a query.

    Attributes:
        near: `(N,)`, how near each is, in standard deviations.
        place: `(N,)`, how much it stands where the document is about the query, in standard deviations.
        words: the content words that are asked for.
    """

    near: np.ndarray
    place: np.ndarray
    words: frozenset[str]


def relevance_of(document: Sentences, query: str, vector: np.ndarray) -> Relevance:
    """What the sentences of a document are to a query.

    Args:
        document: its sentences.
        query: a question or some words.
        vector: `(D,)` of length 1, of the query.
    """
    words = _query_words(query, ())
    values = query_features(document, query, vector)
    place = weighted(values, PLACE)
    return Relevance(standardised(place + weighted(values, SENTENCE)), place, words)


def weighted(values: Mapping[str, np.ndarray], weights: Mapping[str, float]) -> np.ndarray:
    """The weighted sum of some features, `(N,)`, in standard deviations."""
    return standardised(
        sum((weight * values[name] for name, weight in weights.items()), np.zeros(len(values["words"])))
    )


def query_features(document: Sentences, query: str, vector: np.ndarray) -> dict[str, np.ndarray]:
    """By name, what tells that each sentence has to do with a query, `(N,)` each, in standard deviations.

    meaning: cosine of sentence and query. words: the words they share, the rarer in the document the more.
    words around: these in a long stretch. together: how many of the query's words a stretch has, however often.
    speaker around: whether somebody speaks whom the query names. speaker on it: these, where its words are near.
    """
    count = len(document)
    speakers = named_speakers(query, document.speakers)
    holders = holders_of(document.contents)
    asked = _query_words(query, speakers)
    has = {
        word: np.array([word in words for words in document.contents], float) for word in sorted(asked) if holders[word]
    }
    rarity = {word: math.log(1 + count / holders[word]) for word in has}
    shared = sum((rarity[word] * each for word, each in has.items()), np.zeros(count))
    speaks = np.array([speaker in speakers for speaker in document.speakers or [None] * count], float)

    def together(reach: int) -> np.ndarray:
        per_word = (rarity[word] * -np.expm1(-2 * reach * smoothed(each, reach)) for word, each in has.items())
        return standardised(sum(per_word, np.zeros(count)))

    return {
        "meaning": standardised(document.vectors @ vector),
        "words": standardised(shared),
        "words around": standardised(smoothed(shared, STRETCH)),
        "together": together(SHORT),
        "speaker around": standardised(smoothed(speaks, TURNS)),
        "speaker on it": speaks * together(TURNS),
    }


def named_speakers(query: str, speakers: Sequence[str | None]) -> frozenset[str]:
    """The speakers that a query names, by all of a role ("Project Manager") or a part of a name that others lack."""
    names = {name: set(split_words(re.sub(r"\(.*", "", name))) for name in speakers if name}
    have = Counter(word for words in names.values() for word in words)
    asked = set(split_words(query))
    share = {
        name: sum(1 / have[word] for word in words & asked) / sum(1 / have[word] for word in words)
        for name, words in names.items()
        if words
    }
    least = max(NAMED, max(share.values(), default=0.0) - AS_NAMED)
    return frozenset(name for name, value in share.items() if value >= least)


def _query_words(query: str, speakers: Collection[str]) -> frozenset[str]:
    """The content words of a query without those that ask, where others are left, and those that name who speaks."""
    every = frozenset(contents_of(query))
    asked = (every - GIST) or every
    return asked - {word for name in speakers for word in contents_of(name)}


def smoothed(values: np.ndarray, reach: int) -> np.ndarray:
    """Values `(N,)` with those on both sides, a value counting 1/e of another that is `reach` nearer."""
    weights = np.exp(-np.abs(np.arange(-3 * reach, 3 * reach + 1)) / reach)
    padded = np.pad(values, 3 * reach, mode="edge")
    return np.convolve(padded, weights / weights.sum(), mode="valid")


def word_features(table: WordTable, chances: np.ndarray, relevance: Relevance) -> np.ndarray:
    """What tells of each word whether a summary about a query names it, `(W, 5)`; columns as in `WORD`.

    Args:
        table: the words of the document.
        chances: `(W,)`, that a summary of the whole document names each.
        relevance: what its sentences are to the query.
    """
    share = np.exp(relevance.place - relevance.place.max())
    share *= PLACES / share.sum()
    inside = np.array([share[indices].sum() for indices in table.sentences])
    logits = logit(chances)
    stands = [word in relevance.words for word in table.words]
    return np.stack([logits, logits**2, stands, np.log(inside + 0.1), np.ones(len(logits))], axis=1)


def chances_about(table: WordTable, chances: np.ndarray, relevance: Relevance) -> np.ndarray:
    """The chances of words to be named at least 1, 2, 3 and 5 times, `(W, 4)`, in a summary about a query."""
    if not len(chances):
        return chances
    first = chances[:, 0]
    changed = word_features(table, first, relevance) @ np.array(list(WORD.values())) - logit(first)
    return 1 / (1 + np.exp(-(logit(chances) + changed[:, None])))


def logit(chances: np.ndarray) -> np.ndarray:
    """Log odds of chances, which are kept a millionth from 0 and 1."""
    clipped = np.clip(chances, 1e-6, 1 - 1e-6)
    return np.log(clipped / (1 - clipped))
