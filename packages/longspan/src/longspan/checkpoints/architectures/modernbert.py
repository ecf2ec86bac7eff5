"""ModernBERT, which stays transformers' own: rotary positions, which have no longest input, and windows of its own in
two layers out of three."""

from __future__ import annotations

from typing import Any

from longspan.checkpoints.mapping import InPlace

HEADS = ("ForMaskedLM", "Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


def _side(config: Any, layer: int) -> int | None:
    """How far a layer looks to each side, `None` for one that sees everything."""
    return config.local_attention // 2 if config.layer_types[layer] == "sliding_attention" else None


MODERNBERT = InPlace(
    classes=tuple(f"ModernBert{head}" for head in HEADS),
    mechanism="longformer",
    length="max_position_embeddings",
    own_window=_side,
)
