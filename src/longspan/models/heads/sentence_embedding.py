"""A vector per sentence of a document, each read in its document: search, clusters and summaries start here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.utils import ModelOutput

from longspan.models.heads.base import LongspanWithHead
from longspan.models.heads.embedding_network import EmbedsSentences
from longspan.models.heads.sentence_network import checked_ids
from longspan.models.heads.specs import SentenceEmbedding
from longspan.models.losses import distillation_loss


@dataclass
class SentenceEmbeddingOutput(ModelOutput):
    """Vectors of a document's sentences.

    Attributes:
        loss: scalar, see `distillation_loss`, over the sentences that have a label.
        embeddings: `(B, N, D)` of length 1; 0 for sentences that a row does not have.
        sentence_mask: `(B, N)` bool, True where the row has that sentence.
        hidden_states: per layer `(B, T, E)`, when asked for.
    """

    loss: Tensor | None = None
    embeddings: Tensor | None = None
    sentence_mask: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class LongspanForSentenceEmbedding(EmbedsSentences, LongspanWithHead):
    """Embed each sentence by the weighted sum of its tokens' states, projected and scaled to length 1."""

    spec = SentenceEmbedding

    def predict(
        self,
        encoded: Any,
        attention_mask: Tensor | None,
        *,
        sentence_ids: Tensor | None = None,
        labels: Tensor | None = None,
        max_sentences: int | None = None,
    ) -> SentenceEmbeddingOutput:
        """Vectors `(B, N, D)`, and the loss when `labels` are given.

        Args:
            sentence_ids: `(B, T)` int64, the index of the sentence that each token belongs to, −1 = none.
            labels: `(B, N, D)` float, a teacher's vectors of length 1; 0 = none.
            max_sentences: N. `None` means as many as `labels` has, or else the largest index plus one.

        Raises:
            InputError: no `sentence_ids`, another shape than the input, or an index of at least N.
        """
        hidden = encoded.last_hidden_state
        most = max_sentences if labels is None else labels.shape[1]
        sentence_ids, count = checked_ids("sentence", sentence_ids, hidden, attention_mask, most)
        embeddings, exists = self.embed(hidden, sentence_ids, count)
        return SentenceEmbeddingOutput(
            loss=None if labels is None else distillation_loss(embeddings, labels, exists),
            embeddings=embeddings,
            sentence_mask=exists,
        )
