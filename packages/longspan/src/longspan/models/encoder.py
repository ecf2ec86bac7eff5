"""The encoder: embeddings, a stack of blocks and a final norm, from token ids to contextual states.

`Encoder.encode` has the complete computation, and runs without transformers, whose import takes longer than encoding a
short document. `Encoder.forward` has the arguments and outputs of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from longspan.attention import Attention, AttentionConfig, Tokens
from longspan.attention.features.packed import begins, counted_in
from longspan.attention.parts.tokens import StackTokens
from longspan.errors import InputError
from longspan.models.embeddings import Embeddings
from longspan.models.inputs import EncoderInputs, bool_mask, expand_inputs, tokens_among
from longspan.models.memory import MemoryFirst
from longspan.models.packed import check_packed
from longspan.models.reported import Weights, check_layers, recorded_weights
from longspan.ops.runtime import is_transforming, one_pass
from longspan.stacks import Sizes, Source, StackConfig, StackOutput, stack_config
from longspan.stacks.block import Block, BlockState, CrossAttention, total_loss

if TYPE_CHECKING:
    from longspan.models.fields import ModelFields
    from longspan.models.outputs import EncoderOutput


class Network(nn.Module):
    """Embeddings, a stack of blocks and, when pre-normalised, a final LayerNorm, unless the stack has one.

    Args:
        config: fields of the model.
        decoder: build the decoder of an encoder-decoder, with its blocks and positions, instead of an encoder.
        causal: build the blocks of an encoder in their causal form.
        block: the class of the blocks.
    """

    sequence_group: Any = None
    """The processes of a sequence parallel model, set by `divide`; `None` if each has whole rows."""

    def __init__(
        self, config: ModelFields, *, decoder: bool = False, causal: bool = False, block: type[Block] = Block
    ) -> None:
        super().__init__()
        if causal and config.num_memory_tokens:
            raise InputError(
                f"num_memory_tokens={config.num_memory_tokens} is for bidirectional models, and this one is "
                "causal: its tokens would see the future through them; leave it out"
            )
        self.config = config
        self.embeddings = Embeddings(config, decoder=decoder)
        make = partial(make_block, config, kind=block, decoder=decoder, causal=causal)
        stack, depth = stack_config(config.stack), config.num_hidden_layers
        if decoder:
            stack, depth = stack.of_decoder(), config.decoder_layers
        self.layers: Any = stack.build(make, depth, sizes_of(config, decoder=decoder, causal=causal))
        self.stack, self.reads, self.returns = stack, stack.reads(), stack.returns()
        self.relative = _shared_positions(self.layers)
        pre = config.normalization == "pre" and not self.returns.normalized
        self.final_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if pre else None
        self.final_dropout = nn.Dropout(config.dropout) if self.returns.dropout else None

    def divide(self, group: Any) -> None:
        """Computes only this process's part of every row from now on, for `divide_sequence`."""
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
        """Maps the embeddings `(B, T, E)` to the final states; arguments as in `Sequential.forward`. `through` replaces
        the call of the stack.
        """
        tables = () if self.relative is None else self.relative()
        # On a CPU deriving it again costs less than a look-up.
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
            loss = total_loss([output.aux.loss, self.layers.weights_loss()])  # loss of the weights, each layer's once
            output = output._replace(aux=output.aux._replace(loss=loss))
        if self.final_norm is None and self.final_dropout is None:
            return output
        states = output.states if self.final_norm is None else self.final_norm(output.states)
        states = states if self.final_dropout is None else self.final_dropout(states)
        if output.all_hidden_states is not None:
            output = output._replace(all_hidden_states=(*output.all_hidden_states[:-1], states))
        return output._replace(states=states)


