"""Coreference model: mentions, and the antecedents of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.utils import ModelOutput

from longspan.errors import InputError
from longspan.models.heads.base import LongspanWithHead
from longspan.models.heads.sentence_network import checked_ids
from longspan.models.pieces import in_pieces
from longspan_papers.coreference import CoreferenceHead
from longspan_papers.coreference.ranking import Ranked, RanksSpans
from longspan_papers.coreference.spans import Words, gather, possible, words_of


@dataclass
class CoreferenceOutput(ModelOutput):
    """Mentions of B documents, up to K each, and their antecedents.

    Attributes:
        loss: scalar, see `LongspanForCoreference`.
        antecedent_scores: `(B, K, A + 1)`: 0 for no antecedent, then the scores of the antecedents; `-inf` for padding.
        antecedents: `(B, K, A)` int64 indices of earlier mentions; −1 = padding.
        mention_starts: `(B, K)` int64 first words, in order; −1 = padding.
        mention_ends: `(B, K)` last words, inclusive.
        mention_scores: `(B, K)`, above 0 for a span that is more likely a mention than not, if trained with
            `singletons`; `-inf` for padding.
        hidden_states: per layer `(B, T, E)`, with `output_hidden_states`.
    """

    loss: Tensor | None = None
    antecedent_scores: Tensor | None = None
    antecedents: Tensor | None = None
    mention_starts: Tensor | None = None
    mention_ends: Tensor | None = None
    mention_scores: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class LongspanForCoreference(RanksSpans, LongspanWithHead):
    """Mentions and antecedents by span ranking, see `ranking`.

    The loss of a document is the mean over its kept mentions of `−log Σ P(j)`, summed over the antecedents j in the
    same annotated cluster, or "none" if there is none. With `singletons`, a binary cross-entropy of the mention scores
    is added, over all annotated mentions and the kept spans that are not mentions. The loss of a batch is the mean over
    its documents.
    """

    spec = CoreferenceHead

    def encode(self, inputs: dict[str, Any], own: dict[str, Any]) -> Any:
        """As in the base class; input longer than the encoder's segments, or its positions, is read in segments that do
        not attend to each other and end at sentence boundaries where possible."""
        limit = self.options.segment_tokens
        if self.config.position_embedding in ("learned", "axial"):
            positions = self.config.max_position_embeddings
            limit = positions if limit is None or limit > positions else limit
        values = inputs["input_ids"] if inputs["input_ids"] is not None else inputs["inputs_embeds"]
        if limit is None or values is None or values.shape[1] <= limit:
            return super().encode(inputs, own)
        return in_pieces(self.model, inputs, own.get("sentence_ids"), limit)

    def predict(
        self,
        encoded: Any,
        attention_mask: Tensor | None,
        *,
        word_ids: Tensor | None = None,
        sentence_ids: Tensor | None = None,
        speaker_ids: Tensor | None = None,
        labels: Tensor | None = None,
        max_words: int | None = None,
    ) -> CoreferenceOutput:
        """Returns mentions and antecedents, and the loss with `labels`.

        Args:
            word_ids: `(B, T)` int64 index of the word that each token belongs to, −1 = none.
            sentence_ids: `(B, T)` int64 index of its sentence; `None` treats a document as one sentence.
            speaker_ids: `(B, T)` int64 index of the speaker, −1 = unknown; `None`: all unknown.
            labels: `(B, M, 3)` int64: first word, last word and cluster of each annotated mention; negative = padding.
                Mentions longer than `span_width`, or across sentences, cannot be found.
            max_words: N; `None` takes the largest index plus one.

        Raises:
            InputError: `word_ids` are missing, ids differ in shape from the input, or labels have another shape.
        """
        hidden = encoded.last_hidden_state
        word_ids, count = checked_ids("word", word_ids, hidden, attention_mask, max_words)
        if sentence_ids is None:
            sentence_ids = torch.where(word_ids < 0, -1, 0)
        sentence_ids, _ = checked_ids("sentence", sentence_ids, hidden, attention_mask, count)
        words = words_of(hidden, word_ids, max(count, 1), sentence_ids, speaker_ids)
        ranked = self.rank(words)
        starts, lengths, valid = ranked.mentions
        return CoreferenceOutput(
            loss=None if labels is None else self.loss(words, ranked, labels),
            antecedent_scores=ranked.pair_scores,
            antecedents=ranked.antecedents,
            mention_starts=torch.where(valid, starts, -1),
            mention_ends=torch.where(valid, starts + lengths, -1),
            mention_scores=ranked.scores,
        )

    def loss(self, words: Words, ranked: Ranked, labels: Tensor) -> Tensor:
        """Computes the scalar loss, the mean over the documents; see the class.

        Args:
            labels: `(documents, mentions, 3)` int64: first word, last word and cluster, negative for padding.

        Raises:
            InputError: `labels` have another shape.
        """
        if labels.ndim != 3 or labels.shape[0] != words.exists.shape[0] or labels.shape[-1] != 3:
            raise InputError(
                f"labels has shape {tuple(labels.shape)}; give (documents, mentions, 3) with first word, last word and "
                "cluster of each mention, negative for none"
            )
        table, findable = self.cluster_table(words, labels)
        starts, lengths, valid = ranked.mentions
        own_clusters = table.flatten(1).gather(1, starts * self.spans.longest + lengths).masked_fill(~valid, -1)
        antecedent_clusters = gather(own_clusters, ranked.antecedents.clamp(min=0)).masked_fill(
            ranked.antecedents < 0, -1
        )
        same = (own_clusters[..., None] >= 0) & (antecedent_clusters == own_clusters[..., None])
        gold = torch.cat([~same.any(-1, keepdim=True), same], -1)
        right = ranked.pair_scores.masked_fill(~gold, float("-inf")).logsumexp(-1)
        losses = (ranked.pair_scores.logsumexp(-1) - right).masked_fill(~valid, 0.0)
        loss = losses.sum(1) / valid.sum(1).clamp(min=1)
        if self.options.singletons:
            loss = loss + self.mention_loss(words, ranked, labels, findable, valid & (own_clusters < 0))
        return loss.mean()

    def cluster_table(self, words: Words, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the cluster of each span, `(B, N, L)`, −1 = none, and which labels name a span that can be found,
        `(B, M)`."""
        longest, (rows, count) = self.spans.longest, words.exists.shape
        start, end, cluster = labels.unbind(-1)
        findable = (start >= 0) & (end >= start) & (end - start < longest) & (end < count) & (cluster >= 0)
        places = torch.where(findable, start * longest + end - start, 0)
        there = possible(words, longest).flatten(1)
        findable = findable & there.gather(1, places)
        # Labels that cannot be found go to an extra slot at the end.
        places = torch.where(findable, places, count * longest)
        table = labels.new_full((rows, count * longest + 1), -1).scatter(1, places, cluster)
        return table[:, :-1].unflatten(1, (count, longest)), findable

    def mention_loss(self, words: Words, ranked: Ranked, labels: Tensor, findable: Tensor, wrong: Tensor) -> Tensor:
        """Computes `(B,)` the binary cross-entropy of mention scores: annotated mentions, and the kept spans in
        `wrong`."""
        start = labels[..., 0].masked_fill(~findable, 0)
        length = (labels[..., 1] - labels[..., 0]).masked_fill(~findable, 0)
        _, scores = self.score_spans(words, start, length)
        annotated = functional.softplus(-scores).masked_fill(~findable, 0.0).sum(1)
        rejected = functional.softplus(ranked.scores.masked_fill(~wrong, 0.0)).masked_fill(~wrong, 0.0).sum(1)
        return (annotated + rejected) / (findable.sum(1) + wrong.sum(1)).clamp(min=1)
