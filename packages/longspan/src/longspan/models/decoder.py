"""The decoder: causal self-attention, and cross-attention if there is a source; for single steps or whole sequences.

`Decoder.forward` has the complete computation. Its layers' states are stored in transformers' caches
(`longspan.models.cache`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, EncoderDecoderCache

from longspan.attention.parts.tokens import StackTokens
from longspan.errors import InputError
from longspan.models.cache import buffered_step, room_of, states_in_cache
from longspan.models.configuration import LongspanConfig
from longspan.models.encoder import Network
from longspan.models.inputs import bool_mask, check_mask
from longspan.models.outputs import DecoderOutput
from longspan.models.packed import check_packed
from longspan.models.pretrained import CheckpointedBlock
from longspan.models.transformers_names import cache_field
from longspan.patterns import Prefix


class Decoder(Network):
    """The blocks of `decoder_layers` after an encoder, or else those of the encoder in their causal form.

    Args:
        config: fields of the model.
        source: whether there is an encoder, to whose states the blocks attend.
    """

    config: LongspanConfig
    main_input_name = "input_ids"

    def __init__(self, config: LongspanConfig, *, source: bool) -> None:
        super().__init__(config, decoder=source, causal=not source, block=CheckpointedBlock)
        self.has_source = source
        self.mask_name = "decoder_attention_mask" if source else "attention_mask"

    def forward(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        prefix: Prefix | None = None,
        documents: Tensor | None = None,
    ) -> DecoderOutput:
        """Decode T output tokens that follow those in the cache.

        Args:
            input_ids: `(B·beams, T)`; `beams` consecutive rows attend to the same source.
            attention_mask: `(B·beams, past + T)` bool or int over output tokens; `None` means all real.
            cache: cache of earlier steps; changed in place.
            use_cache: create a cache if none is passed; by default as configured, if every layer has a state.
            output_hidden_states: also return the states of every layer; by default as configured.
            inputs_embeds: `(B·beams, T, E)` instead of `input_ids`.
            position_ids: `(1 or B·beams, T)` positions of the tokens, from 0.
            source: `(B, S, E)` encoder states.
            source_mask: `(B, S)` bool or int, 1/True = real.
            prefix: the part of the input that is bidirectional; `None` for none.
            documents: `(B, T)` int64, packed sequences, as in `Tokens`; they have no cache.

        Raises:
            InputError: packed sequences with a cache, or in a stack that does not support them.
        """
        config, shards, places = self.config, None, position_ids
        given = input_ids if inputs_embeds is None else inputs_embeds
        if documents is not None:
            check_packed(config, self.stack)
            if use_cache or cache is not None:
                raise InputError(
                    "use_cache=True was given with several documents in one row, which no step can continue; leave it "
                    "out, or give each document a row of its own"
                )
            use_cache, position_ids, places = False, None, None
        if self.sequence_group is not None and given is not None:
            from longspan.models.sequence_parallel import check_all_real, part_of_text

            whole = {"prefix": prefix, "seq_idx": documents}
            if not self.returns.keeps_memory:
                whole |= {"cache": cache, "use_cache": use_cache or None}
                use_cache = False
            elif cache is not None or (config.use_cache if use_cache is None else use_cache):
                attention_mask = check_all_real(attention_mask, given, self.sequence_group)
            shards, position_ids = part_of_text(given, self.sequence_group, attention_mask, position_ids, **whole)
            places = None

        # The cache, and its number of tokens.
        if cache is None and (config.use_cache and self.keeps_state if use_cache is None else use_cache):
            cache = DynamicCache()
            if self.has_source:
                cache = EncoderDecoderCache(cache, DynamicCache())
        block_states = None if cache is None else states_in_cache(cache, self.layers, source=self.has_source)
        step = buffered_step(block_states, given, attention_mask, self.mask_name)
        if step is not None:
            first, mask = 0, step.mask
            rows = self._rows(mask, mask.shape[1] - 1, position_ids, step.place)
        else:
            first = 0 if cache is None else int(cache.get_seq_length())
            mask = self._mask(attention_mask, first, given, room_of(cache))
            rows = None if documents is not None else self._rows(mask, first, position_ids)
        first = first if shards is None else first + shards.first

        # Embeddings, layers and final norm.
        hidden = self.embeddings(input_ids, None, inputs_embeds, first, rows, documents=documents)
        if source is not None:
            source_mask = _source_mask(hidden, source, source_mask, check=first == 0 and step is None)
        tokens = StackTokens(
            mask=mask if documents is None else documents >= 0,
            places=places,
            prefix=prefix,
            documents=documents,
            shards=shards,
            in_buffer=step is not None,
        )
        keep = bool(config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        decoded = self.run(hidden, tokens, source, source_mask, block_states=block_states, output_hidden_states=keep)
        return DecoderOutput(
            last_hidden_state=decoded.states,  # pyright: ignore[reportArgumentType]
            **cache_field(cache),
            hidden_states=decoded.all_hidden_states,
            ponder_times=decoded.aux.ponder_times,
            stack_loss=decoded.aux.loss if self.training else None,
        )

    def source_of(self, encoded: Any, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Returns the states for cross-attention from the output of the encoder, and their mask: those of tokens with
        the `mask` `(B, S)`, or `source_states` of a stack or memory that has others.

        Raises:
            InputError: the output has no `source_states`, and the model needs them.
        """
        compressed = self.config.compress_after is not None
        if not (self.returns.source or compressed):
            return encoded[0], mask
        if getattr(encoded, "source_states", None) is None:
            what = (
                "with compress_after reads memory"
                if compressed
                else f"in the stack {self.stack.stack!r} reads its spans too"
            )
            raise InputError(
                f"encoder_outputs contains only states of tokens, and a decoder {what}; give what get_encoder() "
                "returned"
            )
        return encoded.source_states, encoded.source_mask

    @property
    def keeps_state(self) -> bool:
        """Whether every layer has a state for decoding step by step."""
        return self.layers.keeps_state

    def _mask(self, mask: Tensor | None, first: int, written: Tensor | None, room: int | None) -> Tensor | None:
        """Returns `(B, first + T)` bool, or `None` if all tokens are real; the argument may cover the `room` of
        a static cache.
        """
        if mask is None or written is None:
            return None
        total = first + written.shape[1]
        if mask.ndim == 2 and mask.shape[1] == room:
            mask = mask[:, :total]
        if tuple(mask.shape) != (written.shape[0], total):
            covers = f"covers {mask.shape[1]} of {total} tokens" if mask.ndim == 2 else f"has shape {tuple(mask.shape)}"
            raise InputError(f"{self.mask_name} {covers}; give one for each, ({written.shape[0]}, {total})")
        if first == 0:
            check_mask(self.mask_name, mask)
        return mask.to(device=written.device, dtype=torch.bool)

    def _rows(
        self, mask: Tensor | None, first: int, position_ids: Tensor | None, place: Tensor | None = None
    ) -> Tensor | None:
        """Returns rows of the position table, `None` for the positions in the input.

        After an encoder, these are the positions in the output, including padding, as in BART: the `place` `(1, 1)` of
        a buffered step. A decoder-only model counts real tokens, so that padding on the left changes nothing.
        """
        if self.embeddings.position is None:
            return None
        if self.has_source:
            position_ids = place
        elif position_ids is None and mask is not None:
            position_ids = (mask.cumsum(1) - 1).clamp(min=0)[:, first:]
        return None if position_ids is None else position_ids + self.embeddings.offset


def _source_mask(hidden: Tensor, source: Tensor, mask: Tensor | None, *, check: bool) -> Tensor | None:
    """Returns `(B, S)` bool, after a check that rows and source match."""
    rows, documents = hidden.shape[0], source.shape[0]
    if rows != documents and (documents == 0 or rows % documents):
        raise InputError(
            f"decoder_input_ids has {rows} rows but the encoder states have {documents}; give a multiple of them"
        )
    return bool_mask("attention_mask", mask, source, of="source", check=check)
