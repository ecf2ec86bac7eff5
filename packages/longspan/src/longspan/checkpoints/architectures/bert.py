"""BERT and encoders that differ from it in names only: RoBERTa, XLM-R, CamemBERT, ELECTRA, DistilBERT.

First what they share with DeBERTa: body, fields, and heads under various names. BERT's positions begin at row 0, and
its classification and multiple choice use the pooler. RoBERTa, XLM-R and CamemBERT are one architecture with three
names; their positions count real tokens from `pad_token_id + 1`. ELECTRA has narrow embeddings, a generator of masked
tokens, and a discriminator of replaced ones. DistilBERT has no token types and no pooler, and its blocks lack the
dropout after attention that ours have: outputs are equal, training is as BERT's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from longspan.checkpoints.mapping import Architecture, Head, Pairs, alike
from longspan.errors import InputError

BODY: Pairs = (
    ("embeddings.word_embeddings", "encoder.embeddings.token"),
    ("embeddings.position_embeddings", "encoder.embeddings.position"),
    ("embeddings.token_type_embeddings", "encoder.embeddings.token_type"),
    ("embeddings.LayerNorm", "encoder.embeddings.norm"),
    ("encoder.layer.{i}.attention.self.query", "encoder.layers.{i}.attention.query"),
    ("encoder.layer.{i}.attention.self.key", "encoder.layers.{i}.attention.key"),
    ("encoder.layer.{i}.attention.self.value", "encoder.layers.{i}.attention.value"),
    ("encoder.layer.{i}.attention.output.dense", "encoder.layers.{i}.attention.output"),
    ("encoder.layer.{i}.attention.output.LayerNorm", "encoder.layers.{i}.attention_norm"),
    ("encoder.layer.{i}.intermediate.dense", "encoder.layers.{i}.feed_forward.up"),
    ("encoder.layer.{i}.output.dense", "encoder.layers.{i}.feed_forward.down"),
    ("encoder.layer.{i}.output.LayerNorm", "encoder.layers.{i}.feed_forward_norm"),
    ("pooler.dense", "pooler.dense"),
)
NAMES: Pairs = (
    *alike("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings"),
    *alike("type_vocab_size", "layer_norm_eps"),
    ("hidden_act", "activation_function"),
    ("hidden_dropout_prob", "dropout"),
    ("attention_probs_dropout_prob", "attention_dropout"),
    ("initializer_range", "init_std"),
)
FIXED = {
    "decoder_layers": 0,
    "position_embedding": "learned",
    "position_offset": 0,
    "positions_skip_padding": False,
    "embedding_norm": True,
    "scale_embedding": False,
    "normalization": "post",
    "activation_dropout": 0.0,
    "attention": "full",
}

BERT_MASKED_LM: Pairs = (
    ("cls.predictions.transform.dense", "lm_head.dense"),
    ("cls.predictions.transform.LayerNorm", "lm_head.norm"),
    ("cls.predictions.decoder", "lm_head.decoder"),
    ("cls.predictions.bias", "lm_head.decoder.bias"),
)
# The sentence-order head and its pooler are not part of a masked-LM model.
PRETRAINING = Head("LongspanForMaskedLM", BERT_MASKED_LM, ignored=("bert.pooler.", "cls.seq_relationship."))
DENSE_CLASSIFIER: Pairs = (("classifier.dense", "classifier.dense"), ("classifier.out_proj", "classifier.output"))
TOKEN_CLASSIFIER = alike("classifier")
SPAN = Head("LongspanForQuestionAnswering", alike("qa_outputs"))


def classifier(
    pairs: Pairs,
    fields: Mapping[str, Any] | None = None,
    longspan: str = "LongspanForSequenceClassification",
    **fixed: Any,
) -> Head:
    """Returns a classification head whose dropout published configurations call `classifier_dropout`."""

    def export(config: Any) -> dict[str, Any]:
        dropout = config.head["dropout"]
        return {} if dropout is None else {"classifier_dropout": dropout}

    return Head(
        longspan,
        pairs,
        fields=fields or {},
        options=lambda config: {**fixed, "dropout": getattr(config, "classifier_dropout", None)},
        export=export,
    )


TOKENS = classifier(TOKEN_CLASSIFIER, longspan="LongspanForTokenClassification")


def masked_lm(pairs: Pairs) -> Head:
    """Returns a masked-LM head with GELU activation, whatever that of the blocks."""
    return Head("LongspanForMaskedLM", pairs, options=lambda config: {"activation": "gelu"})


def heads(
    name: str, masked_lm: Head, classification: Head, *, tokens: Head = TOKENS, span: Head = SPAN
) -> dict[str, Head]:
    """Returns the heads of the classes `{name}Model`, `{name}ForMaskedLM`, …"""
    return {
        f"{name}Model": Head("LongspanModel"),
        f"{name}ForMaskedLM": masked_lm,
        f"{name}ForSequenceClassification": classification,
        f"{name}ForTokenClassification": tokens,
        f"{name}ForQuestionAnswering": span,
    }


def read(config: Any) -> dict[str, Any]:
    """Returns the width of the embeddings, after checking that a BERT-like configuration is supported.

    Raises:
        InputError: the model is a decoder, or uses relative positions.
    """
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        raise InputError(
            f"is_decoder=True in this {config.model_type} checkpoint; Longspan loads it as an encoder only"
        )
    kind = getattr(config, "position_embedding_type", None) or "absolute"
    if kind != "absolute":
        raise InputError(
            f"position_embedding_type={kind!r} in this {config.model_type} checkpoint; Longspan has only absolute ones"
        )
    return {"embedding_size": getattr(config, "embedding_size", None)}


def write(config: Any) -> dict[str, Any]:
    """Returns the rows of the position table, including the reserved ones."""
    return {"max_position_embeddings": config.max_position_embeddings + config.position_offset}


POOLED_CLASSIFIER: Pairs = (("classifier", "classifier.output"),)
BERT_CLASSIFICATION = classifier(POOLED_CLASSIFIER, {"pooler": True}, layers="pooler")

BERT = Architecture(
    model_type="bert",
    prefix="bert",
    body=BODY,
    heads={
        **heads("Bert", Head("LongspanForMaskedLM", BERT_MASKED_LM), BERT_CLASSIFICATION),
        "BertForPreTraining": PRETRAINING,
        "BertForMultipleChoice": replace(BERT_CLASSIFICATION, longspan="LongspanForMultipleChoice"),
    },
    names=NAMES,
    fixed=FIXED,
    read=read,
    write=write,
)


ROBERTA_MASKED_LM: Pairs = (
    ("lm_head.dense", "lm_head.dense"),
    ("lm_head.layer_norm", "lm_head.norm"),
    ("lm_head.decoder", "lm_head.decoder"),
    ("lm_head.bias", "lm_head.decoder.bias"),
)


def read_roberta(config: Any) -> dict[str, Any]:
    """Returns the position fields: real tokens begin after row `pad_token_id`, that of padding."""
    offset = config.pad_token_id + 1
    return read(config) | {
        "max_position_embeddings": config.max_position_embeddings - offset,
        "position_offset": offset,
    }


# As BERT's, with the dropout of the blocks.
ROBERTA_CHOICE = Head(
    "LongspanForMultipleChoice",
    POOLED_CLASSIFIER,
    fields={"pooler": True},
    options=lambda config: {"layers": "pooler"},
)


def _roberta(model_type: str, name: str) -> Architecture:
    classification = classifier(DENSE_CLASSIFIER)
    return replace(
        BERT,
        model_type=model_type,
        prefix="roberta",
        heads={
            **heads(name, masked_lm(ROBERTA_MASKED_LM), classification),
            f"{name}ForMultipleChoice": ROBERTA_CHOICE,
        },
        fixed={**FIXED, "positions_skip_padding": True},
        read=read_roberta,
    )


ROBERTA = _roberta("roberta", "Roberta")
XLM_ROBERTA = _roberta("xlm-roberta", "XLMRoberta")
CAMEMBERT = _roberta("camembert", "Camembert")


ELECTRA_PROJECTION: Pairs = (("embeddings_project", "encoder.embeddings.projection"),)
ELECTRA_MASKED_LM: Pairs = (
    ("generator_predictions.dense", "lm_head.dense"),
    ("generator_predictions.LayerNorm", "lm_head.norm"),
    ("generator_lm_head", "lm_head.decoder"),
)
REPLACED_TOKENS: Pairs = (
    ("discriminator_predictions.dense", "discriminator.dense"),
    ("discriminator_predictions.dense_prediction", "discriminator.output"),
)
ELECTRA_CLASSIFICATION = classifier(DENSE_CLASSIFIER, activation="gelu")

ELECTRA = replace(
    BERT,
    model_type="electra",
    prefix="electra",
    body=BODY + ELECTRA_PROJECTION,
    heads={
        **heads("Electra", masked_lm(ELECTRA_MASKED_LM), ELECTRA_CLASSIFICATION),
        "ElectraForPreTraining": Head("LongspanForReplacedTokens", REPLACED_TOKENS),
    },
    fixed={**FIXED, "embedding_projection": "after_norm"},
    write=lambda config: write(config) | {"embedding_size": config.embedding_width},
)


DISTILBERT_BODY: Pairs = (
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
DISTILBERT_MASKED_LM: Pairs = (
    ("vocab_transform", "lm_head.dense"),
    ("vocab_layer_norm", "lm_head.norm"),
    ("vocab_projector", "lm_head.decoder"),
)
DISTILBERT_CLASSIFIER: Pairs = (("pre_classifier", "classifier.dense"), ("classifier", "classifier.output"))


DISTILBERT_NAMES: Pairs = (
    ("dim", "hidden_size"),
    ("n_layers", "num_hidden_layers"),
    ("n_heads", "num_attention_heads"),
    ("hidden_dim", "intermediate_size"),
    ("activation", "activation_function"),
    *alike("max_position_embeddings", "dropout", "attention_dropout"),
    ("initializer_range", "init_std"),
)


def _distilbert_classifier(config: Any) -> dict[str, Any]:
    return {"activation": "relu", "dropout": float(config.seq_classif_dropout), "input_dropout": 0.0}


def _export_classifier(config: Any) -> dict[str, Any]:
    dropout = config.head["dropout"]
    return {"seq_classif_dropout": config.dropout if dropout is None else dropout}


DISTILBERT = Architecture(
    model_type="distilbert",
    prefix="distilbert",
    body=DISTILBERT_BODY,
    heads=heads(
        "DistilBert",
        Head("LongspanForMaskedLM", DISTILBERT_MASKED_LM),
        Head(
            "LongspanForSequenceClassification",
            DISTILBERT_CLASSIFIER,
            options=_distilbert_classifier,
            export=_export_classifier,
        ),
        tokens=Head("LongspanForTokenClassification", TOKEN_CLASSIFIER),
        span=replace(
            SPAN,
            options=lambda config: {"dropout": float(config.qa_dropout)},
            export=lambda config: {"qa_dropout": config.head["dropout"]},
        ),
    ),
    names=DISTILBERT_NAMES,
    fixed={**FIXED, "type_vocab_size": 0, "embedding_size": None, "layer_norm_eps": 1e-12},
)
