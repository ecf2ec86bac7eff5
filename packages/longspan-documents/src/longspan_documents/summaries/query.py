"""Relevance of each sentence of a document to a query: by words, meaning, speakers, and context.

Two scores are separate. Whether a place is about the query is determined from a long stretch: by the frequency of the
query's words, and by whether a speaker that it names speaks there. Which sentence of the place answers is determined
from the sentence alone. A summary about a query also names other words than one of the whole document: those of the
query, and those of the relevant places, so the probabilities of words change too (see
`longspan_documents.summaries.selection`).

The weights were fitted by `tools/bundled/query_weights.py` on the training queries of QMSum, whose annotators marked
the relevant turns. An answer in a meeting or a story is spread over many sentences, and a good summary of it covers
its words. In expository text, and in any short document, a single sentence answers, often in a place about something
else. So in short documents places hardly count, and the relevance of a sentence outweighs the words that it covers; in
long conversations and stories it only adds to these; long expository text is in between (`strength_of`).
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
"""Number of sentences after which the influence of a sentence on its surroundings falls to 1/e: for a topic, for all
words of the query occurring together, and for a speaker."""
GIST = frozenset(
    contents_of(
        "summarize summary meeting discussion discuss talk talking think thought opinion say said tell mention "
        "introduce introduction presentation appear detail elaborate decide decision conclude conclusion group team "
        "member whole main mainly first second given according regarding related concerning"
    )
)
"""Words of a query about the kind of request, not its subject."""
NAMED, AS_NAMED = 0.45, 0.2
"""Minimum share of a speaker's name in a query, with rare words weighted more; and the maximum difference to
another's."""
PLACE = {"words around": 0.19, "together": 0.11, "speaker around": 0.15, "speaker on it": 0.18}
"""Weights of the features for a place of the document being about the query."""
SENTENCE = {"meaning": 0.3, "words": 0.15, "words around": 0.05, "speaker on it": 0.07}
"""Weights of the features for a sentence answering the query."""
WORD = {"chance": 0.333, "squared": -0.014, "asked": 1.272, "in place": 0.644, "": -1.503}
"""Weights for words: of the logit of the probability in a summary of the whole document, of its square, of occurrence
in the query, of the log frequency in the relevant places, and the constant."""
PLACES = 60
"""Relevant places are weighted as this number of sentences."""
SHORT_DOCUMENT, LONG_DOCUMENT = 100, 200
"""Numbers of sentences up to which a document is short, and from which it is long; between, on a logarithmic scale."""
NEAR_STRETCH, NEAR_SHORT, NEAR_PLACE = 2, 1, 0.1
"""`STRETCH` and `SHORT` in a short document, and the weight of its places relative to a long one."""
WRITTEN = 0.3
"""Strength of relevance in long expository text; in short documents it is 1."""
QUOTED, PERSONS = 0.15, 0.01
"""Features of a story: share of its sentences with a quotation, and of "he" and "she" in its words. Of 39 stories, all
have 0.19 and 0.012; contracts have quotations, and articles have persons."""
ABSENT, SHARED = 0.33, 0.3
"""Minimum evidence that a document concerns a query, and the weight in it of the words that one sentence shares with
the query, relative to the highest cosine. Of 273 questions that their document answers, 2 % are below."""


class Relevance(NamedTuple):
    """Relevance of a document's sentences to a query.

    Attributes:
        near: `(N,)`, relevance of each, in standard deviations.
        place: `(N,)`, relevance of its surroundings, in standard deviations.
        words: the content words of the query.
        strength: weight of `near` in addition to the value of the covered words, which is about 0.1 to 0.5 per sentence
            and word; 0 where these decide.
    """

    near: np.ndarray
    place: np.ndarray
    words: frozenset[str]
    strength: float = 0.0


def relevance_of(document: Sentences, query: str, vector: np.ndarray) -> Relevance:
    """Computes the relevance of the sentences of a document to a query.

    Args:
        document: its sentences.
        query: a question or some words.
        vector: `(D,)`, normalised embedding of the query.
    """
    words = _query_words(query, ())
    short = shortness(len(document))
    reach = round(STRETCH * (NEAR_STRETCH / STRETCH) ** short), round(SHORT * (NEAR_SHORT / SHORT) ** short)
    values = query_features(document, query, vector, *reach)
    place = weighted(values, PLACE)
    near = standardised(NEAR_PLACE**short * place + weighted(values, SENTENCE))
    return Relevance(near, place, words, strength_of(document))


def shortness(count: int) -> float:
    """Returns 1 for a short document, of `count` sentences, 0 for a long one, or a number between."""
    return float(np.clip(math.log(LONG_DOCUMENT / max(count, 1)) / math.log(LONG_DOCUMENT / SHORT_DOCUMENT), 0, 1))


