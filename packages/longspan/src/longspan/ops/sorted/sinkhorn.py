"""Sinkhorn attention: blocks attend to themselves and to blocks sorted for them by a matrix.

`K̂ᵢ = Σⱼ Rᵢⱼ Kⱼ` over the blocks of tokens j, position by position, and likewise `V̂`; a query of block i attends to
`[Kᵢ, K̂ᵢ]` in one softmax. If a block is not full, a position of `K̂ᵢ` is the mean of its real tokens, weighted by R,
and log of their share of the row of R is added to its score. Source: Tay et al. 2020, arXiv 2002.11296, section 3.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.reference import dense_weights
from longspan.ops.runtime import full_precision

NOTHING = 1e-6
"""Lower bound of a logit, so that it has a logarithm."""
HIDING = -(2.0**15)
"""The score of a hidden key, whose weight is exactly 0; representable in float16, and finite for rows that see
nothing."""
MOST_ROWS = 1 << 15
"""Maximum rows per call of the attention kernel: a CUDA grid is limited to 65,535."""


def sinkhorn(logits: Tensor, real: Tensor | None, iterations: int) -> Tensor:
    """Returns a matrix whose columns sum to 1, and its rows nearly: `(B, H, N, N)` → the same; `real` `(B, N)` bool, or
    `None` where all are.

    Rows and columns are normalised alternately in log space: rows first, as published, so that columns are exact. Rows
    and columns that are not real are 0.
    """
    hidden = None
    if real is not None:
        # Padding blocks get the identity, which normalisation does not change, so that one mask serves all iterations.
        hidden = ~(real[:, None, :, None] & real[:, None, None, :])
        logits = logits.masked_fill(hidden, torch.finfo(logits.dtype).min / 4)
        logits.diagonal(dim1=-2, dim2=-1).masked_fill_(~real[:, None], 0)
    for _ in range(iterations):
        logits = logits.log_softmax(-1).log_softmax(-2)
    return logits.exp() if hidden is None else logits.exp().masked_fill(hidden, 0)


def earlier(logits: Tensor, real: Tensor | None) -> Tensor:
    """Returns a softmax of each row over the earlier blocks: `(B, H, N, N)` → the same, 0 in the first row; `real` `(B,
    N)` bool, or `None` where all are."""
    visible = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril(-1)
    if real is not None:
        visible = visible & real[:, None, None, :] & real[:, None, :, None]
    return logits.masked_fill(~visible, torch.finfo(logits.dtype).min).softmax(-1).masked_fill(~visible, 0)


def block_means(hidden: Tensor, real: Tensor | None) -> Tensor:
    """Returns the means over the real tokens of blocks, float32 or wider: `(B, H, N, b, D)`, `(B, N, b)` → `(B, H, N,
    D)`; without `real`, over all tokens."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    if real is None:
        return hidden.mean(3, dtype=wide)
    flags = real[:, None, :, :, None].to(hidden.dtype)
    return (hidden * flags).sum(3, dtype=wide) / flags.sum(3, dtype=wide).clamp(min=1)


def means_so_far(hidden: Tensor, real: Tensor | None) -> Tensor:
    """Returns the means over all tokens up to the first one of each block, float32 or wider: `(B, H, N, b, D)`, `(B, N,
    b)` → `(B, H, N, D)`; without `real`, all tokens are real."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    flags = hidden.new_ones(1, 1, *hidden.shape[2:4], 1) if real is None else real[:, None, :, :, None].to(hidden.dtype)
    tokens = hidden if real is None else hidden * flags
    before = (F.pad(tensor.sum(3, dtype=wide).cumsum(2)[:, :, :-1], (0, 0, 1, 0)) for tensor in (tokens, flags))
    sums, counts = (each + own[:, :, :, 0] for each, own in zip(before, (tokens, flags), strict=True))
    return sums / counts.clamp(min=1)


def sorted_blocks(blocks: Tensor, real: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Applies the matrix `(B, H, M, N)` to the blocks `(B, H, N, b, D)`: returns `(B, H, M, b, D)` and the share of
    each position that is real, `(B, H, M, b)`; `real` `(B, N, b)` bool."""
    flags, share = real[:, None].to(order.dtype), place_shares(order, real)
    mixed = order @ (blocks.to(order.dtype) * flags[..., None]).flatten(3)
    return mixed.unflatten(-1, blocks.shape[3:]) / share.clamp(min=torch.finfo(share.dtype).tiny)[..., None], share


def place_shares(order: Tensor, real: Tensor) -> Tensor:
    """Returns the share of each sorted position that is real, `(B, H, M, N)`, `(B, N, b)` → `(B, H, M, b)`."""
    return (order @ real[:, None].to(order.dtype)) / row_sums(order)[..., None]


def row_sums(order: Tensor) -> Tensor:
    """Returns the row sums, `(…, M, N)` → `(…, M)`, which are nearly 1, clamped to be positive."""
    return order.sum(-1).clamp(min=torch.finfo(order.dtype).tiny)


