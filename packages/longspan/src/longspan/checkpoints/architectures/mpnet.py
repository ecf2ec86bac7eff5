"""MPNet, which keeps transformers' classes: a table of positions as in RoBERTa, and relative position biases as in
T5."""

from __future__ import annotations

from longspan.checkpoints.mapping import InPlace

HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")

MPNET = InPlace(
    classes=tuple(f"MPNet{head}" for head in HEADS),
    mechanism="longformer",
    length="max_position_embeddings",
    table="embeddings.position_embeddings",
    reserved=2,
)
