"""Start and end of an answer span."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import QuestionAnsweringModelOutput

from longspan.attention.base import projected
from longspan.errors import InputError
from longspan.models.heads.base import LongspanWithHead
from longspan.models.heads.specs import QuestionAnswering
from longspan.models.losses import span_loss


class LongspanForQuestionAnswering(LongspanWithHead):
    """Start and end of an answer span."""

    spec = QuestionAnswering

    def add_layers(self, config: Any) -> None:
        self.dropout = nn.Dropout(self.options.dropout)
        self.qa_outputs = nn.Linear(config.states_width, 2)

    def predict(
        self,
        encoded: Any,
        attention_mask: Tensor | None,
        *,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
    ) -> QuestionAnsweringModelOutput:
        """Returns `start_logits` and `end_logits` `(B, T)`. Positions are `(B,)`, or `(B, K)` if any of several is
        right; the loss ignores those outside the input.

        Padding is excluded: the loss of a row is the same alone and in a batch. Heads of transformers include padding
        in the softmax, so that their loss depends on the padding, and treat a negative position as 0; without padding
        and with positions inside the row both losses are equal.
        """
        start, end = torch.unbind(projected(self.qa_outputs, self.dropout(encoded.last_hidden_state)), -1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = span_loss(start, end, start_positions, end_positions, attention_mask)
        elif start_positions is not None or end_positions is not None:
            missing = "start_positions" if start_positions is None else "end_positions"
            raise InputError(f"{missing} is missing; give both ends of the answers, or neither")
        return QuestionAnsweringModelOutput(loss=loss, start_logits=start, end_logits=end)  # pyright: ignore[reportArgumentType]
