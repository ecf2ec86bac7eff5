"""Masked tokens: the head with which encoders are trained before anything else."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput

from longspan.errors import InputError
from longspan.models.heads.base import LongspanWithHead
from longspan.models.heads.specs import MaskedLM
from longspan.models.losses import IGNORED, check_labels, token_loss
from longspan.stacks.block import activation


class MaskedLMHead(nn.Module):
    """`decoder(norm(activation(dense(x))))`: `(B, T, E)` → `(B, T, V)`; `decoder.weight` is the token table, to
    whose width the states are taken back first. Or `decoder(x)` alone."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        options, width = config.head_options(MaskedLM), config.embedding_width
        self.dense = None
        if options.layers == "single":
            self.decoder = nn.Linear(config.states_width, config.vocab_size, bias=False)
            return
        self.dense = nn.Linear(config.states_width, width)
        self.activation = activation(options.activation or config.activation_function)
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(width, config.vocab_size)

    def forward(self, hidden: Tensor) -> Tensor:
        if self.dense is None:
            return self.decoder(hidden)
        return self.decoder(self.norm(self.activation(self.dense(hidden))))


class LongspanForMaskedLM(LongspanWithHead):
    """Predict masked tokens."""

    spec = MaskedLM
    _tied_weights_keys = {"lm_head.decoder.weight": "model.encoder.embeddings.token.weight"}  # noqa: RUF012
    accepts_loss_kwargs = True  # the Trainer passes `num_items_in_batch`

    def add_layers(self, config: Any) -> None:
        self.lm_head = MaskedLMHead(config)

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        assert isinstance(new_embeddings, nn.Linear)
        self.lm_head.decoder = new_embeddings

    def predict(
        self,
        encoded: Any,
        attention_mask: Tensor | None,
        *,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        only_masked: bool | None = None,
    ) -> MaskedLMOutput:
        """`logits` `(B, T, V)`; `labels` `(B, T)` int64, −100 = not masked.

        Args:
            num_items_in_batch: divisor of the loss; `None` means the number of labels of this batch.
            only_masked: compute the vocabulary's scores only where there are labels: `logits` are `(M, V)`, M the
                number of labels in row-major order. The loss is the same. `None` does so in training with labels.
        """
        hidden = encoded.last_hidden_state
        if only_masked or (only_masked is None and self.training and labels is not None):
            if labels is None:
                raise InputError("only_masked=True needs labels; give them, or leave it out")
            check_labels(labels, hidden.shape[:-1])
            places = (labels != IGNORED).flatten().nonzero().squeeze(1)
            hidden, labels = hidden.flatten(0, 1)[places], labels.flatten()[places]
        logits = self.lm_head(hidden)
        loss = None if labels is None else token_loss(logits, labels, count=num_items_in_batch)
        return MaskedLMOutput(loss=loss, logits=logits)  # pyright: ignore[reportArgumentType]
