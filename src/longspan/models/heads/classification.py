"""Task heads on the encoder: masked tokens, a label per document, a label per token, an answer span."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import (
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

from longspan.errors import InputError
from longspan.models.configuration import LongspanConfig
from longspan.models.encoder import LongspanModel, first_token
from longspan.models.losses import IGNORED, document_loss, span_loss, token_loss
from longspan.models.pretrained import LongspanPreTrainedModel
from longspan.stacks.block import activation


class LongspanWithHead(LongspanPreTrainedModel):
    """Base of the heads: `self.model` is the encoder, and `encode` runs it."""

    model: LongspanModel

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        self.model = LongspanModel(config)

    def encode(self, *inputs: Any, **named: Any) -> Any:
        """The encoder's output, always with names, for arguments of `LongspanModel.forward`."""
        return self.model(*inputs, **named, return_dict=True)


class MaskedLMHead(nn.Module):
    """`decoder(norm(activation(dense(x))))`: `(B, T, E)` → `(B, T, V)`; `decoder.weight` is the token table, to
    whose width the states are taken back first."""

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__()
        width = config.embedding_width
        self.dense = nn.Linear(config.hidden_size, width)
        self.activation = activation(config.masked_lm_activation or config.activation_function)
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(width, config.vocab_size)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.decoder(self.norm(self.activation(self.dense(hidden))))


class LongspanForMaskedLM(LongspanWithHead):
    """Predict masked tokens."""

    _tied_weights_keys = {"lm_head.decoder.weight": "model.encoder.embeddings.token.weight"}  # noqa: RUF012
    accepts_loss_kwargs = True  # the Trainer passes `num_items_in_batch`

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        self.lm_head = MaskedLMHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        assert isinstance(new_embeddings, nn.Linear)
        self.lm_head.decoder = new_embeddings

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        only_labelled: bool | None = None,
        position_ids: Tensor | None = None,
        output_attentions: bool | None = None,
        **others: Any,
    ) -> MaskedLMOutput | tuple[Any, ...]:
        """`logits` `(B, T, V)`; `labels` `(B, T)` int64, −100 = not masked. Inputs as in `LongspanModel.forward`.

        Args:
            only_labelled: compute the vocabulary's scores only where there are labels: `logits` are `(M, V)`, M the
                number of labels in row-major order. The loss is the same. `None` does so in training with labels.
        """
        output = self.encode(
            input_ids,
            attention_mask,
            global_attention_mask,
            token_type_ids,
            inputs_embeds,
            output_hidden_states,
            output_attentions,
            position_ids=position_ids,
            **others,
        )
        hidden = output.last_hidden_state
        if only_labelled or (only_labelled is None and self.training and labels is not None):
            if labels is None:
                raise InputError("only_labelled=True needs labels; give them, or leave it out")
            hidden, labels = labelled(hidden, labels)
        logits = self.lm_head(hidden)
        result = MaskedLMOutput(
            loss=None if labels is None else token_loss(logits, labels, count=num_items_in_batch),
            logits=logits,
            hidden_states=output.hidden_states,
        )
        return self.finish(result, return_dict)


