"""Question and passage of a decomposed encoder, each by itself up to the upper layers, and both together from there on.

What comes out at the end is what the encoder makes of the pair, with the passage's part computed long before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longspan.attention import Tokens
from longspan.models.inputs import ModelInputs, bool_mask, describe_tokens
from longspan.stacks.decomposed import Part

if TYPE_CHECKING:
    from longspan.models.network import EncoderNetwork


def part_states(
    encoder: EncoderNetwork,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    token_type_ids: Tensor | None = None,
    *,
    question: bool = False,
) -> Part:
    """One part of B rows before the upper layers, each filled up on the right: ids and masks `(B, W)`. A question has
    the model's default global tokens, a passage none."""
    hidden = encoder.embeddings(input_ids, token_type_ids)
    if question:
        inputs = ModelInputs(input_ids=input_ids, attention_mask=attention_mask)
        tokens = describe_tokens(encoder.config, inputs, hidden)
    else:
        tokens = Tokens(mask=bool_mask("attention_mask", attention_mask, hidden))
    lower = range(encoder.layers.lower)
    return Part(encoder.layers(hidden, tokens, None, None, *_tables(encoder), layers=lower).states, tokens)


def joint_states(encoder: EncoderNetwork, question: Part, passages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """One question with B passages.

    Args:
        encoder: whose upper layers read both.
        question: of one row, without padding.
        passages: `(B, W, E)` states before the upper layers.
        mask: `(B, W)` bool, True where a token is real.

    Returns:
        The final states `(B, Q + W, E)` and their mask.
    """
    count, width = len(passages), question.hidden.shape[1]
    hidden = torch.cat([question.hidden.expand(count, -1, -1), passages], 1)
    whole = torch.cat([mask.new_ones(count, width), mask], 1)
    flags = question.tokens.global_mask(width)
    if flags is not None:
        flags = torch.cat([flags.expand(count, -1), torch.zeros_like(mask)], 1)
    tokens = Tokens(mask=whole, is_global=flags).with_slots()
    upper = range(encoder.layers.lower, len(encoder.layers))
    hidden = encoder.layers(hidden, tokens, None, None, *_tables(encoder), layers=upper).states
    return (hidden if encoder.final_norm is None else encoder.final_norm(hidden)), whole


def _tables(encoder: EncoderNetwork) -> tuple[Tensor, ...]:
    return () if encoder.relative is None else encoder.relative()
