"""A score per sentence of a document: extractive summaries, answers and highlights start here."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.models.configuration import LongspanConfig
from longspan.models.encoder import Encoder, LongspanModel
from longspan.models.heads.sentence_network import ScoresSentences, mean_by_sentence, tokens_by_sentence
from longspan.models.layers import CheckpointedBlock
from longspan.models.losses import sentence_loss
from longspan.models.outputs import SentenceScoringOutput
from longspan.models.pretrained import LongspanPreTrainedModel


class LongspanForSentenceScoring(LongspanPreTrainedModel, ScoresSentences):
    """Score each sentence by the mean state of its tokens, after `config.sentence_layers` blocks over the sentences."""

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        self.model = LongspanModel(config)
        self.add_scorer(config, CheckpointedBlock)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        sentence_ids: Tensor | None = None,
        labels: Tensor | None = None,
        max_sentences: int | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        position_ids: Tensor | None = None,
        output_attentions: bool | None = None,
        **others: Any,
    ) -> SentenceScoringOutput | tuple[Any, ...]:
        """Scores `(B, N)`, and the loss when `labels` are given; inputs otherwise as in `LongspanModel.forward`.

        Args:
            sentence_ids: `(B, T)` int64, the index of the sentence that each token belongs to, −1 = none.
            labels: `(B, N)` float in [0, 1], −100 = none. A sentence without tokens is left out of the loss.
            max_sentences: N. `None` means as many as `labels` has, or else the largest index plus one.

        Raises:
            InputError: no `sentence_ids`, another shape than the input, or an index of at least N.
        """
        output: Any = self.model(
            input_ids,
            attention_mask,
            global_attention_mask,
            token_type_ids,
            inputs_embeds,
            output_hidden_states,
            output_attentions,
            return_dict=True,
            position_ids=position_ids,
            **others,
        )
        hidden = output.last_hidden_state
        sentence_ids = _checked_ids(sentence_ids, attention_mask, hidden)
        count = _sentence_count(sentence_ids, labels, max_sentences)
        means, exists = mean_by_sentence(hidden, sentence_ids, count)
        if self.sentence_layers is not None:
            means = self.sentence_layers(means, exists, tokens_by_sentence(sentence_ids, count))
        scores = self.scorer(means)
        result = SentenceScoringOutput(
            loss=None if labels is None else sentence_loss(scores, labels, exists),
            scores=scores.masked_fill(~exists, float("-inf")),
            sentence_mask=exists,
            hidden_states=output.hidden_states,
        )
        return self.finish(result, return_dict)

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
