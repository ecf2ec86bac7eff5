"""Which passages are most likely to hold the answer to a question, and how sure that is.

Each passage gets a few numbers: words shared with the question, by BM25 (Robertson and Zaragoza 2009) and, where there
is an encoder, how near it is to the question in meaning. A weighted sum of them ranks the passages, and two logistic
regressions over the outcome say how likely it is that a passage holds the answer, and that one of those shown does. All
weights are in `bundled/answers.json`; `tools/bundled/answer_weights.py` fits them.

The words of passages and questions are stemmed by Snowball's rules for the language that the script tells, and function
words are left out of questions. In scripts without spaces, characters and pairs of neighbours stand for words.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from longspan.data.text.sentences import FUNCTION_WORDS, holders_of, is_unspaced, split_words
from longspan.errors import InputError
from longspan.imports import require
from longspan_documents.questions.kinds import holds_kind, kind_of, names_of, share_of_names
from longspan_documents.text.blocks import Document
from longspan_documents.text.passages import Passage, passages_of, units_of

_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:[.,'’\u00a0\u2009\u202f]\d{3})+(?![\d.,]\d)")
STEMMERS = {"en": "english", "ru": "russian", "ar": "arabic", "el": "greek", "hi": "hindi", "ta": "tamil"}
"""Language code, as the script tells it → the name of its stemmer; words of others are taken as they are."""


def stems_of(text: str, language: str) -> list[str]:
    """The stems of a text's words, in order; characters of scripts without spaces singly and with the one before.

    Numbers are there in their other spelling too: "1,920" as "1920", "1920s" as "1920".
    """
    words = split_words(text)
    pairs = [one + two for one, two in pairwise(words) if is_unspaced(one) and is_unspaced(two)]
    decades = [word[:-1] for word in words if word[-1] == "s" and word[:-1].isdigit()]
    return [_stemmer(language)(word) for word in words] + pairs + decades + _long_numbers(text)


def _long_numbers(text: str) -> list[str]:
    """The digits of the numbers that a text writes with separators of thousands."""
    return ["".join(filter(str.isdigit, number)) for number in _THOUSANDS.findall(text)]


def query_stems(question: str, language: str) -> list[str]:
    """The stems that a question is about: of its words without function words, or of all where nothing else is left."""
    words = " ".join(word for word in split_words(question) if word not in FUNCTION_WORDS)
    return stems_of(words, language) + _long_numbers(question) if words else stems_of(question, language)


@cache
def _stemmer(language: str) -> Callable[[str], str]:
    name = STEMMERS.get(language)
    if name is None:
        return str
    return require("Stemmer", extra="documents", purpose="ranking passages").Stemmer(name).stemWord


class WordIndex:
    """The words of some texts, to be searched.

    Attributes:
        language: code of the language whose rules find the stems.
    """

    def __init__(self, texts: Sequence[str], language: str) -> None:
        bm25s = require("bm25s", extra="documents", purpose="ranking passages")
        self.language = language
        stems = [stems_of(text, language) for text in texts]
        self._known = [frozenset(stemmed) for stemmed in stems]
        self._holders = holders_of(stems)
        self._index = bm25s.BM25()
        self._index.index([stemmed or [""] for stemmed in stems], show_progress=False)

    def scores(self, stems: Sequence[str]) -> np.ndarray:
        """BM25 of each of the N texts for the stems of a question: `(N,)` float64, 0 where none occurs."""
        words = [stem for stem in dict.fromkeys(stems) if stem in self._holders]
        if not words:
            return np.zeros(len(self._known))
        return np.asarray(self._index.get_scores(words), dtype=np.float64)

    def rarity(self, stem: str) -> float:
        """How much a stem tells: the log of the share of texts without it to those with it, at least 0."""
        return rarity_of(self._holders[stem], len(self._known))

    def share(self, stems: Sequence[str], known: Collection[str]) -> float:
        """The share of the stems of a question that are among the known ones, each counted by its rarity."""
        weights = {stem: self.rarity(stem) for stem in stems}
        return sum(weight for stem, weight in weights.items() if stem in known) / (sum(weights.values()) or 1.0)


def rarity_of(holders: int, count: int) -> float:
    """The rarity of a stem that stands in so many of `count` texts, as BM25 weighs it."""
    return math.log(1 + (count - holders + 0.5) / (holders + 0.5))


WEIGHTS = Path(__file__).parents[1] / "bundled" / "answers.json"

SHOWN = 3
"""Passages that the probability of an answer is about."""

WORDS = ("words",)
"""What words say of a passage: BM25 as a share of the most that the question's words can bring, so that words which
stand nowhere weigh little and leave the ranking to what follows."""
MEANING = ("nearest", "passage")
"""What an encoder adds: the cosine to the question of the nearest sentence, and of the passage."""
READ = "read"
"""What a second look at the best passages adds: their cosines to the question (`inference.passage_encoder`)."""
AGAIN = 30
"""Passages that are looked at again."""


class OutsideEncoder(Protocol):
    """An encoder of one's own, which reads passages one by one: `longspan_documents.inference.sentence_encoder`."""

    def vectors(self, texts: Sequence[str], purpose: Any = None) -> np.ndarray:
        """Vectors `(N, D)` of texts that are each a "question" or a "passage"."""
        ...

    def similarities(self, question: str, passages: np.ndarray) -> np.ndarray:
        """How near a question is to passages `(P, D)`, on a scale of its own: `(P,)`."""
        ...


