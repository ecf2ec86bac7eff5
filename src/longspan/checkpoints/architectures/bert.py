"""BERT: positions from row 0, a pooler that classification reads."""

from __future__ import annotations

from typing import Any

from longspan.checkpoints.architectures.encoder_tables import (
    BERT_CLASSIFIER,
    BERT_MASKED_LM,
    BODY,
    SPAN,
    TOKEN_CLASSIFIER,
    encoder_fields,
    export_encoder,
)
from longspan.checkpoints.mapping import Architecture, Head


def _fields(config: Any) -> dict[str, Any]:
    positions = {
        "max_position_embeddings": config.max_position_embeddings,
        "position_offset": 0,
        "positions_skip_padding": False,
        "attention": "full",
    }
    return encoder_fields(config) | positions


BERT = Architecture(
    model_type="bert",
    prefix="bert",
    body=BODY,
    our_body="model",
    heads={
        "BertModel": Head("LongspanModel"),
        "BertForMaskedLM": Head("LongspanForMaskedLM", BERT_MASKED_LM),
        # The sentence-order head and the pooler that feeds it are no part of a masked-LM model.
        "BertForPreTraining": Head(
            "LongspanForMaskedLM", BERT_MASKED_LM, ignored=("bert.pooler.", "cls.seq_relationship.")
        ),
        "BertForSequenceClassification": Head(
            "LongspanForSequenceClassification",
            BERT_CLASSIFIER,
            fields={"classification_head": "pooler", "pooler": True},
        ),
        "BertForTokenClassification": Head("LongspanForTokenClassification", TOKEN_CLASSIFIER),
        "BertForQuestionAnswering": Head("LongspanForQuestionAnswering", SPAN),
    },
    fields=_fields,
    export=export_encoder,
)
