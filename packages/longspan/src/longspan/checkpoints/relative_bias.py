"""Encoders with relative position biases: T5 and its variants, and MPNet.

A bias is constant beyond some distance (`relative_attention_max_distance`), so there is no longest input: a table with
a row for each offset up to there is sufficient, where transformers expands it for every pair of tokens.
"""

from __future__ import annotations

import math
from types import MethodType
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

ADDED = "longspan"
"""transformers' name of the attention implementation that reads tables by offset."""
FURTHEST = 128
"""The distance beyond which MPNet's biases are constant, which its configuration does not define."""


def encoder_by_offset(model: PreTrainedModel) -> PreTrainedModel | None:
    """Returns the encoder of an encoder-decoder (T5, mT5, UMT5) with relative position biases only, modified to pass
    them by offset to Longspan's attention; None if there is no such encoder."""
    encoder: Any = model.get_encoder()
    added = [module for module in encoder.modules() if _adds(module)]
    if not isinstance(encoder, PreTrainedModel) or encoder is model or not added:
        return None
    for module in added:
        module.compute_bias = MethodType(_by_offset, module)  # a method, which copies of the model rebind
    return encoder


def _adds(module: Any) -> bool:
    return hasattr(module, "compute_bias") and getattr(module, "has_relative_attention_bias", False)


def _by_offset(
    self: Any, query_length: int, key_length: int, device: Any = None, past_seen_tokens: int | Tensor = 0
) -> Tensor:
    """Returns the biases by offset, `(H, 2D + 1)`, where row o is for a key at offset o − D, and biases are constant
    beyond D; with another attention implementation, transformers' result, `(1, H, T, S)`."""
    original = type(self).compute_bias
    if self.config._attn_implementation != ADDED:
        return original(self, query_length, key_length, device, past_seen_tokens)
    far = self.relative_attention_max_distance
    return original(self, 1, 2 * far + 1, device, far)[0, :, 0]


def exchange_layers(model: PreTrainedModel) -> bool:
    """Modifies an MPNet to use Longspan's attention if its configuration selects it, with biases by offset; its layers
    do not use transformers' interface. Returns whether the model is an MPNet."""
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
    """As `_by_offset`, for states `(B, T, E)`: `(H, 2D + 1)`, or transformers' result, `(B, H, T, T)`."""
    original = type(self).compute_position_bias
    if self.config._attn_implementation != ADDED:
        return original(self, x, position_ids, num_buckets)
    return original(self, x.new_empty(1, 2 * FURTHEST + 1, 1), None, num_buckets)[0, :, FURTHEST]


def _attend(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    position_bias: Tensor | None = None,
    output_attentions: bool = False,
    **kwargs: Any,
) -> tuple[Any, ...]:
    """`MPNetSelfAttention.forward` with Longspan's attention: `(B, T, E)` → `(B, T, E)`, in a tuple."""
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
