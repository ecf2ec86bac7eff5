"""What tells a summary's sentences from the others: the weights of the package, or a model that scores sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from longspan.data.text.blocks import Document
from longspan.data.text.reading import DocumentSentence
from longspan.data.text.words import contents_of
from longspan.errors import InputError
from longspan.inference.embed import Encoder
from longspan.inference.encoders import load_encoder
from longspan.tasks.summaries.clues import Sentences
from longspan.tasks.summaries.picker import Picker
from longspan.tasks.summaries.query import asked_of

WEIGHTS = Path(__file__).parents[1] / "bundled" / "summary.safetensors"
"""What `Picker` is made of; README.md beside it says how it came about."""


class Scores(NamedTuple):
    """What a scorer makes of a document.

    Attributes:
        values: a score between 0 and 1 for each sentence.
        tokens: how many were read.
        opening: how many sentences at the beginning were taken for the document's own abstract, though nothing says so.
    """

    values: list[float]
    tokens: int
    opening: int = 0


class SentenceScorer(Protocol):
    """What `summarize` asks for scores: the package's own, or those of a model."""

    def score(self, document: Document, sentences: Sequence[DocumentSentence], words: int, query: str | None) -> Scores:
        """Score the sentences of a document.

        Args:
            document: as it was read.
            sentences: its sentences.
            words: how long the summary is to be, about.
            query: what it is to be about, or None.
        """
        ...


class PackageScorer:
    """Scores by the encoder and the weights of the package, for any length and query."""

    def __init__(self, picker: Picker, encoder: Encoder) -> None:
        self.picker = picker
        self.encoder = encoder

    def score(self, document: Document, sentences: Sequence[DocumentSentence], words: int, query: str | None) -> Scores:
        """See `SentenceScorer`; the scores fall in the order in which the sentences enter the summary."""
        clues, tokens = gather(document, sentences, self.encoder)
        asked = None if query is None else asked_of(clues, query, self.encoder.embed([query])[0])
        order = self.picker.order(clues, words, asked)
        return Scores(order.scores.tolist(), tokens, order.opening)


class ModelScorer:
    """Scores with a `LongspanForSentenceScoring` model."""

    def __init__(self, model: Any, tokenizer: Any, source: str) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.source = source

    def score(self, document: Document, sentences: Sequence[DocumentSentence], words: int, query: str | None) -> Scores:
        """See `SentenceScorer`; the length plays no part, and there can be no query."""
        import torch

        from longspan.tasks.tokenizers import encode_sentences

        if query is not None:
            raise InputError(f"model {self.source!r} reads no query; leave the query {query!r} or the model out")
        if not sentences:
            return Scores([], 0)
        encoded = encode_sentences([sentence.text for sentence in sentences], self.tokenizer)
        lengths = torch.tensor([len(ids) for ids in encoded])
        input_ids = torch.tensor([token for ids in encoded for token in ids])
        sentence_ids = torch.arange(len(encoded)).repeat_interleave(lengths)
        return Scores(self.model.score_document(input_ids, sentence_ids).sigmoid().tolist(), len(input_ids))


def package_scorer() -> PackageScorer:
    """The scorer that comes with the package.

    Raises:
        InputError: its files are missing or damaged.
    """
    return PackageScorer(Picker.load(WEIGHTS), load_encoder())


def gather(document: Document, sentences: Sequence[DocumentSentence], encoder: Encoder) -> tuple[Sentences, int]:
    """The sentences of a document with all that is known of them, and how many tokens were read.

    Args:
        document: as it was read.
        sentences: its sentences.
        encoder: gives their vectors.
    """
    texts = [sentence.text for sentence in sentences]
    vectors, tokens = encoder.read_document(texts)
    headed = [index for index, block in enumerate(document.blocks) if block.kind == "heading"]
    headings = [document.blocks[index].text for index in headed]
    title = document.title or ""
    loose = encoder.embed([*headings, title])
    blocks = np.array([sentence.block for sentence in sentences], dtype=int)
    clues = Sentences(
        texts=texts,
        contents=[contents_of(text) for text in texts],
        vectors=vectors,
        paragraphs=blocks,
        sections=np.searchsorted(headed, blocks) if headed else np.zeros(len(sentences), int),
        headings=headings,
        heading_vectors=loose[:-1],
        title=title,
        title_vector=loose[-1] if title.strip() else None,
        spoken=np.array([sentence.speaker is not None for sentence in sentences], dtype=bool),
        speakers=[sentence.speaker for sentence in sentences],
    )
    return clues, tokens
