"""What a change of model does to relative positions: kept from a source that has them, silent where it has none."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from longspan.attention import FusionConfig, attention_config
from longspan.attention.fusion import FusionAttention
from longspan.attention.relative import bucket, bucket_middles
from longspan.errors import InputError
from longspan.models import LongspanPreTrainedModel
from longspan.models.encoder import Encoder

Spec = dict[str, Any]


def keep_table(attention: Any, source: Any) -> Any:
    """`attention` with the source's number of relative positions wherever it says nothing about them.

    Args:
        attention: a mechanism, or a list of them, as a user gives it.
        source: the source's own, in the same form.

    Raises:
        InputError: fusion with another number.
    """
    if isinstance(attention, list | tuple):
        return [keep_table(entry, source) for entry in attention]
    span = source_span(source if isinstance(source, list) else [source])
    if span is None or attention_config(attention).mechanism != FusionConfig.mechanism:
        return attention
    spec = {"mechanism": attention} if isinstance(attention, str) else attention
    spec = spec.to_dict() if isinstance(spec, FusionConfig) else {"relative_span": span, **spec}
    check_span(spec["relative_span"], span)
    return spec


def source_span(specs: list[Any]) -> int | None:
    """k of the first fusion layer among the source's; `None` when it has no relative positions."""
    configs = (attention_config(spec) for spec in specs)
    return next((config.relative_span for config in configs if isinstance(config, FusionConfig)), None)


def check_span(wanted: int, present: int) -> None:
    """Raise `InputError` where a table would have to change its size."""
    if wanted != present:
        raise InputError(
            f"relative_span={wanted} does not fit the source, whose table holds relative positions up to {present}; "
            "leave relative_span out"
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
            tables = {f"{name}.relative.{table}.weight" for table in ("near", "far")} & set(unfilled)
            if f"{name}.relative.far.weight" in tables:
                module.relative.copy_to_buckets(_fusion(module).global_span)
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


def _fusion(encoder: Encoder) -> FusionConfig:
    """The configuration of a fusion layer; all of them have the same tables."""
    layers = (encoder.config.layer_attention(layer) for layer in range(encoder.config.num_hidden_layers))
    return next(config for config in layers if isinstance(config, FusionConfig))


def rebucket(far: Tensor, old: FusionConfig, new: FusionConfig) -> Tensor:
    """The table of global pairs `(2k_g, E)` for other buckets: each row is the old one at the middle of its bucket."""
    middles = bucket_middles(new.global_buckets, new.global_span).to(far.device)
    return far[bucket(middles, old.global_buckets, old.global_span)]
