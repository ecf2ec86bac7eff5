"""Ranks passages by how likely they contain the answer to a question, and estimates the probability.

Each passage has a few features: words shared with the question, by BM25 (Robertson and Zaragoza 2009) and, with an
encoder, its similarity to the question. A weighted sum of them ranks the passages. Three logistic regressions on the
result estimate probabilities: that the documents contain an answer, and, if they do, that one of the shown passages and
that each passage contains it. The first depends on the share of answerable questions that is assumed: its log-odds are
those at equal shares plus the log-odds of that share (Bayes' rule). All weights are in `bundled/answers.json`;
`tools/bundled/answer_weights.py` fits them.

Words of passages and questions are stemmed by Snowball's rules for the language of the script, and function words of
questions are ignored. In scripts without spaces, characters and pairs of adjacent characters replace words.
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
from longspan_documents.inference.verbs import ANSWERABLE
from longspan_documents.questions.kinds import (
    EXPLAINED,
    holds_kind,
    is_question,
    kind_of,
    names_of,
    refers_back,
    share_of_names,
)
from longspan_documents.text.blocks import Document
from longspan_documents.text.passages import Passage, passages_of, units_of

_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:[.,'’\u00a0\u2009\u202f]\d{3})+(?![\d.,]\d)")
STEMMERS = {"en": "english", "ru": "russian", "ar": "arabic", "el": "greek", "hi": "hindi", "ta": "tamil"}
"""Language code, as the script determines it → name of its stemmer; words of other languages are not stemmed."""


def stems_of(text: str, language: str) -> list[str]:
    """Returns the stems of a text's words, in order; in scripts without spaces, single characters and pairs of adjacent
    ones.

    Numbers are also contained in another spelling: "1,920" as "1920", "1920s" as "1920".
    """
    words = split_words(text)
    pairs = [
        character + next_character
        for character, next_character in pairwise(words)
        if is_unspaced(character) and is_unspaced(next_character)
    ]
    decades = [word[:-1] for word in words if word[-1] == "s" and word[:-1].isdigit()]
    return [_stemmer(language)(word) for word in words] + pairs + decades + _long_numbers(text)


def _long_numbers(text: str) -> list[str]:
    """Returns the digits of the numbers that a text writes with thousands separators."""
    return ["".join(filter(str.isdigit, number)) for number in _THOUSANDS.findall(text)]


def query_stems(question: str, language: str) -> list[str]:
    """Returns the stems of a question's words without function words, or of all words if no others are left."""
    words = " ".join(word for word in split_words(question) if word not in FUNCTION_WORDS)
    return stems_of(words, language) + _long_numbers(question) if words else stems_of(question, language)


@cache
def _stemmer(language: str) -> Callable[[str], str]:
    name = STEMMERS.get(language)
    if name is None:
        return str
    return require("Stemmer", extra="documents", purpose="ranking passages").Stemmer(name).stemWord


class WordIndex:
    """A word index of texts.

    Attributes:
        language: code of the language whose stemmer is used.
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
        """Compute BM25 of each of the N texts for the stems of a question: `(N,)` float64, 0 if none occurs."""
        words = [stem for stem in dict.fromkeys(stems) if stem in self._holders]
        if not words:
            return np.zeros(len(self._known))
        return np.asarray(self._index.get_scores(words), dtype=np.float64)

    def rarity(self, stem: str) -> float:
        """Returns the rarity of a stem: the log of the ratio of texts without it to texts with it, at least 0."""
        return rarity_of(self._holders[stem], len(self._known))

    def share(self, stems: Sequence[str], known: Collection[str]) -> float:
        """Returns the share of a question's stems that are in `known`, weighted by their rarity."""
        weights = {stem: self.rarity(stem) for stem in stems}
        return sum(weight for stem, weight in weights.items() if stem in known) / (sum(weights.values()) or 1.0)


def rarity_of(holders: int, count: int) -> float:
    """Returns the rarity of a stem that occurs in `holders` of `count` texts, as BM25 weighs it."""
    return math.log(1 + (count - holders + 0.5) / (holders + 0.5))


WEIGHTS = Path(__file__).parents[1] / "bundled" / "answers.json"

SHOWN = 3
"""Number of passages that the probability of an answer refers to."""

