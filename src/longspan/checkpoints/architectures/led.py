"""LED: BART whose encoder has Longformer's windows and global projections, and position tables without offset."""

from __future__ import annotations

from typing import Any

from longspan.checkpoints.architectures import bart
from longspan.checkpoints.architectures.windows import read_windows, write_windows
from longspan.checkpoints.mapping import Architecture, Pairs, alike

_THEIRS, _OURS = "encoder.layers.{i}.self_attn", "encoder.layers.{i}.attention"
BODY: Pairs = (
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


def _read(config: Any) -> dict[str, Any]:
    bart.warn_of_layerdrop(config)
    return {"attention": read_windows(config)}


LED = Architecture(
    model_type="led",
    prefix="led",
    body=BODY,
    our_body="",
    heads=bart.generation_heads("LED"),
    names=(
        *bart.NAMES,
        ("max_encoder_position_embeddings", "max_position_embeddings"),
        *alike("max_decoder_position_embeddings"),
    ),
    fixed={**bart.FIXED, "position_offset": 0, "scale_embedding": False, "normalization": "post"},
    read=_read,
    write=lambda config: {"attention_window": write_windows(config)},
)
