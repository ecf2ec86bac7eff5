"""One call of `attend`, as every backend takes it, and its parts by rows.

Where a pattern depends on the length of the text, each row of the batch has its own, up to its last real key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.terms import OffsetTerm, Term
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
        """All tensors that may have a gradient."""
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


def row_lengths(key_mask: Tensor) -> Tensor:
    """`(B,)` int64, how many keys each row of a mask `(B, S)` has up to the last that is real."""
    place = torch.arange(1, key_mask.shape[1] + 1, device=key_mask.device)
    return F.pad(key_mask * place, (1, 0)).amax(1)  # filled up, since there may be no key at all


def patterns_of_rows(pattern: Pattern, key_mask: Tensor | None, keys: int) -> dict[Pattern, list[int]]:
    """The rows of a batch that share each pattern; one pattern without rows where all of them do."""
    shared: dict[Pattern, list[int]] = {}
    lengths = [] if key_mask is None else row_lengths(key_mask).tolist()
    shown = {length: pattern.of_length(length) for length in set(lengths)}
    for row, length in enumerate(lengths):
        shared.setdefault(shown[length], []).append(row)
    if len(shared) > 1:
        return shared
    return {each: [] for each in shared} or {pattern.of_length(keys): []}


def by_length(call: Call) -> list[tuple[Tensor | None, Call]]:
    """The call as calls of rows with one pattern each, and which rows these are, `None` for all.

    Rows are told apart only where their patterns differ; they are looked up, so this waits for the data on a GPU.
    """
    if not call.pattern.reads_length:
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
