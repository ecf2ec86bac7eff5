"""Outputs of models: those of transformers with the further outputs of some stacks."""

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
    """The output of an encoder.

    Attributes:
        ponder_times: `(B, T)` float32, steps of each token, in stacks with adaptive halting.
        stack_loss: scalar, the loss of such a stack, in training only.
        source_states: `(B, S, E)`, the states for a decoder's cross-attention, if these are not those of the tokens.
        source_mask: `(B, S)` bool, their mask.
        memory_states: `(B, M, E)` after the last layer, of models with `num_memory_tokens`.
        global_attentions: for each layer, weights of the global queries over all keys, `(B, H, T, G)`, if `attentions`
            are those of a window.
    """

    ponder_times: Tensor | None = None
    stack_loss: Tensor | None = None
    source_states: Tensor | None = None
    source_mask: Tensor | None = None
    memory_states: Tensor | None = None
    global_attentions: tuple[Tensor | None, ...] | None = None


@dataclass
class DecoderOutput(BaseModelOutputWithPastAndCrossAttentions, WithCache):
    """The output of a decoder; `ponder_times` and `stack_loss` as in `EncoderOutput`."""

    ponder_times: Tensor | None = None
    stack_loss: Tensor | None = None


@dataclass
class TextOutput(CausalLMOutputWithPast, WithCache):
    """The output of `LongspanForCausalLM`; `ponder_times` `(B, T)` as in `EncoderOutput`."""

    ponder_times: Tensor | None = None


@dataclass
class TextFromSourceOutput(Seq2SeqLMOutput, WithCache):
    """The output of `LongspanForConditionalGeneration`; `ponder_times` are those of the target tokens, and
    `encoder_ponder_times` those of the source, both as in `EncoderOutput`.
    """

    ponder_times: Tensor | None = None
    encoder_ponder_times: Tensor | None = None
