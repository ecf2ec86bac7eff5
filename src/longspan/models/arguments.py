"""What `forward` accepts besides its own arguments: everything that transformers' classes do, as far as it asks for
nothing that cannot be honoured."""

from __future__ import annotations

from typing import Any

from longspan.errors import InputError

WITHOUT_EFFECT = frozenset({"cache_position", "use_cache"})
"""What encoders of transformers take and do not read."""
REASONS = {
    "head_mask": "attention heads cannot be masked",
    "decoder_head_mask": "attention heads cannot be masked",
    "cross_attn_head_mask": "attention heads cannot be masked",
    "past_key_values": "an encoder has no cache",
    "encoder_hidden_states": "an encoder attends to its own input only",
    "encoder_attention_mask": "an encoder attends to its own input only",
}


def refuse_others(others: dict[str, Any]) -> None:
    """Raise for the first argument that asks for something; `None` and what has no effect anyway pass.

    Raises:
        InputError: an argument of transformers' classes that cannot be honoured.
        TypeError: an argument that nobody knows.
    """
    for name, value in others.items():
        if name in WITHOUT_EFFECT or (name in REASONS and value is None):
            continue
        if name in REASONS:
            raise InputError(f"{name} was given, but {REASONS[name]}; leave it out")
        raise TypeError(f"forward() got an unexpected keyword argument {name!r}")


def refuse_attentions(output_attentions: bool | None, configured: bool | None) -> None:
    """Raise `InputError` where attention weights are asked for, by the call or else by the configuration."""
    if output_attentions or (output_attentions is None and configured):
        raise InputError(
            "output_attentions=True is not offered, since a long mechanism never forms its weights; "
            "call layer.attention.weights(hidden, tokens) on a short input instead"
        )
