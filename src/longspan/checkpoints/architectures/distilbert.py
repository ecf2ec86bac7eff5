"""DistilBERT: BERT without token types and pooler, under names of its own.

Its blocks have no dropout behind the attention, which ours have: outputs are equal, training is as BERT's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from longspan.checkpoints.architectures import encoder_tables as encoder
from longspan.checkpoints.mapping import Architecture, Head, Pairs, alike

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


NAMES: Pairs = (
    ("dim", "hidden_size"),
    ("n_layers", "num_hidden_layers"),
    ("n_heads", "num_attention_heads"),
    ("hidden_dim", "intermediate_size"),
    ("activation", "activation_function"),
    *alike("max_position_embeddings", "dropout", "attention_dropout"),
    ("initializer_range", "init_std"),
)


def _classifier(config: Any) -> dict[str, Any]:
    return {"activation": "relu", "dropout": float(config.seq_classif_dropout), "input_dropout": 0.0}


def _export_classifier(config: Any) -> dict[str, Any]:
    dropout = config.head["dropout"]
    return {"seq_classif_dropout": config.dropout if dropout is None else dropout}


DISTILBERT = Architecture(
    model_type="distilbert",
    prefix="distilbert",
    body=BODY,
    heads=encoder.heads(
        "DistilBert",
        Head("LongspanForMaskedLM", MASKED_LM),
        Head("LongspanForSequenceClassification", CLASSIFIER, options=_classifier, export=_export_classifier),
        tokens=Head("LongspanForTokenClassification", encoder.TOKEN_CLASSIFIER),
        span=replace(
            encoder.SPAN,
            options=lambda config: {"dropout": float(config.qa_dropout)},
            export=lambda config: {"qa_dropout": config.head["dropout"]},
        ),
    ),
    names=NAMES,
    fixed={**encoder.FIXED, "type_vocab_size": 0, "embedding_size": None, "layer_norm_eps": 1e-12},
)
