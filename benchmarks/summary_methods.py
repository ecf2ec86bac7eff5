"""The methods that summaries are compared with, and ours: each gives a score to every sentence of a document."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from summary_weights import KINDS, MOST, Taught, fit, taught

import summary_peers as peers
from kept import FOLDER, KeptEncoder, digest, kept
from longspan.data.text.sentences import split_words
from longspan_documents.inference.embed import load_encoder
from longspan_documents.inference.encoders import BUNDLED
from longspan_documents.inference.ranking import WordIndex, query_stems
from longspan_documents.inference.summarize import PackageScorer
from longspan_documents.summaries import clues, selection
from longspan_documents.summaries.extraction import salience, words_of
from longspan_documents.summaries.picker import Picker
from minilm import minilm
from summary_sets import Case

Method = Callable[[Case], np.ndarray]
"""A document → one score for each of its sentences, `(N,)`; the best first."""
OURS, RANDOM, ORACLE, LONGEST = "ours", "random", "oracle", "longest"
DRAWS = 5
"""Random summaries of each document."""
PEERS = ("lead", "TextRank", "LexRank", "LSA", "MiniLM centroid")


class Ours:
    """The summariser of the package, or one with other weights, as `longspan summarize` ranks sentences."""

    def __init__(self, picker: Picker, encoder: KeptEncoder) -> None:
        self.scorer = PackageScorer(picker, encoder)  # pyright: ignore[reportArgumentType]
        self.known: dict[tuple[tuple[str, ...], int, str | None], np.ndarray] = {}

    def __call__(self, case: Case, query: str | None = None) -> np.ndarray:
        """Scores; sentences of the document's own abstract come before all others."""
        key = case.texts, case.words, query
        if key not in self.known:
            scores = self.scorer.score(case.document, case.found, case.words, query).values
            ahead = [query is None and sentence.abstract for sentence in case.found]
            self.known[key] = np.asarray(scores) + ahead
        return self.known[key]


def encoder_of(folder: Path | None) -> KeptEncoder:
    """The bundled encoder, or that of a folder."""
    return KeptEncoder(load_encoder(folder), folder or BUNDLED)


def peers_of() -> dict[str, Method]:
    """The peers by name; MiniLM where it is installed."""
    teacher = minilm()

    def centroid(case: Case) -> np.ndarray:
        vectors = teacher.embed_document(list(case.texts))  # pyright: ignore[reportOptionalMemberAccess]
        return vectors @ vectors.mean(0)

    found: dict[str, Method] = {
        "lead": lambda case: -np.arange(len(case.texts), dtype=float),
        "TextRank": _kept_peer(peers.textrank),
        "LexRank": _kept_peer(peers.lexrank),
        "LSA": _kept_peer(peers.lsa),
        "MiniLM centroid": centroid,
    }
    return {name: method for name, method in found.items() if teacher is not None or method is not centroid}


def _kept_peer(scores: Callable[[Sequence[str]], np.ndarray]) -> Method:
    code = Path(peers.__file__).read_bytes()
    return lambda case: kept(f"peers/{scores.__name__}", [code, *case.texts], lambda: scores(case.texts))


def longest(case: Case) -> np.ndarray:
    """The number of words."""
    return np.array([len(split_words(text)) for text in case.texts], float)


def oracle(case: Case) -> np.ndarray:
    """What a sentence shares with the references: how far picking sentences one by one can get."""
    return salience([words_of(text) for text in case.texts], [words_of(text) for text in case.references])


def random(case: Case, draw: int) -> np.ndarray:
    """Any order."""
    return np.random.default_rng([draw, len(case.texts)]).random(len(case.texts))


def lexical(case: Case) -> np.ndarray:
    """BM25 of each sentence by the question's stems."""
    return WordIndex(case.texts, "en").scores(query_stems(case.question or "", "en"))


def nearest() -> Method | None:
    """MiniLM's cosine of each sentence and the question; None where it is not installed."""
    teacher = minilm()
    if teacher is None:
        return None
    return lambda case: teacher.embed_document(list(case.texts)) @ teacher.embed([case.question or ""])[0]


class Fits:
    """Weights fitted without one kind of document.

    Args:
        encoder: gives the vectors; those of the documents are kept.
        most: documents of a kind.
    """

    def __init__(self, encoder: KeptEncoder, most: int = MOST) -> None:
        self.encoder = encoder
        self.most = most
        self.documents: dict[str, list[Taught]] = {}
        recipe = Path(taught.__code__.co_filename)
        code = [Path(str(each)).read_bytes() for each in (recipe, clues.__file__, selection.__file__)]
        self.depends_on = [*code, clues.CONNECTIVE.pattern, clues.PRONOUN.pattern, encoder.name, str(most)]

    def without(self, kind: str) -> Picker:
        """Fitted on all kinds but one; kept on disk."""
        name = digest([*self.depends_on, kind])
        file = FOLDER / "weights" / f"{name}.safetensors"
        if not file.is_file():
            found = fit([each for other in KINDS if other != kind for each in self._taught(other)])
            file.parent.mkdir(parents=True, exist_ok=True)
            save_file(found, file)
        return Picker(load_file(file))

    def _taught(self, kind: str) -> list[Taught]:
        if kind not in self.documents:
            data = Path(os.environ["LONGSPAN_DATA"])
            self.documents[kind] = taught([kind], self.encoder, data, self.most)  # pyright: ignore[reportArgumentType]
        return self.documents[kind]
