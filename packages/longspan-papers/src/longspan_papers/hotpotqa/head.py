"""Multi-hop question answering: relevant paragraphs, supporting sentences, and the answer span, yes or no.

The heads of Longformer's HotpotQA system (Beltagy et al. 2020, appendix) over `[CLS] [q] question [/q] <t> title </t>
sentence [s] sentence [s] … <t> …` with states `h_i`::

    relevance_i = w_r · gelu(W_r h_i)      at the first token of a title: whether its paragraph is needed
    evidence_i  = w_e · gelu(W_e h_i)      at the token after a sentence: whether it is supporting
    s_i, e_i    = W_se h_i                 first and last token of the answer
    type        = W_t h_0                  words, yes, no

Logits are computed for every token; the task uses those at the positions named. The loss is a weighted sum: binary
cross-entropies of relevance and evidence, the loss of the span, for which any occurrence is correct, and the
cross-entropy of the type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from longspan.attention.base import projected
from longspan.errors import InputError
from longspan.models.encoder import first_token
from longspan.models.heads.base import LongspanWithHead
from longspan.models.heads.sentence_network import Scorer
from longspan.models.losses import binary_loss, span_loss, token_loss
from longspan_papers.hotpotqa import MultiHopHead

LABELS = ("relevance_labels", "evidence_labels", "start_positions", "end_positions", "answer_types")
"""The labels of a question and its paragraphs."""

WORDS, YES, NO = range(3)
"""Answer types."""


@dataclass
class MultiHopOutput(ModelOutput):
    """Output for B questions; logits are `-inf` on padding.

    Attributes:
        loss: scalar, see `LongspanForMultiHop`.
        relevance_logits: `(B, T)`, of a paragraph at the first token of its title.
        evidence_logits: `(B, T)`, of a sentence at the token after it.
        start_logits: `(B, T)` of the answer's first token.
        end_logits: `(B, T)` of its last token.
        type_logits: `(B, 3)`: words, yes, no.
        hidden_states: per layer `(B, T, E)`, with `output_hidden_states`.
    """

    loss: Tensor | None = None
    relevance_logits: Tensor | None = None
    evidence_logits: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    type_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class LongspanForMultiHop(LongspanWithHead):
    """Multi-hop question answering: paragraphs, sentences and answer words."""

    spec = MultiHopHead

    def add_layers(self, config: Any) -> None:
        """Creates the layers above the encoder."""
        width = config.states_width
        dropout = config.dropout if self.options.dropout is None else self.options.dropout
        self.relevance, self.evidence = (Scorer(width, nn.GELU(), dropout) for _ in range(2))
        self.qa_outputs = nn.Linear(width, 2)
        self.answer_type = nn.Linear(width, 3)

    def predict(
        self,
        encoded: Any,
        attention_mask: Tensor | None,
        *,
        relevance_labels: Tensor | None = None,
        evidence_labels: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        answer_types: Tensor | None = None,
    ) -> MultiHopOutput:
        """Returns logits of B questions, and the loss if all five labels are present.

        Args:
            relevance_labels: `(B, T)` float, 0 or 1 at the first token of a title, −100 elsewhere.
            evidence_labels: `(B, T)` float, 0 or 1 at the token after a sentence, −100 elsewhere.
            start_positions: `(B, K)` int64, the first token of each occurrence of the answer; negative = padding.
            end_positions: `(B, K)`, their last tokens.
            answer_types: `(B,)` int64: 0 words, 1 yes, 2 no; −100 = ignored.

        Raises:
            InputError: some labels without the others, or of another shape; an empty input.
        """
        hidden = encoded.last_hidden_state
        first = first_token(hidden, attention_mask)
        start, end = projected(self.qa_outputs, hidden).unbind(-1)
        logits = [self.relevance(hidden), self.evidence(hidden), start, end]
        if attention_mask is not None:
            padding = ~attention_mask.bool()
            logits = [logit.masked_fill(padding, float("-inf")) for logit in logits]
        kinds = projected(self.answer_type, first)
        labels = (relevance_labels, evidence_labels, start_positions, end_positions, answer_types)
        relevance, evidence, start, end = logits
        return MultiHopOutput(
            loss=self.loss(logits, kinds, labels, attention_mask),
            relevance_logits=relevance,
            evidence_logits=evidence,
            start_logits=start,
            end_logits=end,
            type_logits=kinds,
        )

    def loss(
        self, logits: list[Tensor], kinds: Tensor, labels: tuple[Tensor | None, ...], mask: Tensor | None
    ) -> Tensor | None:
        """Computes the scalar sum of the four losses, weighted by `loss_weights`; `None` without labels.

        Args:
            logits: of paragraphs, sentences, starts and ends, each `(B, T)`.
            kinds: `(B, kinds)`, logits of the answer type.
            labels: those of `LABELS`, in that order.
            mask: `(B, T)` bool, True for real tokens.

        Raises:
            InputError: some labels are passed without the others.
        """
        labels_by_name = dict(zip(LABELS, labels, strict=True))
        wanted = [label for label in labels if label is not None]
        if not wanted:
            return None
        if missing := [name for name, each in labels_by_name.items() if each is None]:
            raise InputError(f"{missing[0]} is missing; give all of {', '.join(LABELS)}, or none of them")
        relevant, evident, starts, ends, types = wanted
        losses = (
            binary_loss(logits[0], relevant, mask),
            binary_loss(logits[1], evident, mask),
            span_loss(logits[2], logits[3], starts, ends, mask),
            token_loss(kinds, types.flatten()),
        )
        return torch.stack([w * each for w, each in zip(self.options.loss_weights, losses, strict=True)]).sum()
