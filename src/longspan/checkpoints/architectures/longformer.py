"""Longformer: RoBERTa with a window per layer and separate projections for global queries."""

from __future__ import annotations

from typing import Any

from longspan.checkpoints.architectures.encoder_tables import (
    BODY,
    encoder_fields,
    export_encoder,
    roberta_heads,
    skipping_positions,
)
from longspan.checkpoints.architectures.windows import read_windows, write_windows
from longspan.checkpoints.mapping import Architecture, Pairs

GLOBAL: Pairs = tuple(
    (f"encoder.layer.{{i}}.attention.self.{name}_global", f"encoder.layers.{{i}}.attention.global_{name}")
    for name in ("query", "key", "value")
)


def _fields(config: Any) -> dict[str, Any]:
    return (
        encoder_fields(config)
        | skipping_positions(config)
        | {"attention": read_windows(config), "sep_token_id": config.sep_token_id}
    )


def _export(config: Any) -> dict[str, Any]:
    return export_encoder(config) | {"attention_window": write_windows(config), "sep_token_id": config.sep_token_id}


LONGFORMER = Architecture(
    model_type="longformer",
    prefix="longformer",
    body=BODY + GLOBAL,
    our_body="model",
    heads=roberta_heads("Longformer", own_globals=True),
    fields=_fields,
    export=_export,
)
