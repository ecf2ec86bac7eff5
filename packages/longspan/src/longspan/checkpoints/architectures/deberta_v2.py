"""DeBERTa-v2, v3 and mDeBERTa: as DeBERTa, with logarithmic buckets of offsets, a LayerNorm of their table, and
optionally the token projections for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from longspan.checkpoints.architectures import bert as encoder
from longspan.checkpoints.architectures import deberta
from longspan.checkpoints.mapping import Pairs
from longspan.errors import InputError

RELATIVE: Pairs = (
    ("embeddings.embed_proj", "encoder.embeddings.projection"),
    ("encoder.rel_embeddings", "encoder.relative.near"),
    ("encoder.LayerNorm", "encoder.relative.norm"),
    ("encoder.layer.{i}.attention.self.pos_key_proj", "encoder.layers.{i}.attention.position_key"),
    ("encoder.layer.{i}.attention.self.pos_query_proj", "encoder.layers.{i}.attention.position_query"),
)

PROJECTION = re.compile(r"self\.(query|key|value)$")
"""BERT's names of `query_proj` and so on."""


def _read(config: Any) -> dict[str, Any]:
    _refuse(config)
    buckets, tokens = _buckets(config), config.max_position_embeddings
    return deberta.read_relative(
        config,
        position_buckets=buckets,
        position_norm_eps=config.layer_norm_eps if _has_norm(config) else None,
        tie_position_projections=_ties(config),
        **({} if buckets is None else {"left_tokens": tokens, "right_tokens": tokens}),
    )


def _buckets(config: Any) -> int | None:
    given = getattr(config, "position_buckets", -1)
    return given if given > 0 else None


def _has_norm(config: Any) -> bool:
    return "layer_norm" in [kind.strip() for kind in getattr(config, "norm_rel_ebd", "none").lower().split("|")]


def _ties(config: Any) -> bool:
    """Whether the table uses the token projections. With one of the two terms they are copied instead, so that the
    missing one can be zero."""
    return bool(getattr(config, "share_att_key", False)) and deberta.terms_of(config) == deberta.KINDS


def _refuse(config: Any) -> None:
    """Raises `InputError` for unsupported configurations of DeBERTa-v2."""
    kernel = getattr(config, "conv_kernel_size", 0)
    if kernel > 0:
        raise InputError(
            f"conv_kernel_size={kernel} in this deberta-v2 checkpoint adds a convolution after the first layer (as in "
            "deberta-v2-xlarge), which Longspan's blocks do not have; choose one without, such as DeBERTa-v3"
        )
    width = getattr(config, "attention_head_size", config.hidden_size // config.num_attention_heads)
    if width * config.num_attention_heads != config.hidden_size:
        raise InputError(
            f"attention_head_size={width} in this deberta-v2 checkpoint is not hidden_size / num_attention_heads; "
            "Longspan has only heads that divide the width"
        )
    if _buckets(config) is None and not deberta.covers(config):
        raise InputError(
            f"max_relative_positions={deberta.span_of(config)} without position_buckets is shorter than the "
            f"{config.max_position_embeddings} tokens that this deberta-v2 checkpoint reads, so that distant tokens "
            "would share a position; Longspan loads such a one only with buckets"
        )


def _unpack(state: Mapping[str, Tensor], config: Any) -> dict[str, Tensor]:
    """Returns DeBERTa-v2's tensors without those that affect no output, and with projections of both terms.

    Its scale is 1/√(n·D) for n − 1 terms named in `pos_att_type`, used or not; ours is 1/√(3·D) in fusion and 1/√D in
    full attention; the ratio is multiplied into the query projections. The bias of a position key adds a constant to
    all scores of a query, which does not change the softmax.
    """
    terms = deberta.terms_of(config)
    named = sum(kind in (config.pos_att_type or ()) for kind in deberta.KINDS)
    factor = ((3 if terms else 1) / (1 + named)) ** 0.5
    plain = {}
    for name, tensor in state.items():
        last = name.rpartition("self.")[2]
        relative = last.startswith("pos_") or re.search(r"encoder\.(rel_embeddings|LayerNorm)\.", name)
        if last == "pos_key_proj.bias" or (relative and not terms):
            continue
        scaled = last.startswith(("query_proj", "pos_query_proj")) and factor != 1
        plain[name] = tensor * factor if scaled else tensor
    if terms and not _ties(config):
        shared = bool(getattr(config, "share_att_key", False))
        for name in [name for name in plain if name.endswith("self.key_proj.weight")]:
            _complete(plain, name.removesuffix("key_proj.weight"), terms, shared=shared)
    return plain


def _complete(plain: dict[str, Tensor], stem: str, terms: tuple[str, ...], *, shared: bool) -> None:
    """Adds both position projections of a layer: copies of the token projections if it shares them, zeros for a missing
    term."""
    for kind, last in (("c2p", "key_proj.weight"), ("p2c", "query_proj.weight"), ("p2c", "query_proj.bias")):
        weight = plain[f"{stem}{last}"]
        value = weight if shared and kind in terms else torch.zeros_like(weight)
        plain.setdefault(f"{stem}pos_{last}", value)


@torch.no_grad()
def _pack(plain: Mapping[str, Tensor], state: Mapping[str, Tensor], config: Any) -> None:
    """Zeroes the biases that `_unpack` drops, in place; everything else has been written already."""
    for name, tensor in state.items():
        if name.endswith("pos_key_proj.bias"):
            tensor.zero_()


def _write(config: Any) -> dict[str, Any]:
    layers = [config.layer_attention(layer) for layer in range(config.num_hidden_layers)]
    fusions = [layer for layer in layers if layer.mechanism == "fusion"]
    for name in deberta.LATER:
        if len({getattr(layer, name) for layer in fusions}) > 1:
            raise InputError(f"{name} differs between encoder layers, which transformers' deberta-v2 cannot represent")
    buckets = fusions[0].position_buckets if fusions else None
    eps = fusions[0].position_norm_eps if fusions else None
    if eps not in (None, config.layer_norm_eps):
        raise InputError(
            f"position_norm_eps={eps} is not layer_norm_eps={config.layer_norm_eps}, which transformers' deberta-v2 "
            "cannot represent"
        )
    return deberta.write_relative(config) | {
        "embedding_size": config.embedding_width,
        "position_buckets": -1 if buckets is None else buckets,
        "norm_rel_ebd": "none" if eps is None else "layer_norm",
        "share_att_key": bool(fusions) and fusions[0].tie_position_projections,
    }


DEBERTA_V2 = replace(
    deberta.DEBERTA,
    model_type="deberta-v2",
    body=tuple((PROJECTION.sub(r"self.\1_proj", theirs), ours) for theirs, ours in encoder.BODY) + RELATIVE,
    heads=deberta.heads_of("DebertaV2"),
    fixed={**encoder.FIXED, "embedding_projection": "before_norm"},
    read=_read,
    write=_write,
    unpack=_unpack,
    pack=_pack,
)
