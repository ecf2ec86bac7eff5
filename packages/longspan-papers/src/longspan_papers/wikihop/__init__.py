"""WikiHop: selecting the answer among candidates from several documents, as in Longformer (Beltagy et al. 2020, §5).

From data to answer::

    rows    a query, candidates and documents; synthetic rows   task      input pieces, accuracy
    head    the model class: scores over all pieces             choosing  `longspan.choose`

This module defines the options of the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from longspan.models.heads import HeadSpec
from longspan.settings import Count


@dataclass(frozen=True, kw_only=True)
class CandidateHead(HeadSpec):
    """Selects the answer to a question among candidates, over documents that are read in pieces.

    Attributes:
        pieces_at_once: number of pieces in memory at once; in training, each is recomputed in the backward pass. `None`
            keeps all of them, which is faster and gives the same result.
    """

    head: ClassVar[str] = "candidate_scoring"
    model: ClassVar[str] = "LongspanForCandidateScoring"
    module: ClassVar[str] = ".head"
    pipeline: ClassVar[str | None] = "question-answering"
    task: ClassVar[str | None] = "candidate_choice"

    pieces_at_once: Count | None = 1
