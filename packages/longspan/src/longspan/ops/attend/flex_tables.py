"""The blocks that FlexAttention computes: tables of the blocks that a pattern shows, as wide as their fullest row.

Outside of compiled graphs they are built from the tiles of the pattern, so that nothing has the size of all blocks, and
cached. A padding mask only removes blocks, on the device and without synchronisation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from longspan.ops.attend.call import patterns_of_rows
from longspan.ops.runtime import cached
from longspan.ops.tiles.arranged import by_pattern
from longspan.ops.tiles.layout import visible_tiles
from longspan.patterns import Pattern, Span

BLOCK = 128
"""Queries and keys per block, FlexAttention's default."""
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Table:
    """For each row of blocks, the visible blocks of the other side.

    Attributes:
        count: `(B or 1, H or 1, rows)` int32, number of visible blocks.
        index: `(B or 1, H or 1, rows, W)` int32, their indices; entries after the first `count` are not read.
    """

    count: Tensor
    index: Tensor


@dataclass(frozen=True)
class Tables:
    """Partial and full blocks, by rows of queries and by rows of keys.

    The indices of both have the same width: PyTorch 2.11 reads those of full blocks with the strides of the partial
    ones.
    """

    partial: Table
    full: Table | None
    partial_of_keys: Table
    full_of_keys: Table | None

    def block_mask(self, queries: int, keys: int, mask_mod: MaskMod) -> BlockMask:
        """Returns FlexAttention's `BlockMask`, with the predicate for partial blocks."""
        partial = self.partial
        if partial.index.device.type == "cpu":  # Inductor's CPU kernel requires tables as wide as all blocks
            more = -(-keys // BLOCK) - partial.index.shape[-1]
            partial = Table(partial.count, F.pad(partial.index, (0, max(0, more))))
        parts = (partial, self.full, self.partial_of_keys, self.full_of_keys)
        tensors = [None if part is None else getattr(part, name) for part in parts for name in ("count", "index")]
        return BlockMask((queries, keys), *tensors, BLOCK_SIZE=(BLOCK, BLOCK), mask_mod=mask_mod)  # pyright: ignore[reportArgumentType]

    def thinned(self, real: Tensor) -> Tables:
        """Returns the tables without the blocks whose keys are all padding in `real` `(B, S)`; requires that there are
        no full blocks."""
        assert self.full is None
        blocks = self.partial_of_keys.count.shape[-1]
        present = F.pad(real, (0, blocks * BLOCK - real.shape[1])).unflatten(1, (blocks, BLOCK)).any(-1)
        table, of_keys = self.partial, self.partial_of_keys
        index = table.index.expand(len(real), -1, -1, -1)
        meets = torch.arange(index.shape[-1], device=real.device) < table.count[..., None]
        meets = meets & present[:, None, None].expand(*index.shape[:3], -1).gather(-1, index.long())
        order = torch.argsort(meets.to(torch.uint8), dim=-1, descending=True, stable=True)
        thin = Table(meets.sum(-1, dtype=torch.int32), index.gather(-1, order))
        count = of_keys.count * present[:, None]
        return Tables(thin, None, Table(count, of_keys.index.expand(len(real), -1, -1, -1).contiguous()), None)


def tables_of_rows(
    pattern: Pattern,
    queries: int,
    keys: int,
    offset: int,
    extra_keys: int,
    device: torch.device,
    key_mask: Tensor | None,
) -> Tables:
    """Returns the tables of a pattern, with rows of each length if the pattern depends on it. With a mask, every block
    is partial, because any key may be hidden.

    Args:
        extra_keys: number of additional keys after those of the text, which all queries see.
        key_mask: `(B, S)` bool.
    """
    masked = key_mask is not None or extra_keys > 0
    sizes = (queries, keys, offset, extra_keys, masked, device)
    if not pattern.reads_length:
        return tables_of(pattern, *sizes)
    shared = patterns_of_rows(pattern, key_mask, keys)
    if len(shared) == 1:
        return tables_of(next(iter(shared)), *sizes)
    shown = {row: each for each, rows in shared.items() for row in rows}
    return _side_by_side([tables_of(shown[row], *sizes) for row in sorted(shown)], dim=0)


@cached
def tables_of(
    pattern: Pattern, queries: int, keys: int, offset: int, extra_keys: int, masked: bool, device: torch.device
) -> Tables:
    """Returns the tables of a pattern that does not depend on the length, computed on the host from its tiles."""
    by_head = {part: _tables_of_head(part, queries, keys, offset, extra_keys, masked) for part in by_pattern(pattern)}
    tables = _side_by_side([by_head[pattern.head(index)] for index in range(pattern.heads or 1)], dim=1)
    parts = [
        *_of_one_width(tables.partial, tables.full),
        *_of_one_width(tables.partial_of_keys, tables.full_of_keys),
    ]
    placed = [None if part is None else Table(part.count.to(device), part.index.to(device)) for part in parts]
    return Tables(*placed)  # pyright: ignore[reportArgumentType]


def _tables_of_head(pattern: Pattern, queries: int, keys: int, offset: int, extra_keys: int, masked: bool) -> Tables:
    """Returns the tables of one head, `(1, 1, …)`."""
    rows, columns = visible_tiles(pattern, queries, keys, offset, BLOCK)
    query, key = rows * BLOCK, columns * BLOCK
    ends = (query + BLOCK).clamp(max=queries) - 1, (key + BLOCK).clamp(max=keys) - 1
    # The last block of keys is never full when the sequence ends inside it.
    full = key + BLOCK <= keys
    full = full & ~full if masked else full & pattern.every(Span(query + offset, ends[0] + offset, key, ends[1]))
    sizes = -(-queries // BLOCK), -(-(keys + extra_keys) // BLOCK)
    partial = rows[~full] * sizes[1] + columns[~full]
    if extra_keys:  # all queries see the last blocks
        last = torch.arange(keys // BLOCK, sizes[1]) + torch.arange(sizes[0])[:, None] * sizes[1]
        partial = torch.cat([partial, last.flatten()]).unique()
    pairs = [(partial // sizes[1], partial % sizes[1]), (rows[full], columns[full])]
    partials, fulls = pairs if not masked else (pairs[0], None)
    return Tables(
        _table(partials, sizes[0]),
        None if fulls is None else _table(fulls, sizes[0]),
        _table(_transposed(partials), sizes[1]),
        None if fulls is None else _table(_transposed(fulls), sizes[1]),
    )


def _transposed(pairs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    rows, columns = pairs
    order = torch.argsort(columns, stable=True)
    return columns[order], rows[order]


def _table(pairs: tuple[Tensor, Tensor], count: int) -> Table:
    """Converts rows and columns, sorted by row, to a table of `count` rows."""
    rows, columns = pairs
    counts = torch.bincount(rows, minlength=count)
    place = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows]
    index = torch.zeros(count, max(1, int(counts.max()) if count else 0), dtype=torch.int32)
    index[rows, place] = columns.int()
    return Table(counts.int()[None, None], index[None, None])


def _of_one_width(partial: Table, full: Table | None) -> tuple[Table, Table | None]:
    if full is None:
        return partial, None
    width = max(partial.index.shape[-1], full.index.shape[-1])
    both = (Table(table.count, F.pad(table.index, (0, width - table.index.shape[-1]))) for table in (partial, full))
    return next(both), next(both)


def _side_by_side(tables: list[Tables], dim: int) -> Tables:
    """Concatenates tables of heads or rows, padded to the widest."""
    if all(table is tables[0] for table in tables):
        return tables[0]
    parts: list[Any] = []
    for name in ("partial", "full", "partial_of_keys", "full_of_keys"):
        same_kind = [getattr(table, name) for table in tables]
        if same_kind[0] is None:
            parts.append(None)
            continue
        width = max(table.index.shape[-1] for table in same_kind)
        index = torch.cat([F.pad(table.index, (0, width - table.index.shape[-1])) for table in same_kind], dim)
        parts.append(Table(torch.cat([table.count for table in same_kind], dim), index))
    return Tables(*parts)


def block_mask_in_graph(
    pattern: Pattern, queries: int, keys: int, offset: int, extra_keys: int, mask_mod: MaskMod, device: torch.device
) -> BlockMask:
    """Returns the block mask in a compiled graph, with dynamic lengths: a table of all blocks, each partial or hidden.
    `pattern` has the lengths of the rows, as a tensor `(B or 1, 1, 1)`, if it depends on them."""
    query = torch.arange(0, queries, BLOCK, device=device)[:, None]
    key = torch.arange(0, keys + extra_keys, BLOCK, device=device)[None, :]
    # The end of the text inside a block need not be handled: the predicate hides what follows.
    span = Span(query + offset, query + offset + BLOCK - 1, key, key + BLOCK - 1)
    some = torch.stack(
        [
            (shown if shown.ndim == 3 else shown[None]).expand(-1, query.shape[0], key.shape[1])
            for shown in (pattern.head(head).some(span) for head in range(pattern.heads or 1))
        ],
        dim=1,
    )
    if extra_keys:
        some = some | (key + BLOCK > keys)
    count = some.sum(-1, dtype=torch.int32)
    order = torch.argsort(some.to(torch.int8), dim=-1, descending=True, stable=True).to(torch.int32)
    sizes = {"BLOCK_SIZE": BLOCK, "mask_mod": mask_mod, "seq_lengths": (queries, keys + extra_keys)}
    return BlockMask.from_kv_blocks(count, order, **sizes)
