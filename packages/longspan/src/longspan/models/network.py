"""What a model is given, and what reads it, as plain PyTorch: embeddings and a stack of blocks with their attention.

What runs here needs nothing of transformers; `encoder`, `decoder` and the models make of it what transformers expects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from longspan.attention import Attention, AttentionConfig, Tokens
from longspan.attention.features.packed import begins, counted_in
from longspan.errors import InputError
from longspan.models.embeddings import Embeddings
from longspan.models.inputs import (
    ModelInputs,
    border_of,
    check_batch,
    check_packed,
    checked_importance,
    checked_structure,
    tokens_among,
)
from longspan.models.memory import MemoryFirst
from longspan.ops.runtime import one_pass
from longspan.stacks import Sizes, Source, StackOutput, stack_config
from longspan.stacks.block import Block, BlockState, CrossAttention, total_loss

if TYPE_CHECKING:
    from longspan.models.fields import ModelFields


def describe_tokens(config: ModelFields, inputs: ModelInputs, hidden: Tensor, border: Tensor | None = None) -> Tokens:
    """Bool masks and global slots of a batch.

    Args:
        config: `global_tokens` decides which tokens are global when no mask is passed.
        inputs: their masks, and the ids where the rule is "question".
        hidden: `(B, T, E)`, for shape and device.
        border: as in `Tokens`.
    """
    mask = bool_mask("attention_mask", inputs.attention_mask, hidden)
    is_global = bool_mask("global_attention_mask", inputs.global_attention_mask, hidden)
    count = config.max_global_tokens
    if is_global is None:
        if config.global_tokens == "none" or hidden.shape[1] == 0:
            return Tokens(mask=mask, border=border)
        is_global = _default_globals(config, hidden, inputs, mask)
        count = 1 if config.global_tokens == "first" else count
    if inputs.documents is not None:  # slots are those of each document
        return Tokens(mask=mask, is_global=is_global, border=border)
    if count is None and torch.compiler.is_compiling():
        raise InputError("max_global_tokens=None reads the data; set it in the configuration to compile with globals")
    return Tokens(mask=mask, is_global=is_global, border=border).with_slots(count)


def bool_mask(
    name: str, mask: Tensor | None, hidden: Tensor, *, of: str = "input", check: bool = True
) -> Tensor | None:
    """A mask `(B, T)` of states `(B, T, E)` as bool, on their device; `check` looks at its values too."""
    check_batch(name, mask)
    if mask is None:
        return None
    if tuple(mask.shape) != tuple(hidden.shape[:2]):
        raise InputError(
            f"{name} has shape {tuple(mask.shape)} but the {of} is {tuple(hidden.shape[:2])}; give one value per token"
        )
    if check:
        check_mask(name, mask)
    return mask.to(device=hidden.device, dtype=torch.bool)


def check_mask(name: str, mask: Tensor) -> None:
    """Raise `InputError` for a mask with other values than 0 and 1, which would all be read as 1.

    Longformer once marked global tokens by a 2, and additive masks hold 0 where a token is real. A compiled or exported
    program is not checked, since it would have to read the data.
    """
    if mask.dtype == torch.bool or torch.compiler.is_compiling():
        return
    other = (mask != 0) & (mask != 1)
    if bool(other.any()):
        raise InputError(
            f"{name} holds {mask[other][0].item():g}, but may hold only 0 and 1 (1 = a real token, or a global one); "
            "mark global tokens in a global_attention_mask, or choose them by config.global_tokens"
        )


def _default_globals(config: ModelFields, hidden: Tensor, inputs: ModelInputs, mask: Tensor | None) -> Tensor:
    """`(B, T)` bool by the rule `config.global_tokens`, of each row or of each document in it."""
    input_ids, documents = inputs.input_ids, inputs.documents
    if not isinstance(config.global_tokens, str):
        return tokens_among(config.global_tokens, input_ids, mask)
    position = torch.arange(hidden.shape[1], device=hidden.device).expand(hidden.shape[:2])
    if config.global_tokens == "first":
        if documents is not None:
            return begins(documents)
        return position == 0 if mask is None else mask & (mask.cumsum(1) == 1)
    if input_ids is None:
        raise InputError("global_tokens='question' reads input_ids; pass a global_attention_mask with inputs_embeds")
    # Tokens before the first separator: none has been counted up to and including the token itself.
    is_separator = input_ids == config.sep_token_id
    if documents is None:
        question = is_separator.cumsum(1) == 0
        without = question.all(1)
    else:
        question = (counted_in(documents, is_separator) == 0) & (documents >= 0)
        without = question & begins(documents.flip(1)).flip(1)
    if not torch.compiler.is_compiling() and bool(without.any()):
        raise InputError(
            f"global_tokens='question' found no sep_token_id={config.sep_token_id} in a row of input_ids; put one "
            "behind each question, or pass a global_attention_mask"
        )
    return question


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
    sequence_group: Any = None
    """The processes between which rows are divided, as `divide` sets it; `None` where each has whole rows."""

    def __init__(self, config: ModelFields, *, decoder: bool = False, causal: bool = False) -> None:
        super().__init__()
        if causal and config.num_memory_tokens:
            raise InputError(
                f"num_memory_tokens={config.num_memory_tokens} is for models that read both ways, and this one is "
                "causal: its tokens would see the future through them; leave it out"
            )
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

    def divide(self, group: Any) -> None:
        """From now on read parts of rows that processes of this group divide; see `divide_sequence`."""
        self.sequence_group = group
        self.layers.divided = group is not None

    def run(
        self,
        hidden: Tensor,
        tokens: Tokens,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        *,
        block_states: Sequence[BlockState] | None = None,
        output_hidden_states: bool = False,
        through: Callable[..., StackOutput] | None = None,
    ) -> StackOutput:
        """From the embeddings `(B, T, E)` to the final states; arguments as in `Sequential.forward`. `through` is what
        goes through the layers instead of one after the other."""
        tables = () if self.relative is None else self.relative()
        # On a processor to derive the same again costs less than to look it up.
        shared = hidden.is_cuda or tokens.documents is not None
        with one_pass() if shared and not torch.compiler.is_compiling() else nullcontext():
            output = (through or self.layers)(
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
        return total_loss([output.aux.loss, self.layers.weights_loss()])


def _shared_positions(layers: nn.Module) -> nn.Module | None:
    """The tables of all layers that share some, as DeBERTa's, checked to be equal; `None` without any."""
    shared, mechanisms = None, [module for module in layers.modules() if isinstance(module, Attention)]
    attention: Any
    for attention in mechanisms:
        tables = attention.config.shared_tables()
        if tables is not None:
            attention.share_positions()
            # For every layer, though one is enough: weights that are drawn later depend on it.
            built = tables.build(attention.width, attention.heads)
            shared = shared or built
    return shared


