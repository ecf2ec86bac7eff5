"""Longformer: RoBERTa with a window per layer and separate projections for global queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from longspan.checkpoints.architectures import encoder_tables as encoder
from longspan.checkpoints.architectures import roberta
from longspan.checkpoints.architectures.windows import read_windows, write_windows
from longspan.checkpoints.mapping import Pairs, alike

GLOBAL: Pairs = tuple(
    (f"encoder.layer.{{i}}.attention.self.{name}_global", f"encoder.layers.{{i}}.attention.global_{name}")
    for name in ("query", "key", "value")
)


def _read(config: Any) -> dict[str, Any]:
    return roberta.read(config) | {"attention": read_windows(config)}


def _write(config: Any) -> dict[str, Any]:
    return encoder.write(config) | {"attention_window": write_windows(config)}


LONGFORMER = replace(
    roberta.ROBERTA,
    model_type="longformer",
    prefix="longformer",
    body=encoder.BODY + GLOBAL,
    # Its classes choose global tokens themselves when none are passed, so ours must too.
    heads=encoder.heads(
        "Longformer",
        encoder.masked_lm(roberta.MASKED_LM),
        encoder.classifier(encoder.DENSE_CLASSIFIER, {"global_tokens": "first"}),
        span=replace(encoder.SPAN, fields={"global_tokens": "question"}),
    ),
    names=encoder.NAMES + alike("sep_token_id"),
    read=_read,
    write=_write,
)
