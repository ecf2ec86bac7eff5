"""Transformer-XL (Dai et al. 2019, 1901.02860), with the names of transformers 4 and of the authors' repository.

transformers 5 has no class for it, so a folder is read as plain data. The two sets of names differ in a prefix, in the
location of shared biases, and in the order of the clusters' logits, which the authors' PyTorch code counts from the
last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from longspan.checkpoints.mapping import Pairs
from longspan.errors import InputError
from longspan.settings import show

MODEL_TYPE = "transfo-xl"
PREFIX = "transformer."
_ATTENTION, _OURS = "layers.{i}.dec_attn", "decoder.layers.{i}"
PAIRS: Pairs = (
    ("word_emb.emb_layers.{i}", "decoder.embeddings.token.tables.{i}"),
    ("word_emb.emb_projs.{i}", "decoder.embeddings.token.projections.{i}.weight"),
    ("r_w_bias", "decoder.relative.content_bias"),
    ("r_r_bias", "decoder.relative.position_bias"),
    (f"{_ATTENTION}.r_w_bias", f"{_OURS}.attention.content_bias"),
    (f"{_ATTENTION}.r_r_bias", f"{_OURS}.attention.position_bias"),
    *((f"{_ATTENTION}.{name}_net", f"{_OURS}.attention.{name}") for name in ("query", "key", "value")),
    (f"{_ATTENTION}.r_net", f"{_OURS}.attention.position"),
    (f"{_ATTENTION}.o_net", f"{_OURS}.attention.output"),
    (f"{_ATTENTION}.layer_norm", f"{_OURS}.attention_norm"),
    ("layers.{i}.pos_ff.CoreNet.0", f"{_OURS}.feed_forward.up"),
    ("layers.{i}.pos_ff.CoreNet.3", f"{_OURS}.feed_forward.down"),
    ("layers.{i}.pos_ff.layer_norm", f"{_OURS}.feed_forward_norm"),
    ("crit.cluster_weight", "lm_head.clusters.weight"),
    ("crit.cluster_bias", "lm_head.clusters.bias"),
    ("crit.out_layers.{i}", "lm_head.words.{i}"),
    ("crit.out_projs.{i}", "lm_head.projections.{i}.weight"),
)
"""(theirs without the prefix, ours); queries, keys and values are one matrix there, see `unpack`."""

DEFAULTS: dict[str, Any] = {
    "vocab_size": 267735,
    "cutoffs": [20000, 40000, 200000],
    "d_model": 1024,
    "d_embed": 1024,
    "n_head": 16,
    "d_head": 64,
    "d_inner": 4096,
    "div_val": 4,
    "pre_lnorm": False,
    "n_layer": 18,
    "mem_len": 1600,
    "clamp_len": 1000,
    "same_length": True,
    "proj_share_all_but_first": True,
    "attn_type": 0,
    "adaptive": True,
    "dropout": 0.1,
    "dropatt": 0.0,
    "untie_r": True,
    "init_std": 0.02,
    "layer_norm_epsilon": 1e-5,
    "eos_token_id": 0,
}
"""Defaults of transformers 4 for fields missing in config.json."""
NAMES: Pairs = (
    ("vocab_size", "vocab_size"),
    ("d_model", "hidden_size"),
    ("d_embed", "embedding_size"),
    ("n_layer", "num_hidden_layers"),
    ("n_head", "num_attention_heads"),
    ("d_inner", "intermediate_size"),
    ("div_val", "embedding_divisor"),
    ("dropout", "dropout"),
    ("dropout", "activation_dropout"),
    ("dropatt", "attention_dropout"),
    ("init_std", "init_std"),
    ("layer_norm_epsilon", "layer_norm_eps"),
    ("eos_token_id", "eos_token_id"),
)
FIXED: dict[str, Any] = {
    "decoder_layers": 0,
    "embedding_norm": False,
    "scale_embedding": True,
    "normalization": "post",
    "position_embedding": "none",
    "activation_function": "relu",
}


def complete(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the configuration with all defaults filled in."""
    fields = {name: value for name, value in config.items() if value is not None or name == "pad_token_id"}
    if "n_token" in fields:
        fields.setdefault("vocab_size", fields["n_token"])
    return {**DEFAULTS, **fields}


