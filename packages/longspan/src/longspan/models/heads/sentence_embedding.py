"""Embeddings of the sentences and passages of a document in context, for search, clustering and summaries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.utils import ModelOutput

from longspan.models.heads.base import LongspanWithHead
from longspan.models.heads.sentence_network import EmbedsSentences, checked_ids
from longspan.models.heads.specs import SentenceEmbedding
from longspan.models.losses import distillation_loss


@dataclass
class SentenceEmbeddingOutput(ModelOutput):
    """Embeddings of a document's sentences, followed by those of its passages.

    Attributes:
        loss: scalar, see `distillation_loss`, over those that have a label.
        embeddings: `(B, N + P, D)` of length 1; 0 for those that a row does not have.
        sentence_mask: `(B, N + P)` bool, True where the row has that sentence or passage.
        hidden_states: per layer `(B, T, E)`, if requested.
    """

    loss: Tensor | None = None
    embeddings: Tensor | None = None
    sentence_mask: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class LongspanForSentenceEmbedding(EmbedsSentences, LongspanWithHead):
    """Embeds a sentence or a passage by the weighted sum of its tokens' states, projected and scaled to length 1."""

    spec = SentenceEmbedding

    def predict(
        self,
        encoded: Any,
        attention_mask: Tensor | None,
        *,
        sentence_ids: Tensor | None = None,
        passage_ids: Tensor | None = None,
        labels: Tensor | None = None,
        max_sentences: int | None = None,
    ) -> SentenceEmbeddingOutput:
        """Returns vectors `(B, N + P, D)`, and the loss if there are `labels`.

        Args:
            sentence_ids: `(B, T)` int64, the index of the sentence that each token belongs to, −1 = none.
            passage_ids: `(B, N)` int64, the index of the passage that each sentence belongs to, −1 = none. Without them
                P is 0; with them it is the number of `labels` beyond N, or else the largest index plus one.
            labels: `(B, N + P, D)` float, a teacher's vectors of length 1; 0 = none.
            max_sentences: N. By default the length of `passage_ids` or `labels`, or else the largest index plus one.

        Raises:
            InputError: no `sentence_ids`, another shape than the input, or an index of at least N or P.
        """
        hidden = encoded.last_hidden_state
        given = passage_ids if passage_ids is not None else labels
        most = max_sentences if given is None else given.shape[1]
        sentence_ids, sentences = checked_ids("sentence", sentence_ids, hidden, attention_mask, most)
        passages = 0
        if passage_ids is not None:
            most = None if labels is None else labels.shape[1] - sentences
            passage_ids, passages = checked_ids("passage", passage_ids, passage_ids[..., None], None, most)
        embeddings, exists = self.embed(hidden, sentence_ids, sentences, passage_ids, passages)
        return SentenceEmbeddingOutput(
            loss=None if labels is None else distillation_loss(embeddings, labels, exists),
            embeddings=embeddings,
            sentence_mask=exists,
        )
