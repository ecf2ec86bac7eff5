"""The memory of texts that are processed in batches, passed from segment to segment and stored in checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache

from longspan.errors import InputError
from longspan.models.cache import states_in_cache
from longspan.stacks import stack_config

PLAIN = (bool, int, float, str, type(None))
SKIPPED = ("dtype", "device")
"""Attributes of a cache layer that are also in its tensors."""


class StreamMemory:
    """The states of all layers for texts that are processed batch by batch, each with the number of its first column.

    A memory is transformers' `Cache`, which a stack with a memory fills and shortens itself. All its tensors are
    detached after each batch, so that back-propagation ends at the segment.

    Args:
        config: fields of the model; if its stack has no memory between segments, they are independent.
    """

    def __init__(self, config: Any) -> None:
        self.is_used = stack_config(config.stack).returns().keeps_memory
        self.caches: dict[int, Cache] = {}
        self.next: dict[int, int] = {}
        self.read: set[int] = set()
        """The columns that were processed since a memory was loaded; only these are kept."""

    def before(self, segment: int, column: int) -> dict[str, Any]:
        """Returns the model's further arguments for a segment; the first segment resets the memory.

        Raises:
            InputError: segments are not in the order of the text.
        """
        if segment and self.next.get(column, 0) != segment:
            raise InputError(
                f"segment {segment} of column {column} came where {self.next.get(column, 0)} was next; segments of a "
                "stream must come in their order, so use no sampler of another order"
            )
        if not self.is_used:
            return {}
        return {"cache": self.caches.get(column) if segment else None, "use_cache": True}

    def after(self, segment: int, column: int, cache: Cache | None) -> None:
        """Stores the cache that the model returned for a segment, detached."""
        self.next[column] = segment + 1
        self.read.add(column)
        if cache is not None and self.is_used:
            for layer in cache.layers:
                _detach(layer)
            self.caches[column] = cache

    def reset(self) -> None:
        """Resets all streams."""
        self.caches, self.next, self.read = {}, {}, set()

    def tensors(self) -> dict[str, Tensor]:
        """Returns the memory as tensors by name; plain values become tensors without dimensions.

        If a loaded memory has columns that other processes now process, only those of this process.
        """
        columns = self.read or set(self.next)
        tensors = {f"{column}.next": torch.tensor(self.next[column]) for column in sorted(columns)}
        for column in sorted(columns & set(self.caches)):
            for number, layer in enumerate(self.caches[column].layers):
                tensors |= {f"{column}.{number}.{name}": value for name, value in _values(layer)}
        return tensors

    def load(self, tensors: dict[str, Tensor], model: Any) -> None:
        """Restores `tensors`, in layers as `model` creates them.

        Raises:
            InputError: they belong to another model.
        """
        self.reset()
        for key, value in tensors.items():
            column, _, rest = key.partition(".")
            if rest == "next":
                self.next[int(column)] = int(value)
                continue
            cache = self.caches.setdefault(int(column), DynamicCache())
            if not cache.layers:
                states_in_cache(cache, model.decoder.layers, source=False)
            number, _, name = rest.partition(".")
            if int(number) >= len(cache.layers):
                raise InputError("the memory in the checkpoint belongs to a model with more layers; resume that one")
            # A copy, since tensors of a file can be unaligned, which on some CPUs changes the rounding.
            _set(cache.layers[int(number)], name, value.to(model.device, copy=True))


def _values(layer: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields the values of a cache layer by attribute; entries of a dictionary after a dot."""
    for name, value in vars(layer).items():
        entries = {f"{name}.{key}": entry for key, entry in value.items()} if isinstance(value, dict) else {name: value}
        for key, entry in entries.items():
            if isinstance(entry, Tensor):
                yield key, entry.contiguous()
            elif isinstance(entry, bool | int | float):
                yield key, torch.tensor(entry)
            elif name not in SKIPPED and not isinstance(entry, PLAIN):
                raise TypeError(f"{type(layer).__name__}.{key} is a {type(entry).__name__}, which no file can hold")


def _set(layer: Any, name: str, value: Tensor) -> None:
    name, _, key = name.partition(".")
    if key:
        getattr(layer, name)[key] = value
        return
    before = getattr(layer, name, None)
    setattr(layer, name, type(before)(value.item()) if isinstance(before, bool | int | float) else value)
    if not isinstance(before, bool | int | float):
        layer.dtype, layer.device = value.dtype, value.device


def _detach(layer: Any) -> None:
    """Detaches every tensor of a cache layer."""
    for name, value in vars(layer).items():
        if isinstance(value, Tensor):
            setattr(layer, name, value.detach())
        elif isinstance(value, dict):
            value.update({key: entry.detach() for key, entry in value.items() if isinstance(entry, Tensor)})