class Encoder(Network):
    """The bidirectional encoder, with memory tokens before the text if configured."""

    main_input_name = "input_ids"

    def encode(
        self, inputs: EncoderInputs, *, first_position: int = 0, output_hidden_states: bool = False
    ) -> StackOutput:
        """Maps ids or embeddings to the final states `(B, T, E)`; errors as in `LongspanModel.forward`.

        Args:
            inputs: the batch.
            first_position: position of the first tokens in longer documents, if the input is a segment of them.
            output_hidden_states: also return the states before each layer and after the last.
        """
        config, reads, shards = self.config, self.reads, None
        if self.sequence_group is not None:
            from longspan.models.sequence_parallel import part_of_rows

            inputs, shards = part_of_rows(self, inputs)
            first_position = first_position if shards is None else shards.first
        documents, position_ids = inputs.seq_idx, inputs.position_ids
        border = second_part(config, inputs) if reads.parts else None
        if documents is not None:
            check_packed(config, self.stack)
            position_ids = None  # they are counted in each document

        # Embeddings. If only the stack adds positions, position_ids are passed to it.
        for_stack = reads.adds_positions and self.embeddings.position is None
        hidden = self.embeddings(
            inputs.input_ids,
            inputs.token_type_ids,
            inputs.inputs_embeds,
            first_position,
            position_ids=None if for_stack else position_ids,
            border=border if reads.restarts_positions else None,
            documents=documents,
            mask=inputs.attention_mask,
        )

        # The properties of the tokens that attention needs.
        memory = config.num_memory_tokens
        text = hidden[:, memory:] if memory else hidden
        mask = is_global = slots = places = None
        if inputs.attention_mask is not None:
            mask = bool_mask("attention_mask", inputs.attention_mask, text)
            readable = text.device.type == "cpu" and not (torch.compiler.is_compiling() or is_transforming())
            if mask is not None and readable and bool(mask.all()):
                mask = None  # nothing is padded
        if inputs.global_attention_mask is not None or config.global_tokens != "none":
            is_global, slots = global_tokens(config, inputs, text, mask)
        importance, belongs_to = inputs.importance, inputs.belongs_to
        if importance is not None or reads.importance:
            importance = checked_importance(self.stack, importance, text)
        if belongs_to is not None:
            belongs_to = checked_structure(self.stack, belongs_to, text)
        if reads.adds_positions and position_ids is not None:
            places = position_ids - self.embeddings.offset
        elif reads.adds_positions and first_position:
            places = torch.arange(first_position, first_position + text.shape[1], device=hidden.device)[None]
        tokens = StackTokens(
            mask=mask if documents is None else documents >= 0,
            is_global=is_global,
            belongs_to=belongs_to,
            places=places,
            border=border,
            importance=importance,
            documents=documents,
            shards=shards,
        )
        if is_global is not None and documents is None:  # else slots are those of each document
            tokens = tokens.with_slots(slots)

        # Layers and final norm.
        if not memory:
            return self.run(hidden, tokens, output_hidden_states=output_hidden_states)
        read = MemoryFirst.of(hidden, tokens, memory, places=reads.adds_positions)
        if config.compress_after is None:
            return read.apart(self.run(read.hidden, read.tokens, output_hidden_states=output_hidden_states))
        through = partial(read.compressed, self.layers, config.compress_after)
        output = self.run(read.hidden, read.tokens, output_hidden_states=output_hidden_states, through=through)
        exists = torch.ones(output.states.shape[:2], dtype=torch.bool, device=hidden.device)
        return output._replace(source=Source(output.states, exists), memory=output.states)

    @expand_inputs(EncoderInputs)
    def forward(self, inputs: EncoderInputs) -> EncoderOutput | tuple[Tensor, ...]:
        """Returns `encode` in transformers' outputs, as in `LongspanModel.forward`; `generate()` calls it
        once per source.
        """
        from longspan.models.outputs import EncoderOutput

        config: Any = self.config
        keep = bool(config.output_hidden_states if inputs.output_hidden_states is None else inputs.output_hidden_states)
        weights: Weights | None = None
        if config.output_attentions if inputs.output_attentions is None else inputs.output_attentions:
            with recorded_weights(self.layers) as weights:
                encoded = self.encode(inputs, output_hidden_states=keep)
            check_layers(weights, config.num_hidden_layers, self.stack.stack)
        else:
            encoded = self.encode(inputs, output_hidden_states=keep)
        source = encoded.source if config.is_encoder_decoder else None
        output: Any = EncoderOutput(
            last_hidden_state=encoded.states,  # pyright: ignore[reportArgumentType]
            hidden_states=encoded.all_hidden_states,  # pyright: ignore[reportArgumentType]
            pooler_output=encoded.summary,  # pyright: ignore[reportArgumentType]
            ponder_times=encoded.aux.ponder_times,
            stack_loss=encoded.aux.loss if self.training else None,
            source_states=None if source is None else source.states,
            source_mask=None if source is None else source.mask,
            memory_states=encoded.memory,
        )
        if weights is not None:
            output["attentions"] = tuple(local for local, _ in weights)
            if any(far is not None for _, far in weights):
                output["global_attentions"] = tuple(far for _, far in weights)
        return output.to_tuple() if inputs.return_dict is False else output

    @property
    def reads_packed(self) -> bool:
        """Whether the encoder supports packed sequences."""
        return "packed" in self.stack.supports and not self.config.num_memory_tokens

    def first_states(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns the state of each row's first real token, `(B, T, E)` and mask `(B, T)` → `(B, E)`, in every process
        of a sequence parallel model; errors as in `first_token`. If the last states are memory tokens only, it is the
        first of these.
        """
        if self.config.compress_after is not None:
            mask = None
        if self.sequence_group is None:
            return first_token(hidden, mask)
        from longspan.models.sequence_parallel import first_of_rows

        return first_of_rows(hidden, self.sequence_group, mask)


def first_token(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns the state of each row's first token, or first real token by a mask `(B, T)`, `(B, T, E)` → `(B, E)`;
    raises `InputError` for an empty input.
    """
    if hidden.shape[1] == 0:
        raise InputError("input_ids has 0 tokens; this head reads the first token, so give at least one")
    if mask is None:
        return hidden[:, 0]
    first = mask.to(hidden.device).bool().int().argmax(1)  # the first of several maxima
    return hidden.gather(1, first[:, None, None].expand(-1, 1, hidden.shape[-1]))[:, 0]


def global_tokens(
    config: ModelFields, inputs: EncoderInputs, hidden: Tensor, mask: Tensor | None
) -> tuple[Tensor | None, int | None]:
    """Returns the global tokens, `(B, T)` bool, `None` for none, from a mask of the batch or the rule
    `config.global_tokens`; and their static number of slots, `None` for as many as the batch needs.

    Args:
        config: fields of the model.
        inputs: the batch, with the ids that the rules "question" and a list of ids need.
        hidden: `(B, T, E)`, for shape and device.
        mask: `(B, T)` bool, True for real tokens.
    """
    rule, slots = config.global_tokens, config.max_global_tokens
    input_ids, documents = inputs.input_ids, inputs.seq_idx
    is_global = bool_mask("global_attention_mask", inputs.global_attention_mask, hidden)
    if is_global is None:
        if rule == "none" or hidden.shape[1] == 0:
            return None, None
        if not isinstance(rule, str):
            is_global = tokens_among(rule, input_ids, mask)
        elif rule == "first":
            slots = 1
            if documents is not None:
                is_global = begins(documents)
            elif mask is not None:
                is_global = mask & (mask.cumsum(1) == 1)
            else:
                is_global = torch.arange(hidden.shape[1], device=hidden.device).expand(hidden.shape[:2]) == 0
        elif input_ids is None:
            raise InputError(
                "global_tokens='question' reads input_ids; pass a global_attention_mask with inputs_embeds"
            )
        else:
            is_global = _questions(config, input_ids, documents)
    if documents is None and slots is None and torch.compiler.is_compiling():
        raise InputError("max_global_tokens=None reads the data; set it in the configuration to compile with globals")
    return is_global, slots


def _questions(config: ModelFields, input_ids: Tensor, documents: Tensor | None) -> Tensor:
    """Returns the tokens before the first separator of each row, or of each document in it, `(B, T)` bool."""
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
            "after each question, or pass a global_attention_mask"
        )
    return question