WORDS = ("words",)
"""The evidence of words: BM25 divided by its maximum for the question's words, so that words which occur nowhere have
little weight and leave the ranking to the other evidence."""
MEANING = ("nearest", "passage")
"""The evidence of an encoder: the cosine to the question of the nearest sentence, and of the passage."""
READ = "read"
"""The evidence of reading the best passages again: their cosines to the question (`inference.passage_encoder`)."""
AGAIN = 30
"""Number of passages that are read again."""
UNLIKELY, LIKELY = 0.35, 0.7
"""Below the former probability of the documents to contain an answer, it is reported as probably not there; from the
latter probability of the shown passages on, as likely."""
STRONGEST = 2.5
"""Largest log-odds of what the features tell of an answer: 12 to 1. Features that exclude an answer in one kind of
document do not in another, such as words that differ from the question's."""
NOISE = 0.02
"""Differences of similarity that mean nothing: a spread of similarities is not smaller."""


class OutsideEncoder(Protocol):
    """An encoder that is not bundled and reads passages separately: `longspan_documents.inference.sentence_encoder`."""

    def vectors(self, texts: Sequence[str], purpose: Any = None) -> np.ndarray:
        """Returns vectors `(N, D)` of texts that are each a "question" or a "passage"."""
        ...

    def similarities(self, question: str, passages: np.ndarray) -> np.ndarray:
        """Returns similarities `(P,)` of a question to passages `(P, D)`, on the encoder's own scale."""
        ...


class Encoder(Protocol):
    """Computes unit vectors of texts, whose dot products increase with similarity of meaning."""

    def embed(self, texts: list[str]) -> np.ndarray:
        """Returns unit vectors `(N, D)` of separate texts, such as questions."""
        ...

    def embed_document(self, sentences: list[str], firsts: Sequence[int] = ()) -> np.ndarray:
        """Returns unit vectors `(N + P, D)` of the sentences of one document, in order, followed by those of its
        passages, which begin with the sentences `firsts`."""
        ...


@dataclass(frozen=True, slots=True)
class Evidence:
    """The features of N passages for one question.

    Attributes:
        names: of the F columns.
        table: `(N, F)`.
    """

    names: tuple[str, ...]
    table: np.ndarray

    def column(self, name: str) -> np.ndarray:
        """Returns the column of this name `(N,)`; zeros if the table has none."""
        return self.table[:, self.names.index(name)] if name in self.names else np.zeros(len(self.table))

    def read_again(self, numbers: Sequence[int], cosines: np.ndarray) -> Evidence:
        """Returns the evidence with the column `READ`: `cosines` `(M,)` for the passages with these indices, and their
        minimum for all others."""
        read = np.full(len(self.table), cosines.min())
        read[list(numbers)] = cosines
        return Evidence((*self.names, READ), np.column_stack([self.table, read]))


