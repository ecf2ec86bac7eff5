"""LED: BART whose encoder has Longformer's windows and global projections, and position tables without offset."""

from __future__ import annotations

from typing import Any

from longspan.checkpoints.architectures.bart import (
    DECODER,
    export_sequence,
    generation_heads,
    sequence_fields,
    stack_pairs,
)
from longspan.checkpoints.architectures.windows import read_windows, write_windows
from longspan.checkpoints.mapping import Architecture, Pairs

_THEIRS, _OURS = "encoder.layers.{i}.self_attn", "encoder.layers.{i}.attention"
BODY: Pairs = (
    *stack_pairs("encoder"),
    *((f"{_THEIRS}.longformer_self_attn.{name}", f"{_OURS}.{name}") for name in ("query", "key", "value")),
    *(
        (f"{_THEIRS}.longformer_self_attn.{name}_global", f"{_OURS}.global_{name}")
        for name in ("query", "key", "value")
    ),
    (f"{_THEIRS}.output", f"{_OURS}.output"),
    *DECODER,
    ("shared", "encoder.embeddings.token"),
)


def _fields(config: Any) -> dict[str, Any]:
    return sequence_fields(config) | {
        "max_position_embeddings": config.max_encoder_position_embeddings,
        "max_decoder_position_embeddings": config.max_decoder_position_embeddings,
        "position_offset": 0,
        "scale_embedding": False,
        "normalization": "post",
        "attention": read_windows(config),
    }


def _export(config: Any) -> dict[str, Any]:
    fields = export_sequence(config) | {
        "max_encoder_position_embeddings": config.max_position_embeddings,
        "max_decoder_position_embeddings": config.max_decoder_position_embeddings,
        "attention_window": write_windows(config),
    }
    return {name: value for name, value in fields.items() if name != "scale_embedding"}


LED = Architecture(
    model_type="led",
    prefix="led",
    body=BODY,
    our_body="",
    heads=generation_heads("LED"),
    fields=_fields,
    export=_export,
)