def plain_blocks(
    query: Tensor, key: Tensor, value: Tensor, real: Tensor, order: Tensor, scale: float, causal: bool, prob: float
) -> Tensor:
    """`attend_blocks` in operations that PyTorch differentiates."""
    wide, size = order.dtype, key.shape[3]
    with full_precision(query):
        mixed, share = sorted_blocks(torch.cat([key, value], -1), real, order)
        keys, values = mixed.split([key.shape[-1], value.shape[-1]], -1)
        first = key.shape[2] - query.shape[2]
        query, key, own_value, real = query.to(wide) * scale, key[:, :, first:], value[:, :, first:], real[:, first:]
        visible = real[:, None, :, None, :]  # of its own block
        if causal:
            visible = visible & torch.ones(size, size, dtype=torch.bool, device=real.device).tril()
        own_scores = (query @ key.to(wide).mT).masked_fill(~visible, torch.finfo(wide).min)
        least = torch.finfo(wide).tiny
        sorted_scores = query @ keys.mT + share.clamp(min=least).log()[..., None, :]
        sorted_scores = sorted_scores.masked_fill((share <= least)[..., None, :], torch.finfo(wide).min)
        weights = F.dropout(torch.cat([own_scores, sorted_scores], -1).softmax(-1), prob)
        weights = weights.masked_fill(~real[:, None, ..., None], 0)
        return (weights[..., :size] @ own_value.to(wide) + weights[..., size:] @ values).to(value.dtype)


def fused_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    real: Tensor | None,
    order: Tensor,
    scale: float,
    causal: bool,
    prob: float,
) -> Tensor:
    """As `plain_blocks`, with PyTorch's attention kernel: every block is a row, whose keys are the sorted ones and its
    own. Blocks are mixed in the dtype of the keys; `real` is `None` where all tokens are."""
    first, both = key.shape[2] - query.shape[2], torch.cat([key, value], -1)
    if real is not None:
        both = both * real[:, None, :, :, None]
    with full_precision(query):
        mixed = (order.to(both.dtype) @ both.flatten(3)).unflatten(-1, both.shape[3:])
    bias = None
    if real is not None:
        share = place_shares(order, real)
        mixed = mixed / share.clamp(min=torch.finfo(share.dtype).tiny)[..., None].to(mixed.dtype)
        bias = _bias_of_padding(share, real[:, first:], causal)
    elif causal:
        bias = _bias_of_places(key, first)
    pairs = zip(mixed.split([key.shape[-1], value.shape[-1]], -1), (key, value), strict=True)
    # Blocks before heads, so that rows and blocks become one dimension.
    inputs = [torch.cat([each.transpose(1, 2), own[:, :, first:].transpose(1, 2)], 3) for each, own in pairs]
    inputs = [tensor.flatten(0, 1) for tensor in (query.transpose(1, 2), *inputs)]
    parts = []
    for start in range(0, max(1, len(inputs[0])), MOST_ROWS):
        rows = slice(start, start + MOST_ROWS)
        options: dict[str, Any] = {"attn_mask": None if bias is None else bias.to(query.dtype)[rows], "scale": scale}
        parts.append(F.scaled_dot_product_attention(*(tensor[rows] for tensor in inputs), dropout_p=prob, **options))
    context = (parts[0] if len(parts) == 1 else torch.cat(parts)).unflatten(0, (query.shape[0], -1)).transpose(1, 2)
    return context if real is None else context * real[:, None, first:, :, None]


def _bias_of_padding(share: Tensor, real: Tensor, causal: bool) -> Tensor:
    """Returns the bias of sorted and own keys, `(B·M, H, b or 1, 2b)`: the log of the share of real tokens, through
    which the order receives gradients, and `HIDING` for hidden keys."""
    size, least = real.shape[2], torch.finfo(share.dtype).tiny
    sorted_bias = share.clamp(min=least).log().masked_fill(share <= least, HIDING).transpose(1, 2)[:, :, :, None]
    visible = real[:, :, None, None]
    if causal:
        visible = visible & torch.ones(size, size, dtype=torch.bool, device=real.device).tril()
    own_bias = torch.zeros(visible.shape, dtype=share.dtype, device=real.device).masked_fill(~visible, HIDING)
    shape = (*sorted_bias.shape[:3], *visible.shape[3:])
    return torch.cat([sorted_bias.expand(shape), own_bias.expand(shape)], -1).flatten(0, 1)


def _bias_of_places(key: Tensor, first: int) -> Tensor:
    """As `_bias_of_padding`, for the causal form where all tokens are real, `(B·M, 1, b, 2b)`: the first block has no
    sorted keys."""
    batch, _, blocks, size = key.shape[:4]
    places = torch.arange(2 * size, device=key.device)
    hidden = places - size > places[:size, None]
    hidden = hidden | ((torch.arange(first, blocks, device=key.device) == 0)[:, None, None] & (places < size))
    bias = torch.zeros(hidden.shape, dtype=key.dtype, device=key.device).masked_fill(hidden, HIDING)
    return bias[None, :, None].expand(batch, -1, -1, -1, -1).flatten(0, 1)


def block_weights(
    query: Tensor, key: Tensor, place: Tensor, order: Tensor, *, size: int, scale: float, causal: bool
) -> Tensor:
    """Dense reference: the weight `(B, H, T, T)` of every token for every query.

    Args:
        query: `(B, H, T, D)`.
        key: `(B, H, T, D)`.
        place: `(B, T)` int64, the index of each token among the real ones of its row, −1 for padding.
        order: `(B, H, N, N)`.
        size: block size b, in tokens.
        scale: factor on the scores.
        causal: within its own block, a query sees itself and earlier tokens only.
    """
    wide, real = order.dtype, place >= 0
    block, within = place.clamp(min=0) // size, place.clamp(min=0) % size
    rows = torch.arange(place.shape[0], device=place.device)[:, None]
    # The share of each token in the sorted block of each query, and its position there: (B, H, T, b, T).
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