class Encoder(Protocol):
    """Gives texts vectors of length 1, whose dot products are higher the nearer the texts are in meaning."""

    def embed(self, texts: list[str]) -> np.ndarray:
        """Unit vectors `(N, D)` of loose texts, such as questions."""
        ...

    def embed_document(self, sentences: list[str], firsts: Sequence[int] = ()) -> np.ndarray:
        """Unit vectors `(N + P, D)` of the sentences of one document, in order, and behind them of its passages, which
        begin with the sentences `firsts`."""
        ...


@dataclass(frozen=True, slots=True)
class Evidence:
    """What words and meaning say of N passages for one question.

    Attributes:
        names: of the F columns.
        table: `(N, F)`.
    """

    names: tuple[str, ...]
    table: np.ndarray

    def column(self, name: str) -> np.ndarray:
        """The column of this name `(N,)`; zeros where the table has none."""
        return self.table[:, self.names.index(name)] if name in self.names else np.zeros(len(self.table))

    def read_again(self, numbers: Sequence[int], cosines: np.ndarray) -> Evidence:
        """With the column `READ`: `cosines` `(M,)` of the passages of these numbers; every other passage counts as the
        least of them."""
        read = np.full(len(self.table), cosines.min())
        read[list(numbers)] = cosines
        return Evidence((*self.names, READ), np.column_stack([self.table, read]))


