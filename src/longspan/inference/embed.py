"""`longspan.embed`: texts of any length in, vectors out; near vectors mean near meanings.

A document is read whole: each of its sentences gets a vector that knows what stands around it, the document the mean
of them. Loose texts (questions, titles) are read each by itself. Both lie in the same space. Any encoder can take the
place of the bundled one (`longspan.inference.encoders`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from longspan.errors import InputError
from longspan.inference.encoders import Encoder, PooledEncoder, load_encoder
from longspan.settings import check_kind, check_several, show

if TYPE_CHECKING:
    from longspan.data.text.blocks import Document
    from longspan.data.text.reading import DocumentSentence


def embed(texts: str | Sequence[str], model: str | Path | Encoder | PooledEncoder | None = None) -> np.ndarray:
    """Vectors of loose texts of any length, each read by itself.

    Args:
        texts: one text, or several.
        model: None takes the bundled encoder. Else the folder, or the Hub name, of an encoder: one that `longspan
            train` made for the task distillation, or any other, ours or published, whose token states are pooled; or
            what `load_encoder` returned.

    Returns:
        `(D,)` for one text, `(N, D)` for several; float32, of length 1. Their dot products are cosines.

    Raises:
        InputError: a text that is none, or is blank; a model that cannot be loaded or is no encoder, or that reads
            fewer tokens than a text has.
    """
    single = isinstance(texts, str)
    if not single:
        check_several(texts, "texts", "a text, or a list of texts")
    every = [texts] if single else list(texts)
    for text in every:
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"texts holds {show(text)}, which says nothing; give texts with words in them")
    encoder = _encoder(model)
    vectors = encoder.embed(every)
    return vectors[0] if single else vectors


@dataclass(frozen=True, kw_only=True)
class EmbeddedDocument:
    """A document's vectors.

    Attributes:
        vector: `(D,)`, of the document, of length 1: the mean of its sentences' vectors, or by an encoder whose states
            are pooled that of all tokens; 0 where it has none.
        vectors: `(N, D)`, of its sentences.
        sentences: N, in order, with their places.
        tokens: how many were read.
    """

    vector: np.ndarray
    vectors: np.ndarray
    sentences: tuple[DocumentSentence, ...]
    tokens: int


def embed_document(
    document: str | Path | Document,
    model: str | Path | Encoder | PooledEncoder | None = None,
    *,
    language: str | None = None,
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
    encoder = _encoder(model)
    sentences = tuple(sentences_of(document, language))
    vector, vectors, tokens = encoder.read(document, sentences)
    return EmbeddedDocument(vector=vector, vectors=vectors, sentences=sentences, tokens=tokens)


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
            spans = [(sentence.start, sentence.end) for sentence in document.sentences]
            tensors[f"places.{index}"] = np.array(spans, np.int64).reshape(-1, 2)
    with whole_file(path) as file:
        file.write_bytes(save(tensors, {"names": json.dumps(list(names))}))


def _encoder(model: Any) -> Any:
    """What `model` stands for in `embed`."""
    if model is not None and not hasattr(model, "embed"):
        check_kind(model, "model", (str, Path), "a folder, a name, or what `load_encoder` returned")
    return load_encoder(model) if model is None or isinstance(model, str | Path) else model
