"""Causal attention to blocks of tokens: a query sees a block once all of it lies behind, or ends at the query itself.

Slot 0 is seen by every query; slot m stands for the m-th block of n tokens, the first being block 1. So the query that
comes after p − 1 tokens sees the slots 0 to ⌊p / n⌋ (memory-compressed attention, Liu et al. 2018, arXiv 1801.10198).
Queries with the same p mod n and slots in their order are ordinary causal attention, of T / n queries and keys: the
fast path takes the n remainders as n rows of a batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend import attend
from longspan.ops.tiles.block_pools import in_blocks
from longspan.patterns import Causal


def attend_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    size: int,
    before: int = 0,
    key_mask: Tensor | None = None,
    dropout_prob: float = 0.0,
) -> Tensor:
    """What `(B, H, T, D)` queries gather from the slots of the blocks of these T tokens, and those before.

    Args:
        key, value: `(B, H, before + M, D)`: slots that every query sees, then slot 0, then a slot for each block of the
            T tokens; what there is beyond ⌊T / n⌋ of these is seen by none.
        size: tokens of a block, n.
        before: how many slots come before slot 0.
        key_mask: `(B, before + M)` bool, False hides a slot.
        dropout_prob: probability of dropping an attention weight.
    """
    batch, length = query.shape[0], query.shape[2]
    if not length:
        return query
    # The place of a query in front of all tokens is left empty, so that the t-th query has the place p = t + 1.
    arranged = in_blocks(F.pad(query, (0, 0, 1, 0)), size, 2)  # (B, H, A, n, D)
    count = arranged.shape[2]
    key, value = (_keys(each, before + count) for each in (key, value))
    seen = None if key_mask is None else F.pad(key_mask, (0, before + count - key_mask.shape[1]), value=False)
    context = attend(
        arranged.permute(0, 3, 1, 2, 4).flatten(0, 1),
        *(_for_each(each, size) for each in (key, value)),
        pattern=Causal(),
        key_mask=None if seen is None else _for_each(seen, size),
        query_offset=before,
        dropout_prob=dropout_prob,
    )
    context = context.unflatten(0, (batch, size)).permute(0, 2, 3, 1, 4)  # (B, H, A, n, D)
    if torch.compiler.is_compiling():  # reshaping would hold an exported program to lengths of one kind
        places = torch.arange(1, length + 1, device=query.device)
        return context[:, :, places // size, places % size]
    return context.flatten(2, 3)[:, :, 1 : length + 1]


def seen_blocks(queries: int, slots: int, size: int, device: torch.device) -> Tensor:
    """The dense reference: which slots each query sees, `(T, M)` bool."""
    after = torch.arange(1, queries + 1, device=device)[:, None]
    return torch.arange(slots, device=device) * size <= after


def _keys(slots: Tensor, count: int) -> Tensor:
    """As many slots as queries of a remainder can see."""
    return F.pad(slots, (0, 0, 0, count - slots.shape[2]))


def _for_each(tensor: Tensor, size: int) -> Tensor:
    """`(B, …)` → `(B·n, …)`: each row n times."""
    return tensor[:, None].expand(-1, size, *tensor.shape[1:]).flatten(0, 1)
