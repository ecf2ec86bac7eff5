"""Preparation of documents for an index without a model: passages, their stems and their vectors.

This is most of the work, and independent for each document, so `longspan_documents.mapping.indexing` distributes it
over several processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longspan_documents.inference.indexing.parts import Prepared, encoded
from longspan_documents.inference.indexing.sources import digest_of
from longspan_documents.inference.ranking import stems_of
from longspan_documents.text.blocks import Document
from longspan_documents.text.passages import passages_of, units_of

Ahead = Callable[["Preparer", list[Path]], Callable[[Path], Prepared | None]]
"""Prepares files together; returns a function from each file to its prepared document. It returns None if the file has
changed since or was not among them, and raises the error of an unreadable file."""


@dataclass(frozen=True)
class Preparer:
    """A function that prepares a document for an index.

    Attributes:
        language: of the collection.
        encoder: of the passages; None if the index contains words only.
        bundled: whether this is the bundled encoder.
        source: folder or name of another encoder.
    """

    language: str
    encoder: Any
    bundled: bool
    source: str | None = None

    def __call__(self, document: Document) -> Prepared:
        """Returns the passages of a document with their stems and vectors."""
        units = units_of(document)
        passages = passages_of(document, units)
        if self.encoder is None:
            vectors = np.zeros((len(passages), 0), np.float16)
        elif self.bundled:
            both = self.encoder.embed_document([unit.text for unit in units], [passage.first for passage in passages])
            vectors = both[len(units) :].astype(np.float16)
        else:
            vectors = self.encoder.vectors([passage.text for passage in passages], "passage").astype(np.float16)
        stems = [stems_of(f"{passage.heading or ''}\n{passage.text}", self.language) for passage in passages]
        return Prepared(digest_of(document), encoded(document, passages), stems, vectors)
