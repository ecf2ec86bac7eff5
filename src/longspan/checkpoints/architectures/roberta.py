"""RoBERTa, XLM-R, CamemBERT: one architecture of three names; positions count real tokens from `pad_token_id + 1`."""

from __future__ import annotations

from typing import Any

from longspan.checkpoints.architectures.encoder_tables import (
    BODY,
    encoder_fields,
    export_encoder,
    roberta_heads,
    skipping_positions,
)
from longspan.checkpoints.mapping import Architecture


def _fields(config: Any) -> dict[str, Any]:
    return encoder_fields(config) | skipping_positions(config)


def _architecture(model_type: str, name: str) -> Architecture:
    return Architecture(
        model_type=model_type,
        prefix="roberta",
        body=BODY,
        our_body="model",
        heads=roberta_heads(name),
        fields=_fields,
        export=export_encoder,
    )


ROBERTA = _architecture("roberta", "Roberta")
XLM_ROBERTA = _architecture("xlm-roberta", "XLMRoberta")
CAMEMBERT = _architecture("camembert", "Camembert")
