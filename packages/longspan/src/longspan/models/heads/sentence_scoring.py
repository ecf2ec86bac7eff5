"""Scores of the sentences of a document, for extractive summaries, answers and highlights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.utils import ModelOutput

from longspan.models.heads.base import LongspanWithHead
from longspan.models.heads.sentence_network import ScoresSentences, checked_ids, mean_by_sentence, tokens_by_sentence
from longspan.models.heads.specs import SentenceScoring
from longspan.models.losses import binary_loss
from longspan.models.pretrained import CheckpointedBlock


@dataclass
class SentenceScoringOutput(ModelOutput):
    """Scores of a document's sentences.

    Attributes:
        loss: scalar, mean binary cross-entropy over the sentences that have a label.
        scores: `(B, N)` one score per sentence (before the sigmoid); `-inf` for sentences that a row does not have.
        sentence_mask: `(B, N)` bool, True where the row has that sentence.
        hidden_states: per layer `(B, T, E)`, if requested.
    """

    loss: Tensor | None = None
    scores: Tensor | None = None
    sentence_mask: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class LongspanForSentenceScoring(ScoresSentences, LongspanWithHead):
    """Scores each sentence by the mean state of its tokens, after blocks over the sentences if the head has them."""

    spec = SentenceScoring
    block = CheckpointedBlock

    def predict(
        self,
        encoded: Any,
        attention_mask: Tensor | None,
        *,
        sentence_ids: Tensor | None = None,
        labels: Tensor | None = None,
        max_sentences: int | None = None,
    ) -> SentenceScoringOutput:
        """Returns scores `(B, N)`, and the loss if there are `labels`.

        Args:
            sentence_ids: `(B, T)` int64, the index of the sentence that each token belongs to, −1 = none.
            labels: `(B, N)` float in [0, 1], −100 = none. The loss excludes sentences without tokens.
            max_sentences: N. By default the length of `labels`, or else the largest index plus one.

        Raises:
            InputError: no `sentence_ids`, another shape than the input, or an index of at least N.
        """
        hidden = encoded.last_hidden_state
        most = max_sentences if labels is None else labels.shape[1]
        sentence_ids, count = checked_ids("sentence", sentence_ids, hidden, attention_mask, most)
        means, exists = mean_by_sentence(hidden, sentence_ids, count)
        scores = self.score(means, tokens_by_sentence(sentence_ids, count))
        return SentenceScoringOutput(
            loss=None if labels is None else binary_loss(scores, labels, exists),
            scores=scores.masked_fill(~exists, float("-inf")),
            sentence_mask=exists,
        )
