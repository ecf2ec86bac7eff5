"""What BERT, RoBERTa, XLM-R and Longformer have in common: one body, and the same four heads under two names each."""

from __future__ import annotations

from typing import Any

from longspan.checkpoints.mapping import Head, Pairs, common_fields
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

ROBERTA_MASKED_LM: Pairs = (
    ("lm_head.dense", "lm_head.dense"),
    ("lm_head.layer_norm", "lm_head.norm"),
    ("lm_head.decoder", "lm_head.decoder"),
    ("lm_head.bias", "lm_head.decoder.bias"),
)
ROBERTA_CLASSIFIER: Pairs = (("classifier.dense", "classifier.dense"), ("classifier.out_proj", "classifier.output"))
BERT_MASKED_LM: Pairs = (
    ("cls.predictions.transform.dense", "lm_head.dense"),
    ("cls.predictions.transform.LayerNorm", "lm_head.norm"),
    ("cls.predictions.decoder", "lm_head.decoder"),
    ("cls.predictions.bias", "lm_head.decoder.bias"),
)
BERT_CLASSIFIER: Pairs = (("classifier", "classifier.output"),)
TOKEN_CLASSIFIER: Pairs = (("classifier", "classifier"),)
SPAN: Pairs = (("qa_outputs", "qa_outputs"),)


def roberta_heads(name: str, *, own_globals: bool = False) -> dict[str, Head]:
    """The heads of the classes `{name}Model`, `{name}ForMaskedLM`, …

    Args:
        name: first part of the class names.
        own_globals: the classes choose global tokens themselves when none are passed (Longformer), so ours must too.
    """
    first = {"global_tokens": "first"} if own_globals else {}
    question = {"global_tokens": "question"} if own_globals else {}
    return {
        f"{name}Model": Head("LongspanModel"),
        f"{name}ForMaskedLM": Head("LongspanForMaskedLM", ROBERTA_MASKED_LM, fields={"masked_lm_activation": "gelu"}),
        f"{name}ForSequenceClassification": Head(
            "LongspanForSequenceClassification", ROBERTA_CLASSIFIER, fields={"classification_head": "dense"} | first
        ),
        f"{name}ForTokenClassification": Head("LongspanForTokenClassification", TOKEN_CLASSIFIER),
        f"{name}ForQuestionAnswering": Head("LongspanForQuestionAnswering", SPAN, fields=question),
    }


def encoder_fields(config: Any) -> dict[str, Any]:
    """Fields of `LongspanConfig` from a BERT-like configuration, except positions and attention.

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
    return common_fields(config) | {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
        "decoder_layers": 0,
        "position_embedding": "learned",
        "type_vocab_size": config.type_vocab_size,
        "embedding_size": getattr(config, "embedding_size", None),
        "embedding_norm": True,
        "scale_embedding": False,
        "normalization": "post",
        "layer_norm_eps": config.layer_norm_eps,
        "activation_function": config.hidden_act,
        "dropout": config.hidden_dropout_prob,
        "attention_dropout": config.attention_probs_dropout_prob,
        "activation_dropout": 0.0,
        "classifier_dropout": getattr(config, "classifier_dropout", None),
        "init_std": config.initializer_range,
    }


def skipping_positions(config: Any) -> dict[str, Any]:
    """RoBERTa's positions: real tokens count from `pad_token_id + 1`, padding has row `pad_token_id`."""
    offset = config.pad_token_id + 1
    return {
        "max_position_embeddings": config.max_position_embeddings - offset,
        "position_offset": offset,
        "positions_skip_padding": True,
        "attention": "full",
    }


def export_encoder(config: Any) -> dict[str, Any]:
    """A BERT-like configuration from ours; the caller checks that it says everything."""
    return common_fields(config) | {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
        "type_vocab_size": config.type_vocab_size,
        "layer_norm_eps": config.layer_norm_eps,
        "hidden_act": config.activation_function,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "initializer_range": config.init_std,
        "max_position_embeddings": config.max_position_embeddings + config.position_offset,
        **({} if config.classifier_dropout is None else {"classifier_dropout": config.classifier_dropout}),
    }
