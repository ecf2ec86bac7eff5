"""Causal language models without an encoder, with `generate()`; and models with the same weights and other options,
such as a longer memory in evaluation than in training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache

from longspan.attention.base import projected
from longspan.attention.features.packed import begins
from longspan.attention.layers import plain_layers, spread
from longspan.errors import InputError
from longspan.models.adaptive import AdaptiveHead, tied_weights
from longspan.models.configuration import LongspanConfig
from longspan.models.decoder import Decoder
from longspan.models.generation import LongspanWriter, shifted
from longspan.models.inputs import CausalLMInputs, expand_inputs, refuse_attentions, refuse_others, with_documents
from longspan.models.losses import IGNORED, with_stack_loss
from longspan.models.outputs import TextOutput
from longspan.models.transformers_names import cache_field, cache_from

Model = TypeVar("Model", bound=nn.Module)


class DecoderOnly(LongspanWriter):
    """A single stack of blocks in their causal form, and a language-model head tied to the token embeddings.

    The blocks are those of `num_hidden_layers`, `num_attention_heads`, `intermediate_size` and `attention`.
    """

    _tied_weights_keys = {"lm_head.weight": "decoder.embeddings.token.weight"}  # noqa: RUF012

    def __init__(self, config: LongspanConfig) -> None:
        super().__init__(config)
        if config.decoder_layers:
            raise InputError(
                f"decoder_layers={config.decoder_layers} is for LongspanForConditionalGeneration, which has an encoder "
                f"too; {type(self).__name__} has num_hidden_layers, so leave it at 0"
            )
        if config.embedding_width != config.hidden_size:
            raise InputError(
                f"embedding_size={config.embedding_size} differs from hidden_size={config.hidden_size} in a language "
                "model, whose head is its token table; leave it out"
            )
        if config.tie_word_embeddings and config.states_width != config.hidden_size:
            raise InputError(
                f"tie_word_embeddings=True ties a head that reads states of width {config.states_width} to a token "
                f"table of width {config.hidden_size}; set it to False, or stack.join to 'concat'"
            )
        if config.global_tokens != "none":
            raise InputError(
                f"global_tokens={config.global_tokens!r} would let every token see the future; set it to 'none'"
            )
        self.decoder = Decoder(config, source=False)
        if config.cutoffs is None:
            self.lm_head = nn.Linear(config.states_width, config.vocab_size, bias=config.head_bias)
        else:
            self.lm_head = AdaptiveHead(config, config.states_width)
            self._tied_weights_keys = tied_weights(config)
        self.post_init()

    def resize_token_embeddings(self, *arguments: Any, **options: Any) -> Any:
        """As transformers; raises for a vocabulary in clusters, to which no words can be added."""
        if self.config.cutoffs is not None:
            raise InputError(
                f"a vocabulary with cutoffs={self.config.cutoffs} cannot be resized; make a new model with another one"
            )
        return super().resize_token_embeddings(*arguments, **options)


class LongspanForCausalLM(DecoderOnly):
    """A causal language model: every token is predicted from those before it, with any causal mechanism in
    any layer.
    """

    reads_each_token = True

    def with_memory(self, *, clamp_tokens: int | None = None, **options: Any) -> Self:
        """Returns a model that shares these weights, with another length of memory than in training.

        Args:
            clamp_tokens: the maximal distance, to which larger ones are clamped; `None` does not change it. **options:
            options of the stack, such as `memory_tokens` and `same_length` of the recurrent one.

        Raises:
            InputError: unknown options of the stack, or positions that are not relative.
        """
        attention = {} if clamp_tokens is None else {"clamp_tokens": clamp_tokens}
        return with_options(self, stack=options, attention=attention)

    @expand_inputs(CausalLMInputs)
    def forward(self, inputs: CausalLMInputs, **others: Any) -> TextOutput | tuple[Any, ...]:
        """Returns the logits of the next token after each, and the loss if there are `labels`.

        With an adaptive softmax (`cutoffs`) the logits are log-probabilities, and `None` with labels, since the loss
        does not need all words. `**others` are further arguments of transformers' classes, which must be `None` or
        without effect here.

        Raises:
            InputError: a mask of another shape than the sequence; one longer than the positions; a cache for layers
                without a state.
        """
        cache = cache_from(inputs.cache, others)
        if cache is None and (others or inputs.seq_idx is not None or inputs.position_ids is not None):
            inputs = with_documents(inputs, others)
        refuse_others(others)
        refuse_attentions(inputs.output_attentions, self.config.output_attentions)
        count, keep = inputs.num_items_in_batch, inputs.logits_to_keep
        labels, moved = (inputs.labels, False) if inputs.shift_labels is None else (inputs.shift_labels, True)
        if inputs.seq_idx is not None and labels is not None and not moved:
            first = functional.pad(begins(inputs.seq_idx), (0, labels.shape[1] - inputs.seq_idx.shape[1]))
            labels = labels.masked_fill(first, IGNORED)
        group = self.decoder.sequence_group
        if group is not None and labels is not None:
            from longspan.models.sequence_parallel import count_for_mean, following_labels

            if not moved:
                given = inputs.input_ids if inputs.inputs_embeds is None else inputs.inputs_embeds
                assert given is not None, "the decoder has read one of them"
                labels = following_labels(labels, given.shape[1], group)
            if count is None:
                count = count_for_mean((labels if moved else labels[:, 1:]) != IGNORED, group)
        if keep and labels is not None:
            raise InputError(f"logits_to_keep={keep} leaves labels without logits; leave one of them out")
        decoded = self.decoder(
            inputs.input_ids,
            inputs.attention_mask,
            cache,
            use_cache=False if inputs.use_cache is None and labels is not None else inputs.use_cache,
            output_hidden_states=inputs.output_hidden_states,
            inputs_embeds=inputs.inputs_embeds,
            position_ids=inputs.position_ids,
            documents=inputs.seq_idx,
        )
        states = decoded.last_hidden_state[:, -keep if keep else 0 :]
        if labels is not None and isinstance(self.lm_head, AdaptiveHead):
            logits, loss = None, self._adaptive_loss(states, labels, count, decoded, moved)
        else:
            logits: Any = projected(self.lm_head, states)
            loss = self.language_loss(logits, labels, count, decoded, shift=not moved)
        output = TextOutput(
            loss=loss,
            logits=logits,
            **cache_field(decoded.cache),
            hidden_states=decoded.hidden_states,
            ponder_times=decoded.ponder_times,
        )
        return self.finish(output, inputs.return_dict)

    def _adaptive_loss(
        self, states: Tensor, labels: Tensor, count: Tensor | int | None, decoded: Any, moved: bool
    ) -> Tensor:
        if self.config.label_smoothing:
            raise InputError(
                f"label_smoothing={self.config.label_smoothing} spreads targets over the whole vocabulary, which an "
                "adaptive softmax (cutoffs) never goes through; set it to 0"
            )
        assert isinstance(self.lm_head, AdaptiveHead)
        if not moved:
            states, labels = shifted(states, labels)
        loss = with_stack_loss(self.lm_head.loss(states, labels, count), decoded, labels=labels, count=count)
        assert loss is not None
        return loss

    @torch.no_grad()
    def score(self, labels: Tensor, **inputs: Any) -> tuple[Tensor, Tensor, Cache | None]:
        """Returns the nats, and whether the most likely token is right, `(N,)` each, of the N labels that are not −100,
        row by row; and the cache. Arguments as in `forward`; with sequence parallelism, those of this process's part,
        whose labels are `(B, T_r + 1)`.
        """
        decoded = self.decoder(**inputs)
        states, labels = shifted(decoded.last_hidden_state, labels)
        real = labels != IGNORED
        states, words = states[real], labels[real]
        if isinstance(self.lm_head, AdaptiveHead):
            return self.lm_head.nats(states, words), self.lm_head.best(states) == words, decoded.cache
        logits = projected(self.lm_head, states)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        nats = functional.cross_entropy(logits, words, reduction="none")
        return nats, logits.argmax(-1) == words, decoded.cache


def with_options(
    model: Model, *, stack: Mapping[str, Any] | None = None, attention: Mapping[str, Any] | None = None
) -> Model:
    """Returns a model that shares all weights with this one, with other options of its stack and mechanisms.

    Raises:
        InputError: an unknown option, one without effect, or one that changes the weights.
    """
    if not stack and not attention:
        return model
    config: Any = model.config
    fields = config.to_dict()
    fields["stack"] = {**config.stack, **(stack or {})}
    specs = spread(plain_layers(config.attention, config.num_hidden_layers), config.num_hidden_layers)
    fields["attention"] = [{**spec, **(attention or {})} for spec in specs]
    changed = type(config).from_dict(fields)
    _check_used(changed, attention or {})
    with torch.device("meta"):
        variant = type(model)(changed)
    ours = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    wanted = {**dict(variant.named_parameters(remove_duplicate=False)), **dict(variant.named_buffers())}
    for name, tensor in wanted.items():
        if name not in ours or ours[name].shape != tensor.shape:
            raise InputError(
                f"these options change the weights ({name}), so the model cannot take them; leave them out"
            )
        parent, _, last = name.rpartition(".")
        holder = variant.get_submodule(parent)
        (holder._parameters if last in holder._parameters else holder._buffers)[last] = ours[name]
    if isinstance(decoder := getattr(model, "decoder", None), Decoder):
        variant.decoder.divide(decoder.sequence_group)  # pyright: ignore
    if hasattr(model, "generation_config"):
        variant.generation_config = model.generation_config
    return variant.train(model.training)


def _check_used(config: Any, attention: Mapping[str, Any]) -> None:
    """Raises `InputError` for options without effect in a layer, given its other options."""
    for layer in range(config.num_hidden_layers):
        own = config.layer_attention(layer)
        for name in own.idle & {name for name, value in attention.items() if value is not None}:
            raise InputError(
                f"{name}={attention[name]} means nothing to attention {own.mechanism!r} as the model has it; leave "
                "it out"
            )