class EncoderNetwork(Network):
    """The encoder: every token sees what its mechanism lets it see, before and after itself; and a memory in front of
    the text, where the configuration has one."""

    @property
    def reads_packed(self) -> bool:
        """Whether it reads several documents in one row."""
        return "packed" in self.stack.supports and not self.config.num_memory_tokens

    def first_states(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """State of each row's first real token, `(B, T, E)` and `(B, T)` → `(B, E)`, whichever process holds it; errors
        as `first_token` has them. Where the last states are those of a memory, it is the memory's first."""
        if self.config.compress_after is not None:
            mask = None
        if self.sequence_group is None:
            return first_token(hidden, mask)
        from longspan.models.divided_rows import first_of_rows

        return first_of_rows(hidden, self.sequence_group, mask)

    def encode(self, inputs: ModelInputs, *, output_hidden_states: bool = False) -> StackOutput:
        """From ids or embeddings to the final states `(B, T, E)`; errors as in `LongspanModel.forward`."""
        if self.sequence_group is not None:
            from longspan.models.divided_rows import part_of_rows

            inputs = part_of_rows(self, inputs)
        config, reads, position_ids = self.config, self.reads, inputs.position_ids
        border = border_of(config, inputs) if reads.parts else None
        if inputs.documents is not None:
            check_packed(config, self.stack)
            position_ids = None  # they are counted in each document
        # Where the stack alone tells places, position_ids are for it.
        for_stack = reads.adds_positions and self.embeddings.position is None
        hidden = self.embeddings(
            inputs.input_ids,
            inputs.token_type_ids,
            inputs.inputs_embeds,
            inputs.first_position,
            position_ids=None if for_stack else position_ids,
            border=border if reads.restarts_positions else None,
            documents=inputs.documents,
            mask=inputs.attention_mask,
        )
        memory = config.num_memory_tokens
        text = hidden[:, memory:] if memory else hidden
        tokens = Tokens(border=border)
        has_masks = inputs.attention_mask is not None or inputs.global_attention_mask is not None
        if has_masks or config.global_tokens != "none":
            tokens = describe_tokens(config, inputs, text, border)
        if inputs.importance is not None or reads.importance:
            tokens = replace(tokens, importance=checked_importance(self.stack, inputs.importance, text))
        if inputs.belongs_to is not None:
            tokens = replace(tokens, belongs_to=checked_structure(self.stack, inputs.belongs_to, text))
        if reads.adds_positions and position_ids is not None:
            tokens = replace(tokens, places=position_ids - self.embeddings.offset)
        elif reads.adds_positions and inputs.first_position:
            last = inputs.first_position + text.shape[1]
            places = torch.arange(inputs.first_position, last, device=hidden.device)
            tokens = replace(tokens, places=places[None])
        if inputs.documents is not None:
            tokens = replace(tokens, documents=inputs.documents, mask=inputs.documents >= 0)
        if inputs.shards is not None:
            tokens = replace(tokens, shards=inputs.shards)
        if not memory:
            return self.run(hidden, tokens, output_hidden_states=output_hidden_states)
        read = MemoryFirst.of(hidden, tokens, memory, places=reads.adds_positions)
        if config.compress_after is None:
            return read.apart(self.run(read.hidden, read.tokens, output_hidden_states=output_hidden_states))
        through = partial(self._compressed, read, config.compress_after)
        output = self.run(read.hidden, read.tokens, output_hidden_states=output_hidden_states, through=through)
        there = torch.ones(output.states.shape[:2], dtype=torch.bool, device=hidden.device)
        return output._replace(source=Source(output.states, there), memory=output.states)

    def _compressed(
        self, read: MemoryFirst, lower: int, hidden: Tensor, tokens: Tokens, *given: Any, **options: Any
    ) -> StackOutput:
        """The first `lower` layers read memory and text, and the others memory alone: states `(B, M, E)`."""
        options["layers"] = range(lower)
        first = read.apart(self.layers(hidden, tokens, *given, **options))
        options["layers"] = range(lower, len(self.layers))
        assert first.memory is not None
        second = self.layers(*read.alone(first.memory), *given, **options)
        states = second.all_hidden_states
        if states is not None and first.all_hidden_states is not None:
            states = (*first.all_hidden_states[:-1], *states)
        loss = total_loss([first.aux.loss, second.aux.loss])
        return second._replace(all_hidden_states=states, aux=second.aux._replace(loss=loss))


def first_token(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    """State of each row's first token, real by a mask `(B, T)` where it has one, `(B, T, E)` → `(B, E)`; `InputError`
    for an empty input."""
    if hidden.shape[1] == 0:
        raise InputError("input_ids has 0 tokens; this head reads the first token, so give at least one")
    if mask is None:
        return hidden[:, 0]
    first = mask.to(hidden.device).bool().int().argmax(1)  # the first of several highest
    return hidden.gather(1, first[:, None, None].expand(-1, 1, hidden.shape[-1]))[:, 0]
