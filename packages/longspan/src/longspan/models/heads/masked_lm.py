"""The masked-language-model head, for pre-training encoders."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput

from longspan.attention.base import projected
from longspan.attention.support import supports
from longspan.errors import InputError
from longspan.models.heads.base import LongspanWithHead
from longspan.models.heads.specs import MaskedLM
from longspan.models.losses import IGNORED, check_labels, contrastive_loss, token_loss
from longspan.stacks.block import activation


class MaskedLMHead(nn.Module):
    """`decoder(norm(activation(dense(x))))`: `(B, T, E)` → `(B, T, V)`; `decoder.weight` is the token table, to whose
    width the states are projected first. With `layers="single"`, `decoder(x)`.
    """

    decoder: nn.Linear

    def __init__(self, config: Any) -> None:
        super().__init__()
        options, width = config.head_options(MaskedLM), config.embedding_width
        self.dense = None
        if options.layers == "single":
            self.decoder = nn.Linear(config.states_width, config.vocab_size, bias=config.head_bias)
            return
        self.dense = nn.Linear(config.states_width, width)
        self.activation = activation(options.activation or config.activation_function)
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(width, config.vocab_size)

    def forward(self, hidden: Tensor) -> Tensor:
        if self.dense is None:
            return projected(self.decoder, hidden)
        return projected(self.decoder, self.norm(self.activation(projected(self.dense, hidden))))


class LongspanForMaskedLM(LongspanWithHead):
    """Predicts masked tokens. With `contrast_weight`, it also predicts hidden segments (Ainslie et al. 2020, ETC,
    section 3): the state of a segment's summary token, with all words of the segment hidden, times a matrix, is
    compared with the states of the summary tokens of segments that are encoded alone. All hidden segments of the batch
    are compared, in a distributed run those of each process.
    """

    spec = MaskedLM
    reads_each_token = True
    _tied_weights_keys = {"lm_head.decoder.weight": "model.encoder.embeddings.token.weight"}  # noqa: RUF012
    accepts_loss_kwargs = True  # the Trainer passes `num_items_in_batch`

    def add_layers(self, config: Any) -> None:
        self.lm_head = MaskedLMHead(config)
        if self.options.contrast_weight:
            self.contrast = nn.Linear(config.states_width, config.states_width, bias=False)

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
        contrast_ids: Tensor | None = None,
        contrast_mask: Tensor | None = None,
        contrast_places: Tensor | None = None,
    ) -> MaskedLMOutput:
        """Returns `logits` `(B, T, V)`; `labels` `(B, T)` int64, −100 = not masked.

        Args:
            num_items_in_batch: divisor of the loss; by default the number of labels of this batch.
            only_masked: compute the vocabulary's scores only at labels: `logits` are `(M, V)`, M the number of labels
                in row-major order. The loss is the same. By default in training with labels.
            contrast_ids: `(B, K, L)` int64, the original hidden segments, each after its summary token.
            contrast_mask: `(B, K, L)`, 1/True = real.
            contrast_places: `(B, K)` int64, positions of these summary tokens in the input, −1 for none.

        Raises:
            InputError: labels or some inputs of the contrast are missing, or the head has no layer for it.
        """
        extra = None
        if self.options.contrast_weight and labels is not None and self.training:
            share = 1.0 if num_items_in_batch is None else (labels != IGNORED).sum() / num_items_in_batch
            segments = (contrast_ids, contrast_mask, contrast_places)
            extra = share * self.options.contrast_weight * self.contrast_loss(encoded.last_hidden_state, *segments)
        elif contrast_ids is not None and not self.options.contrast_weight:
            raise InputError(
                "contrast_ids were given, and head.contrast_weight=0 has no layer to compare them by; leave them out, "
                "or build the model with a weight"
            )
        hidden = encoded.last_hidden_state
        if only_masked or (only_masked is None and self.training and labels is not None):
            if labels is None:
                raise InputError("only_masked=True needs labels; give them, or leave it out")
            check_labels(labels, hidden.shape[:-1])
            places = (labels != IGNORED).flatten().nonzero().squeeze(1)
            hidden, labels = hidden.flatten(0, 1)[places], labels.flatten()[places]
        logits = self.lm_head(hidden)
        loss = None if labels is None else token_loss(logits, labels, count=num_items_in_batch)
        if loss is not None and extra is not None:
            loss = loss + extra
        return MaskedLMOutput(loss=loss, logits=logits)  # pyright: ignore[reportArgumentType]

    def contrast_loss(self, states: Tensor, ids: Tensor | None, mask: Tensor | None, places: Tensor | None) -> Tensor:
        """Returns the contrastive loss of states `(B, T, E)`, with inputs as in `predict`; without segments 0 with a
        gradient for the layer, since every process of a distributed run needs one.
        """
        if ids is None or mask is None or places is None or not bool((places >= 0).any()):
            return 0.0 * self.contrast.weight.sum()
        row, number = (places >= 0).nonzero(as_tuple=True)
        predicted = projected(self.contrast, states[row, places[row, number]])
        ids, mask = ids[row, number], mask[row, number]
        is_summary = torch.arange(ids.shape[1], device=ids.device) == 0
        config = self.config
        layers = [config.layer_attention(layer) for layer in range(config.num_hidden_layers)]
        structured = all(supports(layer, "structure") for layer in layers)
        alone = self.model(
            input_ids=ids,
            attention_mask=mask,
            global_attention_mask=is_summary.expand(ids.shape),
            belongs_to=-is_summary.long().expand(ids.shape) if structured else None,
            return_dict=True,
        )
        return contrastive_loss(predicted, alone.last_hidden_state[:, 0])
