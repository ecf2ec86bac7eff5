"""Which blocks FlexAttention computes: tables of the blocks that a pattern shows, as wide as their fullest row.

Outside of compiled graphs they are built from the tiles of the pattern, so that nothing has the size of all blocks, and
cached. What a mask hides only thins them, on the device and without a look at the data.
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
"""Queries and keys to a block, FlexAttention's own default."""
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Table:
    """Of each row of blocks, which blocks of the other side it meets.

    Attributes:
        count: `(B or 1, H or 1, rows)` int32, how many.
        index: `(B or 1, H or 1, rows, W)` int32, their numbers; what stands behind the first `count` is not read.
    """

    count: Tensor
    index: Tensor


@dataclass(frozen=True)
class Tables:
    """Blocks that are shown in part, and in full, by rows of queries and by rows of keys.

    The indices of both are of one width: PyTorch 2.11 reads those of full blocks by the strides of the partial ones.
    """

    partial: Table
    full: Table | None
    partial_of_keys: Table
    full_of_keys: Table | None

    def block_mask(self, queries: int, keys: int, mask_mod: MaskMod) -> BlockMask:
        """As FlexAttention takes them, with the predicate that it asks in blocks that are shown in part."""
        partial = self.partial
        if partial.index.device.type == "cpu":  # where Inductor takes only tables as wide as all blocks
            more = -(-keys // BLOCK) - partial.index.shape[-1]
            partial = Table(partial.count, F.pad(partial.index, (0, max(0, more))))
        parts = (partial, self.full, self.partial_of_keys, self.full_of_keys)
        tensors = [None if each is None else getattr(each, name) for each in parts for name in ("count", "index")]
        return BlockMask((queries, keys), *tensors, BLOCK_SIZE=(BLOCK, BLOCK), mask_mod=mask_mod)  # pyright: ignore[reportArgumentType]

    def thinned(self, real: Tensor) -> Tables:
        """Without the blocks of keys that hold no key of a mask `(B, S)`; there must be none shown in full."""
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
    pattern: Pattern, queries: int, keys: int, offset: int, beside: int, device: torch.device, key_mask: Tensor | None
) -> Tables:
    """The tables of a pattern, for rows of each length where it reads that. With a mask every block counts as shown in
    part, since any key may be hidden.

    Args:
        beside: how many more keys follow those of the text, which all queries see.
        key_mask: `(B, S)` bool.
    """
    masked = key_mask is not None or beside > 0
    sizes = (queries, keys, offset, beside, masked, device)
    if not pattern.reads_length:
        return tables_of(pattern, *sizes)
    shared = patterns_of_rows(pattern, key_mask, keys)
    if len(shared) == 1:
        return tables_of(next(iter(shared)), *sizes)
    shown = {row: each for each, rows in shared.items() for row in rows}
    return _side_by_side([tables_of(shown[row], *sizes) for row in sorted(shown)], dim=0)


@cached
def tables_of(
    pattern: Pattern, queries: int, keys: int, offset: int, beside: int, masked: bool, device: torch.device
) -> Tables:
    """The tables of a pattern that reads no length, computed on the host from the tiles that it shows."""
    own = {each: _tables_of_head(each, queries, keys, offset, beside, masked) for each in by_pattern(pattern)}
    tables = _side_by_side([own[pattern.head(index)] for index in range(pattern.heads or 1)], dim=1)
    parts = [
        *_of_one_width(tables.partial, tables.full),
        *_of_one_width(tables.partial_of_keys, tables.full_of_keys),
    ]
    placed = [None if each is None else Table(each.count.to(device), each.index.to(device)) for each in parts]
    return Tables(*placed)  # pyright: ignore[reportArgumentType]


def _tables_of_head(pattern: Pattern, queries: int, keys: int, offset: int, beside: int, masked: bool) -> Tables:
    """Those of one head, `(1, 1, …)`."""
    rows, columns = visible_tiles(pattern, queries, keys, offset, BLOCK)
    query, key = rows * BLOCK, columns * BLOCK
    ends = (query + BLOCK).clamp(max=queries) - 1, (key + BLOCK).clamp(max=keys) - 1
    # The last block of keys is never full when the sequence ends inside it.
    full = key + BLOCK <= keys
    full = full & ~full if masked else full & pattern.every(Span(query + offset, ends[0] + offset, key, ends[1]))
    sizes = -(-queries // BLOCK), -(-(keys + beside) // BLOCK)
    partial = rows[~full] * sizes[1] + columns[~full]
    if beside:  # all queries see the last blocks
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
    """Rows and columns in the order of the rows, as a table of so many rows."""
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
    both = (Table(each.count, F.pad(each.index, (0, width - each.index.shape[-1]))) for each in (partial, full))
    return next(both), next(both)


def _side_by_side(tables: list[Tables], dim: int) -> Tables:
    """Tables of heads or rows as one, each as wide as the widest."""
    if all(each is tables[0] for each in tables):
        return tables[0]
    parts: list[Any] = []
    for name in ("partial", "full", "partial_of_keys", "full_of_keys"):
        own = [getattr(each, name) for each in tables]
        if own[0] is None:
            parts.append(None)
            continue
        width = max(each.index.shape[-1] for each in own)
        index = torch.cat([F.pad(each.index, (0, width - each.index.shape[-1])) for each in own], dim)
        parts.append(Table(torch.cat([each.count for each in own], dim), index))
    return Tables(*parts)


def block_mask_in_graph(
    pattern: Pattern, queries: int, keys: int, offset: int, beside: int, mask_mod: MaskMod, device: torch.device
) -> BlockMask:
    """The same in a compiled graph, whose lengths may be anything: a table of all blocks, each shown in part or not at
    all. `pattern` knows the lengths of the rows, as a tensor `(B or 1, 1, 1)`, where it reads them."""
    query = torch.arange(0, queries, BLOCK, device=device)[:, None]
    key = torch.arange(0, keys + beside, BLOCK, device=device)[None, :]
    # Where the text ends inside a block there is no need to say so: the predicate hides what is behind.
    span = Span(query + offset, query + offset + BLOCK - 1, key, key + BLOCK - 1)
    some = torch.stack(
        [
            (shown if shown.ndim == 3 else shown[None]).expand(-1, query.shape[0], key.shape[1])
            for shown in (pattern.head(head).some(span) for head in range(pattern.heads or 1))
        ],
        dim=1,
    )
    if beside:
        some = some | (key + BLOCK > keys)
    count = some.sum(-1, dtype=torch.int32)
    order = torch.argsort(some.to(torch.int8), dim=-1, descending=True, stable=True).to(torch.int32)
    sizes = {"BLOCK_SIZE": BLOCK, "mask_mod": mask_mod, "seq_lengths": (queries, keys + beside)}
    return BlockMask.from_kv_blocks(count, order, **sizes)
