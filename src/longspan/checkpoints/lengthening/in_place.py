"""Encoder–decoders of transformers that tell places by distance, read further as they are."""

from __future__ import annotations

from transformers import PreTrainedModel

from longspan.checkpoints.attention_interface import use_attention
from longspan.errors import InputError


def read_further(model: PreTrainedModel, tokens: int) -> bool:
    """Let an encoder–decoder without a table of positions read more than the `tokens` that it was made for, in memory
    linear in the length and in place; False where it cannot.

    Windows of so many tokens to each side show all pairs of a text that is no longer, which comes out as before.
    """
    if getattr(model.get_encoder().config, "encoder_attention_type", None) is not None:
        return True  # LongT5, which has windows of its own
    try:
        use_attention(model, f"window({tokens})")
    except InputError:
        return False
    return True
