"""Documents in, text out: the encoder and a decoder with `generate()`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import EncoderDecoderCache, GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from longspan.errors import InputError
from longspan.models.configuration import LongspanConfig
from longspan.models.decoder import Decoder
from longspan.models.encoder import Encoder
from longspan.models.pretrained import LongspanPreTrainedModel


class LongspanForConditionalGeneration(LongspanPreTrainedModel, GenerationMixin):
    """Encoder, decoder and a language-model head tied to the token embeddings (BART, mBART and LED fit into it)."""

    _tied_weights_keys = {  # noqa: RUF012 (a transformers convention)
        "decoder.embeddings.token.weight": "encoder.embeddings.token.weight",
        "lm_head.weight": "encoder.embeddings.token.weight",
    }

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        if config.decoder_layers < 1:
            raise InputError(
                f"decoder_layers={config.decoder_layers} leaves LongspanForConditionalGeneration without a decoder; "
                "give at least 1, or use LongspanModel"
            )
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.register_buffer("final_logits_bias", torch.zeros(1, config.vocab_size))
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, LongspanForConditionalGeneration):
            nn.init.zeros_(module.final_logits_bias)

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return self.encoder

    def get_decoder(self) -> nn.Module:
        return self.decoder

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embeddings.token

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.embeddings.token = value
        self.decoder.embeddings.token = value

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.lm_head = new_embeddings

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """`(B, T)` labels shifted right behind the start token; −100 becomes padding. Data collators call this."""
        start, pad = self.config.decoder_start_token_id, self.config.pad_token_id
        if start is None or pad is None:
            raise InputError(
                f"decoder_start_token_id={start} and pad_token_id={pad} must both be set in the configuration to make "
                "decoder inputs from labels"
            )
        shifted = functional.pad(labels[:, :-1], (1, 0), value=start)
        return shifted.masked_fill(shifted == -100, pad)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        labels: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Seq2SeqLMOutput | tuple[Any, ...]:
        """Teacher-forced logits, and the loss when `labels` are given."""
        raise NotImplementedError
