"""Heads for a label per token; or, with a single label, for whether each token has it, as ELECTRA's discriminator."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.modeling_outputs import TokenClassifierOutput

from longspan.attention.base import projected
from longspan.models.heads.base import LongspanWithHead, dropout_of
from longspan.models.heads.sentence_network import Scorer
from longspan.models.heads.specs import ReplacedTokens, TokenClassification
from longspan.models.losses import binary_loss, token_loss, with_label
from longspan.stacks.block import activation


class LongspanForTokenClassification(LongspanWithHead):
    """Predicts a label per token; a single label is trained with binary cross-entropy."""

    spec = TokenClassification
    reads_each_token = True

    def add_layers(self, config: Any) -> None:
        self.dropout = dropout_of(config, self.options.dropout)
        self.classifier = nn.Linear(config.states_width, config.num_labels)

    def counted(self, labels: Tensor, attention_mask: Tensor | None) -> Tensor:
        return with_label(labels, attention_mask if self.config.num_labels == 1 else None)

    def predict(
        self, encoded: Any, attention_mask: Tensor | None, *, labels: Tensor | None = None
    ) -> TokenClassifierOutput:
        """Returns `logits` `(B, T, L)`; `labels` `(B, T)` int64, −100 = none; with L = 1, 1 if a token has
        the label.
        """
        logits = projected(self.classifier, self.dropout(encoded.last_hidden_state))
        loss = None
        if labels is not None:
            single = self.config.num_labels == 1
            loss = binary_loss(logits[..., 0], labels, attention_mask) if single else token_loss(logits, labels)
        return TokenClassifierOutput(loss=loss, logits=logits)  # pyright: ignore[reportArgumentType]


class LongspanForReplacedTokens(LongspanWithHead):
    """Distinguishes replaced tokens from original ones (Clark et al. 2020, ELECTRA, arXiv 2003.10555, section 3)."""

    spec = ReplacedTokens
    reads_each_token = True

    def add_layers(self, config: Any) -> None:
        self.discriminator = Scorer(config.states_width, activation(config.activation_function), dropout=0.0)

    def counted(self, labels: Tensor, attention_mask: Tensor | None) -> Tensor:
        return with_label(labels, attention_mask)

    def predict(
        self, encoded: Any, attention_mask: Tensor | None, *, labels: Tensor | None = None
    ) -> TokenClassifierOutput:
        """Returns `logits` `(B, T)`; `labels` `(B, T)`, 1 = replaced, 0 = original, −100 = ignored, as is padding."""
        logits = self.discriminator(encoded.last_hidden_state)
        loss = None if labels is None else binary_loss(logits, labels, attention_mask)
        return TokenClassifierOutput(loss=loss, logits=logits)  # pyright: ignore[reportArgumentType]
