"""The dense mask of a pattern summed into cells, for pictures of any length: nothing here makes a T × T tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.patterns import Pattern, PooledWindow, Span
from longspan.patterns.base import shortened

STRIP = 1 << 22
"""Token pairs read at once."""
MOST_PAIRS = 1 << 27
"""Token pairs read for one picture: some seconds' work."""


@dataclass(frozen=True)
class Mask:
    """A dense mask, summed into cells.

    Attributes:
        shares: `(parts, rows, columns)`, the share of a cell's pairs that each part is the first to show.
        queries: number of queries T.
        keys: number of keys S.
        visible: visible pairs, counted exactly.
        cell: tokens along one side of a cell.
    """

    shares: Tensor
    queries: int
    keys: int
    visible: int
    cell: int

    @property
    def share(self) -> float:
        """Visible pairs as a share of full attention."""
        return self.visible / (self.queries * self.keys)


def read_mask(parts: list[Pattern], tokens: int, *, cells: int) -> Mask:
    """Sum the mask of `parts`, joined by "or", into at most `cells` × `cells` cells.

    The patterns' own bounds (`some`, `every`) decide most cells; the undecided ones are read pair by pair, once for all
    that the patterns' own phases say are alike.

    Raises:
        InputError: there are too many pairs to read.
    """
    parts = [part.of_length(tokens) for part in parts]
    keys = -(-tokens // parts[0].stride) if isinstance(parts[0], PooledWindow) and len(parts) == 1 else tokens
    cell = -(-tokens // cells)
    (q0, q1), (k0, k1) = _edges(tokens, cell), _edges(keys, cell)
    span = Span(q0[:, None], q1[:, None], k0[None], k1[None])
    sizes = ((q1 - q0 + 1)[:, None] * (k1 - k0 + 1)).double()
    counts = torch.zeros(len(parts), *sizes.shape, dtype=torch.float64)
    covered = torch.zeros(sizes.shape, dtype=torch.bool)
    undecided = torch.zeros_like(covered)
    for number, part in enumerate(parts):
        every = part.every(span).expand_as(covered)
        counts[number] = torch.where(every & ~covered & ~undecided, sizes, 0.0)
        undecided |= part.some(span) & ~every & ~covered
        covered |= every
    rows, columns = undecided.nonzero(as_tuple=True)
    if len(rows):
        counts[:, rows, columns] = _count_alike(parts, rows * cell, columns * cell, cell, (tokens, keys))
    return Mask(counts / sizes, tokens, keys, int(counts.sum()), cell)


def _edges(count: int, cell: int) -> tuple[Tensor, Tensor]:
    """First and last position of each cell along one side."""
    first = torch.arange(0, count, cell)
    return first, torch.clamp(first + cell - 1, max=count - 1)


def _count_alike(parts: list[Pattern], q0: Tensor, k0: Tensor, cell: int, limits: tuple[int, int]) -> Tensor:
    """`_count_pairs` of n cells, read once for all that have the same phases and are cut alike by the edges."""
    phases = [phase for part in parts for phase in part.phase(q0, k0)]
    edges = [(limit - start).clamp(max=cell) for limit, start in zip(limits, (q0, k0), strict=True)]
    stacked = torch.stack([phase.expand(q0.shape) for phase in (*phases, *edges)])
    _, kinds = torch.unique(stacked, dim=1, return_inverse=True)
    first = torch.empty(int(kinds.max()) + 1, dtype=torch.int64).scatter_(0, kinds, torch.arange(len(q0)))
    if len(first) * cell**2 > MOST_PAIRS:
        text = shortened(" | ".join(map(str, parts)))
        raise InputError(
            f"pattern '{text}' over tokens={limits[0]} would need {len(first) * cell**2:,} pairs read one by one, more "
            f"than {MOST_PAIRS:,}; choose fewer tokens"
        )
    few = first.split(max(1, STRIP // cell**2))
    return torch.cat([_count_pairs(parts, q0[some], k0[some], cell, limits) for some in few], dim=1)[:, kinds]


def _count_pairs(parts: list[Pattern], q0: Tensor, k0: Tensor, cell: int, limits: tuple[int, int]) -> Tensor:
    """Visible pairs `(parts, n)` of n cells that begin at `q0`, `k0`; a pair counts for the first part showing it."""
    inside = torch.arange(cell)
    queries, keys = (q0[:, None] + inside)[:, :, None], (k0[:, None] + inside)[:, None, :]
    free = (queries < limits[0]) & (keys < limits[1])
    counts = []
    for part in parts:
        shown = part.visible(queries, keys) & free
        free = free & ~shown
        counts.append(shown.flatten(1).sum(1))
    return torch.stack(counts).double()
