"""T5 and its kin, whose encoders add a learned number to every score, by how far apart two tokens are.

Such a number is the same from some distance on (`relative_attention_max_distance`), so that it has no longest input: a
table with a row for each offset up to there says all of it, where transformers lays it out for every pair of tokens.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

ADDED = "longspan"
"""The attention that reads tables by offset."""


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
