"""What writes, without its head: the base model of the classes with `generate()`."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import Cache
from transformers.modeling_outputs import Seq2SeqModelOutput

from longspan.errors import InputError
from longspan.models.configuration import LongspanConfig
from longspan.models.decoder import Decoder
from longspan.models.encoder import Encoder
from longspan.models.outputs import DecoderOutput
from longspan.models.pretrained import LongspanPreTrainedModel, refuse_attentions, refuse_others


class LongspanTrunk(LongspanPreTrainedModel):
    """The encoder and the decoder of a model, or the decoder alone where there is no encoder.

    `model.base_model` of a class that writes is one, over the modules of the model itself; `from_pretrained` reads one
    from the folder of such a model. The names of its weights are the same there and here.

    Args:
        config: of the model.
        decoder: the decoder of a model that is there already, to be shared; `None` makes one.
        encoder: the encoder beside it.
    """

    def __init__(self, config: LongspanConfig, decoder: Decoder | None = None, encoder: Encoder | None = None) -> None:
        super().__init__(config)
        self.shares = decoder is not None
        if config.is_encoder_decoder:
            self.encoder = Encoder(config) if encoder is None else encoder
            table = "embeddings.token.weight"
            self._tied_weights_keys = {f"decoder.{table}": f"encoder.{table}"}
        self.decoder = Decoder(config, source=config.is_encoder_decoder) if decoder is None else decoder
        self.post_init()

    def init_weights(self) -> None:
        """As transformers; weights that belong to another model are left as they are."""
        if not self.shares:
            super().init_weights()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        **others: Any,
    ) -> DecoderOutput | Seq2SeqModelOutput | tuple[Any, ...]:
        """The decoder's final states `(B, T, E)` in `last_hidden_state`; arguments as in the model's own `forward`.

        Without an encoder the text is read causally, and the arguments that begin with `decoder_` are not for it;
        beside one, `decoder_input_ids` `(B, T)` or `decoder_inputs_embeds` must be given.

        Raises:
            InputError: decoder inputs where there is no encoder, or none where there is one.
        """
        refuse_others(others)
        refuse_attentions(output_attentions, self.config.output_attentions)
        written = (decoder_input_ids, decoder_attention_mask, decoder_inputs_embeds)
        if not self.config.is_encoder_decoder:
            if any(one is not None for one in written) or global_attention_mask is not None:
                raise InputError("a decoder without an encoder reads input_ids causally; leave out the other inputs")
            decoded = self.decoder(
                input_ids, attention_mask, past_key_values, use_cache, output_hidden_states, inputs_embeds
            )
            return self.finish(decoded, return_dict)
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise InputError("give decoder_input_ids or decoder_inputs_embeds (neither given)")
        encoded: Any = self.encoder(
            input_ids,
            attention_mask,
            global_attention_mask,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
        )
        decoded = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            past_key_values,
            use_cache,
            output_hidden_states,
            decoder_inputs_embeds,
            source=encoded.last_hidden_state,
            source_mask=attention_mask,
        )
        output = Seq2SeqModelOutput(
            last_hidden_state=decoded.last_hidden_state,
            past_key_values=decoded.past_key_values,
            decoder_hidden_states=decoded.hidden_states,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
        )
        return self.finish(output, return_dict)
