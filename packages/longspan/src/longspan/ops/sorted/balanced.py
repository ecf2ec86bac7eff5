"""Balanced clusters: every centroid takes the same number of queries, and of keys, those most similar to it.

Source: Roy et al. 2021, arXiv 2003.05997, algorithm 1. A token may be a member of several clusters, whose outputs are
averaged, or of none, with output zero. Membership depends on the whole text, in the causal form too: there a query,
which is also its own key, sees the earlier members of its cluster, and itself if it is the first of them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.reference import dense_weights, full_precision


def members(vectors: Tensor, centroids: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the members of each cluster: the `⌈n / C⌉` most similar of the n real tokens of each row.

    Args:
        vectors: `(B, H, T, D)`.
        centroids: `(H, C, D)`.
        real: `(B, T)` bool, True where a token is not padding.

    Returns:
        The members, `(B, H, C, W)` int64 with `W = ⌈T / C⌉`, and which of these slots are used, bool.
    """
    wide, (count, length) = torch.promote_types(vectors.dtype, torch.float32), (centroids.shape[-2], vectors.shape[2])
    # One graph serves every length, but not one slot and several, nor more slots than tokens.
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
    """Returns the members as flags over all tokens, `(B, H, C, T)`."""
    times = torch.zeros(*tokens.shape[:3], length, device=tokens.device)
    return times.scatter_add(-1, tokens, taken.float()) > 0


def balanced_weights(query: Tensor, key: Tensor, centroids: Tensor, real: Tensor, *, causal: bool = False) -> Tensor:
    """Dense reference: the attention weights `(B, H, T, T)`, computed cluster by cluster; arguments as in
    `attend_balanced`."""
    rows, columns = (_flags(*members(vectors, centroids, real), vectors.shape[2]) for vectors in (query, key))
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
    """Computes softmax attention of the queries of each cluster over its keys; a token of several clusters gets the
    mean.

    Args:
        query: `(B, H, T, D)`; keys and values have the same shape.
        centroids: `(H, C, D)`.
        real: `(B, T)` bool, True where a token is not padding.
        causal: queries, which are also the keys, see earlier positions only. Members are still chosen from the whole
            text.
        dropout_prob: probability of dropping an attention weight.

    Returns:
        `(B, H, T, D)`, zeros where a token is in no cluster.
    """
    query_members, is_query = members(query, centroids, real)
    key_members, is_key = (query_members, is_query) if causal else members(key, centroids, real)
    visible = is_key[..., None, :]
    if causal:
        visible = visible & (key_members[..., None, :] < query_members[..., :, None])
        alone = torch.eye(key_members.shape[-1], dtype=torch.bool, device=key_members.device)
    else:  # a cluster without keys occurs only in a row without real tokens
        alone = torch.ones((), dtype=torch.bool, device=key_members.device)
    visible = visible | (alone & ~visible.any(-1, keepdim=True))
    mixed = F.scaled_dot_product_attention(
        _taken(query, query_members).flatten(0, 1),
        _taken(key, key_members).flatten(0, 1),
        _taken(value, key_members).flatten(0, 1),
        attn_mask=visible.flatten(0, 1),
        dropout_p=dropout_prob,
    )
    mixed = mixed.unflatten(0, query.shape[:2]).masked_fill(~is_query[..., None], 0).flatten(2, 3)
    index, wide = query_members.flatten(2), torch.promote_types(query.dtype, torch.float32)
    times = torch.zeros(query.shape[:3], dtype=wide, device=query.device).scatter_add(
        2, index, is_query.flatten(2).to(wide)
    )
    summed = torch.zeros(value.shape, dtype=wide, device=query.device)
    summed = summed.scatter_add(2, index[..., None].expand_as(mixed), mixed.to(wide))
    return (summed / times.clamp(min=1)[..., None]).to(value.dtype)


def _taken(tensor: Tensor, tokens: Tensor) -> Tensor:
    """Gathers `(B, H, T, D)` at the tokens `(B, H, C, W)`: `(B, H, C, W, D)`."""
    index = tokens.flatten(2)[..., None].expand(-1, -1, -1, tensor.shape[3])
    return tensor.gather(2, index).unflatten(2, tokens.shape[2:])
