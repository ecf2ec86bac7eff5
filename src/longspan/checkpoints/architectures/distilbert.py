"""DistilBERT: BERT without token types and pooler, under names of its own.

Its blocks have no dropout behind the attention, which ours have: outputs are equal, training is as BERT's.
"""

from __future__ import annotations

from typing import Any

from longspan.checkpoints.architectures.encoder_tables import SPAN, TOKEN_CLASSIFIER
from longspan.checkpoints.mapping import Architecture, Head, Pairs, common_fields

BODY: Pairs = (
    ("embeddings.word_embeddings", "encoder.embeddings.token"),
    ("embeddings.position_embeddings", "encoder.embeddings.position"),
    ("embeddings.LayerNorm", "encoder.embeddings.norm"),
    ("transformer.layer.{i}.attention.q_lin", "encoder.layers.{i}.attention.query"),
    ("transformer.layer.{i}.attention.k_lin", "encoder.layers.{i}.attention.key"),
    ("transformer.layer.{i}.attention.v_lin", "encoder.layers.{i}.attention.value"),
    ("transformer.layer.{i}.attention.out_lin", "encoder.layers.{i}.attention.output"),
    ("transformer.layer.{i}.sa_layer_norm", "encoder.layers.{i}.attention_norm"),
    ("transformer.layer.{i}.ffn.lin1", "encoder.layers.{i}.feed_forward.up"),
    ("transformer.layer.{i}.ffn.lin2", "encoder.layers.{i}.feed_forward.down"),
    ("transformer.layer.{i}.output_layer_norm", "encoder.layers.{i}.feed_forward_norm"),
)
MASKED_LM: Pairs = (
    ("vocab_transform", "lm_head.dense"),
    ("vocab_layer_norm", "lm_head.norm"),
    ("vocab_projector", "lm_head.decoder"),
)
CLASSIFIER: Pairs = (("pre_classifier", "classifier.dense"), ("classifier", "classifier.output"))
CLASSIFIER_FIELDS = {
    "classification_head": "dense",
    "classifier_activation": "relu",
    "classifier_input_dropout": 0.0,
}


def _fields(config: Any) -> dict[str, Any]:
    return common_fields(config) | {
        "hidden_size": config.dim,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "intermediate_size": config.hidden_dim,
        "decoder_layers": 0,
        "position_embedding": "learned",
        "max_position_embeddings": config.max_position_embeddings,
        "position_offset": 0,
        "positions_skip_padding": False,
        "type_vocab_size": 0,
        "embedding_size": None,
        "embedding_norm": True,
        "scale_embedding": False,
        "normalization": "post",
        "layer_norm_eps": 1e-12,
        "activation_function": config.activation,
        "dropout": float(config.dropout),
        "attention_dropout": float(config.attention_dropout),
        "activation_dropout": 0.0,
        "classifier_dropout": float(config.seq_classif_dropout),
        "span_dropout": float(config.qa_dropout),
        "init_std": config.initializer_range,
        "attention": "full",
    }


def _export(config: Any) -> dict[str, Any]:
    dropout = config.dropout if config.classifier_dropout is None else config.classifier_dropout
    return common_fields(config) | {
        "dim": config.hidden_size,
        "n_layers": config.num_hidden_layers,
        "n_heads": config.num_attention_heads,
        "hidden_dim": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "activation": config.activation_function,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "seq_classif_dropout": dropout,
        "qa_dropout": config.span_dropout,
        "initializer_range": config.init_std,
    }


DISTILBERT = Architecture(
    model_type="distilbert",
    prefix="distilbert",
    body=BODY,
    our_body="model",
    heads={
        "DistilBertModel": Head("LongspanModel"),
        "DistilBertForMaskedLM": Head("LongspanForMaskedLM", MASKED_LM),
        "DistilBertForSequenceClassification": Head(
            "LongspanForSequenceClassification", CLASSIFIER, fields=CLASSIFIER_FIELDS
        ),
        "DistilBertForTokenClassification": Head(
            "LongspanForTokenClassification", TOKEN_CLASSIFIER, fields={"classifier_dropout": None}
        ),
        "DistilBertForQuestionAnswering": Head("LongspanForQuestionAnswering", SPAN),
    },
    fields=_fields,
    export=_export,
    checked=("classifier_dropout",),
)
