"""ELECTRA: BERT with narrow embeddings; a generator of masked tokens, and a discriminator that finds the replaced."""

from __future__ import annotations

from dataclasses import replace

from longspan.checkpoints.architectures import encoder_tables as encoder
from longspan.checkpoints.architectures.bert import BERT
from longspan.checkpoints.mapping import Head, Pairs

PROJECTION: Pairs = (("embeddings_project", "encoder.embeddings.projection"),)
MASKED_LM: Pairs = (
    ("generator_predictions.dense", "lm_head.dense"),
    ("generator_predictions.LayerNorm", "lm_head.norm"),
    ("generator_lm_head", "lm_head.decoder"),
)
REPLACED_TOKENS: Pairs = (
    ("discriminator_predictions.dense", "discriminator.dense"),
    ("discriminator_predictions.dense_prediction", "discriminator.output"),
)
CLASSIFICATION = encoder.classifier(encoder.DENSE_CLASSIFIER, activation="gelu")

ELECTRA = replace(
    BERT,
    model_type="electra",
    prefix="electra",
    body=encoder.BODY + PROJECTION,
    heads={
        **encoder.heads("Electra", encoder.masked_lm(MASKED_LM), CLASSIFICATION),
        "ElectraForPreTraining": Head("LongspanForReplacedTokens", REPLACED_TOKENS),
    },
    fixed={**encoder.FIXED, "embedding_projection": "after_norm"},
    write=lambda config: encoder.write(config) | {"embedding_size": config.embedding_width},
)
