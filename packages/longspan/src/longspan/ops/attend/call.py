"""One call of `attend`, as every backend takes it: its arguments, its global tokens, and its rows of one length each.

Global tokens are slots: a static number of positions `(B, G)` for each row of the batch, −1 where unused. Where a
pattern depends on the length of the text, each row of the batch has its own, up to its last real key.
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
    """The arguments of `longspan.attend`, as checked: every part fits the others.

    Attributes:
        slots: `(B, G)` int64 positions of real global tokens, each once, −1 where unused; `None` for no slot at all.
        seed: start of the random numbers of dropout, on tiles.
        step: how many positions one place counts for in offsets, where tiles hold positions in another order.
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
        """Query, key, value and the tensors of the terms: all that may have a gradient."""
        return [self.query, self.key, self.value, *(tensor for term in self.terms for tensor in term.tensors)]

    @property
    def beside(self) -> int:
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
    """`(B, G)` int64 with every position once: what names an earlier one again, or no key of a mask `(B, S)`, becomes
    −1."""
    earlier = (slots[:, :, None] == slots[:, None, :]).tril(-1).any(-1)
    slots = torch.where(earlier | (slots < 0), -1, slots)
    return slots if mask is None else torch.where(mask.gather(1, slots.clamp(min=0)), slots, -1)


def check_slots(name: str, slots: Tensor, length: int) -> None:
    """Raise unless all `(B, G)` slots are positions of `length` tokens or −1.

    A compiled or exported program, in which no value is known yet, holds the check as an assertion instead; so does a
    GPU, which each layer would wait for.

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
    """`(B, T)` bool → `(B, count)` int64 positions of the first True entries in order, then −1.

    Without `count` it is the largest number in a row, which depends on the data; give it under `torch.compile` and
    `torch.export`.
    """
    rank = mask.cumsum(1)
    if count is None:
        count = int(rank[:, -1].max()) if mask.numel() else 0
    # Everything that is not kept is written to one spare column, which is then dropped: no data-dependent shape.
    column = torch.where(mask, (rank - 1).clamp(max=count), count)
    positions = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    slots = torch.full((mask.shape[0], count + 1), -1, device=mask.device, dtype=torch.int64)
    return slots.scatter(1, column, positions)[:, :count]


def mask_of_slots(slots: Tensor, length: int) -> Tensor:
    """`(B, G)` slots, −1 where unused → `(B, length)` bool, True at the positions they name."""
    mask = torch.zeros(slots.shape[0], length + 1, dtype=torch.bool, device=slots.device)
    return mask.scatter(1, torch.where(slots < 0, length, slots), True)[:, :length]


def gather_slots(tensor: Tensor, slots: Tensor) -> Tensor:
    """`(B, H, S, D)`, `(B, G)` → `(B, H, G, D)`; unused slots read position 0."""
    index = torch.clamp(slots, min=0)[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[3])
    return torch.gather(tensor, 2, index)


def put_slots(tensor: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    """`(B, H, T, D)` with the `(B, H, G, D)` rows of `(B, G)` slots in their places; unused slots are dropped."""
    index = torch.where(slots < 0, tensor.shape[2], slots)[:, None, :, None].expand(rows.shape)
    if tensor.transpose(1, 2).is_contiguous():  # tokens before heads in memory, and so again, where heads are merged
        padded = F.pad(tensor.transpose(1, 2), (0, 0, 0, 0, 0, 1)).transpose(1, 2)
    else:
        padded = F.pad(tensor, (0, 0, 0, 1))
    return padded.scatter_(2, index, rows)[:, :, : tensor.shape[2]]


# Rows of one length each.


def row_lengths(key_mask: Tensor) -> Tensor:
    """`(B,)` int64, how many keys each row of a mask `(B, S)` has up to the last that is real."""
    place = torch.arange(1, key_mask.shape[1] + 1, device=key_mask.device)
    return F.pad(key_mask * place, (1, 0)).amax(1)  # filled up, since there may be no key at all


def _known_lengths(key_mask: Tensor) -> list[int]:
    """`row_lengths` as numbers: on a GPU they are waited for once for all layers that are given the same mask."""
    if not key_mask.is_cuda or torch.compiler.is_compiling():
        return row_lengths(key_mask).tolist()
    known = _LENGTHS.get(key_mask)
    if known is None or known[0] != key_mask._version:
        known = _LENGTHS[key_mask] = key_mask._version, row_lengths(key_mask).tolist()
    return known[1]


_LENGTHS = WeakTensorKeyDictionary()
"""By mask, as long as somebody holds it: the version that was read, and the lengths."""


def patterns_of_rows(pattern: Pattern, key_mask: Tensor | None, keys: int) -> dict[Pattern, list[int]]:
    """The rows of a batch that share each pattern; one pattern without rows where all of them do."""
    shared: dict[Pattern, list[int]] = {}
    lengths = [] if key_mask is None else _known_lengths(key_mask)
    shown = {length: _shown_at(pattern, length) for length in set(lengths)}
    for row, length in enumerate(lengths):
        shared.setdefault(shown[length], []).append(row)
    if len(shared) > 1:
        return shared
    return {each: [] for each in shared} or {_shown_at(pattern, keys): []}


def _shown_at(pattern: Pattern, length: int) -> Pattern:
    """`pattern.of_length(length)`, made once outside of compiled graphs, in which a table cannot be followed."""
    return pattern.of_length(length) if torch.compiler.is_compiling() else _known_at(pattern, length)


@lru_cache(maxsize=256)
def _known_at(pattern: Pattern, length: int) -> Pattern:
    return pattern.of_length(length)


def by_length(call: Call) -> list[tuple[Tensor | None, Call]]:
    """The call as calls of rows with one pattern each, and which rows these are, `None` for all.

    Rows are told apart only where their patterns differ; they are looked up, so this waits for the data on a GPU.
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
    """The same call for some rows; each set of rows draws its own dropout."""
    query, key, value = (each.index_select(0, rows) for each in (call.query, call.key, call.value))
    mask, slots = (None if each is None else each.index_select(0, rows) for each in (call.key_mask, call.slots))
    terms = tuple(term.of_rows(rows) for term in call.terms)
    options: dict[str, Any] = {"key_mask": mask, "slots": slots, "terms": terms, "seed": call.seed + first * 7_368_787}
    return replace(call, query=query, key=key, value=value, pattern=pattern, **options)


def joined(parts: list[tuple[Tensor | None, Call]], compute: Callable[[Call], Tensor]) -> Tensor:
    """What `compute` gives for each part of `by_length`, `(B, …)` in the order of the rows."""
    if len(parts) == 1:
        return compute(parts[0][1])
    order = torch.cat([rows for rows, _ in parts if rows is not None])
    return torch.cat([compute(call) for _, call in parts]).index_select(0, order.argsort())


def shown_to_rows(pattern: Pattern, key_mask: Tensor | None, keys: int, device: torch.device) -> Pattern:
    """The pattern as a predicate for `(T, S)` indices, with an axis for the rows in front: nothing is looked up."""
    if not pattern.reads_length:
        return pattern
    mask = torch.ones(1, keys, dtype=torch.bool, device=device) if key_mask is None else key_mask
    return pattern.of_length(row_lengths(mask)[:, None, None])
