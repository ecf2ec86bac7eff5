"""`output_attentions`: the weights of every layer, computed in addition to its outputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from longspan.attention import Attention
from longspan.attention.features.reported import reported_weights
from longspan.errors import InputError

Weights = list[tuple[Tensor, Tensor | None]]
"""For each layer, in order: its weights, and those of global queries if they are separate."""


@contextmanager
def recorded_weights(layers: nn.Module) -> Iterator[Weights]:
    """Within the context, the list is filled with the weights of each attention (`reported_weights`).

    Raises:
        InputError: a compiled program, or a layer that has no weights for such a text.
    """
    if torch.compiler.is_compiling():
        raise InputError("output_attentions=True is not for compiled models; ask the model that was compiled")
    record: Weights = []

    def report(attention: Any, given: tuple[Any, ...], output: Tensor) -> None:
        record.append(reported_weights(attention, *given[:2]))

    modules = [module for module in layers.modules() if isinstance(module, Attention)]
    handles = [module.register_forward_hook(report) for module in modules]
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()


def check_layers(record: Weights, layers: int, stack: str) -> None:
    """Raises unless a record has one entry for each layer over the same tokens."""
    if len(record) != layers or len({weights.shape[2] for weights, _ in record}) > 1:
        raise InputError(
            f"output_attentions=True is not offered by the stack {stack!r}, whose layers do not each read the whole "
            "text once; call layer.attention.weights(hidden, tokens) on a short input instead"
        )
