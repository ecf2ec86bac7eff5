"""Blocks over the sequence of a document's sentences, so that a sentence's score depends on the whole document."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from longspan.attention import Tokens
from longspan.models.fields import ModelFields
from longspan.models.heads.specs import SentenceScoring
from longspan.models.network import make_block
from longspan.stacks.block import Block

WAVES = 16
"""Sinusoids per kind of place; four numbers come of each: sine and cosine, of the index and of the relative place."""
LONGEST_WAVE = 512.0


def sentence_places(exists: Tensor, tokens: Tensor) -> Tensor:
    """Where each sentence stands and how long it is, for documents of any length.

    Sinusoids of the sentence's index, sinusoids of index / number of sentences, and the logarithm of its length. No
    table, hence no limit; padding changes nothing, since only sentences that exist are counted.

    Args:
        exists: `(B, N)` bool, True where a row has that sentence.
        tokens: `(B, N)`, number of tokens of each sentence.

    Returns:
        `(B, N, 4·WAVES + 1)`.
    """
    wave = torch.linspace(0, math.log(LONGEST_WAVE), WAVES, device=exists.device).exp()
    index = (exists.cumsum(1) - 1).clamp(min=0).float()
    share = index / exists.sum(1, keepdim=True).clamp(min=1)
    angles = torch.cat([index[..., None] / wave, share[..., None] * wave], dim=-1)
    length = tokens.float().clamp(min=1).log()[..., None] / 4
    return torch.cat([angles.sin(), angles.cos(), length], dim=-1)


class SentenceLayers(nn.Module):
    """Sentence states → sentence states that know their place, their neighbours and the mean of the document."""

    def __init__(self, config: ModelFields, block: type[Block] = Block) -> None:
        super().__init__()
        # The model's own sizes, with the layers and the mechanism of the head.
        options, width = config.head_options(SentenceScoring), config.states_width
        data: dict[str, Any] = {field.name: getattr(config, field.name) for field in fields(ModelFields)}
        data.update(num_hidden_layers=options.layers, attention=options.attention, stack="sequential", head=None)
        inner = ModelFields(**data)
        self.place = nn.Linear(4 * WAVES + 1, width)
        self.layers = nn.ModuleList(make_block(inner, layer, kind=block) for layer in range(options.layers))
        self.final_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.mix = nn.Linear(3 * width, width)
        self.activation = nn.GELU()

    def forward(self, states: Tensor, exists: Tensor, tokens: Tensor) -> Tensor:
        """`(B, N, E)` states, `(B, N)` bool, `(B, N)` token counts → `(B, N, E)`, 0 where no sentence exists."""
        hidden = states + self.place(sentence_places(exists, tokens).to(states.dtype))
        hidden = hidden.masked_fill(~exists[..., None], 0)
        for layer in self.layers:
            hidden = layer(hidden, Tokens(mask=exists))
        hidden = self.final_norm(hidden).masked_fill(~exists[..., None], 0)
        # What the document is about: a sentence close to it says much of the whole.
        mean = hidden.sum(1, keepdim=True) / exists.sum(1).clamp(min=1)[:, None, None]
        mixed = self.mix(torch.cat([hidden, hidden * mean, mean.expand_as(hidden)], dim=-1))
        return self.activation(mixed).masked_fill(~exists[..., None], 0)
