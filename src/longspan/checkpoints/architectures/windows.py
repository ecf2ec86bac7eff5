"""Between transformers' `attention_window` (total width, per layer) and our two-sided windows (tokens on each side)."""

from __future__ import annotations

from typing import Any

from longspan.errors import InputError


def read_windows(config: Any) -> list[dict[str, Any]]:
    """One Longformer spec per layer from `attention_window`: a total width w means w // 2 tokens on each side."""
    widths = config.attention_window
    layers = config.num_hidden_layers
    widths = [widths] * layers if isinstance(widths, int) else list(widths)
    if len(widths) != layers:
        raise InputError(
            f"attention_window={widths!r} lists {len(widths)} widths for {layers} layers; give one per layer"
        )
    return [{"mechanism": "longformer", "left_tokens": width // 2, "right_tokens": width // 2} for width in widths]


def write_windows(config: Any) -> list[int]:
    """The total widths of our layers.

    Raises:
        InputError: a layer is not a plain symmetric Longformer window, which is all that transformers has.
    """
    widths = []
    for layer in range(config.num_hidden_layers):
        attention = config.layer_attention(layer)
        reason = _misfit(attention)
        if reason:
            raise InputError(f"encoder layer {layer} has {reason}, which transformers cannot represent")
        widths.append(2 * attention.left_tokens)
    return widths


def _misfit(attention: Any) -> str | None:
    if attention.mechanism != "longformer":
        return f"attention {attention.mechanism!r}"
    left, right = attention.left_tokens, attention.right_tokens
    if left != right or left < 1:
        return f"left_tokens={left} and right_tokens={right}"
    if set(attention.dilations) != {1}:
        return f"dilation={attention.dilation}"
    if not attention.separate_global_projections:
        return "separate_global_projections=False"
    return None
