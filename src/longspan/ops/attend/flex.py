"""FlexAttention on CUDA: block tables from the tile layout, no T×S tensor anywhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from longspan.errors import InputError
from longspan.ops.attend.call import Call, mask_of_slots, patterns_of_rows, row_lengths
from longspan.ops.runtime import cached
from longspan.patterns import Pattern, Span

BLOCK = 128
"""Queries and keys to a block, FlexAttention's own default."""


def flex_serves(call: Call) -> bool:
    """Whether FlexAttention serves such a call well: on CUDA, in half or single precision, without dropout or terms."""
    query = call.query
    return (
        query.is_cuda
        and query.dtype in (torch.float16, torch.bfloat16, torch.float32)
        and len(call.terms) == 0
        and call.dropout_prob == 0
        and query.shape[2] > 0
        and all(width >= 16 and width & (width - 1) == 0 for width in (query.shape[-1], call.value.shape[-1]))
    )


def attend_flex(call: Call) -> Tensor:
    """Attention by FlexAttention.

    Raises:
        InputError: dropout or a term is asked for, or a device other than CUDA.
    """
    _check(call)
    query, queries, keys = call.query, call.query.shape[2], call.key.shape[2]
    if not query.numel() or not call.key.numel():
        return query.new_zeros(*query.shape[:-1], call.value.shape[-1])
    marked = None if call.slots is None else mask_of_slots(call.slots, keys)
    sizes = (queries, keys, call.query_offset, query.device)
    block_mask = block_mask_of(call.pattern, *sizes, call.key_mask, marked, call.global_rows)
    return _kernel()(query, call.key, call.value, block_mask=block_mask, scale=call.scale)


def block_mask_of(
    pattern: Pattern,
    queries: int,
    keys: int,
    query_offset: int,
    device: torch.device,
    key_mask: Tensor | None = None,
    marked: Tensor | None = None,
    global_rows: bool = True,
) -> BlockMask:
    """FlexAttention's mask: tables of partial and full blocks, and the predicate inside partial ones.

    `key_mask` and `marked` (global tokens) are `(B, S)` bool.
    """
    mask_mod = _mask_mod(pattern, key_mask, marked, global_rows, query_offset, keys, device)
    tables = block_tables(pattern, queries, keys, query_offset, device, marked, global_rows, key_mask)
    return BlockMask.from_kv_blocks(*tables, BLOCK_SIZE=BLOCK, mask_mod=mask_mod, seq_lengths=(queries, keys))


def _check(call: Call) -> None:
    device, prob = call.query.device, call.dropout_prob
    if not call.query.is_cuda:
        raise InputError(f"backend='flex' runs on CUDA only, and query is on {device}; use backend='blocked'")
    if prob:
        raise InputError(f"backend='flex' has no dropout, and dropout_prob={prob}; use backend='blocked'")
    if call.terms:
        kind = type(call.terms[0]).__name__
        raise InputError(f"backend='flex' adds no terms to the scores, and terms holds {kind}; use backend='blocked'")


def _mask_mod(
    pattern: Pattern,
    key_mask: Tensor | None,
    marked: Tensor | None,
    global_rows: bool,
    query_offset: int,
    keys: int,
    device: torch.device,
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """What FlexAttention asks of every pair in a partial block; lengths are data, so that one program serves all."""
    lengths = None
    if pattern.reads_length:
        lengths = torch.full((1,), keys, device=device) if key_mask is None else row_lengths(key_mask)

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        shown = pattern if lengths is None else pattern.of_length(lengths[b if key_mask is not None else 0 * b])
        visible = _visible_to_head(shown, h, q_idx + query_offset, kv_idx)
        if marked is not None:
            visible = visible | marked[b, kv_idx]
            if global_rows:
                visible = visible | marked[b, q_idx]
        return visible if key_mask is None else visible & key_mask[b, kv_idx]

    return mask_mod


def _visible_to_head(pattern: Pattern, head: Tensor, query_index: Tensor, key_index: Tensor) -> Tensor:
    """The predicate of one head, where the head is only known inside the kernel."""
    if pattern.heads is None:
        return pattern.visible(query_index, key_index)
    visible = pattern.head(0).visible(query_index, key_index) & (head == 0)
    for index in range(1, pattern.heads):
        visible = visible | (pattern.head(index).visible(query_index, key_index) & (head == index))
    return visible


def block_tables(
    pattern: Pattern,
    queries: int,
    keys: int,
    query_offset: int,
    device: torch.device,
    marked: Tensor | None,
    global_rows: bool,
    key_mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Counts and indices of partial blocks, then of full ones, as `BlockMask.from_kv_blocks` takes them.

    A row of the tables is as wide as its fullest row. Padding makes every block partial, since any key may be masked.
    """
    shared = patterns_of_rows(pattern, key_mask, keys) if pattern.reads_length else {pattern: []}
    shown = {row: each for each, rows in shared.items() for row in rows or [0]}
    sizes = (queries, keys, query_offset, key_mask is None)
    heads = range(pattern.heads or 1)
    blocks = [[_blocks_of(shown[row].head(head), *sizes) for row in sorted(shown)] for head in heads]
    partial, full = ([torch.stack([each[part] for each in rows]) for rows in blocks] for part in (0, 1))
    if marked is not None:
        extra = _global_blocks(marked, queries, global_rows)
        partial = [p.to(device) | (extra & ~f.to(device)) for p, f in zip(partial, full, strict=True)]
    tables = [_table(torch.stack([each.to(device) for each in kind], dim=1)) for kind in (partial, full)]
    return (*tables[0], None, None) if key_mask is not None else (*tables[0], *tables[1])


@cached
def _blocks_of(pattern: Pattern, queries: int, keys: int, offset: int, full_too: bool) -> tuple[Tensor, Tensor]:
    """`(query blocks, key blocks)` bool ×2: blocks that are partial, and blocks that are full."""
    key_start, query_start = torch.arange(0, keys, BLOCK)[None, :], torch.arange(0, queries, BLOCK)[:, None]
    key_end, query_end = (key_start + BLOCK).clamp(max=keys) - 1, (query_start + BLOCK).clamp(max=queries) - 1
    span = Span(query_start + offset, query_end + offset, key_start, key_end)
    shape = (query_start.shape[0], key_start.shape[1])
    some, every = pattern.some(span).expand(shape), pattern.every(span).expand(shape)
    if not full_too:
        every = torch.zeros_like(every)
    # The last block of keys is never full when the sequence ends inside it.
    every = every & (key_start + BLOCK <= keys)
    return some & ~every, every


def _global_blocks(marked: Tensor, queries: int, global_rows: bool) -> Tensor:
    """`(B, query blocks, key blocks)` bool: blocks that hold a global row or column."""
    length = marked.shape[1]
    blocks = -(-length // BLOCK)
    some = torch.nn.functional.pad(marked, (0, blocks * BLOCK - length)).unflatten(1, (blocks, BLOCK)).any(-1)
    rows = some if global_rows else torch.zeros_like(some)
    return some[:, None, :] | rows[:, :, None]


def _table(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """`(B, H, query blocks, key blocks)` bool → counts `(B, H, query blocks)` and sorted indices, both int32."""
    count = blocks.sum(dim=-1, dtype=torch.int32)
    order = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True)
    return count, order.to(torch.int32)


@lru_cache(maxsize=1)
def _kernel() -> Callable[..., Tensor]:
    """FlexAttention, compiled once."""
    return torch.compile(flex_attention)
