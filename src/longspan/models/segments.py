"""Encode a document of any length piece by piece, with the states that one pass over the whole would give.

A token's state depends on the tokens within the reach of all layers together. A piece that is encoded with so many
tokens on each side more gets the very states of the whole document, while memory is that of one piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longspan.models.inputs import ModelInputs
from longspan.stacks import stack_config

if TYPE_CHECKING:
    from longspan.models.fields import ModelFields
    from longspan.models.network import EncoderNetwork

SEGMENT = 16_384


def reach_of(config: ModelFields) -> tuple[int, int] | None:
    """How many tokens to each side a final state can depend on, and the step by which pieces may start.

    None where the reach is not bounded: global tokens, or a mechanism or stack that looks anywhere.
    """
    stack = stack_config(config.stack)
    if stack.brings_attention or stack.reads().parts:
        return None
    if config.global_tokens != "none" or config.position_embedding != "sinusoidal":
        return None
    reach, step = 0, 1
    for layer in range(config.num_hidden_layers):
        own = config.layer_attention(layer).reach()
        if own.left is None or own.right is None:
            return None
        reach += max(own.left, own.right)
        step = math.lcm(step, own.period)
    return reach, step


@torch.inference_mode()
def sums_by_sentence(
    encoder: EncoderNetwork,
    input_ids: Tensor,
    sentence_ids: Tensor,
    weighted: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Sum of the final states of each sentence's tokens: `(T,)` ids and rising sentence indices → `(N, E)`.

    `weighted`, where given, is what the states `(T, E)` go through before they are summed, each by itself.
    """
    config = encoder.config
    sentences = int(sentence_ids[-1]) + 1 if len(sentence_ids) else 0
    sums = torch.zeros(sentences, config.states_width, device=input_ids.device)
    bounded = reach_of(config)
    length = len(input_ids)
    reach, step = bounded or (length, 1)
    # Pieces shorter than their margins would be mostly margin.
    segment = max(SEGMENT, 4 * reach) if bounded else max(length, 1)
    segment -= segment % step
    for start in range(0, length, segment):
        stop = min(start + segment, length)
        first = max(0, start - reach) // step * step
        piece = input_ids[first : stop + reach]
        inputs = ModelInputs(input_ids=piece[None], first_position=first)
        states = encoder.encode(inputs).states[0, start - first : stop - first]
        states = states if weighted is None else weighted(states)
        sums.index_add_(0, sentence_ids[start:stop], states.to(sums.dtype))
    return sums
