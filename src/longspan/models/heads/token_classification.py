"""A label per token."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.modeling_outputs import TokenClassifierOutput

from longspan.models.heads.base import LongspanWithHead, dropout_of
from longspan.models.heads.specs import TokenClassification
from longspan.models.losses import token_loss


class LongspanForTokenClassification(LongspanWithHead):
    """A label per token."""

    spec = TokenClassification

    def add_layers(self, config: Any) -> None:
        self.dropout = dropout_of(config, self.options.dropout)
        self.classifier = nn.Linear(config.states_width, config.num_labels)

    def predict(
        self, encoded: Any, attention_mask: Tensor | None, *, labels: Tensor | None = None
    ) -> TokenClassifierOutput:
        """`logits` `(B, T, L)`; `labels` `(B, T)` int64, −100 = none."""
        logits = self.classifier(self.dropout(encoded.last_hidden_state))
        loss = None if labels is None else token_loss(logits, labels)
        return TokenClassifierOutput(loss=loss, logits=logits)  # pyright: ignore[reportArgumentType]
