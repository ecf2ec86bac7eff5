"""The decoder: causal attention over the output, full attention over the source, one block after the other."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from longspan.errors import InputError
from longspan.models.blocks import FeedForward, clamp_half, layer_norm, residual
from longspan.models.configuration import LongspanConfig
from longspan.models.decoder_attention import CausalSelfAttention, CrossAttention, SourceCache, causal_mask
from longspan.models.embeddings import Embeddings
from longspan.models.tokens import check_mask


class DecoderLayer(GradientCheckpointingLayer):
    """Self-attention, cross-attention and a feed-forward layer, each in a residual branch."""

    def __init__(self, config: LongspanConfig, layer: int) -> None:
        super().__init__()
        assert config.decoder_intermediate_size is not None
        self.self_attention = CausalSelfAttention(config, layer)
        self.self_attention_norm = layer_norm(config)
        self.cross_attention = CrossAttention(config, layer)
        self.cross_attention_norm = layer_norm(config)
        self.feed_forward = FeedForward(config, config.decoder_intermediate_size)
        self.feed_forward_norm = layer_norm(config)
        self.dropout = nn.Dropout(config.dropout)
        self.pre = config.normalization == "pre"

    def forward(
        self,
        hidden: Tensor,
        source: Tensor,
        visible: Tensor | None = None,
        source_mask: Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
    ) -> Tensor:
        """`(B·beams, T, E)` over the source `(B, S, E)` → `(B·beams, T, E)`; masks as in `decoder_attention`."""
        cache, drop, pre = past_key_values, self.dropout, self.pre
        hidden = residual(
            hidden, lambda x: self.self_attention(x, visible, cache), self.self_attention_norm, drop, pre=pre
        )
        hidden = residual(
            hidden,
            lambda x: self.cross_attention(x, source, source_mask, cache),
            self.cross_attention_norm,
            drop,
            pre=pre,
        )
        hidden = residual(hidden, self.feed_forward, self.feed_forward_norm, drop, pre=pre)
        return clamp_half(hidden)


class Decoder(nn.Module):
    """Embeddings (their own positions), blocks and, when pre-normalised, a final LayerNorm."""

    main_input_name = "input_ids"

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config, decoder=True)
        self.layers = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config.decoder_layers))
        self.final_norm = layer_norm(config) if config.normalization == "pre" else None

    def forward(
        self,
        input_ids: Tensor | None,
        source: Tensor,
        source_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        use_cache: bool = False,
        output_hidden_states: bool = False,
        inputs_embeds: Tensor | None = None,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode T output tokens that follow those in the cache.

        Args:
            input_ids: `(B·beams, T)`; `beams` consecutive rows read the same source.
            source: `(B, S, E)` encoder states.
            source_mask: `(B, S)` bool or int, 1/True = real.
            attention_mask: `(B·beams, past + T)` bool or int over output tokens; `None` means all real.
            past_key_values: cache of earlier steps; changed in place.
            use_cache: make a cache when none is passed.
            output_hidden_states: also return the states of every layer.
            inputs_embeds: `(B·beams, T, E)` instead of `input_ids`.
        """
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(), SourceCache())
        first = past_key_values.get_seq_length() if past_key_values is not None else 0
        hidden = self.embeddings(input_ids, inputs_embeds=inputs_embeds, first_position=first)
        _check_rows(hidden, source, source_mask)
        visible = self._visible(hidden, first, attention_mask, past_key_values)
        if source_mask is not None:
            if first == 0:
                check_mask("attention_mask", source_mask)
            source_mask = source_mask.bool()
        states = [hidden]
        for layer in self.layers:
            hidden = layer(hidden, source, visible, source_mask, past_key_values=past_key_values)
            states.append(hidden)
        if self.final_norm is not None:
            states[-1] = hidden = self.final_norm(hidden)
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=hidden,
            past_key_values=past_key_values,
            hidden_states=tuple(states) if output_hidden_states else None,
        )

    def _visible(
        self, hidden: Tensor, first: int, attention_mask: Tensor | None, cache: EncoderDecoderCache | None
    ) -> Tensor | None:
        """The self-attention mask; a 4-dimensional mask that generation made is taken as it is."""
        if attention_mask is not None and attention_mask.ndim == 4:
            return attention_mask
        tokens = hidden.shape[1]
        preallocated = cache is not None and cache.is_compileable
        if attention_mask is None and not preallocated and (tokens == 1 or first == 0):
            return None
        if attention_mask is not None and attention_mask.shape[1] != first + tokens:
            raise InputError(
                f"decoder_attention_mask covers {attention_mask.shape[1]} of {first + tokens} tokens; give one for each"
            )
        if attention_mask is not None and first == 0:
            check_mask("decoder_attention_mask", attention_mask)
        key_mask = None if attention_mask is None else attention_mask.bool()
        return causal_mask(tokens, first, key_mask, hidden.device)


def _check_rows(hidden: Tensor, source: Tensor, source_mask: Tensor | None) -> None:
    rows, documents = hidden.shape[0], source.shape[0]
    if rows != documents and (documents == 0 or rows % documents):
        raise InputError(
            f"decoder_input_ids has {rows} rows but the encoder states have {documents}; give a multiple of them"
        )
    if source_mask is not None and tuple(source_mask.shape) != tuple(source.shape[:2]):
        raise InputError(
            f"attention_mask is of shape {tuple(source_mask.shape)}, the encoder states are {tuple(source.shape[:2])}; "
            "give one value per source token"
        )
