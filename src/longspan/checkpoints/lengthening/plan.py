"""Which mechanism each encoder layer of a lengthened model gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from longspan.attention import AttentionConfig, FusionConfig, PoolingformerConfig, attention_config
from longspan.checkpoints.lengthening.relative_tables import check_span, first_fusion, inherited
from longspan.errors import InputError
from longspan.models import LongspanConfig

Spec = dict[str, Any]
FILL = {True: "longformer", False: None}
"""What stands in the layers that a mechanism leaves out; Poolingformer fills them with its own first level."""


def plan_attention(
    config: LongspanConfig, attention: Any, max_tokens: int, layers: Iterable[int] | None, options: Spec
) -> list[Spec]:
    """One attention spec per encoder layer, as `lengthen` describes its arguments.

    Raises:
        InputError: an unknown mechanism, option or layer; `layers` or options beside a list of mechanisms; a mechanism
            without relative positions where the source has them, or with another number of them.
    """
    own = _own(config)
    plan = _plan(config, own, attention, max_tokens, layers, options)
    present = first_fusion(own)
    for layer, (before, after) in enumerate(zip(own, plan, strict=True)):
        if present is not None and after["mechanism"] == "fusion":
            check_span(attention_config(after), present)
        elif before["mechanism"] == "fusion":
            given = attention if isinstance(attention, str) else after["mechanism"]
            raise InputError(
                f"attention={given!r} leaves layer {layer} without the relative positions with which this source was "
                "trained; choose attention='fusion'"
            )
    return plan


def _plan(
    config: LongspanConfig,
    own: list[Spec],
    attention: Any,
    max_tokens: int,
    layers: Iterable[int] | None,
    options: Spec,
) -> list[Spec]:
    if isinstance(attention, list | tuple):
        if layers is not None or options:
            extra = "layers" if layers is not None else next(iter(options))
            raise InputError(f"{extra} cannot be combined with a list of mechanisms; say it inside the list")
        if len(attention) != len(own):
            raise InputError(
                f"attention lists {len(attention)} mechanisms for {len(own)} encoder layers; give one each"
            )
        return [_with_table(_spec(entry), own, max_tokens) for entry in attention]
    spec = _with_table(_spec(attention) | options, own, max_tokens)
    mechanism = attention_config(spec)
    pooled = isinstance(mechanism, PoolingformerConfig) and mechanism.has_pools
    whole = all(_sees_everything(present, config) for present in own)
    kinds = set() if whole else {present["mechanism"] for present in own}
    if isinstance(attention, str) and layers is None and attention in kinds and kinds <= {attention, FILL[pooled]}:
        return [_updated(present, attention, options) for present in own]
    chosen = _chosen(layers, len(own), pooled)
    plan = []
    for layer, present in enumerate(own):
        if layer in chosen:
            keeps = isinstance(attention, str) and attention in kinds and present["mechanism"] == attention
            plan.append({**present, **options} if keeps else spec)
        else:
            plan.append(_first_level(mechanism) if isinstance(mechanism, PoolingformerConfig) else present)
    return plan


def _with_table(spec: Spec, own: list[Spec], max_tokens: int) -> Spec:
    """Fusion with the source's own options of relative positions, and buckets for global pairs over the new length."""
    if spec.get("mechanism") != FusionConfig.mechanism:
        return spec
    buckets = spec.get("global_buckets", FusionConfig.global_buckets)
    length = max(max_tokens, buckets) if isinstance(buckets, int) else max_tokens
    return {"global_span": length} | inherited(first_fusion(own)) | spec


def _sees_everything(spec: Spec, config: LongspanConfig) -> bool:
    """Whether a fusion layer is DeBERTa's: full attention over every input that the model reads."""
    attention = attention_config(spec)
    if not isinstance(attention, FusionConfig) or attention.two_level:
        return False
    return min(attention.left_tokens, attention.right_tokens) + 1 >= config.max_position_embeddings


def _updated(present: Spec, attention: str, options: Spec) -> Spec:
    """A layer of a model that already has the mechanism: its layout stays, only the named options change."""
    if present["mechanism"] == attention:
        return present | options
    if present["mechanism"] == "longformer":
        return present | {name: value for name, value in options.items() if name in present}
    return present


def _own(config: LongspanConfig) -> list[Spec]:
    """The source's specs, one per layer."""
    if isinstance(config.attention, list):
        return config.attention
    return [config.attention] * config.num_hidden_layers


def _spec(attention: Any) -> Spec:
    if isinstance(attention, str):
        return {"mechanism": attention}
    if isinstance(attention, AttentionConfig):
        spec = attention.to_dict()
        # A dropout of 0 is the default and leaves the decision to the model's `attention_dropout`.
        return spec if spec["dropout"] else {name: value for name, value in spec.items() if name != "dropout"}
    if isinstance(attention, Mapping):
        return dict(attention)
    return attention_config(attention).to_dict()


def _chosen(layers: Iterable[int] | None, count: int, pooled: bool) -> set[int]:
    if layers is None:
        return set(range(count // 2 if pooled else 0, count))
    chosen = set()
    for layer in layers:
        if isinstance(layer, bool) or not isinstance(layer, int) or not -count <= layer < count:
            raise InputError(f"layers names layer {layer!r}, but the encoder has layers 0 to {count - 1}")
        chosen.add(layer % count)
    return chosen


def _first_level(config: PoolingformerConfig) -> Spec:
    """The first level alone: of Poolingformer it is Longformer, fusion has its own."""
    if isinstance(config, FusionConfig):
        return _spec(replace(config, two_level=False))
    spec = {
        "mechanism": "longformer",
        "left_tokens": config.left_tokens,
        "right_tokens": config.right_tokens,
        "separate_global_projections": config.separate_global_projections,
    }
    return spec | ({"dropout": config.dropout} if config.dropout else {})
