"""Which spans of a document mean the same: mentions, and the antecedents of each."""

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
    """The mentions of B documents, up to K of each, and their antecedents.

    Attributes:
        loss: scalar, see `LongspanForCoreference`.
        antecedent_scores: `(B, K, A + 1)`: 0 for none, then those of the antecedents; `-inf` where there is none.
        antecedents: `(B, K, A)` int64 indices of earlier mentions; −1 = none.
        mention_starts: `(B, K)` int64 first words, in order; −1 where a document has fewer mentions.
        mention_ends: `(B, K)` last words, which belong to them.
        mention_scores: `(B, K)`, above 0 where a span is more likely a mention than not, if `singletons` trained it;
            `-inf` where there is none.
        hidden_states: per layer `(B, T, E)`, when asked for.
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

    The loss of a document is the mean over its kept mentions of `−log Σ P(j)` over those antecedents j in the same
    annotated cluster, or "none" where there is none such. With `singletons`, a binary cross-entropy of the mention
    scores is added: over all annotated mentions, and the kept spans that are none. The loss of a batch is the mean of
    those of its documents.
    """

    spec = CoreferenceHead

    def encode(self, inputs: dict[str, Any], own: dict[str, Any]) -> Any:
        """As the base; what is longer than the encoder's segments, or its positions, is read in several pieces that do
        not see each other, and end where a sentence does, if one ends there."""
        limit = self.options.segment_tokens
        if self.config.position_embedding in ("learned", "axial"):
            positions = self.config.max_position_embeddings
            limit = positions if limit is None or limit > positions else limit
        given = inputs["input_ids"] if inputs["input_ids"] is not None else inputs["inputs_embeds"]
        if limit is None or given is None or given.shape[1] <= limit:
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
        """Mentions and antecedents, and the loss when `labels` are given.

        Args:
            word_ids: `(B, T)` int64 index of the word that each token belongs to, −1 = none.
            sentence_ids: `(B, T)` int64 index of its sentence; `None` means that a document is one sentence.
            speaker_ids: `(B, T)` int64 index of who says it, −1 = unknown; `None` means that all are.
            labels: `(B, M, 3)` int64: first word, last word and cluster of each annotated mention; negative = none.
                Those that are longer than `span_width`, or reach over a sentence, cannot be found.
            max_words: N; `None` means the largest index plus one.

        Raises:
            InputError: no `word_ids`, ids of another shape than the input, labels of another form.
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
        """The scalar loss of a batch, the mean over its documents; the class says what is summed.

        Args:
            labels: `(documents, mentions, 3)` int64: first word, last word and cluster, negative for none.

        Raises:
            InputError: `labels` are of another shape.
        """
        if labels.ndim != 3 or labels.shape[0] != words.exists.shape[0] or labels.shape[-1] != 3:
            raise InputError(
                f"labels has shape {tuple(labels.shape)}; give (documents, mentions, 3) with first word, last word and "
                "cluster of each mention, negative for none"
            )
        table, findable = self.cluster_table(words, labels)
        starts, lengths, valid = ranked.mentions
        own = table.flatten(1).gather(1, starts * self.spans.longest + lengths).masked_fill(~valid, -1)
        theirs = gather(own, ranked.antecedents.clamp(min=0)).masked_fill(ranked.antecedents < 0, -1)
        same = (own[..., None] >= 0) & (theirs == own[..., None])
        gold = torch.cat([~same.any(-1, keepdim=True), same], -1)
        right = ranked.pair_scores.masked_fill(~gold, float("-inf")).logsumexp(-1)
        losses = (ranked.pair_scores.logsumexp(-1) - right).masked_fill(~valid, 0.0)
        loss = losses.sum(1) / valid.sum(1).clamp(min=1)
        if self.options.singletons:
            loss = loss + self.mention_loss(words, ranked, labels, findable, valid & (own < 0))
        return loss.mean()

    def cluster_table(self, words: Words, labels: Tensor) -> tuple[Tensor, Tensor]:
        """`(B, N, L)` the cluster of each span, −1 = none; and which labels name a span that can be found, `(B, M)`."""
        longest, (rows, count) = self.spans.longest, words.exists.shape
        start, end, cluster = labels.unbind(-1)
        findable = (start >= 0) & (end >= start) & (end - start < longest) & (end < count) & (cluster >= 0)
        places = torch.where(findable, start * longest + end - start, 0)
        there = possible(words, longest).flatten(1)
        findable = findable & there.gather(1, places)
        # What is not findable goes to a place of its own behind the others.
        places = torch.where(findable, places, count * longest)
        table = labels.new_full((rows, count * longest + 1), -1).scatter(1, places, cluster)
        return table[:, :-1].unflatten(1, (count, longest)), findable

    def mention_loss(self, words: Words, ranked: Ranked, labels: Tensor, findable: Tensor, wrong: Tensor) -> Tensor:
        """`(B,)` binary cross-entropy of mention scores: annotated mentions, and the kept spans that are `wrong`."""
        start = labels[..., 0].masked_fill(~findable, 0)
        length = (labels[..., 1] - labels[..., 0]).masked_fill(~findable, 0)
        _, scores = self.score_spans(words, start, length)
        annotated = functional.softplus(-scores).masked_fill(~findable, 0.0).sum(1)
        others = functional.softplus(ranked.scores.masked_fill(~wrong, 0.0)).masked_fill(~wrong, 0.0).sum(1)
        return (annotated + others) / (findable.sum(1) + wrong.sum(1)).clamp(min=1)
