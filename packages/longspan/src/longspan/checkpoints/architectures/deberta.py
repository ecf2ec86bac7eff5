"""DeBERTa (version 1): disentangled attention with one table of relative positions shared by all layers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from longspan.checkpoints.architectures import bert as encoder
from longspan.checkpoints.mapping import Architecture, Head, Pairs
from longspan.errors import InputError

RELATIVE: Pairs = (
    ("encoder.rel_embeddings", "encoder.relative.near"),
    ("encoder.layer.{i}.attention.self.pos_proj", "encoder.layers.{i}.attention.position_key"),
    ("encoder.layer.{i}.attention.self.pos_q_proj", "encoder.layers.{i}.attention.position_query"),
)
# The two masked-LM heads are equivalent; models are exported with the first, transformers' default.
MASKED_LM: Pairs = (
    *encoder.BERT_MASKED_LM,
    ("lm_predictions.lm_head.dense", "lm_head.dense"),
    ("lm_predictions.lm_head.LayerNorm", "lm_head.norm"),
    ("lm_predictions.lm_head.bias", "lm_head.decoder.bias"),
)
CLASSIFIER: Pairs = (("pooler.dense", "classifier.dense"), ("classifier", "classifier.output"))
GLOBAL_ONLY = re.compile(r"encoder\.relative\.far\.|\.attention\.global_")
"""Our tensors that only global tokens use, which DeBERTa does not have."""
KINDS = ("c2p", "p2c")
LATER = ("position_buckets", "position_norm_eps", "tie_position_projections")
"""Options of fusion that DeBERTa-v2 introduced."""


def terms_of(config: Any) -> tuple[str, ...]:
    """Returns the relative terms of the scores: "c2p", "p2c", both or none."""
    kinds = config.pos_att_type or ()
    return tuple(kind for kind in KINDS if config.relative_attention and kind in kinds)


def span_of(config: Any) -> int:
    """Returns k, half the rows of the table of relative positions."""
    positions = config.max_relative_positions
    return positions if positions > 0 else config.max_position_embeddings


def covers(config: Any) -> bool:
    """Whether the table distinguishes all distances in an input, if any term uses it."""
    return not terms_of(config) or span_of(config) + 1 >= config.max_position_embeddings


def read_relative(config: Any, **options: Any) -> dict[str, Any]:
    """Returns the fields that DeBERTa and DeBERTa-v2 share: fusion over the whole input, with further `options`, or
    full attention if no term uses the table."""
    span, tokens = span_of(config), config.max_position_embeddings
    fusion = {
        "mechanism": "fusion",
        "two_level": False,
        "left_tokens": min(span, tokens),
        "right_tokens": min(span, tokens),
        "relative_span": span,
        "global_span": max(tokens, 64),
        "position_dropout": float(config.hidden_dropout_prob),
    }
    return {
        **encoder.read(config),
        "position_embedding": "learned" if config.position_biased_input else "none",
        "attention": fusion | options if terms_of(config) else "full",
        # The newer masked-LM head has no output weights other than the token table.
        **({} if config.legacy else {"tie_word_embeddings": True}),
    }


def _read(config: Any) -> dict[str, Any]:
    _refuse(config)
    return read_relative(config)


def _refuse(config: Any) -> None:
    """Raises `InputError` for unsupported configurations of DeBERTa."""
    width = getattr(config, "embedding_size", config.hidden_size)
    if width != config.hidden_size:
        raise InputError(
            f"embedding_size={width} differs from hidden_size={config.hidden_size} in this deberta checkpoint; "
            "Longspan has no projection of embeddings"
        )
    if getattr(config, "talking_head", False):
        raise InputError("talking_head=True in this deberta checkpoint; Longspan does not mix attention heads")
    if not covers(config):
        raise InputError(
            f"max_relative_positions={span_of(config)} is shorter than the {config.max_position_embeddings} tokens "
            "this deberta checkpoint reads, so that distant tokens would share a position; Longspan loads only "
            "checkpoints whose table covers their inputs"
        )


def _unpack(state: Mapping[str, Tensor], config: Any) -> dict[str, Tensor]:
    """Returns DeBERTa's tensors with separate projections, under BERT's names.

    The fused `in_proj` holds query, key and value of each head in turn and has no bias; those of query and value are
    separate tensors, and the key has none. Its scale is 1/√(n·D) for n − 1 names in `pos_att_type`, used or not; ours
    is 1/√(3·D) in fusion and 1/√D in full attention. The ratio is multiplied into the query projections, and missing
    terms get zero weights.
    """
    terms = terms_of(config)
    factor = ((3 if terms else 1) / (1 + len(config.pos_att_type or ()))) ** 0.5
    plain = {}
    for name, tensor in state.items():
        stem, _, last = name.rpartition("self.")
        if last == "in_proj.weight":
            weights = tensor.unflatten(0, (config.num_attention_heads, 3, -1)).unbind(1)
            query, key, value = (weight.flatten(0, 1).clone() for weight in weights)
            plain |= {f"{stem}self.query.weight": query * factor, f"{stem}self.key.weight": key}
            plain |= {f"{stem}self.value.weight": value, f"{stem}self.key.bias": torch.zeros_like(key[:, 0])}
            if terms:
                plain.setdefault(f"{stem}self.pos_proj.weight", torch.zeros_like(key))
                plain.setdefault(f"{stem}self.pos_q_proj.weight", torch.zeros_like(key))
                plain.setdefault(f"{stem}self.pos_q_proj.bias", torch.zeros_like(key[:, 0]))
        elif last == "q_bias":
            plain[f"{stem}self.query.bias"] = tensor * factor
        elif last == "v_bias":
            plain[f"{stem}self.value.bias"] = tensor.clone()
        elif last.startswith("pos_"):
            if terms:
                plain[name] = tensor * factor if last.startswith("pos_q_proj") else tensor
        elif terms or not name.endswith("rel_embeddings.weight"):
            plain[name] = tensor
    return plain


@torch.no_grad()
def _pack(plain: Mapping[str, Tensor], state: Mapping[str, Tensor], config: Any) -> None:
    """Writes separate projections into DeBERTa's fused ones, in place.

    Raises:
        InputError: a key projection has a bias, which DeBERTa cannot represent.
    """
    heads = config.num_attention_heads
    for name, tensor in state.items():
        stem, _, last = name.rpartition("self.")
        if last == "in_proj.weight":
            if plain[f"{stem}self.key.bias"].any():
                raise InputError(
                    f"the bias of the key projection in {stem.rstrip('.')} is not zero, and transformers' deberta has "
                    "none: this model was trained on here, and stays here"
                )
            parts = [plain[f"{stem}self.{part}.weight"].unflatten(0, (heads, -1)) for part in ("query", "key", "value")]
            tensor.copy_(torch.stack(parts, 1).flatten(0, 2))
        elif last in ("q_bias", "v_bias"):
            tensor.copy_(plain[f"{stem}self.{'query' if last == 'q_bias' else 'value'}.bias"])
        elif last.startswith("pos_q_proj"):
            tensor.copy_(plain[name])


def _write(config: Any) -> dict[str, Any]:
    return write_relative(config, LATER)


def write_relative(config: Any, refused: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns the fields that DeBERTa and DeBERTa-v2 share, for layers without the options `refused`."""
    layers = range(config.num_hidden_layers)
    relative = not layers or any(config.layer_attention(layer).mechanism != "full" for layer in layers)
    spans = {_exported_span(config, layer, refused) for layer in layers if relative}
    if config.global_tokens != "none":
        raise InputError(
            f"global_tokens={config.global_tokens!r} cannot be represented by transformers' deberta, which has none; "
            "set it to 'none' if the model does without"
        )
    span = spans.pop() if spans else config.max_position_embeddings
    return encoder.write(config) | {
        "relative_attention": relative,
        "max_relative_positions": -1 if span == config.max_position_embeddings else span,
        "pos_att_type": list(KINDS) if relative else [],
        "position_biased_input": config.position_embedding == "learned",
    }