class PassageIndex:
    """The passages of some documents, ready to be searched.

    Args:
        documents: whose passages compete.
        language: code of the language whose rules find stems.
        encoder: what tells meanings; None goes by words alone.
        passages: those of each document, where they are known.
        outside: an encoder that takes the place of `encoder`, and reads passages one by one.

    Attributes:
        passages: of all documents, one document after the other.
        owners: for each passage the number of its document.
        texts: what is searched of each passage: the heading of its section and its words.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        language: str,
        encoder: Encoder | None = None,
        passages: Sequence[Sequence[Passage]] | None = None,
        outside: OutsideEncoder | None = None,
    ) -> None:
        self.language = language
        self._outside = outside
        self.passages: list[Passage] = []
        self.owners: list[int] = []
        vectors: list[tuple[np.ndarray, np.ndarray]] = []
        for number, document in enumerate(documents):
            units = units_of(document) if passages is None else []
            owned = passages_of(document, units) if passages is None else list(passages[number])
            self.passages += owned
            self.owners += [number] * len(owned)
            if encoder is not None:
                both = encoder.embed_document([unit.text for unit in units], [one.first for one in owned])
                vectors.append((both[: len(units)], both[len(units) :]))
        self._firsts = np.cumsum([0, *(len(one.sentences) for one in self.passages)])
        self.texts = [f"{one.heading or ''}\n{one.text}" for one in self.passages]
        self._words = WordIndex(self.texts, language)
        self._cosines = None if encoder is None else _cosines_to(encoder, vectors)
        if outside is not None:
            self._vectors = outside.vectors([one.text for one in self.passages], "passage")

    def evidence(self, question: str) -> Evidence:
        """For a question, the columns `WORDS`, with an encoder `MEANING` (the passage's alone with one of one's own),
        and "names", which ranks nothing (`named_shares`): a row for each passage."""
        stems = list(dict.fromkeys(query_stems(question, self.language)))
        columns = {"words": self._words.scores(stems) / (sum(map(self._words.rarity, stems)) or 1.0)}
        if self._cosines is not None:
            sentences, columns["passage"] = self._cosines(question)
            columns["nearest"] = np.maximum.reduceat(sentences, self._firsts[:-1])
        if self._outside is not None:
            columns["passage"] = self._outside.similarities(question, self._vectors)
        columns["names"] = named_shares(question, self.texts)
        return Evidence(tuple(columns), np.stack(list(columns.values()), axis=1))

    def sentence(self, question: str, number: int) -> int:
        """Which sentence of a passage answers the question best, counted in the passage: by the words that they share,
        by meaning, by its names and numbers, and by what is asked for."""
        stems = query_stems(question, self.language)
        texts = [one.text for one in self.passages[number].sentences]
        near = np.array([self._words.share(stems, set(stems_of(text, self.language))) for text in texts])
        if self._cosines is not None:
            near += self._cosines(question)[0][self._firsts[number] : self._firsts[number + 1]]
        if self._outside is not None:
            near += self._outside.similarities(question, self._outside.vectors(texts, "passage"))
        return best_sentence(question, texts, near)


def best_sentence(question: str, texts: Sequence[str], near: np.ndarray) -> int:
    """Which of some sentences answers, where words and meaning come `near` `(N,)` to the question: those gain that have
    its names and numbers, and what it asks for."""
    kind, names = kind_of(question), names_of(question)
    numbers = frozenset(name for name in names if name[0].isdigit())
    gains = [
        NAMED * share_of_names(names, text) + NUMBERED * share_of_names(numbers, text) + ASKED * holds_kind(kind, text)
        for text in texts
    ]
    return int((near + gains).argmax())


NAMED, NUMBERED, ASKED = 0.5, 2.0, 0.3
"""What a sentence gains by all names and numbers of the question, by its numbers, and by holding what is asked for.
Words and meaning bring at most 2, so that a sentence on 1817 comes before every one on 1801 where 1817 is asked for."""


def named_shares(question: str, texts: Sequence[str]) -> np.ndarray:
    """The share of a question's names and numbers that each of some texts has, `(N,)`."""
    names = names_of(question)
    return np.array([share_of_names(names, text) for text in texts], dtype=np.float64)


def _cosines_to(
    encoder: Encoder, vectors: Sequence[tuple[np.ndarray, np.ndarray]]
) -> Callable[[str], tuple[np.ndarray, np.ndarray]]:
    """From a question to its cosines `(N,)` with the sentences and `(P,)` with the passages of all documents; those of
    the last question are cached."""
    sentences, passages = (np.concatenate(each) for each in zip(*vectors, strict=True))

    @lru_cache(maxsize=1)
    def cosines(question: str) -> tuple[np.ndarray, np.ndarray]:
        vector = encoder.embed([question])[0]
        return (sentences @ vector).astype(np.float64), (passages @ vector).astype(np.float64)

    return cosines


@dataclass(frozen=True, slots=True)
class Ranking:
    """What the weights make of the evidence.

    Attributes:
        order: the passages from the best down.
        scores: of every passage, in the order of the index.
        passage_probabilities: that a passage holds the answer, likewise.
        probability: that one of the `SHOWN` best does.
    """

    order: tuple[int, ...]
    scores: np.ndarray
    passage_probabilities: np.ndarray
    probability: float


