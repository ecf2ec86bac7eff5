"""The dense mask of a pattern summed into cells, for pictures of any length, without a T × T tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.patterns import Pattern, PooledWindow, Span
from longspan.patterns.base import shortened

STRIP = 1 << 22
"""Token pairs evaluated at once."""
MOST_PAIRS = 1 << 27
"""Maximum number of token pairs evaluated for one picture, which takes some seconds."""


@dataclass(frozen=True)
class Mask:
    """A dense mask, summed into cells.

    Attributes:
        shares: `(parts, rows, columns)`, the share of a cell's pairs that each part is the first to show.
        queries: number of queries T.
        keys: number of keys S.
        visible: exact number of visible pairs.
        cell: side of a cell, in tokens.
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
    """Sums the mask of the union of `parts` into at most `cells` × `cells` cells.

    The bounds of the patterns (`some`, `every`) decide most cells. The others are evaluated pair by pair, once for all
    cells that have the same phases.

    Raises:
        InputError: more than `MOST_PAIRS` pairs would have to be evaluated.
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
    """Returns the first and the last position of each cell along one side."""
    first = torch.arange(0, count, cell)
    return first, torch.clamp(first + cell - 1, max=count - 1)


def _count_alike(parts: list[Pattern], q0: Tensor, k0: Tensor, cell: int, limits: tuple[int, int]) -> Tensor:
    """`_count_pairs` of n cells, evaluated once for all that have equal phases and are clipped equally by the edges."""
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
    chunks = first.split(max(1, STRIP // cell**2))
    return torch.cat([_count_pairs(parts, q0[chunk], k0[chunk], cell, limits) for chunk in chunks], dim=1)[:, kinds]


def _count_pairs(parts: list[Pattern], q0: Tensor, k0: Tensor, cell: int, limits: tuple[int, int]) -> Tensor:
    """Returns the visible pairs `(parts, n)` of n cells that begin at `q0`, `k0`; a pair counts for the first part that
    shows it."""
    inside = torch.arange(cell)
    queries, keys = (q0[:, None] + inside)[:, :, None], (k0[:, None] + inside)[:, None, :]
    free = (queries < limits[0]) & (keys < limits[1])
    counts = []
    for part in parts:
        shown = part.visible(queries, keys) & free
        free = free & ~shown
        counts.append(shown.flatten(1).sum(1))
    return torch.stack(counts).double()
