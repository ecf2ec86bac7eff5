"""Which passages are most likely to hold the answer to a question, and how sure that is.

Each passage gets a few numbers: words shared with the question (`longspan.inference.lexical`) and, where there is an
encoder, how near its sentences are to the question in meaning. A weighted sum of them ranks the passages, and two
logistic regressions over the outcome say how likely it is that a passage holds the answer, and that one of those shown
does. All weights are in `bundled/answers.json`; `recipes/answer_weights.py` fits them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np

from longspan.data.text.blocks import Document
from longspan.data.text.passages import Passage, passages_of, units_of
from longspan.errors import InputError
from longspan.inference.lexical import WordIndex, asked_of, stems_of

WEIGHTS = Path(__file__).parents[1] / "bundled" / "answers.json"

SHOWN = 3
"""Passages that the probability of an answer is about."""

WORDS = ("words", "covered", "words around", "length")
"""What is known of a passage from its words alone."""
MEANING = ("nearest", "mean", "nearest around")
"""What an encoder adds: cosines to the question, of the nearest sentence, of all, and beside the passage."""


class Encoder(Protocol):
    """Puts texts where their meaning is: near what means the same."""

    def embed(self, texts: list[str]) -> np.ndarray:
        """Unit vectors `(N, D)` of loose texts, such as questions."""
        ...

    def embed_document(self, sentences: list[str]) -> np.ndarray:
        """Unit vectors `(N, D)` of the sentences of one document, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of N passages in the light of a question.

    Attributes:
        names: of the F columns.
        table: `(N, F)`.
    """

    names: tuple[str, ...]
    table: np.ndarray

    def column(self, name: str) -> np.ndarray:
        """`(N,)`, zeros where that is not known."""
        return self.table[:, self.names.index(name)] if name in self.names else np.zeros(len(self.table))


class PassageIndex:
    """The passages of some documents, ready to be searched.

    Attributes:
        passages: of all documents, one document after the other.
        owners: for each passage the number of its document.
    """

    def __init__(self, documents: Sequence[Document], language: str, encoder: Encoder | None = None) -> None:
        self.language = language
        self.encoder = encoder
        self.passages: list[Passage] = []
        self.owners: list[int] = []
        vectors: list[np.ndarray] = []
        for number, document in enumerate(documents):
            units = units_of(document)
            found = passages_of(document, units)
            self.passages += found
            self.owners += [number] * len(found)
            if encoder is not None:
                vectors.append(encoder.embed_document([unit.text for unit in units]))
        self._vectors = np.concatenate(vectors) if vectors else None
        self._firsts = np.cumsum([0, *(len(one.sentences) for one in self.passages)])
        self._words = WordIndex([self._searched(one) for one in self.passages], language)

    @staticmethod
    def _searched(passage: Passage) -> str:
        return f"{passage.heading or ''}\n{passage.text}"

    def evidence(self, question: str) -> Evidence:
        """What is known of every passage in the light of a question."""
        asked = asked_of(question, self.language)
        words = self._words.scores(asked)
        words = words / (words.max() or 1.0)
        length = np.log1p([sum(len(one.text) for one in passage.sentences) for passage in self.passages]) / 6 - 1
        found = (words, self._words.covered(asked), self._around(words), length)
        columns: dict[str, np.ndarray] = dict(zip(WORDS, found, strict=True))
        if (cosines := self._cosines(question)) is not None:
            nearest = np.maximum.reduceat(cosines, self._firsts[:-1])
            mean = np.add.reduceat(cosines, self._firsts[:-1]) / np.diff(self._firsts)
            columns |= dict(zip(MEANING, (nearest, mean, self._around(nearest)), strict=True))
        return Evidence(tuple(columns), np.stack(list(columns.values()), axis=1))

    def sentence(self, question: str, number: int) -> int:
        """Which sentence of a passage comes nearest to the question, counted in the passage."""
        asked = asked_of(question, self.language)
        sentences = self.passages[number].sentences
        near = np.array([self._words.share(asked, set(stems_of(one.text, self.language))) for one in sentences])
        if (cosines := self._cosines(question)) is not None:
            near += cosines[self._firsts[number] : self._firsts[number + 1]]
        return int(near.argmax())

    def _cosines(self, question: str) -> np.ndarray | None:
        """Of every sentence of all documents; None without an encoder."""
        if self.encoder is None or self._vectors is None:
            return None
        return (self._vectors @ self.encoder.embed([question])[0]).astype(np.float64)

    def _around(self, values: np.ndarray) -> np.ndarray:
        """For each passage the higher value of the two beside it in its document; 0 where there are none."""
        owners = np.array(self.owners)
        same = owners[1:] == owners[:-1]
        before, after = np.zeros_like(values), np.zeros_like(values)
        before[1:][same], after[:-1][same] = values[:-1][same], values[1:][same]
        return np.maximum(before, after)


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
        passage, answer: of the two logistic regressions, see `signs`; each with a "bias".
        threshold: probability of an answer below which "no answer" is said.
    """

    rank: dict[str, float]
    passage: dict[str, float]
    answer: dict[str, float]
    threshold: float

    def scores(self, evidence: Evidence) -> np.ndarray:
        """`(N,)`."""
        return sum(
            (weight * evidence.column(name) for name, weight in self.rank.items()), np.zeros(len(evidence.table))
        )

    def ranking(self, evidence: Evidence) -> Ranking:
        """Scores, order and probabilities of the passages."""
        scores = self.scores(evidence)
        order = np.argsort(-scores, kind="stable")
        found = signs(evidence, scores)
        probability = self.probability(answer_signs(found, order))
        return Ranking(tuple(order.tolist()), scores, logistic(self.passage, found), probability)

    def probability(self, found: Mapping[str, np.ndarray]) -> float:
        """That an answer is among the `SHOWN` best, by what `answer_signs` gave."""
        return float(logistic(self.answer, found)[0])


def signs(evidence: Evidence, scores: np.ndarray) -> dict[str, np.ndarray]:
    """What tells of each passage whether it holds the answer: its score among the others', and how near it comes."""
    best = scores.max()
    share = scores - best - np.log(np.exp(scores - best).sum())
    size = np.full(len(scores), np.log(len(scores)))
    near = {name: evidence.column(name) for name in ("covered", "nearest") if name in evidence.names}
    return {"score": scores, "share": share, "behind": scores - best, "size": size, **near}


def answer_signs(found: Mapping[str, np.ndarray], order: np.ndarray) -> dict[str, np.ndarray]:
    """The same of the best passage, with the lead over the next and the best of the `SHOWN` first, each `(1,)`."""
    first, shown = order[0], order[:SHOWN]
    second = order[1] if len(order) > 1 else first
    kept = {name: values[[first]] for name, values in found.items() if name != "behind"}
    kept["lead"] = found["behind"][[first]] - found["behind"][[second]]
    for name in ("covered", "nearest"):
        if name in found:
            kept[f"best {name}"] = found[name][shown].max(keepdims=True)
    return kept


def logistic(weights: Mapping[str, float], found: Mapping[str, np.ndarray]) -> np.ndarray:
    """The sigmoid of the weighted sum of the signs that have a weight, and of the bias."""
    total = weights["bias"] + sum(weight * found[name] for name, weight in weights.items() if name != "bias")
    return 1 / (1 + np.exp(-total))


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
