"""Heads for a label, or a number, per document; and for the right one of several texts, by a score for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers.modeling_outputs import MultipleChoiceModelOutput, SequenceClassifierOutput
from transformers.utils import ModelOutput

from longspan.attention.base import projected
from longspan.errors import InputError
from longspan.models.embeddings import the_given
from longspan.models.heads.base import LongspanWithHead, dropout_of
from longspan.models.heads.specs import MultipleChoice, SequenceClassification
from longspan.models.losses import document_loss, token_loss
from longspan.stacks.block import activation


class ClassificationHead(nn.Module):
    """dropout, dense, activation, dropout, output on the first token (RoBERTa, Longformer, DeBERTa); or, on a pooler's
    output, dropout and output alone (BERT).
    """

    def __init__(self, config: Any, options: SequenceClassification, labels: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.dense = nn.Linear(config.states_width, width) if options.layers == "dense" else None
        self.activation = activation(options.activation)
        self.dropout = dropout_of(config, options.dropout)
        self.input_dropout = self.dropout if options.input_dropout is None else nn.Dropout(options.input_dropout)
        self.output = nn.Linear(width, labels)

    def forward(self, hidden: Tensor) -> Tensor:
        """Maps states of whole texts `(…, E)` to scores `(…, L)` of the labels, before any softmax."""
        if self.dense is not None:
            hidden = self.activation(projected(self.dense, self.input_dropout(hidden)))
        return projected(self.output, self.dropout(hidden))


class LongspanForSequenceClassification(LongspanWithHead):
    """Predicts a label, or a number, per document."""

    spec = SequenceClassification
    reads_first_token = True

    def add_layers(self, config: Any) -> None:
        self.classifier = ClassificationHead(config, self.options, config.num_labels)

    def predict(
        self, encoded: Any, attention_mask: Tensor | None, *, labels: Tensor | None = None
    ) -> SequenceClassifierOutput:
        """Returns `logits` `(B, L)`, and the loss if there are `labels`.

        Args:
            labels: `(B,)` int64 classes, `(B,)` floats for regression, or `(B, L)` for several labels at once;
                `config.problem_type` selects among these, see `document_loss`.
        """
        pooled = self.classifier.dense is None or self.model.encoder.returns.summary
        states = encoded.last_hidden_state
        first = encoded.pooler_output if pooled else self.model.encoder.first_states(states, attention_mask)
        logits = self.classifier(first)
        loss = None if labels is None else document_loss(self.config, logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)  # pyright: ignore[reportArgumentType]


@dataclass
class ChoiceStates(ModelOutput):
    """A vector for each of C choices of B questions, `(B, C, E)`."""

    pooled: Tensor | None = None
    stack_loss: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class LongspanForMultipleChoice(LongspanWithHead):
    """Selects the right one of C texts, such as a question with each of its answers, all with the same
    number of tokens.

    Inputs are `(B, C, T)`, as in transformers' classes, and so are masks, types and positions; `(C, T)` is
    a single question.
    """

    spec = MultipleChoice

    def add_layers(self, config: Any) -> None:
        self.classifier = ClassificationHead(config, self.options, labels=1)

    def encode(self, inputs: dict[str, Any], own: dict[str, Any]) -> ChoiceStates:
        """Returns the vector of each choice; the choices of all questions are one batch."""
        given = the_given(inputs["input_ids"], inputs["inputs_embeds"])
        name, plain = ("input_ids", 2) if inputs["inputs_embeds"] is None else ("inputs_embeds", 3)
        if given.dim() not in (plain, plain + 1):
            raise InputError(
                f"{name} has shape {tuple(given.shape)}; give (B, C, T), C choices for each of B questions"
            )
        several = given.dim() > plain
        questions, choices = given.shape[:2] if several else (1, len(given))
        flat = {
            name: value.flatten(0, 1) if several and isinstance(value, Tensor) else value
            for name, value in inputs.items()
        }
        encoded = self.model(**flat, return_dict=True)
        pooled = self.classifier.dense is None or self.model.encoder.returns.summary
        vectors = encoded.pooler_output
        if not pooled:
            vectors = self.model.encoder.first_states(encoded.last_hidden_state, flat["attention_mask"])
        return ChoiceStates(
            pooled=vectors.unflatten(0, (questions, choices)),
            stack_loss=encoded.stack_loss,
            hidden_states=encoded.hidden_states,
        )

    def predict(
        self, encoded: ChoiceStates, attention_mask: Tensor | None, *, labels: Tensor | None = None
    ) -> MultipleChoiceModelOutput:
        """Returns `logits` `(B, C)`; `labels` `(B,)` int64, the index of the right choice, −100 = unknown.

        `hidden_states`, if requested, are those of all choices, `(B·C, T, E)`.
        """
        assert encoded.pooled is not None
        logits = self.classifier(encoded.pooled).squeeze(-1)
        loss = None if labels is None else token_loss(logits, labels)
        return MultipleChoiceModelOutput(loss=loss, logits=logits)  # pyright: ignore[reportArgumentType]