@dataclass(frozen=True, slots=True)
class Weights:
    """The fitted numbers.

    Attributes:
        rank: weight of each column of the evidence in a passage's score.
        passage, answer: of the two logistic regressions, see `passage_features`; each with a "bias".
        threshold: probability of an answer below which it is said to be probably not there.
        likely: probability from which on it is said to be likely.
    """

    rank: dict[str, float]
    passage: dict[str, float]
    answer: dict[str, float]
    threshold: float
    likely: float = 0.7

    def scores(self, evidence: Evidence) -> np.ndarray:
        """Scores of the N passages `(N,)`: the columns of the evidence weighted by `rank`."""
        return sum(
            (weight * evidence.column(name) for name, weight in self.rank.items()), np.zeros(len(evidence.table))
        )

    def first(self, evidence: Evidence) -> list[int]:
        """The `AGAIN` best passages, from the best down, which are looked at again."""
        return np.argsort(-self.scores(evidence), kind="stable")[:AGAIN].tolist()

    def ranking(self, evidence: Evidence) -> Ranking:
        """Scores, order and probabilities of the N passages."""
        scores = self.scores(evidence)
        order = np.argsort(-scores, kind="stable")
        features = passage_features(evidence, scores)
        return Ranking(tuple(order.tolist()), scores, logistic(self.passage, features), self.probability(features))

    def probability(self, features: Mapping[str, np.ndarray]) -> float:
        """Probability that one of the `SHOWN` best passages answers; `features` are those of `passage_features`."""
        return float(logistic(self.answer, features)[0])


def passage_features(evidence: Evidence, scores: np.ndarray) -> dict[str, np.ndarray]:
    """By name, what the logistic regressions read of each passage: `(N,)` each.

    behind: how far its score lies below the best.
    best, above, agreed: the same for all, so that probabilities fall as scores do: the best score, how far it lies
        above the median, and whether words alone agree with it: the words of the best passage as a share of the most
        that any has.
    shared, names: the same for all too: the share of the `SHOWN` best that are among the best by words alone, and the
        largest share of the question's names and numbers that one of them has.
    chance: the same for all: how much of the softmax over all scores falls to the `SHOWN` best, which is how likely one
        of them answers where some passage does, since the weights of scores are those of a likelihood.
    near, apart: the same for all, where passages were read again: the largest of their cosines, and how far it lies
        above their median.
    """
    best, words = scores.max(), evidence.column("words")
    first = np.argsort(-scores, kind="stable")[:SHOWN]
    among_best = (words[first] > 0) & (words[first] >= np.sort(words)[-len(first)])
    same = {"best": best, "above": best - np.median(scores), "agreed": words[scores.argmax()] / (words.max() or 1.0)}
    same |= {
        "shared": among_best.mean(),
        "names": evidence.column("names")[first].max(),
    }
    chances = np.exp(scores - best)
    same["chance"] = chances[first].sum() / chances.sum()
    if READ in evidence.names:
        # Those that were not read have the least of what was.
        read = np.sort(evidence.column(READ))[-AGAIN:]
        same |= {"near": read[-1], "apart": read[-1] - np.median(read)}
    return {"behind": scores - best} | {name: np.full(len(scores), value) for name, value in same.items()}


def logistic(weights: Mapping[str, float], features: Mapping[str, np.ndarray]) -> np.ndarray:
    """The sigmoid of the weighted sum of the features that have a weight, and of the bias."""
    total = weights["bias"] + sum(weight * features[name] for name, weight in weights.items() if name != "bias")
    return 1 / (1 + np.exp(-np.clip(total, -700, 700)))  # beyond that it is 0 or 1 to the last digit


@lru_cache(maxsize=4)
def load_weights(path: Path = WEIGHTS) -> dict[str, Weights]:
    """The fitted weights by what they use: "words", and "meaning" where they were fitted with an encoder too.

    Raises:
        InputError: the file is missing or damaged.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {name: Weights(**fields) for name, fields in data["weights"].items()}
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"the weights of answers in {path} are damaged ({reason}); install the package again"
        ) from error
