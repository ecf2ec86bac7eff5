"""Reformer: two reversible streams, alternating hashed and local attention, axial positions, and heads on both streams.

Its dropout is applied to parts of the embeddings before they are added, to the last states, and in the feed-forward
layer before the activation: outputs are equal, training is as ours. Its head has a bias that no class of transformers 5
reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from longspan.checkpoints.architectures import bert as encoder
from longspan.checkpoints.mapping import Architecture, Head, Pairs, alike
from longspan.errors import InputError
from longspan.settings import show

_ATTENTION = "encoder.layers.{i}.attention"
LAYERS: Pairs = (
    ("embeddings.word_embeddings", "embeddings.token"),
    ("embeddings.position_embeddings.embedding", "embeddings.position"),
    ("embeddings.position_embeddings.weights.0", "embeddings.position.rows.weight"),
    ("embeddings.position_embeddings.weights.1", "embeddings.position.columns.weight"),
    (f"{_ATTENTION}.layer_norm", "layers.{i}.attention_norm"),
    (f"{_ATTENTION}.self_attention.query_key", "layers.{i}.attention.query"),
    *((f"{_ATTENTION}.self_attention.{name}", f"layers.{{i}}.attention.{name}") for name in ("query", "key", "value")),
    (f"{_ATTENTION}.output.dense", "layers.{i}.attention.output"),
    ("encoder.layers.{i}.feed_forward.layer_norm", "layers.{i}.feed_forward_norm"),
    ("encoder.layers.{i}.feed_forward.dense.dense", "layers.{i}.feed_forward.up"),
    ("encoder.layers.{i}.feed_forward.output.dense", "layers.{i}.feed_forward.down"),
    ("encoder.layer_norm", "layers.join_norm"),
)
PLACES = ("encoder", "model.encoder", "decoder")
"""Prefixes in our classes: alone, under a head, and in a language model."""
NAMES: Pairs = (
    *alike("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings", "layer_norm_eps"),
    ("feed_forward_size", "intermediate_size"),
    ("hidden_act", "activation_function"),
    ("hidden_dropout_prob", "dropout"),
    ("hidden_dropout_prob", "activation_dropout"),
    ("initializer_range", "init_std"),
    ("axial_norm_std", "axial_std"),
)
FIXED = {
    **{name: value for name, value in encoder.FIXED.items() if name not in ("activation_dropout", "attention")},
    "type_vocab_size": 0,
    "embedding_size": None,
    "embedding_norm": False,
    "normalization": "pre",
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "stack": {"stack": "reversible", "join": "both"},
}
KINDS = ("local", "lsh")
HEAD_BIAS = "lm_head.decoder.bias"


def _read(config: Any) -> dict[str, Any]:
    kind, shape, widths = "learned", None, None
    if config.axial_pos_embds:
        kind, shape, widths = "axial", list(config.axial_pos_shape), list(config.axial_pos_embds_dim)
    positions = {"position_embedding": kind, "axial_shape": shape, "axial_widths": widths}
    return positions | {"attention": _read_layers(config)}


def _read_layers(config: Any) -> list[dict[str, Any]]:
    """Returns one spec per layer; with both kinds, the padded length is a multiple of the chunks of both."""
    kinds = list(config.attn_layers)
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise InputError(f"attn_layers is {show(kinds)} in this reformer checkpoint; give 'local' or 'lsh' per layer")
    both = set(kinds) == set(KINDS)
    sizes = {"local": config.local_attn_chunk_length, "lsh": config.lsh_attn_chunk_length}
    specs = {"local": _shared(config, "local") | {"local": True}, "lsh": _hashed(config)}
    for kind, other in (KINDS, KINDS[::-1]):
        specs[kind]["beside_tokens"] = sizes[other] if both else None
    drawn = config.hash_seed is None
    seeds = [layer if drawn else config.hash_seed for layer in range(len(kinds))]
    return [
        specs[kind] | ({"seed": seed, "resample": drawn} if kind == "lsh" else {})
        for kind, seed in zip(kinds, seeds, strict=True)
    ]


def _shared(config: Any, kind: str) -> dict[str, Any]:
    """Returns the options that both kinds of layers have under their own names."""
    return {
        "mechanism": "reformer",
        "chunks": "published",
        "chunk_tokens": getattr(config, f"{kind}_attn_chunk_length"),
        "chunks_before": getattr(config, f"{kind}_num_chunks_before"),
        "chunks_after": getattr(config, f"{kind}_num_chunks_after"),
        "dropout": getattr(config, f"{kind}_attention_probs_dropout_prob"),
        "head_width": config.attention_head_size,
        "bias": False,
    }


def _hashed(config: Any) -> dict[str, Any]:
    """An int is the bucket count of one hash. Without a count, two hashes are used from a number on that depends on the
    longest input."""
    size, buckets = config.lsh_attn_chunk_length, config.num_buckets
    return _shared(config, "lsh") | {
        "rounds": config.num_hashes,
        "buckets": buckets if buckets is None else [buckets] if isinstance(buckets, int) else list(buckets),
        "hash_buckets": 2 * max(int((config.max_position_embeddings // size) ** 0.5), size),
        "correct_duplicates": False,
    }


def _write(config: Any) -> dict[str, Any]:
    layers = [config.layer_attention(layer) for layer in range(config.num_hidden_layers)]
    strangers = [layer for layer in layers if layer.mechanism != "reformer" or layer.chunks != "published"]
    if strangers:
        raise InputError(
            f"attention {strangers[0].describe()!r} is none of transformers' reformer, which has 'reformer' with "
            "chunks='published' only"
        )
    kinds = ["local" if layer.local else "lsh" for layer in layers]
    fields = {
        "attn_layers": kinds,
        "attention_head_size": layers[0].head_width or config.hidden_size // config.num_attention_heads,
        "axial_pos_embds": config.position_embedding == "axial",
    }
    if config.position_embedding == "axial":
        fields |= {"axial_pos_shape": config.axial_shape, "axial_pos_embds_dim": config.axial_widths}
    for kind in set(kinds):
        first = layers[kinds.index(kind)]
        fields[f"{kind}_attn_chunk_length"] = first.chunk_tokens
        fields[f"{kind}_num_chunks_before"] = first.chunks_before
        fields[f"{kind}_num_chunks_after"] = first.chunks_after
        fields[f"{kind}_attention_probs_dropout_prob"] = first.dropout
    return fields | (_write_hashing(layers[kinds.index("lsh")]) if "lsh" in kinds else {})


def _write_hashing(first: Any) -> dict[str, Any]:
    buckets = first.buckets
    if isinstance(buckets, tuple):
        buckets = buckets[0] if len(buckets) == 1 else list(buckets)
    seed = None if first.resample else first.seed
    return {"num_hashes": first.rounds, "num_buckets": buckets, "hash_seed": seed}


def _unpack(state: Mapping[str, Tensor], config: Any) -> dict[str, Tensor]:
    """Returns axial tables without the repeated axis, and of the head's two biases the one that is used.

    transformers before 5.24 uses none, so that its heads get zeros.
    """
    plain = {name: tensor for name, tensor in state.items() if name != "lm_head.bias"}
    if "lm_head.bias" in state:
        plain.setdefault(HEAD_BIAS, torch.zeros_like(state["lm_head.bias"]))
    for name, tensor in plain.items():
        if ".position_embeddings.weights." in f".{name}":
            plain[name] = tensor.view(-1, tensor.shape[-1])
    return plain


def _pack(plain: Mapping[str, Tensor], state: Mapping[str, Tensor], config: Any) -> None:
    if HEAD_BIAS in plain and HEAD_BIAS not in state and bool(plain[HEAD_BIAS].any()):
        raise InputError(
            "lm_head.bias of this model is not zero, and the head of this version of transformers has none; install "
            "transformers 5.24 or later"
        )


def _both_ways(config: Any) -> None:
    if config.is_decoder:
        raise InputError(
            "is_decoder=True in this reformer checkpoint goes with ReformerModelWithLMHead only; Longspan loads its "
            "other classes as encoders"
        )


def _two_ends(config: Any) -> None:
    _both_ways(config)
    if config.num_labels != 2:
        raise InputError(
            f"num_labels={config.num_labels} in this reformer checkpoint, but an answer has 2 ends; a "
            "ReformerForQuestionAnswering needs num_labels=2"
        )


REFORMER = Architecture(
    model_type="reformer",
    prefix="reformer",
    body=tuple((theirs, f"{place}.{ours}") for place in PLACES for theirs, ours in LAYERS),
    our_body="",
    heads={
        "ReformerModel": Head("LongspanModel", refuse=_both_ways),
        "ReformerModelWithLMHead": Head(
            "LongspanForCausalLM",
            (("lm_head.decoder", "lm_head"),),
            fields={"head_bias": True},
            export=lambda config: {"is_decoder": True},
        ),
        "ReformerForMaskedLM": Head(
            "LongspanForMaskedLM",
            alike("lm_head.decoder"),
            fields={"head_bias": True},
            options=lambda config: {"layers": "single"},
            refuse=_both_ways,
        ),
        "ReformerForSequenceClassification": replace(encoder.classifier(encoder.DENSE_CLASSIFIER), refuse=_both_ways),
        "ReformerForQuestionAnswering": replace(encoder.SPAN, refuse=_two_ends),
    },
    names=NAMES,
    fixed=FIXED,
    read=_read,
    write=_write,
    unpack=_unpack,
    pack=_pack,
    checked=("head_bias",),  # heads without a bias are exported with zeros
)