def strength_of(document: Sentences) -> float:
    """Returns the strength of relevance in a document, see `Relevance`: 0 in long conversations and stories."""
    short = shortness(len(document))
    if short == 1:
        return 1.0
    is_conversation = 2 * document.spoken.sum() > len(document)
    quoted, persons = document.kind[6], document.kind[12]
    is_told = is_conversation or (quoted >= QUOTED and persons >= PERSONS)
    return short + (1 - short) * WRITTEN * (not is_told)


def is_absent(document: Sentences, query: str, vector: np.ndarray) -> bool:
    """Whether nothing in a document seems to concern a query: no sentence is near to it in meaning or shares its words.

    Words alone decide if the encoder does not know those of the query or of the document, whose vectors are then 0. A
    query that only describes a summary, or names a speaker of the document, is never absent. Arguments as in
    `relevance_of`.
    """
    asked = _words_and_numbers(query) - GIST
    if not len(document) or not asked or named_speakers(query, document.speakers):
        return False
    sentences = [_words_and_numbers(text) for text in document.texts]
    holders = holders_of(sentences)
    if not vector.any() or not document.vectors.any():  # the encoder does not know the words of one of them
        return not any(holders[word] for word in asked)
    nearest = float((document.vectors @ vector).max())
    if nearest >= ABSENT:
        return False
    # A word that occurs nowhere is rarer than one that occurs once.
    rarity = {word: math.log(1 + len(document) / (holders[word] or 0.5)) for word in sorted(asked)}
    shared = max(sum(rarity[word] for word in rarity if word in words) for words in sentences)
    return nearest + SHARED * shared / sum(rarity.values()) < ABSENT


def _words_and_numbers(text: str) -> frozenset[str]:
    return frozenset(contents_of(text)) | frozenset(filter(str.isdigit, split_words(text)))


def weighted(values: Mapping[str, np.ndarray], weights: Mapping[str, float]) -> np.ndarray:
    """Returns the weighted sum of some features, `(N,)`, in standard deviations."""
    return standardised(
        sum((weight * values[name] for name, weight in weights.items()), np.zeros(len(values["words"])))
    )


def query_features(
    document: Sentences, query: str, vector: np.ndarray, stretch: int = STRETCH, short: int = SHORT
) -> dict[str, np.ndarray]:
    """Returns features of each sentence's relevance to a query by name, `(N,)` each, in standard deviations.

    meaning: cosine of sentence and query. words: shared words, weighted by their rarity in the document. words around:
    the same in a long stretch. together: number of distinct query words in a stretch. speaker around: whether a speaker
    named by the query speaks. speaker on it: the same, where its words are near.
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
        "words around": standardised(smoothed(shared, stretch)),
        "together": together(short),
        "speaker around": standardised(smoothed(speaks, TURNS)),
        "speaker on it": speaks * together(TURNS),
    }


def named_speakers(query: str, speakers: Sequence[str | None]) -> frozenset[str]:
    """Returns the speakers that a query names, by a whole role ("Project Manager") or a distinctive part of a name."""
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
    """Returns the content words of a query without request words, if others are left, and without names of speakers."""
    every = frozenset(contents_of(query))
    asked = (every - GIST) or every
    return asked - {word for name in speakers for word in contents_of(name)}


def smoothed(values: np.ndarray, reach: int) -> np.ndarray:
    """Smooths values `(N,)` with exponential weights on both sides, falling to 1/e at distance `reach`."""
    weights = np.exp(-np.abs(np.arange(-3 * reach, 3 * reach + 1)) / reach)
    padded = np.pad(values, 3 * reach, mode="edge")
    return np.convolve(padded, weights / weights.sum(), mode="valid")


def word_features(table: WordTable, chances: np.ndarray, relevance: Relevance) -> np.ndarray:
    """Returns features of each word for a summary about a query, `(W, 5)`; columns as in `WORD`.

    Args:
        table: the words of the document.
        chances: `(W,)`, probability of each in a summary of the whole document.
        relevance: relevance of its sentences to the query.
    """
    share = np.exp(relevance.place - relevance.place.max())
    share *= PLACES / share.sum()
    inside = np.array([share[indices].sum() for indices in table.sentences])
    logits = logit(chances)
    stands = [word in relevance.words for word in table.words]
    return np.stack([logits, logits**2, stands, np.log(inside + 0.1), np.ones(len(logits))], axis=1)


def chances_about(table: WordTable, chances: np.ndarray, relevance: Relevance) -> np.ndarray:
    """Returns the probabilities of words to be named at least 1, 2, 3 and 5 times, `(W, 4)`, in a summary about a
    query."""
    if not len(chances):
        return chances
    first = chances[:, 0]
    changed = word_features(table, first, relevance) @ np.array(list(WORD.values())) - logit(first)
    return 1 / (1 + np.exp(-(logit(chances) + changed[:, None])))


def logit(chances: np.ndarray) -> np.ndarray:
    """Returns log odds of probabilities, clipped to a millionth from 0 and 1."""
    clipped = np.clip(chances, 1e-6, 1 - 1e-6)
    return np.log(clipped / (1 - clipped))
