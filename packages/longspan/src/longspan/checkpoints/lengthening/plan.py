"""The mechanism of each encoder layer of a lengthened model, and the tables that layers share: those of the source if
it has any, otherwise new ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from longspan.attention import AttentionConfig, attention_config
from longspan.attention.config import SharedTables
from longspan.attention.layers import layer_specs, plain_spec, spread
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanPreTrainedModel
from longspan.models.encoder import Encoder
from longspan.stacks import stack_config

Spec = dict[str, Any]
STARTS = {"copied": "tiled", "random": "drawn"}
"""Initialisation of new rows of the position table → its key in the report."""


def tile_positions(table: Tensor, rows: int, reserved: int) -> Tensor:
    """Lengthens a position table `(reserved + N, E)` to `rows` rows by repeating its N learned rows; the last copy may
    be truncated (Longformer, section 5, "copy initialisation")."""
    learned = table[reserved:]
    if learned.shape[0] == 0:
        raise InputError("the source has no position rows beyond the reserved ones, so there is nothing to repeat")
    copies = -(-(rows - reserved) // learned.shape[0])
    return torch.cat([table[:reserved], learned.repeat(copies, 1)])[:rows]


def keep_table(attention: Any, source: Any, layers: int) -> Any:
    """Returns `attention` as passed by the user, with the options of the source's tables where it does not set them.

    Raises:
        InputError: tables of another shape or meaning, or a mechanism without any.
    """
    present = first_sharing(source, layers)
    if present is None:
        return attention
    if isinstance(attention, list | tuple):
        return [_with_own_options(entry, present) for entry in attention]
    return _with_own_options(attention, present)


def _with_own_options(attention: Any, present: AttentionConfig) -> Any:
    if not isinstance(attention, str | Mapping | AttentionConfig):
        return attention
    spec = as_spec(attention)
    if spec.get("mechanism") != present.mechanism:
        attention_config({"mechanism": spec.get("mechanism")})  # misspelt names are reported first
        raise InputError(
            f"attention={spec['mechanism']!r} has no {tables_of(present).what}, with which this source was trained; "
            f"choose attention={present.mechanism!r}"
        )
    if not isinstance(attention, AttentionConfig):
        spec = {**present.without_replaced(tables_of(present).handed_on, spec), **spec}
    check_trained(spec, present)
    return spec


def as_spec(attention: Any) -> Spec:
    """Returns a mechanism as plain data: names and mappings with only the explicitly set options."""
    if isinstance(attention, str):
        return {"mechanism": attention}
    return dict(attention) if isinstance(attention, Mapping) else plain_spec(attention)


def as_asked(attention: Any, options: Spec) -> Any:
    """Returns the mechanism with its options as one spec, or a list of mechanisms unchanged.

    Raises:
        InputError: options in addition to a list.
    """
    if not isinstance(attention, list | tuple):
        return as_spec(attention) | options
    if options:
        raise InputError(f"{next(iter(options))} cannot be combined with a list of mechanisms; set it inside the list")
    return attention


def check_longer(max_tokens: int, before: int) -> None:
    """Raises `InputError` if the longest input is below the source's."""
    if max_tokens < before:
        raise InputError(
            f"max_tokens={max_tokens!r} is less than the {before} tokens that the source already reads; give at least "
            "that many"
        )


def first_sharing(specs: Any, layers: int) -> AttentionConfig | None:
    """Returns the first layer that shares tables with others, which all share the same; `None` if there is none."""
    configs = map(attention_config, layer_specs(specs, layers))
    return next((config for config in configs if config.shared_tables() is not None), None)


def tables_of(config: AttentionConfig) -> SharedTables:
    """Returns the tables that the layers of a mechanism share; there must be some."""
    tables = config.shared_tables()
    assert tables is not None
    return tables


def sharing_layer(model: LongspanPreTrainedModel | Encoder) -> AttentionConfig:
    """Returns the configuration of a layer that shares tables, in a model that has some."""
    config = first_sharing(model.config.attention, model.config.num_hidden_layers)
    assert config is not None
    return config


def check_trained(wanted: Spec, present: AttentionConfig) -> None:
    """Raises `InputError` if trained weights would have to change their size or their meaning."""
    tables = tables_of(present)
    for name in tables.trained:
        requested, has = wanted.get(name, getattr(type(present), name)), getattr(present, name)
        if requested != has:
            raise InputError(
                f"{name}={requested} does not fit the source, whose table of {tables.what} has {name}={has}; "
                "leave it out"
            )


