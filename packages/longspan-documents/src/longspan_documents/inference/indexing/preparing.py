"""What an index without a model needs of a document: its passages, their words, and their vectors.

That is most of the work, and each document's is its own: `longspan_documents.mapping.indexing` has it done by several
processes.
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
"""Prepares files together: gives a function from each of them to what an index needs, None where it has changed since
or was not among them; it raises why a file cannot be read."""


@dataclass(frozen=True)
class Preparer:
    """A function from a document to what an index needs of it.

    Attributes:
        language: of the collection.
        encoder: of the passages; None where words alone are kept.
        bundled: whether that is the bundled encoder.
        source: where another one lies.
    """

    language: str
    encoder: Any
    bundled: bool
    source: str | None = None

    def __call__(self, document: Document) -> Prepared:
        """The passages of a document with their stems and vectors."""
        units = units_of(document)
        passages = passages_of(document, units)
        if self.encoder is None:
            vectors = np.zeros((len(passages), 0), np.float16)
        elif self.bundled:
            both = self.encoder.embed_document([unit.text for unit in units], [one.first for one in passages])
            vectors = both[len(units) :].astype(np.float16)
        else:
            vectors = self.encoder.vectors([one.text for one in passages], "passage").astype(np.float16)
        stems = [stems_of(f"{one.heading or ''}\n{one.text}", self.language) for one in passages]
        return Prepared(digest_of(document), encoded(document, passages), stems, vectors)
