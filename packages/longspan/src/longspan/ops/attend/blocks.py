"""Contiguous blocks of tokens: pooled to one slot each, and causal attention to these slots.

Slot m of a pool summarises the tokens m·n to m·n + n − 1 for blocks of n tokens, so that every token is in one slot.
Padding and positions beyond the end are excluded. `ops.tiles.pooling` has overlapping pools; here nothing is gathered,
and a block of any size is one step.

In causal attention, a query sees a block once all of it precedes the query, or ends at it. Slot 0 is visible to every
query; slot m is the m-th block, the first being block 1. So the query after p − 1 tokens sees the slots 0 to ⌊p / n⌋
(memory-compressed attention, Liu et al. 2018, arXiv 1801.10198). Queries with equal p mod n and the slots form ordinary
causal attention of T / n queries and keys: the fast path computes the n remainders as n rows of a batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend import attend
from longspan.patterns import Causal


def pool_blocks(
    hidden: Tensor, *, size: int, pooling: str, mask: Tensor | None = None, weight: Tensor | None = None
) -> Tensor:
    """Pools `(B, H, T, D)` to `(B, H, M, D)` with M = ⌈T / n⌉ (see `in_blocks`); slots without a real token are 0.

    Args:
        size: tokens of a block, n.
        pooling: `"mean"` or `"max"` over the real tokens of a block; or `"conv"`, the sum over its positions of each
            real token times the weight of its position.
        mask: `(B, T)` bool, True where a token is real.
        weight: for `"conv"`: `(H or 1, n, D)`, a factor for each channel, or `(H, n, D, D)`, a matrix.
    """
    length, wide = hidden.shape[2], torch.promote_types(hidden.dtype, torch.float32)
    real = _real(mask, length, size, hidden.device)
    real = None if real is None else real[:, None, :, :, None]
    blocks = in_blocks(hidden, size, 2)  # (B, H, M, n, D)
    if pooling == "max":
        if real is None:
            return blocks.amax(3)
        return blocks.masked_fill(~real, -torch.inf).amax(3).masked_fill(~real.any(3), 0)
    if real is not None:
        blocks = blocks.masked_fill(~real, 0)
    if pooling == "mean":
        count = size if real is None else real.sum(3).clamp(min=1)
        return (blocks.sum(3, dtype=wide) / count).to(hidden.dtype)
    assert weight is not None
    if weight.ndim == 3:
        return (blocks.to(wide) * weight[:, None].to(wide)).sum(3).to(hidden.dtype)
    return blocks.flatten(3) @ weight.flatten(1, 2)


def block_shares(
    hidden: Tensor, *, size: int, pooling: str, mask: Tensor | None = None, weight: Tensor | None = None
) -> Tensor:
    """Returns the share of each token in each slot, `(B, H, M, T)`, for pictures; quadratic, so never part of a forward
    pass.

    For `"max"`, a token's share is the fraction of channels in which it is the maximum of its block; for `"conv"`, the
    norm of the weight at its position relative to the sum over all real positions.
    """
    length = hidden.shape[2]
    mask = hidden.new_ones((hidden.shape[0], length), dtype=torch.bool) if mask is None else mask
    real = in_blocks(mask, size, 1)[:, None]  # (B, 1, M, n)
    if pooling == "max":
        won = in_blocks(hidden, size, 2).masked_fill(~real[..., None], -torch.inf).argmax(3)
        share = F.one_hot(won, size).to(hidden.dtype).mean(-2) * real
    elif pooling == "mean":
        share = real.to(hidden.dtype)
    else:
        assert weight is not None
        share = weight.flatten(2).norm(dim=-1)[:, None] * real
    share = share / share.sum(-1, keepdim=True).clamp(min=torch.finfo(hidden.dtype).tiny)
    share = share.expand(-1, hidden.shape[1], -1, -1)
    place = torch.arange(length, device=hidden.device)
    is_member = place // size == torch.arange(share.shape[2], device=hidden.device)[:, None]
    return share.flatten(2).index_select(2, place)[:, :, None] * is_member


def block_mask(mask: Tensor | None, length: int, size: int, device: torch.device) -> Tensor | None:
    """Returns which slots contain a real token of `mask` `(B, T)`, `(B or 1, M)` bool; `None` means that all do."""
    real = _real(mask, length, size, device)
    return None if real is None or (mask is None and not torch.compiler.is_compiling()) else real.any(-1)


def in_blocks(tensor: Tensor, size: int, dim: int) -> Tensor:
    """Splits the T positions of a dimension into M = ⌈T / n⌉ blocks of n positions, zeros beyond the end.

    A compiled graph serves every length, one block or several, with M = ⌊T / n⌋ + 2 blocks, of which the last are
    empty. It gathers, because reshaping would specialise an exported program to lengths of one kind.
    """
    length, around = tensor.shape[dim], [0, 0] * (tensor.ndim - 1 - dim)
    if not torch.compiler.is_compiling():
        return F.pad(tensor, [*around, 0, -length % size]).unflatten(dim, (-1, size))
    first = torch.arange(0, length + size + 1, size, device=tensor.device)
    places = first[:, None] + torch.arange(size, device=tensor.device)
    return F.pad(tensor, [*around, 0, 2 * size])[(slice(None),) * dim + (places,)]


def _real(mask: Tensor | None, length: int, size: int, device: torch.device) -> Tensor | None:
    """Returns the mask in blocks, `(B or 1, M, n)` bool; `None` if every position of every block is real."""
    if mask is None:
        if not torch.compiler.is_compiling() and length % size == 0:
            return None
        mask = torch.ones(1, length, dtype=torch.bool, device=device)
    return in_blocks(mask, size, 1)


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
    """Computes attention of queries `(B, H, T, D)` to the slots of the blocks of these T tokens, and of earlier ones.

    Args:
        key, value: `(B, H, before + M, D)`: slots that every query sees, then slot 0, then a slot for each block of the
            T tokens; slots beyond ⌊T / n⌋ of these are not visible.
        size: tokens of a block, n.
        before: number of slots before slot 0.
        key_mask: `(B, before + M)` bool, False hides a slot.
        dropout_prob: probability of dropping an attention weight.
    """
    batch, length = query.shape[0], query.shape[2]
    if not length:
        return query
    # One position before all tokens is left empty, so that the t-th query has the index p = t + 1.
    arranged = in_blocks(F.pad(query, (0, 0, 1, 0)), size, 2)  # (B, H, A, n, D)
    count = arranged.shape[2]
    # As many slots as the queries of one remainder can see.
    key, value = (F.pad(tensor, (0, 0, 0, before + count - tensor.shape[2])) for tensor in (key, value))
    visible = None if key_mask is None else F.pad(key_mask, (0, before + count - key_mask.shape[1]), value=False)
    context = attend(
        arranged.permute(0, 3, 1, 2, 4).flatten(0, 1),
        *(_for_each(tensor, size) for tensor in (key, value)),
        pattern=Causal(),
        key_mask=None if visible is None else _for_each(visible, size),
        query_offset=before,
        dropout_prob=dropout_prob,
    )
    context = context.unflatten(0, (batch, size)).permute(0, 2, 3, 1, 4)  # (B, H, A, n, D)
    if torch.compiler.is_compiling():  # reshaping would specialise an exported program
        places = torch.arange(1, length + 1, device=query.device)
        return context[:, :, places // size, places % size]
    return context.flatten(2, 3)[:, :, 1 : length + 1]


def visible_blocks(queries: int, slots: int, size: int, device: torch.device) -> Tensor:
    """Dense reference: which slots each query sees, `(T, M)` bool."""
    after = torch.arange(1, queries + 1, device=device)[:, None]
    return torch.arange(slots, device=device) * size <= after


def _for_each(tensor: Tensor, size: int) -> Tensor:
    """Repeats each row n times: `(B, …)` → `(B·n, …)`."""
    return tensor[:, None].expand(-1, size, *tensor.shape[1:]).flatten(0, 1)
