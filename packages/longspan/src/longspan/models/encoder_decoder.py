"""The encoder-decoder model, with `generate()`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from longspan.attention.base import projected
from longspan.errors import InputError
from longspan.models.configuration import LongspanConfig
from longspan.models.decoder import Decoder
from longspan.models.encoder import Encoder
from longspan.models.generation import LongspanWriter
from longspan.models.inputs import Seq2SeqLMInputs, expand_inputs, refuse_attentions, refuse_others
from longspan.models.losses import IGNORED
from longspan.models.outputs import TextFromSourceOutput
from longspan.models.pretrained import CheckpointedBlock
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
    """Encoder, decoder and a language-model head tied to the token embeddings (compatible with BART, mBART and LED)."""

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
        self.encoder = Encoder(config, block=CheckpointedBlock)
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
        """Returns `(B, T)` labels shifted right after the start token; −100 becomes padding. Data collators
        call this.
        """
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

    @expand_inputs(Seq2SeqLMInputs)
    def forward(self, inputs: Seq2SeqLMInputs, **others: Any) -> TextFromSourceOutput | tuple[Any, ...]:
        """Returns teacher-forced logits `(B·beams, T, V)`, and the loss if there are `labels`.

        `**others` are further arguments of transformers' classes, which must be `None` or without effect here.

        Raises:
            InputError: neither labels nor ids; shapes that do not match; inputs longer than the positions.
        """
        cache = cache_from(inputs.cache, others)
        refuse_others(others)
        refuse_attentions(inputs.output_attentions, self.config.output_attentions)
        encoded: Any = inputs.encoder_outputs
        if encoded is None:
            encoded = self.encoder(**inputs.for_encoder())
        labels, decoder_input_ids = inputs.labels, inputs.decoder_input_ids
        if decoder_input_ids is None and inputs.decoder_inputs_embeds is None:
            targets = inputs.input_ids if labels is None else labels
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(targets)
        source, source_mask = self.decoder.source_of(encoded, inputs.attention_mask)
        with self._as_other_processes(decoder_input_ids):
            decoded = self.decoder(
                decoder_input_ids,
                inputs.decoder_attention_mask,
                cache,
                use_cache=False if inputs.use_cache is None and labels is not None else inputs.use_cache,
                output_hidden_states=inputs.output_hidden_states,
                inputs_embeds=inputs.decoder_inputs_embeds,
                source=source,
                source_mask=source_mask,
            )
        logits: Any = projected(self.lm_head, decoded.last_hidden_state) + self.final_logits_bias
        output = TextFromSourceOutput(
            loss=self.language_loss(logits, labels, inputs.num_items_in_batch, encoded, decoded),
            logits=logits,
            **cache_field(decoded.cache),
            decoder_hidden_states=decoded.hidden_states,
            encoder_last_hidden_state=encoded[0],
            encoder_hidden_states=getattr(encoded, "hidden_states", None),
            ponder_times=decoded.ponder_times,
            encoder_ponder_times=getattr(encoded, "ponder_times", None),
        )
        return self.finish(output, inputs.return_dict)

    def _as_other_processes(self, ids: Tensor | None) -> AbstractContextManager[None]:
        """Synchronises dropout if processes have parts of each source, since they decode the same targets."""
        group = self.encoder.sequence_group
        if group is None:
            return nullcontext()
        from longspan.models.sequence_parallel import check_same
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
        """Repeats the output rows per beam, with one row of the source per document (see `CrossAttention`).

        transformers calls this once per `generate()`; without the override, every beam would have a copy of the encoder
        states and of their keys and values.
        """
        source = {name: model_kwargs.pop(name) for name in _SOURCE_INPUTS if name in model_kwargs}
        parent: Any = super()
        rows, repeated = parent._expand_inputs_for_generation(
            expand_size=expand_size, is_encoder_decoder=False, input_ids=input_ids, **model_kwargs
        )
        return rows, {**repeated, **source}

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resizes the vocabulary as transformers does, including `final_logits_bias`."""
        embedding = super().resize_token_embeddings(new_num_tokens, *args, **kwargs)
        missing = embedding.num_embeddings - self.final_logits_bias.shape[1]
        # A negative pad crops; new tokens get no bias.
        self.final_logits_bias = functional.pad(self.final_logits_bias, (0, missing))
        return embedding
