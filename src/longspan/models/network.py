"""Encoders and decoders as plain PyTorch: embeddings and a stack of blocks, each with its own attention mechanism.

What runs here needs nothing of transformers; `encoder`, `decoder` and the models make of it what transformers expects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from longspan.attention import Attention, AttentionConfig, Tokens
from longspan.errors import InputError
from longspan.models.embeddings import Embeddings
from longspan.models.tokens import border_of, checked_importance, describe_tokens
from longspan.stacks import Aside, Sizes, stack_config
from longspan.stacks.block import Block, Kept
from longspan.stacks.cross_attention import CrossAttention

if TYPE_CHECKING:
    from longspan.models.fields import ModelFields


def make_block(
    config: ModelFields,
    layer: int,
    *,
    kind: type[Block] = Block,
    decoder: bool = False,
    causal: bool = False,
    mechanism: AttentionConfig | None = None,
    cross_attention: nn.Module | None = None,
    norm_before_sum: bool = False,
) -> Block:
    """Block `layer` of the encoder, or, where `causal`, of a model that has a decoder only; or else, of the decoder of
    an encoder–decoder: causal, and with attention to the source. A stack may ask for another `mechanism` than the
    layer's own, and for something that reads a source, as `Block` has it."""
    heads = config.decoder_attention_heads if decoder else config.num_attention_heads
    inner = config.decoder_intermediate_size if decoder else config.intermediate_size
    assert heads is not None
    assert inner is not None
    if mechanism is None:
        mechanism = config.decoder_layer_attention(layer) if decoder else config.layer_attention(layer)
    width = config.hidden_size
    if decoder:
        cross_attention = CrossAttention(width=width, heads=heads, dropout=config.attention_dropout)
    return kind(
        mechanism.build(width=width, heads=heads, causal=causal or decoder),
        inner=inner,
        activation_function=config.activation_function,
        eps=config.layer_norm_eps,
        dropout=config.dropout,
        activation_dropout=config.activation_dropout,
        pre=config.normalization == "pre",
        cross_attention=cross_attention,
        norm_before_sum=norm_before_sum,
    )


def sizes_of(config: ModelFields, *, decoder: bool = False, causal: bool = False) -> Sizes:
    """What a stack makes layers of its own by; arguments as in `make_block`."""
    heads = config.decoder_attention_heads if decoder else config.num_attention_heads
    assert heads is not None
    return Sizes(
        width=config.hidden_size,
        heads=heads,
        eps=config.layer_norm_eps,
        attention_dropout=config.attention_dropout,
        causal=causal or decoder,
    )


class Network(nn.Module):
    """Embeddings, a stack of blocks and, when pre-normalised, a final LayerNorm, unless the stack brings one.

    Args:
        config: the fields of the model.
        decoder: the blocks and positions of an encoder–decoder's decoder, instead of an encoder's.
        causal: the blocks of an encoder in their causal form.
    """

    block: ClassVar[type[Block]] = Block

    def __init__(self, config: ModelFields, *, decoder: bool = False, causal: bool = False) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config, decoder=decoder)
        block = partial(make_block, config, kind=self.block, decoder=decoder, causal=causal)
        stack, depth = stack_config(config.stack), config.num_hidden_layers
        if decoder:
            stack, depth = stack.of_decoder, config.decoder_layers
        self.layers = stack.build(block, depth, sizes_of(config, decoder=decoder, causal=causal))
        self.stack = stack
        self.relative = _shared_positions(self.layers)
        pre = config.normalization == "pre" and not stack.normalizes
        self.final_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if pre else None
        self.final_dropout = nn.Dropout(config.dropout) if stack.drops_output else None

    def run(
        self,
        hidden: Tensor,
        tokens: Tokens,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        kept: Sequence[Kept] | None = None,
        seen: list[Tensor] | None = None,
        summary: list[Tensor] | None = None,
        aside: Aside | None = None,
    ) -> Tensor:
        """From the embeddings `(B, T, E)` to the final states `(B, T, E)`; arguments as in `Sequential.forward`.

        `summary` is for stacks that sum up: a list that is to receive a vector per row, `(B, E)`. `aside` is for those
        that report, and receives what they hand on beside the states.
        """
        more: dict[str, Any] = {} if summary is None else {"summary": summary}
        more |= {} if aside is None else {"aside": aside}
        tables = () if self.relative is None else self.relative()
        hidden = self.layers(hidden, tokens, source, source_mask, *tables, kept=kept, seen=seen, **more)
        for last in (self.final_norm, self.final_dropout):
            hidden = hidden if last is None else last(hidden)
        if seen:
            seen[-1] = hidden
        return hidden


def _shared_positions(layers: nn.Module) -> nn.Module | None:
    """The tables of all layers that share some, as those of relative positions in DeBERTa; `None` if there are no such
    layers. The configuration has checked that they ask for equal tables."""
    shared = None
    for attention in (module for module in layers.modules() if isinstance(module, Attention)):
        tables = attention.config.shared_tables()
        if tables is not None:
            attention.share_positions()
            # For every layer, though one is enough: weights that are drawn later depend on it.
            built = tables.build(attention.width, attention.heads)
            shared = shared or built
    return shared


class EncoderNetwork(Network):
    """The encoder: every token sees what its mechanism lets it see, before and after itself."""

    def states(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        seen: list[Tensor] | None = None,
        first_position: int = 0,
        summary: list[Tensor] | None = None,
        aside: Aside | None = None,
        importance: Tensor | None = None,
    ) -> Tensor:
        """The final states `(B, T, E)`; arguments as in `LongspanModel.forward`.

        `first_position` is where the input begins in a longer document of which it is a piece; `seen` is a list that
        is to receive the states before each layer and after the last, `summary` and `aside` are as in `run`.
        """
        stack, border = self.stack, None
        if stack.parts:
            border = border_of(self.config, input_ids, attention_mask, token_type_ids)
        # Where the stack alone tells places, position_ids are for it.
        rows = None if stack.adds_positions and self.embeddings.position is None else position_ids
        again = border if stack.restarts else None
        hidden = self.embeddings(input_ids, token_type_ids, inputs_embeds, first_position, rows, again)
        tokens = describe_tokens(self.config, hidden, input_ids, attention_mask, global_attention_mask, border)
        if importance is not None or stack.weighs:
            tokens = replace(tokens, importance=checked_importance(stack, importance, hidden))
        if stack.adds_positions and position_ids is not None:
            tokens = replace(tokens, places=position_ids - self.embeddings.offset)
        elif stack.adds_positions and first_position:
            places = torch.arange(first_position, first_position + hidden.shape[1], device=hidden.device)
            tokens = replace(tokens, places=places[None])
        return self.run(hidden, tokens, seen=seen, summary=summary, aside=aside)


def first_token(hidden: Tensor) -> Tensor:
    """State of each row's first token, `(B, T, E)` → `(B, E)`; `InputError` for an empty input."""
    if hidden.shape[1] == 0:
        raise InputError("input_ids has 0 tokens; this head reads the first token, so give at least one")
    return hidden[:, 0]
