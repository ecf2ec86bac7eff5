"""What the models return, beyond the outputs that transformers already defines."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from transformers.utils import ModelOutput


@dataclass
class SentenceScoringOutput(ModelOutput):
    """Scores of a document's sentences.

    Attributes:
        loss: scalar, mean binary cross-entropy over the sentences that have a label.
        scores: `(B, N)` one score per sentence (before the sigmoid); `-inf` for sentences that a row does not have.
        sentence_mask: `(B, N)` bool, True where the row has that sentence.
        hidden_states: per layer `(B, T, E)`, when asked for.
    """

    loss: Tensor | None = None
    scores: Tensor | None = None
    sentence_mask: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
