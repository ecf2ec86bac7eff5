"""The arguments of one call of `attend`, as passed to every backend; global tokens; and rows of equal length.

Global tokens are slots: a static number of positions `(B, G)` for each row of the batch, −1 where unused. If a pattern
depends on the length of the text, each row of the batch has its own length, up to its last real key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from longspan.errors import InputError
from longspan.ops.attend.terms import OffsetTerm, Term
from longspan.ops.runtime import shared_in_pass
from longspan.ops.tiles.layout import traits_of
from longspan.patterns import Pattern


@dataclass(frozen=True, eq=False)
class Call:
    """The checked arguments of `longspan.attend`.

    Attributes:
        slots: `(B, G)` int64 positions of real global tokens, each once, −1 where unused; `None` if there are no slots.
        seed: seed of dropout in tiles.
        step: offset between neighbouring places, where tiles hold positions in another order.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    pattern: Pattern
    scale: float
    terms: tuple[Term, ...] = ()
    key_mask: Tensor | None = None
    slots: Tensor | None = None
    global_rows: bool = False
    dropout_prob: float = 0.0
    query_offset: int = 0
    seed: int = 0
    step: int = 1

    @property
    def tensors(self) -> list[Tensor]:
        """Query, key, value and the tensors of the terms: everything that may require a gradient."""
        return [self.query, self.key, self.value, *(tensor for term in self.terms for tensor in term.tensors)]

    @property
    def global_keys(self) -> int:
        """Number of global keys, G."""
        return 0 if self.slots is None else self.slots.shape[1]

    @property
    def is_square(self) -> bool:
        """Whether queries and keys are the same positions."""
        return self.query.shape[2] == self.key.shape[2] and not self.query_offset

    @property
    def has_offsets(self) -> bool:
        """Whether a term depends on the offset of two tokens."""
        return any(isinstance(term, OffsetTerm) for term in self.terms)


# Global tokens as slots.


@shared_in_pass
def real_slots(slots: Tensor, mask: Tensor | None) -> Tensor:
    """Sets duplicates of earlier positions, and positions that are padding in `mask` `(B, S)`, to −1: `(B, G)`
    int64."""
    earlier = (slots[:, :, None] == slots[:, None, :]).tril(-1).any(-1)
    slots = torch.where(earlier | (slots < 0), -1, slots)
    return slots if mask is None else torch.where(mask.gather(1, slots.clamp(min=0)), slots, -1)


def check_slots(name: str, slots: Tensor, length: int) -> None:
    """Raises unless all `(B, G)` slots are positions of `length` tokens or −1.

    In a compiled or exported program, where values are unknown, and on a GPU, where reading them would synchronise, the
    check is an asynchronous assertion.

    Raises:
        InputError: a slot beyond the sequence, or below −1.
    """
    if torch.compiler.is_compiling() or slots.is_cuda:
        _assert_slots(name, slots, length)
        return
    fits = (slots >= -1) & (slots < length)
    if not bool(fits.all()):
        wrong = int(slots[~fits][0])
        raise InputError(
            f"{name} holds {wrong}, which is no position of {length} tokens; give 0 to {length - 1}, or -1 where unused"
        )


@shared_in_pass
def _assert_slots(name: str, slots: Tensor, length: int) -> None:
    torch._assert_async(((slots >= -1) & (slots < length)).all(), f"{name} names a position beyond the sequence")


def slots_of_mask(mask: Tensor, count: int | None = None) -> Tensor:
    """Returns the positions of the first True entries in order, then −1: `(B, T)` bool → `(B, count)` int64.

    The default of `count` is the largest number in a row, which depends on the data; pass it under `torch.compile` and
    `torch.export`.
    """
    rank = mask.cumsum(1)
    if count is None:
        count = int(rank[:, -1].max()) if mask.numel() else 0
    # Dropped entries are written to an additional column, so that no shape depends on the data.
    column = torch.where(mask, (rank - 1).clamp(max=count), count)
    positions = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    slots = torch.full((mask.shape[0], count + 1), -1, device=mask.device, dtype=torch.int64)
    return slots.scatter(1, column, positions)[:, :count]


def mask_of_slots(slots: Tensor, length: int) -> Tensor:
    """Returns a mask that is True at the positions of the slots: `(B, G)`, −1 where unused → `(B, length)` bool."""
    mask = torch.zeros(slots.shape[0], length + 1, dtype=torch.bool, device=slots.device)
    return mask.scatter(1, torch.where(slots < 0, length, slots), True)[:, :length]


def gather_slots(tensor: Tensor, slots: Tensor) -> Tensor:
    """Gathers `(B, H, S, D)` at `(B, G)` → `(B, H, G, D)`; unused slots read position 0."""
    index = torch.clamp(slots, min=0)[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[3])
    return torch.gather(tensor, 2, index)


