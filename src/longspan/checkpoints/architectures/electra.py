"""ELECTRA: BERT with narrow embeddings; a generator of masked tokens, and a discriminator that finds the replaced."""

from __future__ import annotations

from typing import Any

from longspan.checkpoints.architectures.encoder_tables import (
    BODY,
    ROBERTA_CLASSIFIER,
    SPAN,
    TOKEN_CLASSIFIER,
    encoder_fields,
    export_encoder,
)
from longspan.checkpoints.mapping import Architecture, Head, Pairs

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


def _fields(config: Any) -> dict[str, Any]:
    return encoder_fields(config) | {
        "embedding_projection": "after_norm",
        "max_position_embeddings": config.max_position_embeddings,
        "position_offset": 0,
        "positions_skip_padding": False,
        "attention": "full",
    }


def _export(config: Any) -> dict[str, Any]:
    return export_encoder(config) | {"embedding_size": config.embedding_width}


ELECTRA = Architecture(
    model_type="electra",
    prefix="electra",
    body=BODY + PROJECTION,
    our_body="model",
    heads={
        "ElectraModel": Head("LongspanModel"),
        "ElectraForPreTraining": Head("LongspanForReplacedTokens", REPLACED_TOKENS),
        "ElectraForMaskedLM": Head("LongspanForMaskedLM", MASKED_LM, fields={"masked_lm_activation": "gelu"}),
        "ElectraForSequenceClassification": Head(
            "LongspanForSequenceClassification",
            ROBERTA_CLASSIFIER,
            fields={
                "classification_head": "dense",
                "classifier_activation": "gelu",
                "classifier_input_dropout": None,
            },
        ),
        "ElectraForTokenClassification": Head("LongspanForTokenClassification", TOKEN_CLASSIFIER),
        "ElectraForQuestionAnswering": Head("LongspanForQuestionAnswering", SPAN),
    },
    fields=_fields,
    export=_export,
)
