"""Documents in, text out: the encoder and a decoder with `generate()`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache
from transformers.modeling_outputs import BaseModelOutput

from longspan.attention.base import projected
from longspan.errors import InputError
from longspan.models.configuration import LongspanConfig
from longspan.models.decoder import Decoder
from longspan.models.encoder import Encoder
from longspan.models.generation import LongspanWriter
from longspan.models.losses import IGNORED
from longspan.models.outputs import TextFromSourceOutput
from longspan.models.pretrained import refuse_attentions, refuse_others
from longspan.models.transformers_names import cache_field, cache_from

_SOURCE_INPUTS = (
    "encoder_outputs",
    "attention_mask",
    "global_attention_mask",
    "inputs_embeds",
    "importance",
    "belongs_to",
)


class LongspanForConditionalGeneration(LongspanWriter):
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
        self.decoder = Decoder(config, source=True)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.register_buffer("final_logits_bias", torch.zeros(1, config.vocab_size))
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, LongspanForConditionalGeneration):
            nn.init.zeros_(module.final_logits_bias)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor | None) -> Tensor:
        """`(B, T)` labels shifted right behind the start token; −100 becomes padding. Data collators call this."""
        if labels is None:
            raise InputError("give labels, decoder_input_ids or input_ids (none given); to write text, call generate()")
        start, pad = self.config.decoder_start_token_id, self.config.pad_token_id
        if pad is None or (start is None and not self.config.wrap_labels):
            raise InputError(
                f"decoder_start_token_id={start} and pad_token_id={pad} must both be set in the configuration to make "
                "decoder inputs from labels"
            )
        labels = labels.masked_fill(labels == IGNORED, pad)
        if not self.config.wrap_labels:
            return functional.pad(labels[:, :-1], (1, 0), value=start)
        last = (labels != pad).sum(1, keepdim=True).sub(1).clamp(min=0)
        return torch.cat([labels.gather(1, last), labels[:, :-1]], dim=1)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Any, ...] | None = None,
        cache: Cache | None = None,
        labels: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        token_type_ids: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        importance: Tensor | None = None,
        belongs_to: Tensor | None = None,
        **others: Any,
    ) -> TextFromSourceOutput | tuple[Any, ...]:
        """Teacher-forced logits, and the loss when `labels` are given.

        Args:
            input_ids: `(B, S)` int64 source tokens.
            attention_mask: `(B, S)` bool or int, 1/True = real; `None` means all real.
            global_attention_mask: `(B, S)` bool or int, 1/True = global; `None` leaves it to `config.global_tokens`.
            decoder_input_ids: `(B·beams, T)`, consecutive rows reading the same source; `None` shifts `labels`, or
                without labels `input_ids`, as BART does.
            decoder_attention_mask: `(B·beams, past + T)` bool or int; `None` means all real.
            encoder_outputs: what `get_encoder()` returned for this source, to not encode it again.
            cache: cache of earlier output tokens; changed in place.
            labels: `(B, T)` int64; −100 is ignored.
            inputs_embeds: `(B, S, E)` instead of `input_ids`.
            use_cache: return `cache`; `None` means as configured, and never with labels.
            output_hidden_states: also return the states of every layer.
            return_dict: False returns a tuple.
            num_items_in_batch: number of real labels the loss is divided by, for exact gradient accumulation.
            token_type_ids: `(B, S)` int64 types of the source tokens, for models with `type_vocab_size` > 0.
            decoder_inputs_embeds: `(B·beams, T, E)` instead of `decoder_input_ids`.
            output_attentions: refused; see `Attention.weights`.
            importance, belongs_to: `(B, S)`, of each source token, as in `LongspanModel.forward`.
            **others: further arguments of transformers' classes, as long as they ask for nothing.

        Raises:
            InputError: neither labels nor ids of any kind; shapes that do not fit; inputs longer than the positions.
        """
        cache = cache_from(cache, others)
        refuse_others(others)
        refuse_attentions(output_attentions, self.config.output_attentions)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids,
                attention_mask,
                global_attention_mask,
                token_type_ids,
                inputs_embeds,
                output_hidden_states,
                importance=importance,
                belongs_to=belongs_to,
            )
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(input_ids if labels is None else labels)
        encoded: Any = encoder_outputs
        source, source_mask = self.decoder.source_of(encoded, attention_mask)
        with self._as_other_processes(decoder_input_ids):
            decoded = self.decoder(
                decoder_input_ids,
                decoder_attention_mask,
                cache,
                use_cache=False if use_cache is None and labels is not None else use_cache,
                output_hidden_states=output_hidden_states,
                inputs_embeds=decoder_inputs_embeds,
                source=source,
                source_mask=source_mask,
            )
        logits: Any = projected(self.lm_head, decoded.last_hidden_state) + self.final_logits_bias
        output = TextFromSourceOutput(
            loss=self.language_loss(logits, labels, num_items_in_batch, encoded, decoded),
            logits=logits,
            **cache_field(decoded.cache),
            decoder_hidden_states=decoded.hidden_states,
            encoder_last_hidden_state=encoded[0],
            encoder_hidden_states=getattr(encoded, "hidden_states", None),
            ponder_times=decoded.ponder_times,
            encoder_ponder_times=getattr(encoded, "ponder_times", None),
        )
        return self.finish(output, return_dict)

    def _as_other_processes(self, ids: Tensor | None) -> AbstractContextManager[None]:
        """Where processes hold a part of each source, they decode the same targets, and drop the same out of them."""
        group = self.encoder.sequence_group
        if group is None:
            return nullcontext()
        from longspan.models.divided_rows import check_same
        from longspan.ops.shards import Processes

        if ids is not None:
            check_same("decoder_input_ids, or the labels that they are made of,", ids, group)
        return Processes(group).same_draws(self.final_logits_bias.device) if self.training else nullcontext()

    def _expand_inputs_for_generation(
        self,
        expand_size: int = 1,
        is_encoder_decoder: bool = False,
        input_ids: torch.LongTensor | None = None,
        **model_kwargs: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """Repeat the output rows per beam, and leave the source at one row per document (see `CrossAttention`).

        transformers calls this hook once per `generate()`; without the override every beam would hold its own copy of
        the encoder states and of the keys and values made from them.
        """
        source = {name: model_kwargs.pop(name) for name in _SOURCE_INPUTS if name in model_kwargs}
        parent: Any = super()
        rows, repeated = parent._expand_inputs_for_generation(
            expand_size=expand_size, is_encoder_decoder=False, input_ids=input_ids, **model_kwargs
        )
        return rows, {**repeated, **source}

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Change the vocabulary as transformers does, and `final_logits_bias` with it."""
        embedding = super().resize_token_embeddings(new_num_tokens, *args, **kwargs)
        missing = embedding.num_embeddings - self.final_logits_bias.shape[1]
        # A negative pad crops; new tokens get no bias.
        self.final_logits_bias = functional.pad(self.final_logits_bias, (0, missing))
        return embedding
