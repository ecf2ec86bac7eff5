"""What BERT, RoBERTa, ELECTRA, DeBERTa and others have in common: body, fields, and heads under a few names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longspan.checkpoints.mapping import Head, Pairs, alike
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
# The sentence-order head and the pooler that feeds it are no part of a masked-LM model.
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
    """A classification head whose dropout published configurations call `classifier_dropout`."""

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
    """A masked-LM head whose activation is GELU, whatever that of the blocks is."""
    return Head("LongspanForMaskedLM", pairs, options=lambda config: {"activation": "gelu"})


def heads(
    name: str, masked_lm: Head, classification: Head, *, tokens: Head = TOKENS, span: Head = SPAN
) -> dict[str, Head]:
    """The heads of the classes `{name}Model`, `{name}ForMaskedLM`, …"""
    return {
        f"{name}Model": Head("LongspanModel"),
        f"{name}ForMaskedLM": masked_lm,
        f"{name}ForSequenceClassification": classification,
        f"{name}ForTokenClassification": tokens,
        f"{name}ForQuestionAnswering": span,
    }


def read(config: Any) -> dict[str, Any]:
    """The width of the embeddings, once a BERT-like configuration is known to be one that we can read.

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
    """The rows of a table of positions, the reserved ones too."""
    return {"max_position_embeddings": config.max_position_embeddings + config.position_offset}
