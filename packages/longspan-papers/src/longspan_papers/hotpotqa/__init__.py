"""HotpotQA, distractor setting: an answer from two of several paragraphs, with its supporting sentences.

Longformer's system (Beltagy et al. 2020, appendix), in two stages with the same heads. From data to score::

    rows      questions with paragraphs; synthetic ones  reading  files in HotpotQA's format
    features  model input of a question                  head     the model class: paragraphs, sentences, words, type
    task      answers from logits; two stages            metric   answer, evidence, both together

This module defines the options of the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from longspan.models.heads import HeadSpec
from longspan.models.heads.specs import Weight, four_weights
from longspan.settings import Dropout


@dataclass(frozen=True, kw_only=True)
class MultiHopHead(HeadSpec):
    """Joint prediction of paragraphs, sentences and answer words (HotpotQA).

    Attributes:
        loss_weights: of the losses of paragraphs, sentences, words and answer type.
        dropout: before the last layers of the first two; None takes the model's.
    """

    head: ClassVar[str] = "multi_hop"
    model: ClassVar[str] = "LongspanForMultiHop"
    module: ClassVar[str] = ".head"
    pipeline: ClassVar[str | None] = "question-answering"
    task: ClassVar[str | None] = "multi_hop"

    loss_weights: tuple[Weight, ...] = (1.0, 1.0, 1.0, 1.0)
    dropout: Dropout | None = None

    def __post_init__(self) -> None:
        """Raises `InputError` unless there are four weights."""
        super().__post_init__()
        four_weights(self.loss_weights, "paragraphs, sentences, words, type")
