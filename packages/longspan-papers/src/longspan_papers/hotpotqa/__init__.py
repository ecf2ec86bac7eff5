"""HotpotQA, distractor setting: an answer from two of several paragraphs, with the sentences that support it.

Longformer's system (Beltagy et al. 2020, appendix), in two stages with the same heads. From data to score::

    rows      questions with paragraphs, made-up ones    reading  files in HotpotQA's format
    features  what the model reads of a question         head     the model class: paragraphs, sentences, words, type
    task      answers out of logits; two stages          metric   answer, evidence, both together

Here stands what the head can be told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from longspan.models.heads import HeadSpec
from longspan.models.heads.specs import Weight, four_weights
from longspan.settings import Dropout


@dataclass(frozen=True, kw_only=True)
class MultiHopHead(HeadSpec):
    """Paragraphs, sentences and words that answer a question together (HotpotQA).

    Attributes:
        loss_weights: of the losses of paragraphs, sentences, words and answer type.
        dropout: before the last layers of the first two; None means the model's.
    """

    head: ClassVar[str] = "multi_hop"
    model: ClassVar[str] = "LongspanForMultiHop"
    module: ClassVar[str] = ".head"
    pipeline: ClassVar[str | None] = "question-answering"
    task: ClassVar[str | None] = "multi_hop"

    loss_weights: tuple[Weight, ...] = (1.0, 1.0, 1.0, 1.0)
    dropout: Dropout | None = None

    def __post_init__(self) -> None:
        """Refuse other than four weights."""
        super().__post_init__()
        four_weights(self.loss_weights, "paragraphs, sentences, words, type")