def start_shared_tables(model: LongspanPreTrainedModel, unfilled: Collection[str]) -> dict[str, str]:
    """Initialises the tensors of shared tables named in `unfilled`. Returns how each was initialised."""
    started = {}
    for name, module in model.named_modules():
        if isinstance(module, Encoder) and module.relative is not None:
            prefix = f"{name}.relative."
            missing = {key for key in module.relative.state_dict() if prefix + key in unfilled}
            derived = tables_of(sharing_layer(module)).start(module.relative, missing)
            started |= {prefix + key: "bucketed" if key in derived else "new" for key in missing}
    return started


def plan_attention(config: LongspanConfig, attention: Any, max_tokens: int, options: Spec) -> list[Spec]:
    """Returns one attention spec per encoder layer; `lengthen` describes the arguments.

    Raises:
        InputError: a stack with attention of its own; an unknown mechanism, option or layer; options in addition to a
            list of mechanisms; a mechanism without relative positions where the source has them, or with another number
            of them.
    """
    stack = stack_config(config.stack)
    if stack.brings_attention:
        raise InputError(
            f"the source has the stack {stack.stack!r}, which brings its own attention, so that there is none to "
            "exchange; to read more tokens, train it with position_embedding='sinusoidal'"
        )
    own = layer_specs(config.attention, config.num_hidden_layers)
    plan = _plan(config, own, attention, max_tokens, options)
    present = first_sharing(own, len(own))
    for layer, (before, after) in enumerate(zip(own, plan, strict=True)):
        if present is not None and after["mechanism"] == present.mechanism:
            check_trained(attention_config(after).to_dict(), present)
        elif (tables := attention_config(before).shared_tables()) is not None:
            given = attention if isinstance(attention, str) else after["mechanism"]
            raise InputError(
                f"attention={given!r} leaves layer {layer} without the {tables.what} with which "
                f"this source was trained; choose attention={before['mechanism']!r}"
            )
    return plan


def _plan(config: LongspanConfig, own: list[Spec], attention: Any, max_tokens: int, options: Spec) -> list[Spec]:
    requested = as_asked(attention, options)
    # Layers in no range are unchanged.
    specs = [
        present if entry is None else _complete(as_spec(entry), own, max_tokens)
        for entry, present in zip(spread(requested, len(own)), own, strict=True)
    ]
    if (
        not isinstance(requested, dict)
        or "layers" in requested
        or any(isinstance(value, Mapping) for value in requested.values())
    ):
        return specs
    firsts = [attention_config(spec).lengthening().first_level for spec in specs]
    kinds = set() if _sees_everything(config, own) else {present["mechanism"] for present in own}
    if isinstance(attention, str) and attention in kinds and kinds <= {attention, firsts[-1].mechanism}:
        return [_updated(present, attention, options) for present in own]
    plan = []
    for layer, (present, spec, first) in enumerate(zip(own, specs, firsts, strict=True)):
        if layer < len(own) // 2 and first != attention_config(spec):
            # As published, the upper half gets all levels of a mechanism, and the lower half the first.
            plan.append(plain_spec(first))
        else:
            keeps = present["mechanism"] == attention and attention in kinds
            plan.append(_changed(present, options) if keeps else spec)
    return plan


def _sees_everything(config: LongspanConfig, own: list[Spec]) -> bool:
    """Whether no window of layers with trained tables ends within the input: full attention, which now gets windows."""
    layers, most = [attention_config(present) for present in own], config.max_position_embeddings
    return all(
        layer.shared_tables() is not None and answer.first_level == layer and answer.covers
        for layer, answer in ((layer, layer.lengthening(most)) for layer in layers)
    )


def _complete(spec: Spec, own: list[Spec], max_tokens: int) -> Spec:
    """Completes a spec with options of the source's weights, and with those that follow the length."""
    kind = type(attention_config({"mechanism": spec.get("mechanism")}))
    present = first_sharing(own, len(own))
    handed_on: Mapping[str, Any] = {}
    if present is not None and present.mechanism == spec["mechanism"]:
        handed_on = tables_of(present).handed_on
    return {**kind.defaults_for(max_tokens, spec), **kind.without_replaced(handed_on, spec), **spec}


def _updated(present: Spec, attention: str, options: Spec) -> Spec:
    """Returns a layer of a model that already has the mechanism: its layout is kept, only the named options change."""
    if present["mechanism"] == attention:
        return _changed(present, options)
    return present | {name: value for name, value in options.items() if name in present}


def _changed(present: Spec, options: Spec) -> Spec:
    """Returns a layer with changed options, without those that they replace."""
    return attention_config(present).without_replaced(present, options) | options
