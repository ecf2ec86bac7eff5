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


@dataclass
class NaturalQuestionsOutput(ModelOutput):
    """What a chunk of a document says to a question.

    Attributes:
        loss: scalar, see `LongspanForNaturalQuestions.loss`.
        start_logits: `(B, T)` of the short answer's first token; `-inf` on padding.
        end_logits: `(B, T)` of its last token; `-inf` on padding.
        paragraph_logits: `(B, C)` of the long answer; `-inf` for paragraphs that a chunk does not have.
        answer_logits: `(B, 2)` no answer, answer; or `(B, 5)` no answer, yes, no, short answer, long answer only.
        hidden_states: per layer `(B, T, E)`, when asked for.
    """

    loss: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    paragraph_logits: Tensor | None = None
    answer_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
