"""BART and mBART: encoder and decoder with positions from row 2; mBART normalises before each sublayer."""

from __future__ import annotations

from typing import Any

from transformers.utils import logging

from longspan.checkpoints.mapping import Architecture, Head, Pairs, alike

logger = logging.get_logger(__name__)


def attention_pairs(theirs: str, ours: str) -> Pairs:
    """Returns the pairs of the four projections of an attention module."""
    return (
        (f"{theirs}.q_proj", f"{ours}.query"),
        (f"{theirs}.k_proj", f"{ours}.key"),
        (f"{theirs}.v_proj", f"{ours}.value"),
        (f"{theirs}.out_proj", f"{ours}.output"),
    )


def stack_pairs(side: str) -> Pairs:
    """Returns the pairs that encoder and decoder share: embeddings, norms and feed-forward layers, and the final norm
    of mBART."""
    layer = f"{side}.layers.{{i}}"
    return (
        (f"{side}.embed_tokens", f"{side}.embeddings.token"),
        (f"{side}.embed_positions", f"{side}.embeddings.position"),
        (f"{side}.layernorm_embedding", f"{side}.embeddings.norm"),
        (f"{side}.layer_norm", f"{side}.final_norm"),
        (f"{layer}.self_attn_layer_norm", f"{layer}.attention_norm"),
        (f"{layer}.fc1", f"{layer}.feed_forward.up"),
        (f"{layer}.fc2", f"{layer}.feed_forward.down"),
        (f"{layer}.final_layer_norm", f"{layer}.feed_forward_norm"),
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
GENERATION = alike("lm_head", "final_logits_bias")


def generation_heads(name: str) -> dict[str, Head]:
    """Returns the heads for generation, and the bare model, whose language-model head is the tied token table."""
    return {
        f"{name}ForConditionalGeneration": Head("LongspanForConditionalGeneration", GENERATION),
        f"{name}Model": Head("LongspanForConditionalGeneration", fresh=("final_logits_bias",)),
    }


NAMES: Pairs = (
    ("d_model", "hidden_size"),
    ("encoder_layers", "num_hidden_layers"),
    ("encoder_attention_heads", "num_attention_heads"),
    ("encoder_ffn_dim", "intermediate_size"),
    ("decoder_ffn_dim", "decoder_intermediate_size"),
    *alike("decoder_layers", "decoder_attention_heads", "activation_function", "init_std", "decoder_start_token_id"),
    *alike("dropout", "attention_dropout", "activation_dropout"),
)
FIXED = {
    "position_embedding": "learned",
    "positions_skip_padding": False,
    "type_vocab_size": 0,
    "embedding_norm": True,
    "layer_norm_eps": 1e-5,
}


def warn_of_layerdrop(config: Any) -> None:
    """Warns that layer drop of the source is not supported."""
    for name in ("encoder_layerdrop", "decoder_layerdrop"):
        if getattr(config, name, 0.0):
            logger.warning_once(
                "%s=%s of the source is not carried over: Longspan drops no layers", name, getattr(config, name)
            )


def _read(config: Any) -> dict[str, Any]:
    warn_of_layerdrop(config)
    return {"max_decoder_position_embeddings": config.max_position_embeddings}


def _architecture(model_type: str, name: str, normalization: str) -> Architecture:
    # mBART's decoder starts with the language code that ends the labels.
    options = {"normalization": normalization, "wrap_labels": normalization == "pre"}
    return Architecture(
        model_type=model_type,
        prefix="model",
        body=BODY,
        our_body="",
        heads=generation_heads(name),
        names=NAMES + alike("max_position_embeddings", "scale_embedding"),
        fixed={**FIXED, "position_offset": 2, "attention": "full", **options},
        read=_read,
    )


BART = _architecture("bart", "Bart", "post")
MBART = _architecture("mbart", "MBart", "pre")