def second_part(config: ModelFields, inputs: EncoderInputs) -> Tensor:
    """Returns the position of the second part of each row, `(B,)` int64, for stacks that encode parts separately.

    In a model with several token types, it begins with the first real token of another type than 0; otherwise with the
    first real token after the first separator. For a row without one it is T.

    Raises:
        InputError: there are neither types nor a separator.
    """
    input_ids, token_type_ids = inputs.input_ids, inputs.token_type_ids
    if token_type_ids is not None and config.type_vocab_size > 1:
        second = (token_type_ids[..., 0] if token_type_ids.dim() == 3 else token_type_ids) != 0
    elif input_ids is not None and config.sep_token_id is not None:
        is_separator = (input_ids == config.sep_token_id).long()
        second = is_separator.cumsum(1) - is_separator > 0
    else:
        missing = "sep_token_id is None" if input_ids is not None else "inputs_embeds show no separator"
        raise InputError(
            "the stack processes question and passage separately, and the start of the passage is unknown "
            f"({missing}); give token_type_ids, which are 1 there, to a model with type_vocab_size=2, or input_ids "
            "with a sep_token_id"
        )
    if inputs.attention_mask is not None:
        second = second & inputs.attention_mask.bool()
    return (second.cumsum(1) == 0).sum(1)


