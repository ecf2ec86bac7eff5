"""What operators compute once for a pattern and a length, and keep: as much as fits a number of bytes, in all.

Layouts and masks are the same in every layer and step. Where lengths vary, most are never asked for again; a number of
entries would bound nothing, since one mask may have a kilobyte or a hundred megabytes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from longspan.ops.transforms import is_transforming

P = ParamSpec("P")
R = TypeVar("R")

BUDGET = 32 << 20
"""Bytes that everything kept may have together."""
ALWAYS = 4
"""The newest entries stay whatever their size: a layer with a large pattern does not compute its masks in each call."""
OVERHEAD = 1024
"""Bytes of an entry, and of each tensor in it, besides its numbers: about what Python and PyTorch need for them."""


class Kept:
    """Results by what they were computed from; when they are too many bytes, the one unused for longest goes first."""

    def __init__(self, budget: int = BUDGET) -> None:
        self.budget = budget
        self.bytes = 0
        """What all entries weigh now."""
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()  # gradients are computed in threads of their own

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, compute: Callable[[], R]) -> R:
        """The entry of a key, computed where there is none."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key][0]
        with torch.inference_mode(False):  # the next call may be one that learns
            value = compute()  # not under the lock: it may ask for entries itself
        if is_transforming():
            return value
        with self._lock:
            if key not in self._entries:
                self._entries[key] = value, weight(value)
                self.bytes += self._entries[key][1]
            while self.bytes > self.budget and len(self._entries) > ALWAYS:
                self.bytes -= self._entries.popitem(last=False)[1][1]
        return value

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self.bytes = 0


KEPT = Kept()
"""Shared by all operators."""


def kept(function: Callable[P, R]) -> Callable[P, R]:
    """A function of hashable arguments whose results are kept, and must not be changed.

    While a graph is compiled it is called as it stands: what a graph holds is for one call, and not to be kept.
    """

    @wraps(function)
    def keeping(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        return KEPT.get((function, args, tuple(kwargs.items())), lambda: function(*args, **kwargs))

    return keeping


def weight(value: Any) -> int:
    """Bytes of a result: the memory behind its tensors, and what keeping them costs."""
    return OVERHEAD + sum(OVERHEAD + tensor.untyped_storage().nbytes() for tensor in _tensors(value))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)
    elif is_dataclass(value):
        for part in fields(value):
            yield from _tensors(getattr(value, part.name))
