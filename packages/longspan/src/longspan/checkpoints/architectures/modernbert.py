"""ModernBERT, which keeps transformers' classes: rotary positions, without a longest input, and windows in two layers
out of three."""

from __future__ import annotations

from typing import Any

from longspan.checkpoints.mapping import InPlace

HEADS = ("ForMaskedLM", "Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


def _side(config: Any, layer: int) -> int | None:
    """Returns the tokens to each side of a layer's window, `None` if it sees everything."""
    return config.local_attention // 2 if config.layer_types[layer] == "sliding_attention" else None


MODERNBERT = InPlace(
    classes=tuple(f"ModernBert{head}" for head in HEADS),
    mechanism="longformer",
    length="max_position_embeddings",
    own_window=_side,
)
