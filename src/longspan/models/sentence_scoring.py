"""A score per sentence of a document: extractive summaries, answers and highlights start here."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from longspan.errors import InputError
from longspan.models.configuration import LongspanConfig
from longspan.models.encoder import LongspanModel
from longspan.models.losses import sentence_loss
from longspan.models.outputs import SentenceScoringOutput
from longspan.models.pretrained import LongspanPreTrainedModel
from longspan.models.segments import sums_by_sentence
from longspan.models.sentence_layers import SentenceLayers


class SentenceScorer(nn.Module):
    """`output(dropout(gelu(dense(x))))`: `(…, E)` → `(…)`."""

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = nn.GELU()
        dropout = config.classifier_dropout
        self.dropout = nn.Dropout(config.dropout if dropout is None else dropout)
        self.output = nn.Linear(config.hidden_size, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.output(self.dropout(self.activation(self.dense(hidden)))).squeeze(-1)


def mean_by_sentence(hidden: Tensor, sentence_ids: Tensor, sentences: int) -> tuple[Tensor, Tensor]:
    """Mean state of each sentence's tokens, in time and memory linear in T and N.

    Args:
        hidden: `(B, T, E)`.
        sentence_ids: `(B, T)` int64 index of each token's sentence, −1 = none.
        sentences: N.

    Returns:
        `(B, N, E)` means, 0 for sentences without tokens; `(B, N)` bool, True where a sentence has tokens.
    """
    rows, _, width = hidden.shape
    wide = torch.promote_types(hidden.dtype, torch.float32)
    sums = torch.zeros(rows * (sentences + 1), width, dtype=wide, device=hidden.device)
    sums = sums.index_add(0, _places(sentence_ids, sentences), hidden.flatten(0, 1).to(wide))
    sums = sums.unflatten(0, (rows, sentences + 1))[:, :sentences]
    counts = tokens_by_sentence(sentence_ids, sentences)
    return (sums / counts.clamp(min=1)[..., None]).to(hidden.dtype), counts > 0


def tokens_by_sentence(sentence_ids: Tensor, sentences: int) -> Tensor:
    """How many tokens each sentence has: `(B, T)` → `(B, N)` int64; arguments as in `mean_by_sentence`."""
    rows = sentence_ids.shape[0]
    place = _places(sentence_ids, sentences)
    counts = place.new_zeros(rows * (sentences + 1)).index_add(0, place, torch.ones_like(place))
    return counts.unflatten(0, (rows, sentences + 1))[:, :sentences]


def _places(sentence_ids: Tensor, sentences: int) -> Tensor:
    """Index of each token's sentence in a flat `(B · (N + 1),)`: a row's last place takes tokens of no sentence."""
    place = torch.where(sentence_ids < 0, sentences, sentence_ids)
    first = torch.arange(sentence_ids.shape[0], device=sentence_ids.device)[:, None] * (sentences + 1)
    return (place + first).flatten()


class LongspanForSentenceScoring(LongspanPreTrainedModel):
    """Score each sentence by the mean state of its tokens, after `config.sentence_layers` blocks over the sentences."""

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        self.model = LongspanModel(config)
        self.sentence_layers = SentenceLayers(config) if config.sentence_layers else None
        self.scorer = SentenceScorer(config)
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

    @torch.inference_mode()
    def score_document(self, input_ids: Tensor, sentence_ids: Tensor) -> Tensor:
        """Scores `(N,)` of one document of any length, as `forward` gives them, in the memory of a piece of it.

        Args:
            input_ids: `(T,)` int64, all real.
            sentence_ids: `(T,)` int64, rising from 0 to N − 1; every sentence has a token.
        """
        sentences = int(sentence_ids[-1]) + 1 if len(sentence_ids) else 0
        sums = sums_by_sentence(self.model.encoder, input_ids, sentence_ids, sentences)
        counts = tokens_by_sentence(sentence_ids[None], sentences)
        means = (sums[None] / counts.clamp(min=1)[..., None]).to(self.dtype)
        if self.sentence_layers is not None:
            means = self.sentence_layers(means, counts > 0, counts)
        return self.scorer(means)[0]


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
