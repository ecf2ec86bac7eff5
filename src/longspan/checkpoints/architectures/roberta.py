"""RoBERTa, XLM-R, CamemBERT: one architecture of three names; positions count real tokens from `pad_token_id + 1`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from longspan.checkpoints.architectures import encoder_tables as encoder
from longspan.checkpoints.architectures.bert import BERT
from longspan.checkpoints.mapping import Architecture, Pairs

MASKED_LM: Pairs = (
    ("lm_head.dense", "lm_head.dense"),
    ("lm_head.layer_norm", "lm_head.norm"),
    ("lm_head.decoder", "lm_head.decoder"),
    ("lm_head.bias", "lm_head.decoder.bias"),
)


def read(config: Any) -> dict[str, Any]:
    """Positions: those of real tokens begin behind row `pad_token_id`, which is the padding's."""
    offset = config.pad_token_id + 1
    return encoder.read(config) | {
        "max_position_embeddings": config.max_position_embeddings - offset,
        "position_offset": offset,
    }


def _architecture(model_type: str, name: str) -> Architecture:
    classification = encoder.classifier(encoder.DENSE_CLASSIFIER)
    return replace(
        BERT,
        model_type=model_type,
        prefix="roberta",
        heads=encoder.heads(name, encoder.masked_lm(MASKED_LM), classification),
        fixed={**encoder.FIXED, "positions_skip_padding": True},
        read=read,
    )


ROBERTA = _architecture("roberta", "Roberta")
XLM_ROBERTA = _architecture("xlm-roberta", "XLMRoberta")
CAMEMBERT = _architecture("camembert", "Camembert")