def labelled(hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The states `(B, T, E)` that have a label, and their labels: `(M, E)` and `(M,)`."""
    if labels.shape != hidden.shape[:-1]:
        raise InputError(
            f"labels has shape {tuple(labels.shape)}, the input {tuple(hidden.shape[:-1])}; give one label each"
        )
    places = (labels != IGNORED).flatten().nonzero().squeeze(1)
    return hidden.flatten(0, 1)[places], labels.flatten()[places]


class ClassificationHead(nn.Module):
    """dropout, dense, activation, dropout, output on the first token (RoBERTa, Longformer, DeBERTa); or, on a pooler's
    output, dropout and output alone (BERT)."""

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.dense = nn.Linear(width, width) if config.classification_head == "dense" else None
        self.activation = activation(config.classifier_activation)
        self.dropout = classifier_dropout(config)
        before = config.classifier_input_dropout
        self.input_dropout = self.dropout if before is None else nn.Dropout(before)
        self.output = nn.Linear(width, label_count(config))

    def forward(self, hidden: Tensor) -> Tensor:
        """`(B, E)` → `(B, L)`."""
        if self.dense is not None:
            hidden = self.activation(self.dense(self.input_dropout(hidden)))
        return self.output(self.dropout(hidden))


def classifier_dropout(config: LongspanConfig) -> nn.Dropout:
    """The dropout of classification heads."""
    return nn.Dropout(config.dropout if config.classifier_dropout is None else config.classifier_dropout)


def label_count(config: LongspanConfig) -> int:
    """L, the number of labels (or of numbers to predict)."""
    assert config.num_labels is not None
    return config.num_labels


class LongspanForSequenceClassification(LongspanWithHead):
    """A label, or a number, per document."""

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        self.classifier = ClassificationHead(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        position_ids: Tensor | None = None,
        output_attentions: bool | None = None,
        **others: Any,
    ) -> SequenceClassifierOutput | tuple[Any, ...]:
        """`logits` `(B, L)`; `labels` as `document_loss` reads them. Inputs as in `LongspanModel.forward`."""
        output = self.encode(
            input_ids,
            attention_mask,
            global_attention_mask,
            token_type_ids,
            inputs_embeds,
            output_hidden_states,
            output_attentions,
            position_ids=position_ids,
            **others,
        )
        pooled = self.config.classification_head == "pooler"
        logits = self.classifier(output.pooler_output if pooled else first_token(output.last_hidden_state))
        result = SequenceClassifierOutput(
            loss=None if labels is None else document_loss(self.config, logits, labels),
            logits=logits,
            hidden_states=output.hidden_states,
        )
        return self.finish(result, return_dict)


class LongspanForTokenClassification(LongspanWithHead):
    """A label per token."""

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, label_count(config))
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        position_ids: Tensor | None = None,
        output_attentions: bool | None = None,
        **others: Any,
    ) -> TokenClassifierOutput | tuple[Any, ...]:
        """`logits` `(B, T, L)`; `labels` `(B, T)` int64, −100 = none. Inputs as in `LongspanModel.forward`."""
        output = self.encode(
            input_ids,
            attention_mask,
            global_attention_mask,
            token_type_ids,
            inputs_embeds,
            output_hidden_states,
            output_attentions,
            position_ids=position_ids,
            **others,
        )
        logits = self.classifier(self.dropout(output.last_hidden_state))
        result = TokenClassifierOutput(
            loss=None if labels is None else token_loss(logits, labels),
            logits=logits,
            hidden_states=output.hidden_states,
        )
        return self.finish(result, return_dict)


class LongspanForQuestionAnswering(LongspanWithHead):
    """Start and end of an answer span."""

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        self.dropout = nn.Dropout(config.span_dropout)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        position_ids: Tensor | None = None,
        output_attentions: bool | None = None,
        **others: Any,
    ) -> QuestionAnsweringModelOutput | tuple[Any, ...]:
        """`start_logits` and `end_logits` `(B, T)`; positions `(B,)` outside the input are ignored by the loss.
        Inputs as in `LongspanModel.forward`."""
        if (start_positions is None) != (end_positions is None):
            missing = "start_positions" if start_positions is None else "end_positions"
            raise InputError(f"{missing} is missing; give both ends of the answers, or neither")
        output = self.encode(
            input_ids,
            attention_mask,
            global_attention_mask,
            token_type_ids,
            inputs_embeds,
            output_hidden_states,
            output_attentions,
            position_ids=position_ids,
            **others,
        )
        start, end = torch.unbind(self.qa_outputs(self.dropout(output.last_hidden_state)), -1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = span_loss(start, end, start_positions, end_positions)
        result = QuestionAnsweringModelOutput(
            loss=loss, start_logits=start, end_logits=end, hidden_states=output.hidden_states
        )
        return self.finish(result, return_dict)
