"""What a change of model does to the tables that its layers share: kept from a source that has them, new elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from longspan.attention import AttentionConfig, attention_config
from longspan.attention.layers import layer_specs, plain_spec
from longspan.errors import InputError
from longspan.models import LongspanPreTrainedModel
from longspan.models.encoder import Encoder

Spec = dict[str, Any]


def keep_table(attention: Any, source: Any, layers: int) -> Any:
    """`attention`, as a user gives it, with the options of the source's own tables wherever it says nothing of them.

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
        attention_config({"mechanism": spec.get("mechanism")})  # a misspelt name comes first
        raise InputError(
            f"attention={spec['mechanism']!r} has no {present.tables}, with which this source was trained; "
            f"choose attention={present.mechanism!r}"
        )
    spec = spec if isinstance(attention, AttentionConfig) else present.handed_on() | spec
    check_trained(spec, present)
    return spec


def as_spec(attention: Any) -> Spec:
    """A mechanism as a user gives it, as plain data: names and mappings with only what was said."""
    if isinstance(attention, str):
        return {"mechanism": attention}
    return dict(attention) if isinstance(attention, Mapping) else plain_spec(attention)


def first_sharing(specs: Any, layers: int) -> AttentionConfig | None:
    """The first layer that shares tables with others, which all ask for the same; `None` where none does."""
    return next((config for config in map(attention_config, layer_specs(specs, layers)) if config.shared), None)


def sharing_layer(model: LongspanPreTrainedModel | Encoder) -> AttentionConfig:
    """The configuration of a layer that shares tables, in a model that has some."""
    found = first_sharing(model.config.attention, model.config.num_hidden_layers)
    assert found is not None
    return found


def check_trained(wanted: Spec, present: AttentionConfig) -> None:
    """Raise `InputError` where trained weights would have to change their size or their meaning."""
    for name in present.trained:
        asked, has = wanted.get(name, getattr(type(present), name)), getattr(present, name)
        if asked != has:
            raise InputError(
                f"{name}={asked} does not fit the source, whose table of {present.tables} has {name}={has}; leave "
                "it out"
            )


def start_shared_tables(model: LongspanPreTrainedModel, unfilled: Collection[str]) -> dict[str, str]:
    """Give a value to the tensors of shared tables named in `unfilled`; return how each of them started."""
    started = {}
    for name, module in model.named_modules():
        if isinstance(module, Encoder) and module.relative is not None:
            prefix = f"{name}.relative."
            missing = {key for key in module.relative.state_dict() if prefix + key in unfilled}
            derived = sharing_layer(module).start_positions(module.relative, missing)
            started |= {prefix + key: "bucketed" if key in derived else "new" for key in missing}
    return started
