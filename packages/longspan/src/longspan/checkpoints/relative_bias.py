"""T5 and its kin, and MPNet, whose encoders add a learned number to every score, by how far apart two tokens are.

Such a number is the same from some distance on (`relative_attention_max_distance`), so that it has no longest input: a
table with a row for each offset up to there says all of it, where transformers lays it out for every pair of tokens.
"""

from __future__ import annotations

import math
from types import MethodType
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

ADDED = "longspan"
"""The name under which transformers knows the attention that reads tables by offset."""
FURTHEST = 128
"""The distance from which on MPNet's numbers are the same, which transformers does not read in its configuration."""


def encoder_by_offset(model: PreTrainedModel) -> PreTrainedModel | None:
    """The encoder of an encoder–decoder (T5, mT5, UMT5) whose scores know places by such numbers alone, made to give
    them by offset to Longspan's attention; None where there is no such encoder."""
    encoder: Any = model.get_encoder()
    added = [module for module in encoder.modules() if _adds(module)]
    if not isinstance(encoder, PreTrainedModel) or encoder is model or not added:
        return None
    for module in added:
        module.compute_bias = MethodType(_by_offset, module)  # a method, which copies of the model keep as their own
    return encoder


def _adds(module: Any) -> bool:
    return hasattr(module, "compute_bias") and getattr(module, "has_relative_attention_bias", False)


def _by_offset(
    self: Any, query_length: int, key_length: int, device: Any = None, past_seen_tokens: int | Tensor = 0
) -> Tensor:
    """Row o is for the key at offset o − D, `(H, 2D + 1)`, D being the distance from which on all are the same; with
    another attention what transformers makes, `(1, H, T, S)`."""
    own = type(self).compute_bias
    if self.config._attn_implementation != ADDED:
        return own(self, query_length, key_length, device, past_seen_tokens)
    far = self.relative_attention_max_distance
    return own(self, 1, 2 * far + 1, device, far)[0, :, 0]


def exchange_layers(model: PreTrainedModel) -> bool:
    """Whether it is an MPNet, whose layers ask nobody for their attention: they then have a `forward` that asks
    Longspan's where the configuration names it, and their encoder gives the numbers by offset."""
    encoders: list[Any] = [module for module in model.modules() if hasattr(module, "compute_position_bias")]
    for encoder in encoders:
        encoder.compute_position_bias = MethodType(_row_by_offset, encoder)
        for layer in encoder.layer:
            attention = layer.attention.attn
            attention.config, attention.forward = model.config, MethodType(_attend, attention)
    return bool(encoders)


def is_exchanged(module: nn.Module) -> bool:
    """Whether a layer's `forward` is that of `exchange_layers`."""
    return getattr(module.forward, "__func__", None) is _attend


def _row_by_offset(self: Any, x: Tensor, position_ids: Tensor | None = None, num_buckets: int = 32) -> Tensor:
    """As `_by_offset`, of states `(B, T, E)`: `(H, 2D + 1)`, or what transformers makes, `(B, H, T, T)`."""
    own = type(self).compute_position_bias
    if self.config._attn_implementation != ADDED:
        return own(self, x, position_ids, num_buckets)
    return own(self, x.new_empty(1, 2 * FURTHEST + 1, 1), None, num_buckets)[0, :, FURTHEST]


def _attend(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    position_bias: Tensor | None = None,
    output_attentions: bool = False,
    **kwargs: Any,
) -> tuple[Any, ...]:
    """`MPNetSelfAttention.forward` by Longspan's attention: `(B, T, E)` → `(B, T, E)`, in a tuple."""
    if self.config._attn_implementation != ADDED:
        return type(self).forward(self, hidden_states, attention_mask, position_bias, output_attentions, **kwargs)
    width = self.attention_head_size
    query, key, value = (
        layer(hidden_states).unflatten(-1, (-1, width)).transpose(1, 2) for layer in (self.q, self.k, self.v)
    )
    context, _ = AttentionInterface()[ADDED](
        self,
        query,
        key,
        value,
        attention_mask,
        scaling=1 / math.sqrt(width),
        dropout=self.dropout.p if self.training else 0.0,
        position_bias=position_bias,
        output_attentions=output_attentions,
    )
    return (self.o(context.flatten(2)),)
