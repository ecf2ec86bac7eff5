"""`longspan.embed`: texts of any length in, vectors out; near vectors mean near meanings.

A document is read whole: each of its sentences gets a vector that knows what stands around it, the document the mean
of them. Loose texts (questions, titles) are read each by itself. Both lie in the same space.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from longspan.characters import mend
from longspan.errors import InputError

if TYPE_CHECKING:
    from longspan.data.text.blocks import Document
    from longspan.data.text.reading import DocumentSentence

BUNDLED = Path(__file__).parents[1] / "bundled" / "encoder"
"""The folder of the encoder that comes with the package; its README.md is the model card."""

BATCH_TOKENS = 16_384
"""Tokens, padding included, of a batch of loose texts."""


def embed(texts: str | Sequence[str], model: str | Path | Encoder | None = None) -> np.ndarray:
    """Vectors of loose texts of any length, each read by itself.

    Args:
        texts: one text, or several.
        model: None takes the bundled encoder. Else the folder of a `LongspanForSentenceEmbedding`, or what
            `load_encoder` returned.

    Returns:
        `(D,)` for one text, `(N, D)` for several; float32, of length 1. Their dot products are cosines.

    Raises:
        InputError: a text that is none, or is blank; a model that cannot be loaded or does not embed.
    """
    single = isinstance(texts, str)
    for text in [texts] if single else texts:
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"texts holds {text!r}, which says nothing; give texts with words in them")
    encoder = load_encoder(model) if model is None or isinstance(model, str | Path) else model
    found = encoder.embed([texts] if single else list(texts))
    return found[0] if single else found


@dataclass(frozen=True, kw_only=True)
class EmbeddedDocument:
    """A document's vectors.

    Attributes:
        vector: `(D,)`, of the document: the mean of its sentences' vectors, of length 1; 0 where it has none.
        vectors: `(N, D)`, of its sentences.
        sentences: N, in order, with their places.
        tokens: how many were read.
    """

    vector: np.ndarray
    vectors: np.ndarray
    sentences: tuple[DocumentSentence, ...]
    tokens: int


def embed_document(
    document: str | Path | Document, model: str | Path | Encoder | None = None, *, language: str | None = None
) -> EmbeddedDocument:
    """Vectors of a document of any length, and of its sentences, each read in it.

    Args:
        document: the text itself, a `Path` to a file of any kind that `read` knows, or what `read` gave.
        model: as in `embed`.
        language: ISO 639-1 code for cutting sentences; None guesses by the script.

    Raises:
        InputError: nothing to read, or as in `embed`.
    """
    from longspan.data.text.reading import as_document, sentences_of

    document = as_document(document)
    encoder = load_encoder(model) if model is None or isinstance(model, str | Path) else model
    sentences = tuple(sentences_of(document, language))
    vectors, tokens = encoder.read_document([sentence.text for sentence in sentences])
    return EmbeddedDocument(vector=mean_vector(vectors), vectors=vectors, sentences=sentences, tokens=tokens)


def save_vectors(
    path: Path, names: Sequence[str], documents: Sequence[EmbeddedDocument], *, sentences: bool = False
) -> None:
    """Write a .safetensors file: `documents` `(M, D)` float32 and, where asked, for each document of index i
    `sentences.i` `(N, D)` and `places.i` `(N, 2)` int64, first character and end; the names stand in its metadata."""
    from safetensors.numpy import save

    from longspan.files import whole_file

    tensors = {"documents": np.stack([document.vector for document in documents])}
    if sentences:
        for index, document in enumerate(documents):
            tensors[f"sentences.{index}"] = document.vectors
            places = [(sentence.start, sentence.end) for sentence in document.sentences]
            tensors[f"places.{index}"] = np.array(places, np.int64).reshape(-1, 2)
    with whole_file(path) as file:
        file.write_bytes(save(tensors, {"names": json.dumps(list(names))}))


def load_encoder(model: str | Path | None = None) -> Encoder:
    """Load an encoder once for many texts; argument and errors as in `embed`. The latest ones are kept."""
    return _bundled() if model is None else _load(str(model))


@lru_cache(maxsize=1)
def _bundled() -> Encoder:
    from longspan.inference.bundled import open_bundled
    from longspan.models.heads.embedding_network import EmbeddingNetwork

    return Encoder(*open_bundled(BUNDLED, EmbeddingNetwork))


@lru_cache(maxsize=2)
def _load(source: str) -> Encoder:
    from longspan.checkpoints.loading import load_pair
    from longspan.models import LongspanForSentenceEmbedding

    model, tokenizer = load_pair(source)
    if not isinstance(model, LongspanForSentenceEmbedding):
        raise InputError(
            f"model {source!r} is a {type(model).__name__}, which does not embed; give one that `longspan train` made "
            "for the task distillation"
        )
    return Encoder(model.eval(), tokenizer)


class Encoder:
    """A model that embeds, with its tokenizer.

    Attributes:
        dimensions: D, of the vectors.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.dimensions: int = model.projection.out_features

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors `(N, D)` of loose texts, each read by itself; blank ones are 0."""
        import torch

        from longspan.tasks.summaries.extraction import encode_sentences

        encoded = encode_sentences([mend(text)[0] for text in texts], self.tokenizer)
        found = np.zeros((len(texts), self.dimensions), np.float32)
        for chosen in _batches([len(ids) for ids in encoded]):
            longest = max(len(encoded[index]) for index in chosen)
            ids = torch.full((len(chosen), longest), self.tokenizer.pad_token_id)
            for row, index in zip(ids, chosen, strict=True):
                row[: len(encoded[index])] = torch.tensor(encoded[index])
            real = torch.arange(longest) < torch.tensor([[len(encoded[index])] for index in chosen])
            with torch.inference_mode():
                states = self.model.model.encoder.states(ids, real)
                found[chosen] = self.model.embed(states, torch.where(real, 0, -1), 1)[0][:, 0].float().numpy()
        found[[not text.strip() for text in texts]] = 0
        return found

    def embed_document(self, sentences: Sequence[str], firsts: Sequence[int] = ()) -> np.ndarray:
        """Vectors `(N + P, D)` of a document's sentences, each read in its document, and behind them of its passages.

        Args:
            sentences: N, in order; there may be none.
            firsts: P rising indices of the sentences with which passages begin; each ends where the next begins.
        """
        return self.read_document(sentences, firsts)[0]

    def read_document(self, sentences: Sequence[str], firsts: Sequence[int] = ()) -> tuple[np.ndarray, int]:
        """As `embed_document`, and how many tokens were read."""
        import torch

        from longspan.tasks.summaries.extraction import encode_sentences

        encoded = encode_sentences([mend(text)[0] for text in sentences], self.tokenizer)
        lengths = torch.tensor([len(ids) for ids in encoded], dtype=torch.long)
        tokens = torch.tensor([token for ids in encoded for token in ids], dtype=torch.long)
        places = torch.arange(len(encoded)).repeat_interleave(lengths)
        owners = None
        if len(firsts):
            owners = torch.searchsorted(torch.tensor(firsts), torch.arange(len(encoded)), right=True) - 1
        return self.model.embed_document(tokens, places, owners).float().numpy(), len(tokens)


def mean_vector(vectors: np.ndarray) -> np.ndarray:
    """The vector of a document from those of its sentences: `(N, D)` → `(D,)` of length 1, or 0 where there is none."""
    mean = vectors.sum(0)
    return mean / max(float(np.linalg.norm(mean)), 1e-12)


def _batches(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of texts of like length, so many together that a batch has at most `BATCH_TOKENS`, or one text."""
    found: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not found or (len(found[-1]) + 1) * lengths[index] > BATCH_TOKENS:
            found.append([])
        found[-1].append(index)
    return found
