"""What models return: transformers' outputs with what some stacks return beside the states."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from transformers.modeling_outputs import (
    BaseModelOutputWithPastAndCrossAttentions,
    BaseModelOutputWithPooling,
    CausalLMOutputWithPast,
    Seq2SeqLMOutput,
)

from longspan.models.transformers_names import WithCache


@dataclass
class EncoderOutput(BaseModelOutputWithPooling):
    """An encoder's states.

    Attributes:
        ponder_times: `(B, T)` float32, steps that each token took, in stacks whose tokens stop by themselves.
        stack_loss: scalar, what such a stack adds to a training loss; only while training.
        source_states: `(B, S, E)`, what a decoder beside the encoder reads, where that is not the states of tokens.
        source_mask: `(B, S)` bool, which of them there are.
        memory_states: `(B, M, E)` after the last layer, of models with `num_memory_tokens`.
        global_attentions: of each layer, weights of the global queries over all keys, `(B, H, T, G)`, where
            `attentions` holds those of a window.
    """

    ponder_times: Tensor | None = None
    stack_loss: Tensor | None = None
    source_states: Tensor | None = None
    source_mask: Tensor | None = None
    memory_states: Tensor | None = None
    global_attentions: tuple[Tensor | None, ...] | None = None


@dataclass
class DecoderOutput(BaseModelOutputWithPastAndCrossAttentions, WithCache):
    """A decoder's states; `ponder_times` and `stack_loss` as in `EncoderOutput`."""

    ponder_times: Tensor | None = None
    stack_loss: Tensor | None = None


@dataclass
class TextOutput(CausalLMOutputWithPast, WithCache):
    """What `LongspanForCausalLM` returns; `ponder_times` `(B, T)` as in `EncoderOutput`."""

    ponder_times: Tensor | None = None


@dataclass
class TextFromSourceOutput(Seq2SeqLMOutput, WithCache):
    """What `LongspanForConditionalGeneration` returns; `ponder_times` are of the tokens that it writes, and
    `encoder_ponder_times` of those of the source, both as in `EncoderOutput`."""

    ponder_times: Tensor | None = None
    encoder_ponder_times: Tensor | None = None
