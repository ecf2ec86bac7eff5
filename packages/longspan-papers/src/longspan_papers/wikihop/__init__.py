"""WikiHop: choosing among candidates by what several documents say, as in Longformer (Beltagy et al. 2020, section 5).

From data to answer::

    rows    a query, candidates and documents; read, made up    task      pieces for the model, accuracy
    head    the model class: scores over all pieces             choosing  `longspan.choose`

Here stands what the head can be told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from longspan.models.heads import HeadSpec
from longspan.settings import Count


@dataclass(frozen=True, kw_only=True)
class CandidateHead(HeadSpec):
    """Which of some candidates answers a question over documents that are read in pieces.

    Attributes:
        pieces_at_once: so many pieces are in memory at once; while training, each is computed a second time when its
            gradient is. `None` keeps all of them, which is faster and gives the same.
    """

    head: ClassVar[str] = "candidate_scoring"
    model: ClassVar[str] = "LongspanForCandidateScoring"
    module: ClassVar[str] = ".head"
    pipeline: ClassVar[str | None] = "question-answering"
    task: ClassVar[str | None] = "candidate_choice"

    pieces_at_once: Count | None = 1