def put_slots(tensor: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    """Writes the `(B, H, G, D)` rows of `(B, G)` slots into `(B, H, T, D)`; unused slots are dropped."""
    index = torch.where(slots < 0, tensor.shape[2], slots)[:, None, :, None].expand(rows.shape)
    if tensor.transpose(
        1, 2
    ).is_contiguous():  # keep the memory layout with tokens before heads, so that heads are merged without a copy
        padded = F.pad(tensor.transpose(1, 2), (0, 0, 0, 0, 0, 1)).transpose(1, 2)
    else:
        padded = F.pad(tensor, (0, 0, 0, 1))
    return padded.scatter_(2, index, rows)[:, :, : tensor.shape[2]]


# Rows of equal length.


def row_lengths(key_mask: Tensor) -> Tensor:
    """Returns the number of keys of each row of a mask `(B, S)` up to the last real one, `(B,)` int64."""
    place = torch.arange(1, key_mask.shape[1] + 1, device=key_mask.device)
    return F.pad(key_mask * place, (1, 0)).amax(1)  # padded, because there may be no key at all


def _known_lengths(key_mask: Tensor) -> list[int]:
    """Returns `row_lengths` as ints; on a GPU, one synchronisation serves all layers with the same mask."""
    if not key_mask.is_cuda or torch.compiler.is_compiling():
        return row_lengths(key_mask).tolist()
    known = _LENGTHS.get(key_mask)
    if known is None or known[0] != key_mask._version:
        known = _LENGTHS[key_mask] = key_mask._version, row_lengths(key_mask).tolist()
    return known[1]


_LENGTHS = WeakTensorKeyDictionary()
"""Weakly keyed by mask: the version that was read, and the lengths."""


def patterns_of_rows(pattern: Pattern, key_mask: Tensor | None, keys: int) -> dict[Pattern, list[int]]:
    """Returns the rows of a batch that share each pattern; a single pattern with an empty list if all rows share it."""
    shared: dict[Pattern, list[int]] = {}
    lengths = [] if key_mask is None else _known_lengths(key_mask)
    shown = {length: _shown_at(pattern, length) for length in set(lengths)}
    for row, length in enumerate(lengths):
        shared.setdefault(shown[length], []).append(row)
    if len(shared) > 1:
        return shared
    return {only: [] for only in shared} or {_shown_at(pattern, keys): []}


def _shown_at(pattern: Pattern, length: int) -> Pattern:
    """Returns `pattern.of_length(length)`, cached outside of compiled graphs, which cannot trace a cache."""
    return pattern.of_length(length) if torch.compiler.is_compiling() else _known_at(pattern, length)


@lru_cache(maxsize=256)
def _known_at(pattern: Pattern, length: int) -> Pattern:
    return pattern.of_length(length)


def by_length(call: Call) -> list[tuple[Tensor | None, Call]]:
    """Splits the call into calls of rows with one pattern each, with the indices of the rows, `None` for all.

    Rows are split only if their patterns differ; reading their lengths synchronises a GPU.
    """
    if not traits_of(call.pattern).reads_length:
        return [(None, call)]
    shared = patterns_of_rows(call.pattern, call.key_mask, call.key.shape[2])
    if len(shared) == 1:
        return [(None, replace(call, pattern=next(iter(shared))))]
    parts = []
    for pattern, rows in shared.items():
        index = torch.tensor(rows, device=call.query.device)
        parts.append((index, _rows_only(call, index, pattern, rows[0])))
    return parts


def _rows_only(call: Call, rows: Tensor, pattern: Pattern, first: int) -> Call:
    """Returns the call for some rows; each set of rows draws its own dropout."""
    query, key, value = (tensor.index_select(0, rows) for tensor in (call.query, call.key, call.value))
    mask, slots = (None if tensor is None else tensor.index_select(0, rows) for tensor in (call.key_mask, call.slots))
    terms = tuple(term.of_rows(rows) for term in call.terms)
    options: dict[str, Any] = {"key_mask": mask, "slots": slots, "terms": terms, "seed": call.seed + first * 7_368_787}
    return replace(call, query=query, key=key, value=value, pattern=pattern, **options)


def joined(parts: list[tuple[Tensor | None, Call]], compute: Callable[[Call], Tensor]) -> Tensor:
    """Applies `compute` to each part of `by_length`, and returns `(B, …)` in the order of the rows."""
    if len(parts) == 1:
        return compute(parts[0][1])
    order = torch.cat([rows for rows, _ in parts if rows is not None])
    return torch.cat([compute(call) for _, call in parts]).index_select(0, order.argsort())


def shown_to_rows(pattern: Pattern, key_mask: Tensor | None, keys: int, device: torch.device) -> Pattern:
    """Returns the pattern as a predicate for `(T, S)` indices, with a leading axis for the rows, without
    synchronisation."""
    if not pattern.reads_length:
        return pattern
    mask = torch.ones(1, keys, dtype=torch.bool, device=device) if key_mask is None else key_mask
    return pattern.of_length(row_lengths(mask)[:, None, None])
