"""Encodes documents piece by piece, in two ways.

`in_pieces` splits a document for models with a longest input, into pieces that do not attend to each other.
`part_states` and `joint_states` compute question and passage of a decomposed encoder, each separately up to the upper
layers, and then both together, so that the passage's part can be computed in advance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longspan.attention import Tokens
from longspan.errors import InputError
from longspan.models.encoder import Encoder, global_tokens
from longspan.models.inputs import EncoderInputs, bool_mask
from longspan.stacks.decomposed import Part


def in_pieces(model: Any, inputs: dict[str, Any], sentence_ids: Tensor | None, limit: int) -> Any:
    """Returns the final states of a batch, with each document in as few pieces of at most `limit` tokens as possible
    that end with sentences.

    Args:
        model: a `LongspanModel`.
        inputs: its arguments; tensors `(B, T, …)`.
        sentence_ids: `(B, T)` index of each token's sentence; `None` splits after every `limit` tokens.
        limit: longest piece. A longer sentence is split.
    """
    asked = [name for name in ("output_hidden_states", "position_ids") if inputs.get(name) is not None]
    from transformers.modeling_outputs import BaseModelOutput  # late: the rest of this module runs without transformers

    if asked and inputs[asked[0]] is not False:
        raise InputError(
            f"{asked[0]} is set, but a document of more than {limit} tokens is read in pieces; leave it out"
        )
    tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    given = tensors["input_ids"] if "input_ids" in tensors else tensors["inputs_embeds"]
    rows, length = given.shape[:2]
    mask = tensors.setdefault("attention_mask", torch.ones(rows, length, dtype=torch.bool, device=given.device))
    others = {name: value for name, value in inputs.items() if name not in tensors}
    ends = [int(_end(row)) for row in mask]
    sentences = [[0] * end for end in ends]
    if sentence_ids is not None:
        sentences = [ids[:end].tolist() for ids, end in zip(sentence_ids, ends, strict=True)]
    bounds = [(row, *bound) for row, ids in enumerate(sentences) for bound in cut(ids, limit)]
    widest = max((end - start for _, start, end in bounds), default=0)
    pieces = {name: value.new_zeros(len(bounds), widest, *value.shape[2:]) for name, value in tensors.items()}
    for name, value in tensors.items():
        for index, (row, start, end) in enumerate(bounds):
            pieces[name][index, : end - start] = value[row, start:end]
    if not bounds:
        return model(**inputs, return_dict=True)
    states = model(**pieces, **others, return_dict=True).last_hidden_state
    # Index, in the flat pieces, of each token; a last row of zeros for padding.
    places = torch.full((rows, length), len(bounds) * widest, device=given.device)
    for index, (row, start, end) in enumerate(bounds):
        places[row, start:end] = torch.arange(index * widest, index * widest + end - start, device=given.device)
    flat = torch.cat([states.flatten(0, 1), states.new_zeros(1, states.shape[-1])])
    hidden: Any = flat[places]
    return BaseModelOutput(last_hidden_state=hidden)


def cut(sentences: Sequence[int], room: int, lengths: Sequence[int] | None = None) -> list[tuple[int, int]]:
    """Returns bounds of pieces that are as long as possible, and end with a sentence if possible.

    Args:
        sentences: the sentence of each token, or of each word.
        room: the most tokens of a piece; a longer word is a piece.
        lengths: tokens of each word; `None` for single tokens.
    """
    sizes = [1] * len(sentences) if lengths is None else lengths
    bounds: list[tuple[int, int]] = []
    start = 0
    while start < len(sizes):
        end, taken = start + 1, sizes[start]
        while end < len(sizes) and taken + sizes[end] <= room:
            taken += sizes[end]
            end += 1
        if end < len(sizes):
            borders = (place for place in range(end, start, -1) if sentences[place] != sentences[place - 1])
            end = next(borders, end)
        bounds.append((start, end))
        start = end
    return bounds


def _end(mask: Tensor) -> Tensor:
    """Returns the length up to the last real token."""
    places = torch.arange(1, len(mask) + 1, device=mask.device)
    return (places * mask.bool()).max()


def part_states(
    encoder: Encoder,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    token_type_ids: Tensor | None = None,
    *,
    question: bool = False,
) -> Part:
    """Computes one part of B rows up to the upper layers, padded on the right: ids and masks `(B, W)`. A question has
    the model's default global tokens, a passage none.
    """
    hidden = encoder.embeddings(input_ids, token_type_ids)
    mask = bool_mask("attention_mask", attention_mask, hidden)
    tokens = Tokens(mask=mask)
    if question:
        is_global, slots = global_tokens(encoder.config, EncoderInputs(input_ids), hidden, mask)
        tokens = Tokens(mask=mask, is_global=is_global).with_slots(slots)
    lower = range(encoder.layers.lower)
    return Part(encoder.layers(hidden, tokens, None, None, *_tables(encoder), layers=lower).states, tokens)


def joint_states(encoder: Encoder, question: Part, passages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the upper layers for one question with B passages.

    Args:
        encoder: the encoder with the upper layers.
        question: one row, without padding.
        passages: `(B, W, E)` states before the upper layers.
        mask: `(B, W)` bool, True for real tokens.

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


def _tables(encoder: Encoder) -> tuple[Tensor, ...]:
    return () if encoder.relative is None else encoder.relative()