def _exported_span(config: Any, layer: int, refused: tuple[str, ...]) -> int:
    """Returns k of a layer that DeBERTa can represent; raises `InputError` with the reason otherwise."""
    attention = config.layer_attention(layer)
    reason = None
    if attention.mechanism != "fusion":
        reason = f"attention {attention.mechanism!r}"
    elif unknown := [name for name in refused if getattr(attention, name)]:
        reason = f"{unknown[0]}={getattr(attention, unknown[0])}"
    elif attention.two_level:
        reason = "two_level=True"
    elif min(attention.left_tokens, attention.right_tokens) < config.max_position_embeddings - 1:
        reason = f"a window of {attention.left_tokens} and {attention.right_tokens} tokens, not the whole input"
    elif attention.p2c_index != "code":
        reason = f"p2c_index={attention.p2c_index!r}"
    elif attention.dropout != config.attention_dropout:
        reason = f"a dropout of {attention.dropout}, not attention_dropout={config.attention_dropout}"
    elif attention.position_dropout != config.dropout:
        reason = f"position_dropout={attention.position_dropout}, not dropout={config.dropout}"
    if reason:
        raise InputError(f"encoder layer {layer} has {reason}, which transformers' deberta cannot represent")
    return attention.relative_span


def _classifier(config: Any) -> dict[str, Any]:
    return {
        "activation": config.pooler_hidden_act,
        "input_dropout": float(config.pooler_dropout),
        "dropout": getattr(config, "cls_dropout", None),
    }


def _export_classifier(config: Any) -> dict[str, Any]:
    dropout, first = config.head["dropout"], config.head["input_dropout"]
    if first is None:
        first = config.dropout if dropout is None else dropout
    chosen = {} if dropout is None else {"cls_dropout": dropout}
    return {"pooler_hidden_act": config.head["activation"], "pooler_dropout": first, **chosen}


def heads_of(name: str) -> dict[str, Head]:
    """Returns the heads of the transformers classes of DeBERTa or DeBERTa-v2, which begin with `name`."""
    return encoder.heads(
        name,
        Head("LongspanForMaskedLM", MASKED_LM),
        Head("LongspanForSequenceClassification", CLASSIFIER, options=_classifier, export=_export_classifier),
        tokens=Head("LongspanForTokenClassification", encoder.TOKEN_CLASSIFIER),
    )


DEBERTA = Architecture(
    model_type="deberta",
    prefix="deberta",
    body=encoder.BODY + RELATIVE,
    heads=heads_of("Deberta"),
    names=encoder.NAMES,
    fixed=encoder.FIXED,
    read=_read,
    write=_write,
    unpack=_unpack,
    pack=_pack,
    unread=GLOBAL_ONLY,
    checked=("attention",),
)
