"""Attention of blocks to themselves and to blocks sorted for them: a matrix says which block each of them gets.

`K̂ᵢ = Σⱼ Rᵢⱼ Kⱼ` for the blocks of tokens j, place by place, and likewise `V̂`; a query of block i attends to `[Kᵢ,
K̂ᵢ]` in one softmax. Where a block is not full, a place of `K̂ᵢ` is made of the real tokens there, as heavy as the whole
row of R, and counts by their share of it.
Source: Tay et al. 2020, arXiv 2002.11296, section 3.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.reference import dense_weights, full_precision
from longspan.ops.runtime import needs_reference
from longspan.ops.sorted.sinkhorn_operator import attend_sorted_blocks

NOTHING = 1e-6
"""What a logit of 0 counts, so that it has a logarithm."""


def sinkhorn(logits: Tensor, real: Tensor, iterations: int, *, first: Literal["rows", "columns"] = "rows") -> Tensor:
    """A matrix whose columns sum to 1, and its rows nearly: `(B, H, N, N)` → the same; `real` `(B, N)` bool.

    Rows and columns are normalised by turns, in logarithms: rows `first`, as published, so that columns come last and
    are exact. Rows and columns that are not real are 0.
    """
    hidden = ~(real[:, None, :, None] & real[:, None, None, :])
    least = torch.finfo(logits.dtype).min / 4
    logits = logits.masked_fill(hidden, least)
    for _ in range(iterations):
        for dim in (-1, -2) if first == "rows" else (-2, -1):
            logits = (logits - logits.logsumexp(dim, keepdim=True)).masked_fill(hidden, least)
    return logits.exp().masked_fill(hidden, 0)


def earlier(logits: Tensor, real: Tensor) -> Tensor:
    """A softmax of each row over the blocks before it: `(B, H, N, N)` → the same, 0 in the first row."""
    before = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril(-1)
    visible = before & real[:, None, None, :] & real[:, None, :, None]
    return logits.masked_fill(~visible, torch.finfo(logits.dtype).min).softmax(-1).masked_fill(~visible, 0)


def block_means(hidden: Tensor, real: Tensor) -> Tensor:
    """Means over the real tokens of blocks: `(B, H, N, b, D)`, `(B, N, b)` → `(B, H, N, D)`."""
    if not torch.compiler.is_compiling() and real.device.type == "cpu" and bool(real.all()):
        return hidden.mean(3)
    flags = real[:, None, :, :, None].to(hidden.dtype)
    return (hidden * flags).sum(3) / flags.sum(3).clamp(min=1)


def means_so_far(hidden: Tensor, real: Tensor) -> Tensor:
    """Means over all tokens up to the first one of each block: `(B, H, N, b, D)`, `(B, N, b)` → `(B, H, N, D)`."""
    flags = real[:, None, :, :, None].to(hidden.dtype)
    tokens = hidden * flags
    before = (F.pad(each.sum(3).cumsum(2)[:, :, :-1], (0, 0, 1, 0)) for each in (tokens, flags))
    sums, counts = (each + own[:, :, :, 0] for each, own in zip(before, (tokens, flags), strict=True))
    return sums / counts.clamp(min=1)


def sorted_blocks(blocks: Tensor, real: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """The blocks `(B, H, N, b, D)` by the matrix `(B, H, M, N)`: `(B, H, M, b, D)`, and the share of each place that is
    real, `(B, H, M, b)`; `real` `(B, N, b)` bool."""
    flags = real[:, None].to(order.dtype)
    share = (order @ flags) / row_sums(order)[..., None]
    mixed = order @ (blocks.to(order.dtype) * flags[..., None]).flatten(3)
    return mixed.unflatten(-1, blocks.shape[3:]) / share.clamp(min=torch.finfo(share.dtype).tiny)[..., None], share


def row_sums(order: Tensor) -> Tensor:
    """How much each block gets, `(…, M, N)` → `(…, M)`, nearly 1; what gets nothing divides by more than 0."""
    return order.sum(-1).clamp(min=torch.finfo(order.dtype).tiny)


def attend_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    real: Tensor,
    order: Tensor,
    *,
    scale: float,
    causal: bool,
    dropout_prob: float = 0.0,
) -> Tensor:
    """Each block's queries over its own tokens and over those sorted for it: `(B, H, M, b, D)` → `(B, H, M, b, D)`.

    Args:
        query: `(B, H, M, b, D)`, those of the last M blocks.
        key: `(B, H, N, b, D)`.
        value: `(B, H, N, b, D)`.
        real: `(B, N, b)` bool, True where a token is real.
        order: `(B, H, M, N)`, which blocks each of the last M gets, in at least float32.
        scale: factor on the scores.
        causal: of its own block, a query sees what comes before it, and itself.
        dropout_prob: probability of dropping an attention weight.
    """
    if not needs_reference(query, key, value, order):
        options = {"scale": scale, "causal": causal, "dropout_prob": dropout_prob}
        return attend_sorted_blocks(query, key, value, real, order, **options)
    return plain_blocks(query, key, value, real, order, scale, causal, dropout_prob)


def plain_blocks(
    query: Tensor, key: Tensor, value: Tensor, real: Tensor, order: Tensor, scale: float, causal: bool, prob: float
) -> Tensor:
    """As `attend_blocks`, in steps that PyTorch differentiates."""
    wide, size = order.dtype, key.shape[3]
    with full_precision(query):
        mixed, share = sorted_blocks(torch.cat([key, value], -1), real, order)
        keys, values = mixed.split([key.shape[-1], value.shape[-1]], -1)
        first = key.shape[2] - query.shape[2]
        query, key, own_value, real = query.to(wide) * scale, key[:, :, first:], value[:, :, first:], real[:, first:]
        own = (query @ key.to(wide).mT).masked_fill(~_own(real, size, causal), torch.finfo(wide).min)
        least = torch.finfo(wide).tiny
        given = query @ keys.mT + share.clamp(min=least).log()[..., None, :]
        given = given.masked_fill((share <= least)[..., None, :], torch.finfo(wide).min)
        weights = F.dropout(torch.cat([own, given], -1).softmax(-1), prob)
        weights = weights.masked_fill(~real[:, None, ..., None], 0)
        return (weights[..., :size] @ own_value.to(wide) + weights[..., size:] @ values).to(value.dtype)


def _own(real: Tensor, size: int, causal: bool) -> Tensor:
    """What the queries of a block see of it, `(B, 1, N, b, b)`."""
    visible = real[:, None, :, None, :]
    return visible & torch.ones(size, size, dtype=torch.bool, device=real.device).tril() if causal else visible


def block_weights(
    query: Tensor, key: Tensor, place: Tensor, order: Tensor, *, size: int, scale: float, causal: bool
) -> Tensor:
    """The dense reference: the weight `(B, H, T, T)` of every token for every query.

    Args:
        query: `(B, H, T, D)`.
        key: `(B, H, T, D)`.
        place: `(B, T)` int64, the place of each token among the real ones of its row, −1 for padding.
        order: `(B, H, N, N)`.
        size: tokens of a block, b.
        scale: factor on the scores.
        causal: of its own block, a query sees what comes before it, and itself.
    """
    wide, real = order.dtype, place >= 0
    block, within = place.clamp(min=0) // size, place.clamp(min=0) % size
    rows = torch.arange(len(place), device=place.device)[:, None]
    # What each query's block gets of each token, and where: (B, H, T, b, T).
    given = order[rows, :, block].permute(0, 2, 1, 3)[rows, :, :, block].permute(0, 2, 3, 1)
    stands = within[:, None] == torch.arange(size, device=place.device)[:, None]
    mixed = given[..., None, :] * (stands & real[:, None])[:, None, None]
    share = mixed.sum(-1) / row_sums(order)[rows, :, block].transpose(1, 2)[..., None]
    mixed = mixed / share.clamp(min=torch.finfo(wide).tiny)[..., None]
    same = (block[:, :, None] == block[:, None, :]) & real[:, None] & real[:, :, None]
    if causal:
        same = same & (place[:, None] <= place[:, :, None])
    with full_precision(query):
        keys = key.to(wide)[:, :, None]
        keys = torch.cat([keys.expand(-1, -1, query.shape[2], -1, -1), mixed @ keys], 3)
        same = same[:, None].expand(-1, share.shape[1], -1, -1)
        visible = torch.cat([same, (share > 0) & real[:, None, :, None]], -1)[..., None, :]
        bias = torch.cat([torch.zeros_like(same, dtype=wide), share.clamp(min=torch.finfo(wide).tiny).log()], -1)[
            ..., None, :
        ]
        weights = dense_weights(query[..., None, :], keys, visible, scale=scale, bias=bias)[..., 0, :]
        own, given = weights.split([query.shape[2], size], -1)
        return own + (given[..., None, :] @ mixed)[..., 0, :]
