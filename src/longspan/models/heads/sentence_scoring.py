"""A score per sentence of a document: extractive summaries, answers and highlights start here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.utils import ModelOutput

from longspan.errors import InputError
from longspan.models.encoder import Encoder
from longspan.models.heads.base import LongspanWithHead
from longspan.models.heads.sentence_network import ScoresSentences, mean_by_sentence, tokens_by_sentence
from longspan.models.heads.specs import SentenceScoring
from longspan.models.layers import CheckpointedBlock
from longspan.models.losses import sentence_loss


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


class LongspanForSentenceScoring(LongspanWithHead, ScoresSentences):
    """Score each sentence by the mean state of its tokens, after blocks over the sentences where the head has them."""

    spec = SentenceScoring

    def add_layers(self, config: Any) -> None:
        self.add_scorer(config, CheckpointedBlock)

    def predict(
        self,
        encoded: Any,
        attention_mask: Tensor | None,
        *,
        sentence_ids: Tensor | None = None,
        labels: Tensor | None = None,
        max_sentences: int | None = None,
    ) -> SentenceScoringOutput:
        """Scores `(B, N)`, and the loss when `labels` are given.

        Args:
            sentence_ids: `(B, T)` int64, the index of the sentence that each token belongs to, −1 = none.
            labels: `(B, N)` float in [0, 1], −100 = none. A sentence without tokens is left out of the loss.
            max_sentences: N. `None` means as many as `labels` has, or else the largest index plus one.

        Raises:
            InputError: no `sentence_ids`, another shape than the input, or an index of at least N.
        """
        hidden = encoded.last_hidden_state
        sentence_ids = _checked_ids(sentence_ids, attention_mask, hidden)
        count = _sentence_count(sentence_ids, labels, max_sentences)
        means, exists = mean_by_sentence(hidden, sentence_ids, count)
        if self.sentence_layers is not None:
            means = self.sentence_layers(means, exists, tokens_by_sentence(sentence_ids, count))
        scores = self.scorer(means)
        return SentenceScoringOutput(
            loss=None if labels is None else sentence_loss(scores, labels, exists),
            scores=scores.masked_fill(~exists, float("-inf")),
            sentence_mask=exists,
        )

    def encoder_network(self) -> Encoder:
        """The encoder whose states are scored."""
        return self.model.encoder


def _checked_ids(sentence_ids: Tensor | None, attention_mask: Tensor | None, hidden: Tensor) -> Tensor:
    """`sentence_ids` with −1 on padding."""
    if sentence_ids is None:
        raise InputError("sentence_ids is missing; give the index of each token's sentence, (B, T), -1 for none")
    if sentence_ids.shape != hidden.shape[:2]:
        raise InputError(
            f"sentence_ids has shape {tuple(sentence_ids.shape)} but the input is {tuple(hidden.shape[:2])}; give one "
            "index per token"
        )
    return sentence_ids if attention_mask is None else sentence_ids.masked_fill(~attention_mask.bool(), -1)


def _sentence_count(sentence_ids: Tensor, labels: Tensor | None, max_sentences: int | None) -> int:
    """N; without a given number it is read from the data."""
    given = labels.shape[1] if labels is not None else max_sentences
    if given is not None and torch.compiler.is_compiling():
        return given
    most = int(sentence_ids.max()) + 1 if sentence_ids.numel() else 0
    if given is not None and most > given:
        raise InputError(f"sentence_ids counts {most} sentences but labels or max_sentences only {given}; give more")
    return most if given is None else given
