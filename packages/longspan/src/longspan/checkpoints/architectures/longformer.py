"""Longformer: RoBERTa with a window per layer and separate projections of global tokens; and LED: BART whose encoder
has the same windows and global projections, and position tables without offset.

transformers' `attention_window` is a total width per layer; our windows count tokens on each side.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from longspan.checkpoints.architectures import bart
from longspan.checkpoints.architectures import bert as encoder
from longspan.checkpoints.mapping import Architecture, Pairs, alike
from longspan.errors import InputError


def read_windows(config: Any) -> list[dict[str, Any]]:
    """Returns one Longformer spec per layer from `attention_window`: a total width w means w // 2 tokens on each
    side."""
    widths = config.attention_window
    layers = config.num_hidden_layers
    widths = [widths] * layers if isinstance(widths, int) else list(widths)
    if len(widths) != layers:
        raise InputError(
            f"attention_window={widths!r} lists {len(widths)} widths for {layers} layers; give one per layer"
        )
    return [{"mechanism": "longformer", "left_tokens": width // 2, "right_tokens": width // 2} for width in widths]


def write_windows(config: Any) -> list[int]:
    """Returns the total widths of our layers.

    Raises:
        InputError: a layer is not a plain symmetric Longformer window, the only kind in transformers.
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


GLOBAL: Pairs = tuple(
    (f"encoder.layer.{{i}}.attention.self.{name}_global", f"encoder.layers.{{i}}.attention.global_{name}")
    for name in ("query", "key", "value")
)


def _read(config: Any) -> dict[str, Any]:
    return encoder.read_roberta(config) | {"attention": read_windows(config)}


def _write(config: Any) -> dict[str, Any]:
    return encoder.write(config) | {"attention_window": write_windows(config)}


LONGFORMER = replace(
    encoder.ROBERTA,
    model_type="longformer",
    prefix="longformer",
    body=encoder.BODY + GLOBAL,
    # Its classes choose global tokens themselves if none are passed, so ours must too.
    heads=encoder.heads(
        "Longformer",
        encoder.masked_lm(encoder.ROBERTA_MASKED_LM),
        encoder.classifier(encoder.DENSE_CLASSIFIER, {"global_tokens": "first"}),
        span=replace(encoder.SPAN, fields={"global_tokens": "question"}),
    ),
    names=encoder.NAMES + alike("sep_token_id"),
    read=_read,
    write=_write,
)


logger = logging.getLogger(__name__)

_THEIRS, _OURS = "encoder.layers.{i}.self_attn", "encoder.layers.{i}.attention"
LED_BODY: Pairs = (
    *bart.stack_pairs("encoder"),
    *((f"{_THEIRS}.longformer_self_attn.{name}", f"{_OURS}.{name}") for name in ("query", "key", "value")),
    *(
        (f"{_THEIRS}.longformer_self_attn.{name}_global", f"{_OURS}.global_{name}")
        for name in ("query", "key", "value")
    ),
    (f"{_THEIRS}.output", f"{_OURS}.output"),
    *bart.DECODER,
    ("shared", "encoder.embeddings.token"),
)


def _read_led(config: Any) -> dict[str, Any]:
    bart.warn_of_layerdrop(config)
    return {"attention": read_windows(config)}


def _write_led(config: Any) -> dict[str, Any]:
    """Returns the windows, and warns about lengths: transformers pads inputs to a multiple of the widest, and needs
    positions for padding too."""
    windows = write_windows(config)
    positions, widest = config.max_position_embeddings, max(windows)
    if past := positions % widest:
        logger.warning(
            "transformers pads LED's inputs to a multiple of the window, here %s, and fails on those of more than "
            "%s tokens for want of positions; lengthen to a multiple, such as %s, to use all %s there",
            f"{widest:,}",
            f"{positions - past:,}",
            f"{positions - past + widest:,}",
            f"{positions:,}",
        )
    return {"attention_window": windows}


LED = Architecture(
    model_type="led",
    prefix="led",
    body=LED_BODY,
    our_body="",
    heads=bart.generation_heads("LED"),
    names=(
        *bart.NAMES,
        ("max_encoder_position_embeddings", "max_position_embeddings"),
        *alike("max_decoder_position_embeddings"),
    ),
    fixed={**bart.FIXED, "position_offset": 0, "scale_embedding": False, "normalization": "post"},
    read=_read_led,
    write=_write_led,
)
