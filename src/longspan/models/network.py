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
from longspan.models.inputs import ModelInputs, border_of, checked_importance, describe_tokens
from longspan.stacks import Sizes, StackOutput, stack_config
from longspan.stacks.block import Block, BlockState, CrossAttention, total_loss

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
    inner = config.decoder_intermediate_size if decoder else config.intermediate_size
    assert heads is not None
    return Sizes(
        width=config.hidden_size,
        heads=heads,
        eps=config.layer_norm_eps,
        attention_dropout=config.attention_dropout,
        causal=causal or decoder,
        source=decoder,
        inner=inner,
        activation_function=config.activation_function,
        dropout=config.dropout,
        activation_dropout=config.activation_dropout,
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
            stack, depth = stack.of_decoder(), config.decoder_layers
        self.layers: Any = stack.build(block, depth, sizes_of(config, decoder=decoder, causal=causal))
        self.stack, self.reads, self.returns = stack, stack.reads(), stack.returns()
        self.relative = _shared_positions(self.layers)
        pre = config.normalization == "pre" and not self.returns.normalized
        self.final_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if pre else None
        self.final_dropout = nn.Dropout(config.dropout) if self.returns.dropout else None

    def run(
        self,
        hidden: Tensor,
        tokens: Tokens,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        *,
        block_states: Sequence[BlockState] | None = None,
        output_hidden_states: bool = False,
    ) -> StackOutput:
        """From the embeddings `(B, T, E)` to the final states; arguments as in `Sequential.forward`."""
        tables = () if self.relative is None else self.relative()
        output = self.layers(
            hidden,
            tokens,
            source,
            source_mask,
            *tables,
            block_states=block_states,
            output_hidden_states=output_hidden_states,
        )
        if self.training:
            output = output._replace(aux=output.aux._replace(loss=self._loss(output)))
        if self.final_norm is None and self.final_dropout is None:
            return output
        states = output.states if self.final_norm is None else self.final_norm(output.states)
        states = states if self.final_dropout is None else self.final_dropout(states)
        if output.all_hidden_states is not None:
            output = output._replace(all_hidden_states=(*output.all_hidden_states[:-1], states))
        return output._replace(states=states)

    def _loss(self, output: StackOutput) -> Tensor | None:
        """What the stack adds to the loss in training, and what the weights of attention add, each layer's once."""
        attentions = (module for module in self.layers.modules() if isinstance(module, Attention))
        return total_loss([output.aux.loss, *(attention.weights_loss() for attention in attentions)])


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

    def encode(self, inputs: ModelInputs, *, output_hidden_states: bool = False) -> StackOutput:
        """From ids or embeddings to the final states `(B, T, E)`; errors as in `LongspanModel.forward`."""
        config, reads, position_ids = self.config, self.reads, inputs.position_ids
        border = border_of(config, inputs) if reads.parts else None
        # Where the stack alone tells places, position_ids are for it.
        for_stack = reads.adds_positions and self.embeddings.position is None
        hidden = self.embeddings(
            inputs.input_ids,
            inputs.token_type_ids,
            inputs.inputs_embeds,
            inputs.first_position,
            position_ids=None if for_stack else position_ids,
            border=border if reads.restarts_positions else None,
        )
        tokens = Tokens(border=border)
        has_masks = inputs.attention_mask is not None or inputs.global_attention_mask is not None
        if has_masks or config.global_tokens != "none":
            tokens = describe_tokens(config, inputs, hidden, border)
        if inputs.importance is not None or reads.importance:
            tokens = replace(tokens, importance=checked_importance(self.stack, inputs.importance, hidden))
        if reads.adds_positions and position_ids is not None:
            tokens = replace(tokens, places=position_ids - self.embeddings.offset)
        elif reads.adds_positions and inputs.first_position:
            last = inputs.first_position + hidden.shape[1]
            places = torch.arange(inputs.first_position, last, device=hidden.device)
            tokens = replace(tokens, places=places[None])
        return self.run(hidden, tokens, output_hidden_states=output_hidden_states)


def first_token(hidden: Tensor) -> Tensor:
    """State of each row's first token, `(B, T, E)` → `(B, E)`; `InputError` for an empty input."""
    if hidden.shape[1] == 0:
        raise InputError("input_ids has 0 tokens; this head reads the first token, so give at least one")
    return hidden[:, 0]
