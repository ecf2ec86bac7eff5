"""MPNet, which stays transformers' own: a table of positions as RoBERTa's, and beside it numbers by distance as T5's,
which have no longest input."""

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
