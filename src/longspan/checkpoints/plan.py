"""Which mechanism each encoder layer of a lengthened model gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from longspan.attention import AttentionConfig, PoolingformerConfig, attention_config
from longspan.errors import InputError
from longspan.models import LongspanConfig

Spec = dict[str, Any]
FILL = {True: "longformer", False: None}
"""What stands in the layers that a mechanism leaves out; Poolingformer fills them with its own first level."""


def plan_attention(config: LongspanConfig, attention: Any, layers: Iterable[int] | None, options: Spec) -> list[Spec]:
    """One attention spec per encoder layer, as `lengthen` describes its arguments.

    Raises:
        InputError: an unknown mechanism, option or layer; `layers` or options beside a list of mechanisms.
    """
    own = _own(config)
    if isinstance(attention, list | tuple):
        if layers is not None or options:
            extra = "layers" if layers is not None else next(iter(options))
            raise InputError(f"{extra} cannot be combined with a list of mechanisms; say it inside the list")
        if len(attention) != len(own):
            raise InputError(
                f"attention lists {len(attention)} mechanisms for {len(own)} encoder layers; give one each"
            )
        return [_spec(entry) for entry in attention]
    spec = _spec(attention) | options
    mechanism = attention_config(spec)
    pooled = isinstance(mechanism, PoolingformerConfig)
    kinds = {present["mechanism"] for present in own}
    if isinstance(attention, str) and layers is None and attention in kinds and kinds <= {attention, FILL[pooled]}:
        return [_updated(present, attention, options) for present in own]
    chosen = _chosen(layers, len(own), pooled)
    plan = []
    for layer, present in enumerate(own):
        if layer in chosen:
            keeps = isinstance(attention, str) and present["mechanism"] == attention
            plan.append({**present, **options} if keeps else spec)
        else:
            plan.append(_first_level(mechanism) if isinstance(mechanism, PoolingformerConfig) else present)
    return plan


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
    """Poolingformer's first level alone, which is Longformer."""
    spec = {
        "mechanism": "longformer",
        "left_tokens": config.left_tokens,
        "right_tokens": config.right_tokens,
        "separate_global_projections": config.separate_global_projections,
    }
    return spec | ({"dropout": config.dropout} if config.dropout else {})