def checked_importance(stack: StackConfig, importance: Tensor | None, hidden: Tensor) -> Tensor:
    """Returns the importance of each token of states `(B, T, E)`, `(B, T)`, on their device.

    Raises:
        InputError: the stack does not weight tokens; or it does, and the weights are missing, have another shape, are
            negative, or not finite.
    """
    if not stack.reads().importance:
        raise InputError(
            f"importance was given, but the stack {stack.stack!r} as configured does not weigh tokens; leave it out"
        )
    if importance is None:
        raise InputError(
            "importance is missing, and the stack weighs tokens by it (pooling='importance'); give a number from 0 to "
            "1 for each token, as an importance tagger does, or configure pooling='average'"
        )
    if tuple(importance.shape) != tuple(hidden.shape[:2]):
        raise InputError(
            f"importance has shape {tuple(importance.shape)} but the input is {tuple(hidden.shape[:2])}; give one "
            "number per token"
        )
    if not torch.compiler.is_compiling():
        wrong = ~(importance.isfinite() & (importance >= 0))
        if bool(wrong.any()):
            raise InputError(f"importance holds {importance[wrong][0].item():g}; give probabilities, from 0 to 1")
    return importance.to(hidden.device)


def checked_structure(stack: StackConfig, belongs_to: Tensor, hidden: Tensor) -> Tensor:
    """Returns the global token of each token of states `(B, T, E)`, `(B, T)` int64, on their device.

    Raises:
        InputError: the stack does not support it; it has another shape, or is not integer.
    """
    if "structure" not in stack.supports:
        raise InputError(
            f"belongs_to was given, but the stack {stack.stack!r} does not support structure; leave it out"
        )
    if tuple(belongs_to.shape) != tuple(hidden.shape[:2]) or belongs_to.is_floating_point():
        raise InputError(
            f"belongs_to is {belongs_to.dtype} of shape {tuple(belongs_to.shape)} but the input is "
            f"{tuple(hidden.shape[:2])}; give one whole number per token"
        )
    return belongs_to.to(hidden.device).long()


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
    """Returns block `layer` of the encoder, of a decoder-only model (`causal`), or of the decoder of an encoder-decoder
    (`decoder`), which is causal with cross-attention. A stack may replace the layer's `mechanism`, and the
    cross-attention as in `Block`.
    """
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
    """Returns the sizes for the layers that a stack creates; arguments as in `make_block`."""
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


def _shared_positions(layers: nn.Module) -> nn.Module | None:
    """Returns the tables that layers share, as DeBERTa's, after a check that they are equal; `None` if
    there are none.
    """
    shared, mechanisms = None, [module for module in layers.modules() if isinstance(module, Attention)]
    attention: Any
    for attention in mechanisms:
        tables = attention.config.shared_tables()
        if tables is not None:
            attention.share_positions()
            # Built for every layer, though one is enough: the random state of later weights depends on it.
            built = tables.build(attention.width, attention.heads)
            shared = shared or built
    return shared
