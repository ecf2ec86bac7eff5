"""Task heads on the encoder: masked tokens, a label per document, a label per token, an answer span."""

from __future__ import annotations

from torch import Tensor, nn

from longspan.models.blocks import activation, layer_norm
from longspan.models.configuration import LongspanConfig
from longspan.models.encoder import LongspanModel
from longspan.models.pretrained import LongspanPreTrainedModel


class MaskedLMHead(nn.Module):
    """`decoder(norm(activation(dense(x))))`: `(B, T, E)` → `(B, T, V)`; `decoder.weight` is the token table."""

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(config.masked_lm_activation or config.activation_function)
        self.norm = layer_norm(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.decoder(self.norm(self.activation(self.dense(hidden))))


class LongspanForMaskedLM(LongspanPreTrainedModel):
    """Predict masked tokens."""

    _tied_weights_keys = {"lm_head.decoder.weight": "model.encoder.embeddings.token.weight"}  # noqa: RUF012

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        self.model = LongspanModel(config)
        self.lm_head = MaskedLMHead(config)
        self.post_init()


class ClassificationHead(nn.Module):
    """dropout, dense, tanh, dropout, output (RoBERTa, Longformer), or dropout, output behind a pooler (BERT)."""

    def __init__(self, config: LongspanConfig, labels: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.dense = nn.Linear(width, width) if config.classification_head == "dense" else None
        self.output = nn.Linear(width, labels)


class LongspanForSequenceClassification(LongspanPreTrainedModel):
    """A label, or a number, per document."""

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        self.model = LongspanModel(config)
        self.classifier = ClassificationHead(config, config.num_labels or 2)
        self.post_init()


class LongspanForTokenClassification(LongspanPreTrainedModel):
    """A label per token."""

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        self.model = LongspanModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels or 2)
        self.post_init()


class LongspanForQuestionAnswering(LongspanPreTrainedModel):
    """Start and end of an answer span."""

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        self.model = LongspanModel(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()


class LongspanForSentenceScoring(LongspanPreTrainedModel):
    """A score per sentence: `scorer.dense`, `scorer.output`."""
