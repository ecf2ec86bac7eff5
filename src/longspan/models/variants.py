"""The same weights under other options: as a model is evaluated with a longer memory than it was trained with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from longspan.attention.layers import plain_layers, spread
from longspan.errors import InputError

Model = TypeVar("Model", bound=nn.Module)


def with_options(
    model: Model, *, stack: Mapping[str, Any] | None = None, attention: Mapping[str, Any] | None = None
) -> Model:
    """A model that shares all weights with this one, whose stack and mechanisms have the given options changed.

    Raises:
        InputError: an option that the stack or the mechanisms have not, that means nothing to them, or that changes
            the weights.
    """
    if not stack and not attention:
        return model
    config: Any = model.config
    fields = config.to_dict()
    fields["stack"] = {**config.stack, **(stack or {})}
    specs = spread(plain_layers(config.attention, config.num_hidden_layers), config.num_hidden_layers)
    fields["attention"] = [{**spec, **(attention or {})} for spec in specs]
    changed = type(config).from_dict(fields)
    _check_used(changed, attention or {})
    with torch.device("meta"):
        variant = type(model)(changed)
    ours = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    wanted = {**dict(variant.named_parameters(remove_duplicate=False)), **dict(variant.named_buffers())}
    for name, tensor in wanted.items():
        if name not in ours or ours[name].shape != tensor.shape:
            raise InputError(
                f"these options change the weights ({name}), so the model cannot take them; leave them out"
            )
        parent, _, last = name.rpartition(".")
        holder = variant.get_submodule(parent)
        (holder._parameters if last in holder._parameters else holder._buffers)[last] = ours[name]
    if hasattr(model, "generation_config"):
        variant.generation_config = model.generation_config
    return variant.train(model.training)


def _check_used(config: Any, attention: Mapping[str, Any]) -> None:
    """Refuse options that mean nothing to a layer beside those it has."""
    for layer in range(config.num_hidden_layers):
        found = config.layer_attention(layer)
        for name in found.idle & {name for name, value in attention.items() if value is not None}:
            raise InputError(
                f"{name}={attention[name]} means nothing to attention {found.mechanism!r} as the model has it; leave "
                "it out"
            )
