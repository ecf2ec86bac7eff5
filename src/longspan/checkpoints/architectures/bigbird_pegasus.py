"""BigBird-Pegasus: mBART's order of layers without a norm of the embeddings, and BigBird's blocks in the encoder."""

from __future__ import annotations

from typing import Any

from longspan.checkpoints.architectures import bart, big_bird
from longspan.checkpoints.mapping import Architecture, Pairs, alike

_THEIRS, _OURS = "encoder.layers.{i}.self_attn", "encoder.layers.{i}.attention"
# What its code calls the norm of the embeddings stands behind the last layer.
_NORMS: Pairs = tuple((f"{side}.layernorm_embedding", f"{side}.final_norm") for side in ("encoder", "decoder"))
BODY: Pairs = (
    *_NORMS,
    *bart.stack_pairs("encoder"),
    *((f"{_THEIRS}.self.{name}", f"{_OURS}.{name}") for name in ("query", "key", "value")),
    (f"{_THEIRS}.output", f"{_OURS}.output"),
    *bart.DECODER,
    ("shared", "encoder.embeddings.token"),
)
PROJECTIONS = (
    *("self.query", "self.key", "self.value", "self_attn.output"),
    *("q_proj", "k_proj", "v_proj", "out_proj"),
)
"""Their linear layers that have biases only with `use_bias`."""


def _read(config: Any) -> dict[str, Any]:
    bart.warn_of_layerdrop(config)
    return {
        "max_decoder_position_embeddings": config.max_position_embeddings,
        "attention": big_bird.read_attention(config),
    }


BIGBIRD_PEGASUS = Architecture(
    model_type="bigbird_pegasus",
    prefix="model",
    body=BODY,
    our_body="",
    heads=bart.generation_heads("BigBirdPegasus"),
    names=bart.NAMES + alike("max_position_embeddings", "scale_embedding"),
    fixed={**bart.FIXED, "position_offset": 0, "normalization": "pre", "embedding_norm": False},
    read=_read,
    write=lambda config: {"use_bias": True} | big_bird.write_attention(config),
    unpack=lambda state, config: big_bird.with_biases(state, config, PROJECTIONS),
)
