"""Which tokens of a text are not its own: the head with which ELECTRA's discriminator is trained."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.modeling_outputs import TokenClassifierOutput

from longspan.models.heads.base import LongspanWithHead
from longspan.models.heads.sentence_network import Scorer
from longspan.models.heads.specs import ReplacedTokens
from longspan.models.losses import binary_loss
from longspan.stacks.block import activation


class LongspanForReplacedTokens(LongspanWithHead):
    """Tell replaced tokens from original ones (Clark et al. 2020, ELECTRA, arXiv 2003.10555, section 3)."""

    spec = ReplacedTokens

    def add_layers(self, config: Any) -> None:
        self.discriminator = Scorer(config.states_width, activation(config.activation_function), dropout=0.0)

    def predict(
        self, encoded: Any, attention_mask: Tensor | None, *, labels: Tensor | None = None
    ) -> TokenClassifierOutput:
        """`logits` `(B, T)`; `labels` `(B, T)`, 1 = replaced, 0 = original, −100 = not counted, as is padding."""
        logits = self.discriminator(encoded.last_hidden_state)
        loss = None if labels is None else binary_loss(logits, labels, attention_mask)
        return TokenClassifierOutput(loss=loss, logits=logits)  # pyright: ignore[reportArgumentType]
