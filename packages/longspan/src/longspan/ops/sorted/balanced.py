"""Balanced clusters: every centroid takes the same number of queries, and of keys, those that are most like it.

Roy et al. 2021, arXiv 2003.05997, algorithm 1. A token may be taken by several centroids, whose answers are averaged,
or by none, which gives zeros. Which tokens are taken depends on the whole text, in the causal form too: there a query,
which is its own key, sees the members of its cluster before itself, and itself where it is the first of them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.reference import dense_weights, full_precision


def members(vectors: Tensor, centroids: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens that each centroid takes: `⌈n / C⌉` of the n real ones of each row.

    Args:
        vectors: `(B, H, T, D)`.
        centroids: `(H, C, D)`.
        real: `(B, T)` bool, True where a token is real.

    Returns:
        Which tokens, `(B, H, C, W)` int64 with `W = ⌈T / C⌉`, and which of these places are taken, bool.
    """
    wide, (count, length) = torch.promote_types(vectors.dtype, torch.float32), (centroids.shape[-2], vectors.shape[2])
    # One graph serves every length, but not both one place and several, nor more places than there are tokens.
    graph = torch.compiler.is_compiling()
    room = length // count + 2 if graph else (length + count - 1) // count
    with torch.no_grad(), full_precision(vectors):
        likeness = centroids.to(wide) @ vectors.to(wide).mT
    likeness = likeness.masked_fill(~real[:, None, None, :], -torch.inf)
    if graph:
        likeness = F.pad(likeness, (0, room), value=-torch.inf)
    tokens = likeness.topk(room, dim=-1).indices
    most = (real.sum(1) + count - 1) // count
    taken = torch.arange(room, device=tokens.device) < most[:, None, None, None]
    return tokens.clamp(max=length - 1), taken.expand(tokens.shape)


def _flags(tokens: Tensor, taken: Tensor, length: int) -> Tensor:
    """Members as flags of all tokens, `(B, H, C, T)`."""
    times = torch.zeros(*tokens.shape[:3], length, device=tokens.device)
    return times.scatter_add(-1, tokens, taken.float()) > 0


def balanced_weights(query: Tensor, key: Tensor, centroids: Tensor, real: Tensor, *, causal: bool = False) -> Tensor:
    """The dense reference: weights `(B, H, T, T)`, cluster after cluster, for arguments as in `attend_balanced`."""
    rows, columns = (_flags(*members(each, centroids, real), each.shape[2]) for each in (query, key))
    total: Tensor = query.new_zeros(())
    for number in range(centroids.shape[-2]):
        visible = rows[:, :, number, :, None] & columns[:, :, number, None, :]
        if causal:
            visible = visible.tril(-1)
            visible.diagonal(dim1=-2, dim2=-1).copy_(rows[:, :, number] & ~visible.any(-1))
        total = total + dense_weights(query, key, visible, scale=query.shape[-1] ** -0.5)
    return total / rows.sum(2).clamp(min=1)[..., None]


def attend_balanced(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    centroids: Tensor,
    real: Tensor,
    *,
    causal: bool = False,
    dropout_prob: float = 0.0,
) -> Tensor:
    """Softmax attention of the queries of each centroid over its keys; a token of several gets their mean.

    Args:
        query: `(B, H, T, D)`, as the keys and values.
        centroids: `(H, C, D)`.
        real: `(B, T)` bool, True where a token is real.
        causal: queries, which are the keys, see what stands before them. Members are chosen from the whole text all
            the same.
        dropout_prob: probability of dropping an attention weight.

    Returns:
        `(B, H, T, D)`, zeros where no centroid takes a token.
    """
    asking, asks = members(query, centroids, real)
    chosen, shows = (asking, asks) if causal else members(key, centroids, real)
    visible = shows[..., None, :]
    if causal:
        visible = visible & (chosen[..., None, :] < asking[..., :, None])
        alone = torch.eye(chosen.shape[-1], dtype=torch.bool, device=chosen.device)
    else:  # a cluster without any key is one of a row without any real token
        alone = torch.ones((), dtype=torch.bool, device=chosen.device)
    visible = visible | (alone & ~visible.any(-1, keepdim=True))
    mixed = F.scaled_dot_product_attention(
        _taken(query, asking).flatten(0, 1),
        _taken(key, chosen).flatten(0, 1),
        _taken(value, chosen).flatten(0, 1),
        attn_mask=visible.flatten(0, 1),
        dropout_p=dropout_prob,
    )
    mixed = mixed.unflatten(0, query.shape[:2]).masked_fill(~asks[..., None], 0).flatten(2, 3)
    index, wide = asking.flatten(2), torch.promote_types(query.dtype, torch.float32)
    times = torch.zeros(query.shape[:3], dtype=wide, device=query.device).scatter_add(
        2, index, asks.flatten(2).to(wide)
    )
    summed = torch.zeros(value.shape, dtype=wide, device=query.device)
    summed = summed.scatter_add(2, index[..., None].expand_as(mixed), mixed.to(wide))
    return (summed / times.clamp(min=1)[..., None]).to(value.dtype)


def _taken(tensor: Tensor, tokens: Tensor) -> Tensor:
    """`(B, H, T, D)` at the tokens `(B, H, C, W)`: `(B, H, C, W, D)`."""
    index = tokens.flatten(2)[..., None].expand(-1, -1, -1, tensor.shape[3])
    return tensor.gather(2, index).unflatten(2, tokens.shape[2:])
