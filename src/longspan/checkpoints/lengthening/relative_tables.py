"""What a change of model does to relative positions: kept from a source that has them, silent where it has none."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from longspan.attention import AttentionConfig, FusionConfig, attention_config
from longspan.attention.fusion import FusionAttention
from longspan.attention.parts.relative import bucket, bucket_middles
from longspan.errors import InputError
from longspan.models import LongspanPreTrainedModel
from longspan.models.encoder import Encoder

Spec = dict[str, Any]


def keep_table(attention: Any, source: Any) -> Any:
    """`attention` with the source's own options of relative positions wherever it says nothing about them.

    Args:
        attention: a mechanism, or a list of them, as a user gives it.
        source: the source's own, in the same form.

    Raises:
        InputError: fusion with another number, or a mechanism without any.
    """
    if isinstance(attention, list | tuple):
        return [keep_table(entry, source) for entry in attention]
    present = first_fusion(source if isinstance(source, list) else [source])
    if present is None or not isinstance(attention, str | dict | AttentionConfig):
        return attention
    spec = {"mechanism": attention} if isinstance(attention, str) else attention
    spec = spec if isinstance(spec, dict | FusionConfig) else spec.to_dict()
    if isinstance(spec, dict) and spec.get("mechanism") != FusionConfig.mechanism:
        attention_config(spec)  # a misspelt name comes first
        raise InputError(
            f"attention={spec['mechanism']!r} has no relative positions, with which this source was trained; choose "
            "attention='fusion'"
        )
    spec = spec.to_dict() if isinstance(spec, FusionConfig) else inherited(present) | spec
    check_span(attention_config(spec), present)
    return spec


def first_fusion(specs: list[Any]) -> FusionConfig | None:
    """The first fusion layer among a source's; `None` when it has no relative positions."""
    configs = (attention_config(spec) for spec in specs)
    return next((config for config in configs if isinstance(config, FusionConfig)), None)


def inherited(present: FusionConfig | None) -> Spec:
    """Options of fusion that belong to the weights of a source, and default windows that its table can serve."""
    if present is None:
        return {}
    names = (*OF_THE_TABLE, "p2c_index", "position_dropout")
    widest = {name: min(getattr(FusionConfig, name), present.widest_window) for name in ("left_tokens", "right_tokens")}
    return {name: getattr(present, name) for name in names} | widest


OF_THE_TABLE = ("relative_span", "position_buckets", "position_norm_eps", "tie_position_projections")
"""Options that the weights of a source decide."""


def check_span(wanted: AttentionConfig, present: FusionConfig) -> None:
    """Raise `InputError` where a table would have to change its size or its meaning."""
    assert isinstance(wanted, FusionConfig)
    for name in OF_THE_TABLE:
        asked, has = getattr(wanted, name), getattr(present, name)
        if asked != has:
            raise InputError(
                f"{name}={asked} does not fit the source, whose table of relative positions has {name}={has}; leave it "
                "out"
            )


@torch.no_grad()
def start_relative_positions(model: LongspanPreTrainedModel, unfilled: Collection[str]) -> set[str]:
    """Give a value to the tensors of relative positions named in `unfilled`; return those names.

    A layer whose source had none starts without any: its position projections are zero, and its queries grow by √3,
    since the scores of fusion are divided by √(3·D) and those of the source were by √D. Gradients reach the zeros at
    the first step. The table of global pairs starts from that of the window, each row at the middle of its bucket.
    """
    started = set()
    for name, module in model.named_modules():
        if isinstance(module, FusionAttention) and f"{name}.position_key.weight" in unfilled:
            started |= {f"{name}.{key}" for key in _silence(module)}
        if isinstance(module, Encoder) and module.relative is not None:
            tables = {f"{name}.relative.{key}" for key in module.relative.state_dict()} & set(unfilled)
            if f"{name}.relative.near.weight" in tables and fusion_config(module).tie_position_projections:
                raise InputError(
                    "tie_position_projections=True leaves nothing with which relative positions could start silently, "
                    "and the source has none; leave it out"
                )
            if f"{name}.relative.far.weight" in tables:
                module.relative.copy_to_buckets(fusion_config(module).global_span)
            started |= tables
    return started


def _silence(attention: FusionAttention) -> list[str]:
    """Make relative positions count for nothing; the names of the tensors that this initialises."""
    for tensor in (attention.query.weight, attention.query.bias):
        tensor.mul_(3**0.5)
    names = ["position_key.weight", "position_query.weight", "position_query.bias"]
    for name in names:
        nn.init.zeros_(attention.get_parameter(name))
    return names


def fusion_config(model: LongspanPreTrainedModel | Encoder) -> FusionConfig:
    """The configuration of a fusion layer; all of them have the same tables."""
    layers = (model.config.layer_attention(layer) for layer in range(model.config.num_hidden_layers))
    return next(config for config in layers if isinstance(config, FusionConfig))


def rebucket(far: Tensor, old: FusionConfig, new: FusionConfig) -> Tensor:
    """The table of global pairs `(2k_g, E)` for other buckets: each row is the old one at the middle of its bucket."""
    if (old.global_buckets, old.global_span) == (new.global_buckets, new.global_span):
        return far
    middles = bucket_middles(new.global_buckets, new.global_span).to(far.device)
    return far[bucket(middles, old.global_buckets, old.global_span)]