def read(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `LongspanConfig` for a completed configuration; raises `InputError` if it cannot be
    represented."""
    for name, value, reason in (
        ("pre_lnorm", False, "whose last states have no LayerNorm, which Longspan's pre-normalised models have"),
        ("attn_type", 0, "which is another kind of positions than Transformer-XL's"),
    ):
        if config[name] != value:
            raise InputError(f"{name}={show(config[name])} in this checkpoint is not supported, {reason}; use {value}")
    if config["d_head"] * config["n_head"] != config["d_model"]:
        raise InputError(
            f"n_head={config['n_head']} heads of d_head={config['d_head']} in this checkpoint are not as wide as "
            f"d_model={config['d_model']}; Longspan reads those that are"
        )
    fields = {ours: config[theirs] for theirs, ours in NAMES}
    relative = {"mechanism": "full", "positions": "relative", "bias": False, "share_biases": not config["untie_r"]}
    relative |= {"position_dropout": config["dropout"]}
    relative |= {"clamp_tokens": config["clamp_len"] if config["clamp_len"] > 0 else None}
    memory = config["mem_len"]
    stack = {"stack": "recurrent", "memory_tokens": memory, "same_length": bool(memory and config["same_length"])}
    special = {name: config.get(name) for name in ("pad_token_id", "bos_token_id")}
    tied = config.get("tie_word_embeddings", config.get("tie_weight", True))
    fields |= {"cutoffs": cutoffs(config), "tie_projections": _ties(config), "tie_word_embeddings": bool(tied)}
    return {**fields, **FIXED, **special, "attention": relative, "stack": stack}


def write(config: Any) -> dict[str, Any]:
    """Returns the published configuration for a `LongspanConfig`, unchecked."""
    attention = config.layer_attention(0)
    fields = {theirs: getattr(config, ours) for theirs, ours in NAMES}
    ties = config.tie_projections
    return {
        "model_type": MODEL_TYPE,
        "architectures": ["TransfoXLLMHeadModel"],
        **DEFAULTS,
        **fields,
        "cutoffs": list(config.cutoffs or []),
        "d_head": config.hidden_size // config.num_attention_heads,
        "mem_len": config.stack.get("memory_tokens", 0),
        "same_length": config.stack.get("same_length", False),
        "clamp_len": getattr(attention, "clamp_tokens", None) or -1,
        "untie_r": not getattr(attention, "share_biases", True),
        "tie_projs": [ties] * (len(config.cutoffs or []) + 1) if isinstance(ties, bool) else list(ties),
        "tie_weight": config.tie_word_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "pad_token_id": config.pad_token_id,
        "bos_token_id": config.bos_token_id,
    }


def cutoffs(config: Mapping[str, Any]) -> list[int]:
    """Returns the first words of the clusters; empty without an adaptive softmax."""
    return list(config["cutoffs"]) if config["adaptive"] else []


def _ties(config: Mapping[str, Any]) -> list[bool]:
    """Returns whether each cluster's projection is tied to that of its embeddings."""
    clusters = len(cutoffs(config)) + 1
    shared = bool(config["proj_share_all_but_first"])
    ties = config.get("tie_projs") or [False, *[shared] * (clusters - 1)]
    return [bool(tied) for tied in (list(ties) + [False] * clusters)[:clusters]]


def unpack(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns tensors under the names of `PAIRS`, with tied tensors that files omit filled in.

    Raises:
        InputError: tensors that the configuration ties differ.
    """
    original = not any(name.startswith(PREFIX) for name in tensors)
    plain = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    plain = {name: tensor for name, tensor in plain.items() if not name.startswith("pos_emb.")}
    for name in [name for name in plain if name.endswith(".qkv_net.weight")]:
        for part, matrix in zip(("query", "key", "value"), plain.pop(name).chunk(3), strict=True):
            plain[name.replace("qkv_net", f"{part}_net")] = matrix.contiguous()
    for name in ("crit.cluster_weight", "crit.cluster_bias"):
        if original and name in plain:
            plain[name] = plain[name].flip(0)
    for name in ("r_w_bias", "r_r_bias") if not config["untie_r"] else ():
        for layer in range(config["n_layer"]):
            _same(plain, name, f"layers.{layer}.dec_attn.{name}")
            plain.pop(f"layers.{layer}.dec_attn.{name}", None)
    fields = read(config)
    for cluster, tied in enumerate(fields["tie_projections"]):
        source = f"word_emb.emb_projs.{cluster if config['div_val'] > 1 else 0}"
        if tied and source in plain:
            _same(plain, f"crit.out_projs.{cluster}", source)
        if fields["tie_word_embeddings"] and f"word_emb.emb_layers.{cluster}.weight" in plain:
            _same(plain, f"crit.out_layers.{cluster}.weight", f"word_emb.emb_layers.{cluster}.weight")
    return plain


def _same(tensors: dict[str, Tensor], name: str, other: str) -> None:
    """Fills in a tied tensor; raises `InputError` if it exists and differs."""
    if other not in tensors:
        return
    if not torch.equal(tensors.setdefault(name, tensors[other]), tensors[other]):
        raise InputError(
            f"{name} and {other} of this checkpoint differ, but its config.json says that they are one; correct "
            "tie_weight, tie_projs or untie_r there"
        )


def pack(tensors: Mapping[str, Tensor], config: Mapping[str, Any], *, original: bool) -> dict[str, Tensor]:
    """Returns tensors of `PAIRS` under the names of the files: the inverse of `unpack`.

    Raises:
        InputError: the authors' names cannot represent biases per layer.
    """
    plain = dict(tensors)
    for name in [name for name in plain if name.endswith(".query_net.weight")]:
        parts = [plain.pop(name.replace("query", part)) for part in ("query", "key", "value")]
        plain[name.replace("query_net", "qkv_net")] = torch.cat(parts)
    if not original:
        for name in ("r_w_bias", "r_r_bias") if not config["untie_r"] else ():
            plain |= {f"layers.{layer}.dec_attn.{name}": plain[name] for layer in range(config["n_layer"])}
        return {name if name.startswith("crit.") else PREFIX + name: tensor for name, tensor in plain.items()}
    if config["untie_r"]:
        raise InputError(
            "share_biases=False gives each layer biases of its own, for which the authors' code has no place; write "
            "transformers' names instead"
        )
    for name in ("crit.cluster_weight", "crit.cluster_bias"):
        if name in plain:
            plain[name] = plain[name].flip(0)
    return plain
