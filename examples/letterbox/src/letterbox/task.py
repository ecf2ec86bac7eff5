"""A task: the sentence that opens a letter well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from longspan_documents.summaries.extraction import Extraction


@dataclass(frozen=True, kw_only=True)
class Opening(Extraction):
    """Pick one sentence of at most so many words."""

    name: ClassVar[str] = "opening"
    summary_words: int | None = 12