class PassageIndex:
    """The passages of documents, prepared for searching.

    Args:
        documents: the documents to search.
        language: code of the language whose stemmer is used.
        encoder: computes similarities of meaning; None ranks by words only.
        passages: the passages of each document, if they are known.
        outside: an encoder that replaces `encoder`, and reads passages separately.

    Attributes:
        passages: of all documents, in order.
        owners: for each passage the index of its document.
        texts: the searched text of each passage: the heading of its section and its words.
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
                both = encoder.embed_document([unit.text for unit in units], [passage.first for passage in owned])
                vectors.append((both[: len(units)], both[len(units) :]))
        self._firsts = np.cumsum([0, *(len(passage.sentences) for passage in self.passages)])
        self.texts = [f"{passage.heading or ''}\n{passage.text}" for passage in self.passages]
        self._words = WordIndex(self.texts, language)
        self._cosines = None if encoder is None else _cosines_to(encoder, vectors)
        if outside is not None:
            self._vectors = outside.vectors([passage.text for passage in self.passages], "passage")

    def evidence(self, question: str) -> Evidence:
        """Compute the features of each passage for a question.

        The columns are `WORDS`, with an encoder `MEANING` (with an outside encoder, only the passage's similarity), and
        "names", which does not affect the ranking (`named_shares`).
        """
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
        """Returns the index in a passage of the sentence that answers the question best; see `best_sentence`."""
        texts = [sentence.text for sentence in self.passages[number].sentences]
        return best_sentence(question, texts, self.similarity(question, number))

    def similarity(self, question: str, number: int) -> np.ndarray:
        """Computes the similarity of a passage's sentences to the question `(N,)`: shared words plus meaning."""
        stems = query_stems(question, self.language)
        texts = [sentence.text for sentence in self.passages[number].sentences]
        near = np.array([self._words.share(stems, set(stems_of(text, self.language))) for text in texts])
        if self._cosines is not None:
            near += self._cosines(question)[0][self._firsts[number] : self._firsts[number + 1]]
        if self._outside is not None:
            near += self._outside.similarities(question, self._outside.vectors(texts, "passage"))
        return near


def best_sentence(question: str, texts: Sequence[str], near: np.ndarray) -> int:
    """Returns the index of the best sentence: by its similarity `near` `(N,)` to the question, plus its names, numbers
    and the expected kind of answer.

    A sentence that is a question is no answer, and neither is one that only repeats the question where a reason, a way
    or a definition is expected. The next sentence inherits most of its similarity, as does, for those kinds, a
    sentence that refers back to the previous one: "Eagles hunt them at dawn. This is because …".
    """
    kind, names = kind_of(question), names_of(question)
    numbers = frozenset(name for name in names if name[0].isdigit())
    explained = kind in EXPLAINED
    asked = set(query_stems(question, "en")) if explained else set()
    scores = near + [NAMED * share_of_names(names, text) + NUMBERED * share_of_names(numbers, text) for text in texts]
    empty = [is_question(text) or (explained and _repeats(text, asked)) for text in texts]
    for place in range(1, len(texts)):
        if empty[place - 1] or (explained and refers_back(texts[place])):
            inherited = INHERITED * scores[place - 1] + (1 - INHERITED) * scores[place]
            scores[place] = max(scores[place], inherited)
    gain = EXPLAINING if explained else ASKED
    return int((scores + [gain * holds_kind(kind, text) for text in texts] - EMPTY * np.array(empty)).argmax())


def _repeats(text: str, asked: Collection[str]) -> bool:
    """Whether all words of an English sentence, apart from function words, are words of a question, by their stems
    `asked`."""
    words = [word for word in split_words(text) if word not in FUNCTION_WORDS]
    return bool(words) and all(set(stems_of(word, "en")) & set(asked) for word in words)


NAMED, NUMBERED, ASKED, EXPLAINING = 0.5, 2.0, 0.3, 0.5
"""Bonus of a sentence for containing all names and numbers of the question, its numbers, and the expected kind of
answer: a fact, or a reason, way or definition.

Words and meaning add up to at most 2, so for a question on 1817, a sentence on 1817 ranks before all sentences on 1801.
"""
EMPTY = 1.0
"""Penalty of a sentence that is a question or adds no word to the question."""
INHERITED = 0.8
"""Share of the previous sentence's score in the score of a sentence that continues it."""


def named_shares(question: str, texts: Sequence[str]) -> np.ndarray:
    """Returns the share of a question's names and numbers that each text contains, `(N,)`."""
    names = names_of(question)
    return np.array([share_of_names(names, text) for text in texts], dtype=np.float64)


def _cosines_to(
    encoder: Encoder, vectors: Sequence[tuple[np.ndarray, np.ndarray]]
) -> Callable[[str], tuple[np.ndarray, np.ndarray]]:
    """Returns a function from a question to its cosines `(N,)` with the sentences and `(P,)` with the passages of all
    documents; the result for the last question is cached."""
    sentences, passages = (np.concatenate(parts) for parts in zip(*vectors, strict=True))

    @lru_cache(maxsize=1)
    def cosines(question: str) -> tuple[np.ndarray, np.ndarray]:
        vector = encoder.embed([question])[0]
        return (sentences @ vector).astype(np.float64), (passages @ vector).astype(np.float64)

    return cosines


@dataclass(frozen=True, slots=True)
class Ranking:
    """A ranking of passages.

    Attributes:
        order: the passages in descending order of scores.
        scores: of every passage, in the order of the index.
        passage_probabilities: the probability of every passage to contain the answer, in the order of the index.
        there: probability that any passage does.
        probability: that one of the `SHOWN` best does.
    """

    order: tuple[int, ...]
    scores: np.ndarray
    passage_probabilities: np.ndarray
    there: float
    probability: float

    @property
    def shares(self) -> np.ndarray:
        """The scores as shares of the best one, at least 0."""
        best = self.scores.max()
        return np.maximum(self.scores, 0) / best if best > 0 else np.zeros(len(self.scores))

    def may_answer(self, threshold: float | None, *, calibrated: bool = True) -> bool:
        """Whether there may be an answer: `there` reaches `UNLIKELY`, or, if it is given, `probability` the
        `threshold`.

        If passages are ranked by words only and none contains a word of the question, there is none. This alone counts
        for probabilities that are not `calibrated`, as outside English.
        """
        if threshold is not None:
            return self.probability >= threshold
        return bool(self.scores.any()) and (not calibrated or self.there >= UNLIKELY)


@dataclass(frozen=True, slots=True)
class Weights:
    """The fitted weights.

    Attributes:
        rank: weight of each column of the evidence in a passage's score.
        there: weights of the logistic regression for the documents to contain an answer, with a "bias", if half of the
            questions have one; see `passage_features`.
        found: the same for one of the shown passages to contain it, if the documents do.
        passage: the same for a passage to contain it, if the documents do.
    """

    rank: dict[str, float]
    there: dict[str, float]
    found: dict[str, float]
    passage: dict[str, float]

    def scores(self, evidence: Evidence) -> np.ndarray:
        """Compute scores of the N passages `(N,)`: the columns of the evidence weighted by `rank`."""
        return sum(
            (weight * evidence.column(name) for name, weight in self.rank.items()), np.zeros(len(evidence.table))
        )

    def first(self, evidence: Evidence) -> list[int]:
        """Returns the `AGAIN` best passages in descending order, which are read again."""
        return np.argsort(-self.scores(evidence), kind="stable")[:AGAIN].tolist()

    def ranking(self, evidence: Evidence, answerable: float = ANSWERABLE) -> Ranking:
        """Compute scores, order and probabilities of the N passages, if a share `answerable` of questions, between 0
        and 1, has an answer."""
        scores = self.scores(evidence)
        features = passage_features(evidence, scores)
        there, found = self.probabilities({name: values[0] for name, values in features.items()}, answerable)
        return Ranking(
            order=tuple(np.argsort(-scores, kind="stable").tolist()),
            scores=scores,
            passage_probabilities=float(there) * logistic(log_odds(self.passage, features)),
            there=float(there),
            probability=float(there * found),
        )

    def probabilities(self, features: Mapping[str, Any], answerable: float) -> tuple[np.ndarray, np.ndarray]:
        """Returns the probability that the documents contain an answer, and that the shown passages do if so."""
        evidence = np.clip(log_odds(self.there, features), -STRONGEST, STRONGEST)
        return logistic(evidence + math.log(answerable / (1 - answerable))), logistic(log_odds(self.found, features))


def passage_features(evidence: Evidence, scores: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the features of the logistic regressions by name, `(N,)` each.

    - behind: difference of a passage's score from the best score.

    The others have the same value for all passages, so that probabilities decrease with scores:

    - overlap, names: the square root of the maximum word score of the `SHOWN` best passages, since the first shared
      words tell most; and the maximum share of the question's names and numbers that one of them contains.
    - near, apart: the maximum similarity of a passage, and by how many standard deviations it exceeds their mean: of
      the passages that were read again, or of all passages if none were.
    - shared: the share of the `SHOWN` best passages that are also among the best by words only.
    - chance: the share of the softmax over all scores that the `SHOWN` best have. It is the probability that one of
      them answers if any passage does, since the weights of scores maximise a likelihood.
    """
    best, words = scores.max(), evidence.column("words")
    first = np.argsort(-scores, kind="stable")[:SHOWN]
    among_best = (words[first] > 0) & (words[first] >= np.sort(words)[-len(first)])
    chances = np.exp(scores - best)
    # Passages that were not read again have the minimum.
    similar = np.sort(evidence.column(READ))[-AGAIN:] if READ in evidence.names else evidence.column("passage")
    same = {
        "overlap": math.sqrt(max(words[first].max(), 0.0)),
        "names": evidence.column("names")[first].max(),
        "near": similar.max(),
        "apart": (similar.max() - similar.mean()) / (similar.std() + NOISE),
        "shared": among_best.mean(),
        "chance": chances[first].sum() / chances.sum(),
    }
    return {"behind": scores - best} | {name: np.full(len(scores), value) for name, value in same.items()}


def log_odds(weights: Mapping[str, float], features: Mapping[str, Any]) -> Any:
    """Returns the weighted sum of the features that have a weight, plus the bias."""
    return weights["bias"] + sum(weight * features[name] for name, weight in weights.items() if name != "bias")


def logistic(value: Any) -> Any:
    """Returns the sigmoid."""
    return 1 / (1 + np.exp(-np.clip(value, -700, 700)))  # beyond that it rounds to 0 or 1


@lru_cache(maxsize=4)
def load_weights(path: Path = WEIGHTS) -> dict[str, Weights]:
    """Load the fitted weights by what they use: "words", and "meaning" if they were also fitted with an encoder.

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
