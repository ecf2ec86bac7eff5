"""BART and mBART: encoder and decoder with positions from row 2; mBART normalises before each sublayer."""

from __future__ import annotations

from typing import Any

from transformers.utils import logging

from longspan.checkpoints.mapping import Architecture, Head, Pairs, common_fields

logger = logging.get_logger(__name__)


def attention_pairs(theirs: str, ours: str) -> Pairs:
    """The four projections of one attention module."""
    return (
        (f"{theirs}.q_proj", f"{ours}.query"),
        (f"{theirs}.k_proj", f"{ours}.key"),
        (f"{theirs}.v_proj", f"{ours}.value"),
        (f"{theirs}.out_proj", f"{ours}.output"),
    )


def stack_pairs(side: str) -> Pairs:
    """What encoder and decoder share: embeddings, norms and feed-forward layers, and the final norm of mBART."""
    layer, our_layer = f"{side}.layers.{{i}}", f"{side}.layers.{{i}}"
    return (
        (f"{side}.embed_tokens", f"{side}.embeddings.token"),
        (f"{side}.embed_positions", f"{side}.embeddings.position"),
        (f"{side}.layernorm_embedding", f"{side}.embeddings.norm"),
        (f"{side}.layer_norm", f"{side}.final_norm"),
        (f"{layer}.self_attn_layer_norm", f"{our_layer}.attention_norm"),
        (f"{layer}.fc1", f"{our_layer}.feed_forward.up"),
        (f"{layer}.fc2", f"{our_layer}.feed_forward.down"),
        (f"{layer}.final_layer_norm", f"{our_layer}.feed_forward_norm"),
    )


DECODER: Pairs = (
    *stack_pairs("decoder"),
    *attention_pairs("decoder.layers.{i}.self_attn", "decoder.layers.{i}.attention"),
    *attention_pairs("decoder.layers.{i}.encoder_attn", "decoder.layers.{i}.cross_attention"),
    ("decoder.layers.{i}.encoder_attn_layer_norm", "decoder.layers.{i}.cross_attention_norm"),
)
BODY: Pairs = (
    *stack_pairs("encoder"),
    *attention_pairs("encoder.layers.{i}.self_attn", "encoder.layers.{i}.attention"),
    *DECODER,
    ("shared", "encoder.embeddings.token"),
)
GENERATION: Pairs = (("lm_head", "lm_head"), ("final_logits_bias", "final_logits_bias"))


def generation_heads(name: str) -> dict[str, Head]:
    """Generation, and the bare model, whose language-model head is the tied token table."""
    return {
        f"{name}ForConditionalGeneration": Head("LongspanForConditionalGeneration", GENERATION),
        f"{name}Model": Head("LongspanForConditionalGeneration", fresh=("final_logits_bias",)),
    }


def sequence_fields(config: Any) -> dict[str, Any]:
    """Fields of `LongspanConfig` that BART, mBART and LED state in the same words."""
    for name in ("encoder_layerdrop", "decoder_layerdrop"):
        if getattr(config, name, 0.0):
            logger.warning_once(
                "%s=%s of the source is not carried over: Longspan drops no layers", name, getattr(config, name)
            )
    return common_fields(config) | {
        "hidden_size": config.d_model,
        "num_hidden_layers": config.encoder_layers,
        "num_attention_heads": config.encoder_attention_heads,
        "intermediate_size": config.encoder_ffn_dim,
        "decoder_layers": config.decoder_layers,
        "decoder_attention_heads": config.decoder_attention_heads,
        "decoder_intermediate_size": config.decoder_ffn_dim,
        "position_embedding": "learned",
        "positions_skip_padding": False,
        "type_vocab_size": 0,
        "embedding_norm": True,
        "layer_norm_eps": 1e-5,
        "activation_function": config.activation_function,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "init_std": config.init_std,
        "decoder_start_token_id": config.decoder_start_token_id,
    }


def export_sequence(config: Any) -> dict[str, Any]:
    """A BART-like configuration from ours, except positions; the caller checks that it says everything."""
    return common_fields(config) | {
        "d_model": config.hidden_size,
        "encoder_layers": config.num_hidden_layers,
        "encoder_attention_heads": config.num_attention_heads,
        "encoder_ffn_dim": config.intermediate_size,
        "decoder_layers": config.decoder_layers,
        "decoder_attention_heads": config.decoder_attention_heads,
        "decoder_ffn_dim": config.decoder_intermediate_size,
        "activation_function": config.activation_function,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "init_std": config.init_std,
        "decoder_start_token_id": config.decoder_start_token_id,
        "scale_embedding": config.scale_embedding,
    }


def _fields(normalization: str) -> Any:
    def fields(config: Any) -> dict[str, Any]:
        return sequence_fields(config) | {
            "max_position_embeddings": config.max_position_embeddings,
            "max_decoder_position_embeddings": config.max_position_embeddings,
            "position_offset": 2,
            "scale_embedding": config.scale_embedding,
            "normalization": normalization,
            # mBART's decoder starts with the language code that ends the labels.
            "wrap_labels": normalization == "pre",
            "attention": "full",
        }

    return fields


def _export(config: Any) -> dict[str, Any]:
    return export_sequence(config) | {"max_position_embeddings": config.max_position_embeddings}


def _architecture(model_type: str, name: str, normalization: str) -> Architecture:
    return Architecture(
        model_type=model_type,
        prefix="model",
        body=BODY,
        our_body="",
        heads=generation_heads(name),
        fields=_fields(normalization),
        export=_export,
    )


BART = _architecture("bart", "Bart", "post")
MBART = _architecture("mbart", "MBart", "pre")
