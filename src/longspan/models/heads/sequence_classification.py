"""A label, or a number, per document."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from longspan.models.encoder import first_token
from longspan.models.heads.base import LongspanWithHead, dropout_of
from longspan.models.heads.specs import SequenceClassification
from longspan.models.losses import document_loss
from longspan.stacks.block import activation


class ClassificationHead(nn.Module):
    """dropout, dense, activation, dropout, output on the first token (RoBERTa, Longformer, DeBERTa); or, on a pooler's
    output, dropout and output alone (BERT)."""

    def __init__(self, config: Any, options: SequenceClassification, labels: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.dense = nn.Linear(config.states_width, width) if options.layers == "dense" else None
        self.activation = activation(options.activation)
        self.dropout = dropout_of(config, options.dropout)
        self.input_dropout = self.dropout if options.input_dropout is None else nn.Dropout(options.input_dropout)
        self.output = nn.Linear(width, labels)

    def forward(self, hidden: Tensor) -> Tensor:
        """`(…, E)` → `(…, L)`."""
        if self.dense is not None:
            hidden = self.activation(self.dense(self.input_dropout(hidden)))
        return self.output(self.dropout(hidden))


class LongspanForSequenceClassification(LongspanWithHead):
    """A label, or a number, per document."""

    spec = SequenceClassification

    def add_layers(self, config: Any) -> None:
        self.classifier = ClassificationHead(config, self.options, config.num_labels)

    def predict(
        self, encoded: Any, attention_mask: Tensor | None, *, labels: Tensor | None = None
    ) -> SequenceClassifierOutput:
        """`logits` `(B, L)`; `labels` as `document_loss` reads them."""
        pooled = self.classifier.dense is None or self.model.encoder.returns.summary
        logits = self.classifier(encoded.pooler_output if pooled else first_token(encoded.last_hidden_state))
        loss = None if labels is None else document_loss(self.config, logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)  # pyright: ignore[reportArgumentType]
