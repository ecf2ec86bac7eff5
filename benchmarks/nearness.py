"""Ways to say how near texts are to each other: sentence vectors, averaged word vectors, shared words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import numpy as np

from held_out import HeldOut
from longspan.data.text.sentences import split_words
from longspan.tasks.metrics.bootstrap import bootstrap, bootstrap_difference
from longspan_documents.inference.encoders import mean_vector
from longspan_documents.inference.ranking import FUNCTION_WORDS, WordIndex, query_stems
from measure import shown
from minilm import MiniLM

Index = Callable[[Sequence[str]], np.ndarray]
"""The sentences of a query → a score for each of the texts that it searches, `(N,)`."""


class SentenceEncoder(Protocol):
    """What our encoder, MiniLM and the averages of word vectors have in common."""

    def embed(self, texts: list[str]) -> np.ndarray: ...

    def embed_document(self, sentences: list[str]) -> np.ndarray: ...


class Method(Protocol):
    """Makes a search of the parts of a document, or of documents."""

    def parts(self, document: HeldOut) -> Index: ...

    def documents(self, documents: Sequence[HeldOut]) -> Index: ...


class BySentence:
    """Means of the vectors of sentences. A query of several sentences is read as a document, of one as a loose text."""

    def __init__(self, encoder: SentenceEncoder) -> None:
        self.encoder = encoder
        self._kept: dict[HeldOut, np.ndarray] = {}

    def vectors(self, document: HeldOut) -> np.ndarray:
        """Of its sentences, `(N, D)`; computed once."""
        if document not in self._kept:
            self._kept[document] = self.encoder.embed_document(document.sentences)
        return self._kept[document]

    def parts(self, document: HeldOut) -> Index:
        vectors = self.vectors(document)
        return self._index([mean_vector(vectors[first:end]) for first, end in document.parts])

    def documents(self, documents: Sequence[HeldOut]) -> Index:
        return self._index([mean_vector(self.vectors(one)) for one in documents])

    def _index(self, vectors: list[np.ndarray]) -> Index:
        table = np.stack(vectors)
        return lambda query: table @ self._query(query)

    def _query(self, sentences: Sequence[str]) -> np.ndarray:
        if len(sentences) == 1:
            return self.encoder.embed([sentences[0]])[0]
        return mean_vector(self.encoder.embed_document(list(sentences)))


class OfTexts(ABC):
    """Searches texts as wholes: the parts of a document, or documents."""

    def parts(self, document: HeldOut) -> Index:
        return self.index(document.texts_of_parts())

    def documents(self, documents: Sequence[HeldOut]) -> Index:
        return self.index([" ".join(one.sentences) for one in documents])

    @abstractmethod
    def index(self, texts: list[str]) -> Index: ...


class AsOneText(OfTexts):
    """Each text read as one, by a function from texts to unit vectors `(N, D)`, which may cut long ones."""

    def __init__(self, embed: Callable[[list[str]], np.ndarray]) -> None:
        self.embed = embed

    def index(self, texts: list[str]) -> Index:
        table = self.embed(texts)
        return lambda query: table @ self.embed([" ".join(query)])[0]


class SharedWords(OfTexts):
    """BM25 over stems, without function words in the query."""

    def index(self, texts: list[str]) -> Index:
        index = WordIndex(texts, "en")
        return lambda query: index.scores(query_stems(" ".join(query), "en"))


class WordVectors:
    """Averages of the vectors of word pieces in MiniLM's table, less the table's mean; function words do not count."""

    def __init__(self, teacher: MiniLM) -> None:
        table = teacher.model.get_input_embeddings().weight.detach().float().numpy()
        self.table = table - table.mean(0)
        self.tokenizer = teacher.tokenizer

    def embed(self, texts: list[str]) -> np.ndarray:
        """Unit vectors `(N, D)`; 0 for a text without words."""
        return np.stack([self._mean(text) for text in texts])

    def embed_document(self, sentences: list[str]) -> np.ndarray:
        """The same: no word's vector knows of its neighbours."""
        return self.embed(sentences)

    def _mean(self, text: str) -> np.ndarray:
        words = split_words(text)
        kept = [word for word in words if word not in FUNCTION_WORDS] or words
        ids = self.tokenizer(" ".join(kept), add_special_tokens=False, verbose=False)["input_ids"]
        return mean_vector(self.table[ids])


def place(scores: np.ndarray, right: Collection[int]) -> tuple[float, float]:
    """One over the place of the best right one, and the chance that it is first, 0 to 1.

    Equal ones stand in random order: of E wrong ones as good as R right ones, E / (R + 1) come before the first of
    these on average, and it is the first of all with probability R / (R + E).
    """
    is_right = np.zeros(len(scores), dtype=bool)
    is_right[list(right)] = True
    best = scores[is_right].max()
    before = int((scores[~is_right] > best).sum())
    wrong_ones, right_ones = int((scores[~is_right] == best).sum()), int((scores[is_right] == best).sum())
    first = right_ones / (right_ones + wrong_ones) if before == 0 else 0.0
    return 1 / (1 + before + wrong_ones / (right_ones + 1)), first


def against(task: str, names: Collection[str], run: Callable[[str], list[tuple[float, float]]]) -> list[list[str]]:
    """Rows of a table, by `run` of each name, which gives what `place` says of every query: mean reciprocal rank, how
    often the right one comes first, in percent with intervals, and the lead of the first name on each of the others."""
    rows: list[list[str]] = []
    first: list[list[float]] = []
    for name in names:
        found = run(name)
        values = [[100 * one[column] for one in found] for column in (0, 1)]
        row = [task, str(len(found)), name]
        for mine, theirs in zip(first or values, values, strict=True):
            row += [shown(bootstrap(theirs)), shown(bootstrap_difference(mine, theirs), signed=True) if first else ""]
        first = first or values
        rows.append(row)
        print(*row, flush=True)
    return rows


def rank_correlation(one: np.ndarray, two: np.ndarray) -> float:
    """Spearman's, of values that are hardly ever equal."""
    ranks = np.stack([np.argsort(np.argsort(values)) for values in (one, two)])
    return float(np.asarray(np.corrcoef(ranks))[0, 1])
