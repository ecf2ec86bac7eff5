"""Attention within clusters: each token sees a bounded number of tokens of its own cluster before and after it.

`rank` numbers the tokens of a cluster in text order. The dense reference is a mask over all pairs; the fast path lays
out every cluster in chunks of its own, and each chunk sees the neighbouring chunks of its cluster. A token's position
in its chunk depends on its rank alone, so that later tokens do not move it.

For decoding step by step, `continue_clusters` keeps the last tokens of every cluster in `LastOfClusters`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.reference import full_precision
from longspan.ops.sorted.hashed import ranks_in_buckets

COPY = 64
"""Cost of copying a key and its value, in scores."""
DENSE = 2.0
"""Scores of all pairs are cheaper up to this multiple of the scores of the chunks."""


def nearest(vectors: Tensor, centroids: Tensor) -> Tensor:
    """Returns the centroid with the largest dot product for each vector, the first of ties: `(…, T, D)` and `(…, C, D)`
    → `(…, T)` int64. Computed without gradients, in float32 or wider."""
    wide = torch.promote_types(vectors.dtype, torch.float32)
    with torch.no_grad(), full_precision(vectors):
        return (vectors.to(wide) @ centroids.to(wide).mT).argmax(-1)


def sorted_by_cluster(clusters: Tensor, count: int) -> Tensor:
    """Returns an order `(…, T)` that groups tokens by cluster, in text order within a cluster, for clusters `(…, T)`
    below `count`; tokens of no cluster, −1, come last."""
    places = torch.arange(clusters.shape[-1], device=clusters.device)
    return (torch.where(clusters < 0, count, clusters) * max(clusters.shape[-1], 1) + places).argsort(-1)


def ranks(clusters: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns the number of earlier tokens in each token's cluster, `(…, T)`, and the size of each cluster, `(…, C)`.

    Args:
        clusters: `(…, T)` int64, the cluster of each token, −1 for tokens of none.
        count: number of clusters C.
    """
    rank, sizes = ranks_in_buckets(clusters, count)
    return rank, sizes[..., :count]


def cluster_mask(clusters: Tensor, count: int, *, left: int, right: int) -> Tensor:
    """Dense reference: the attention mask `(B, H, T, T)` bool for clusters `(B, H, T)`, −1 where padded.

    A token sees up to `left` tokens before and `right` after it of its own cluster. It sees itself only if it sees no
    other, because with a shared query and key projection every token is most similar to itself.
    """
    rank, _ = ranks(clusters, count)
    offset = rank[..., :, None] - rank[..., None, :]
    same = (clusters[..., :, None] == clusters[..., None, :]) & (clusters >= 0)[..., None]
    others = same & (offset <= left) & (offset >= -right) & (offset != 0)
    return others | (same & (offset == 0) & ~others.any(-1, keepdim=True))


def attend_clusters(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    clusters: Tensor,
    count: int,
    *,
    left: int,
    right: int,
    dropout_prob: float = 0.0,
) -> Tensor:
    """Computes softmax attention with the mask of `cluster_mask`, in time and memory linear in T.

    Args:
        query: `(B, H, T, D)`; keys and values have the same shape.
        clusters: `(B, H, T)` int64, −1 for padding tokens, which are not seen and have output zero.
        count: number of clusters C.
        left: number of earlier tokens of its cluster a query sees; at least 1.
        right: number of later tokens; with 0 the output is causal, bit for bit.
        dropout_prob: probability of dropping an attention weight.

    Returns:
        `(B, H, T, D)`.
    """
    length = query.shape[2]
    size = _chunk_size(length, count, left, right)
    before, after, chunks = -(-left // size), -(-right // size), length // size + count
    around = (before, after)
    scores = chunks * size * size * (before + 1 + after)
    if not torch.compiler.is_compiling() and length**2 <= scores * DENSE:
        return _attend_whole(query, key, value, clusters, count, left, right, dropout_prob)
    batch, heads = clusters.shape[:2]
    query, key, value, clusters = (tensor.flatten(0, 1) for tensor in (query, key, value, clusters))
    place = _places(clusters, count, size, chunks)
    query, key, value = (_laid_out(tensor, place, chunks, size) for tensor in (query, key, value))
    key, value = (_with_neighbours(tensor, *around) for tensor in (key, value))
    mask = _chunk_mask(_laid_out((clusters + 1)[..., None], place, chunks, size)[..., 0], left, right, *around)
    # Chunks take the head dimension of the kernel.
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout_prob)
    mixed = mixed.contiguous().view(batch * heads, chunks * size, mixed.shape[-1])
    hidden = (clusters < 0)[..., None]
    index = place[..., None].masked_fill(hidden, 0).expand(*place.shape, mixed.shape[-1])
    return mixed.gather(1, index).masked_fill(hidden, 0).unflatten(0, (batch, heads))


def _chunk_size(length: int, count: int, left: int, right: int) -> int:
    """Returns the chunk size: small chunks leave fewer slots empty, large ones copy fewer neighbours."""
    most = max(left, right, 1)
    sizes = [-(-most // parts) for parts in (1, 2, 4)]
    if torch.compiler.is_compiling():  # one graph serves every length
        return sizes[1]

    def cost(size: int) -> int:
        around = -(-left // size) + 1 - (-right // size)
        return (length // size + count) * size * around * (size + COPY)

    return min(sizes, key=cost)


def _attend_whole(
    query: Tensor, key: Tensor, value: Tensor, clusters: Tensor, count: int, left: int, right: int, dropout_prob: float
) -> Tensor:
    """As `attend_clusters` with a mask of all pairs, for short texts."""
    rank, sizes = ranks(clusters, count)
    most = min(left, right) if right else left
    # A mask without windows is cheaper where no window ends inside a cluster; on a GPU the check would cost a
    # synchronisation.
    if not sizes.numel() or (not sizes.is_cuda and int(sizes.max()) - 1 <= most):
        visible = _whole_clusters(rank, sizes, clusters, causal=not right)
    else:
        visible = _windows_of_clusters(rank, clusters, count, left, right)
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=dropout_prob)
    return mixed.masked_fill((clusters < 0)[..., None], 0)


def _whole_clusters(rank: Tensor, sizes: Tensor, clusters: Tensor, *, causal: bool) -> Tensor:
    """Returns the mask `(B, H, T, T)` bool where a token sees all others of its cluster; rows of padding are
    arbitrary."""
    labels = clusters.to(torch.int32)
    visible = labels[..., :, None] == labels[..., None, :]
    alone = rank == 0 if causal else sizes.gather(-1, clusters.clamp(min=0)) == 1
    visible = visible.tril_(-1) if causal else visible
    visible.diagonal(dim1=-2, dim2=-1).copy_(alone | (clusters < 0))
    return visible


def _windows_of_clusters(rank: Tensor, clusters: Tensor, count: int, left: int, right: int) -> Tensor:
    """As `_whole_clusters`, where a token sees a window of its cluster."""
    length = clusters.shape[-1]
    # One number for cluster and rank, spaced so that no window spans two clusters and none reaches padding.
    apart = length + max(left, right) + 1
    place = torch.where(clusters < 0, torch.arange(count + 1, count + 1 + length, device=rank.device) * apart, rank)
    place = place + clusters.clamp(min=0) * apart
    if (count + length + 2) * apart < 2**31:
        place = place.int()
    offset = place[..., :, None] - place[..., None, :]
    others = (offset <= left) & (offset >= -right)
    others.diagonal(dim1=-2, dim2=-1).zero_()
    others.diagonal(dim1=-2, dim2=-1).logical_or_(~others.any(-1))
    return others


def _places(clusters: Tensor, count: int, size: int, chunks: int) -> Tensor:
    """Returns the slot of each token, `(N, T)`: every cluster begins a new chunk; tokens of no cluster are placed after
    all chunks."""
    rank, sizes = ranks(clusters, count)
    needed = (sizes + size - 1) // size
    first = needed.cumsum(-1) - needed
    place = first.gather(-1, clusters.clamp(min=0)) * size + rank
    return torch.where(clusters < 0, chunks * size, place)


def _laid_out(tensor: Tensor, place: Tensor, chunks: int, size: int) -> Tensor:
    """Scatters `(N, T, D)` into `(N, chunks, size, D)`, zeros in empty slots."""
    room = tensor.new_zeros(tensor.shape[0], chunks * size + 1, tensor.shape[2])
    room = room.scatter(1, place[..., None].expand(tensor.shape), tensor)
    # A view would restrict an exported program to lengths of one kind.
    return room[:, : chunks * size].unfold(1, size, size).mT


def _with_neighbours(tensor: Tensor, before: int, after: int) -> Tensor:
    """Concatenates each chunk `(N, chunks, size, …)` with its neighbours: `(N, chunks, (before + 1 + after)·size, …)`,
    zeros beyond the ends."""
    count = tensor.shape[1]
    padded = F.pad(tensor, (0, 0) * (tensor.ndim - 2) + (before, after))
    return torch.cat([padded.narrow(1, start, count) for start in range(before + 1 + after)], 2)


def _chunk_mask(clusters: Tensor, left: int, right: int, before: int, after: int) -> Tensor:
    """Returns the mask `(N, chunks, size, (before + 1 + after)·size)` from the cluster of each slot, `(N, chunks,
    size)`, counted from 1; 0 is an empty slot."""
    size = clusters.shape[2]
    key = torch.arange(-before * size, (1 + after) * size, device=clusters.device)
    offset = torch.arange(size, device=clusters.device)[:, None] - key
    near = (offset <= left) & (offset >= -right) & (offset != 0)
    around = _with_neighbours(clusters, before, after)
    # If any slot of a chunk is used, the first is; a chunk without tokens has no queries.
    others = near & ((around == clusters[..., :1]) & (around > 0))[..., None, :]
    return others | ((offset == 0) & ~others.any(-1, keepdim=True))


class LastOfClusters(NamedTuple):
    """The last w tokens of each of C clusters, the newest in the last slot.

    Attributes:
        keys, values: `(B, H, C, w, D)`, zeros in empty slots.
        counts: `(B, H, C)` int64, number of used slots.
    """

    keys: Tensor
    values: Tensor
    counts: Tensor

    @property
    def taken(self) -> Tensor:
        """`(B, H, C, w)` bool, True for used slots."""
        size = self.keys.shape[3]
        return torch.arange(size, device=self.counts.device) >= size - self.counts[..., None]


def continue_clusters(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    clusters: Tensor,
    count: int,
    last: LastOfClusters | None,
    *,
    size: int,
    dropout_prob: float = 0.0,
) -> tuple[Tensor, LastOfClusters]:
    """Computes attention of T tokens `(B, H, T, D)` that continue a text; each sees up to w earlier tokens of its
    cluster.

    Args:
        clusters: `(B, H, T)` int64, −1 where a token is padding.
        count: number of clusters C.
        last: the state that the previous call returned; `None` at the start of a text.
        size: window w, in tokens of the cluster.
        dropout_prob: probability of dropping an attention weight.

    Returns:
        The outputs of the new tokens, `(B, H, T, D)`, and the new state.
    """
    options = {"left": size, "right": 0, "dropout_prob": dropout_prob}
    if last is None:
        mixed = attend_clusters(query, key, value, clusters, count, **options)
        return mixed, _last_of(key, value, clusters, count, size)
    if query.shape[2] == 1:
        return _one_token(query, key, value, clusters, last, dropout_prob)
    places = torch.arange(count, device=clusters.device)[:, None]
    clusters = torch.cat([torch.where(last.taken, places, -1).flatten(2), clusters], 2)
    old_keys, old_values = (tensor.flatten(2, 3) for tensor in (last.keys, last.values))
    keys, values = torch.cat([old_keys, key], 2), torch.cat([old_values, value], 2)
    # The kept tokens are computed as queries again, and their outputs dropped.
    mixed = attend_clusters(torch.cat([old_keys, query], 2), keys, values, clusters, count, **options)
    return mixed[:, :, old_keys.shape[2] :], _last_of(keys, values, clusters, count, size)


def _last_of(keys: Tensor, values: Tensor, clusters: Tensor, count: int, size: int) -> LastOfClusters:
    """Returns the last tokens of each cluster of a text `(B, H, T, D)`."""
    rank, sizes = ranks(clusters, count)
    cluster = clusters.clamp(min=0)
    place = size - (sizes.gather(-1, cluster) - rank)
    index = torch.where((clusters < 0) | (place < 0), count * size, cluster * size + place)[..., None]
    last_keys, last_values = (_scattered(tensor, index, count, size) for tensor in (keys, values))
    return LastOfClusters(last_keys, last_values, sizes.clamp(max=size))


def _scattered(tensor: Tensor, index: Tensor, count: int, size: int) -> Tensor:
    """Scatters `(B, H, T, D)` to the slots `(B, H, T, 1)` of C · w, dropping those at index C · w: `(B, H, C, w,
    D)`."""
    room = tensor.new_zeros(*tensor.shape[:2], count * size + 1, tensor.shape[3])
    room = room.scatter(2, index.expand(tensor.shape), tensor)
    return room[:, :, : count * size].unflatten(2, (count, size))


def _one_token(
    query: Tensor, key: Tensor, value: Tensor, clusters: Tensor, last: LastOfClusters, dropout_prob: float
) -> tuple[Tensor, LastOfClusters]:
    """`continue_clusters` for one token, which reads its own cluster only."""
    real, cluster = clusters >= 0, clusters.clamp(min=0)
    at = cluster[..., None, None].expand(-1, -1, -1, *last.keys.shape[3:])
    near_keys, near_values = (tensor.gather(2, at)[:, :, 0] for tensor in (last.keys, last.values))
    counts = last.counts.gather(2, cluster)
    places = torch.arange(near_keys.shape[2] + 1, device=counts.device)
    # The token's own key comes last, and is visible only if its cluster has no other.
    visible = torch.where(places < near_keys.shape[2], places >= near_keys.shape[2] - counts, counts == 0)
    keys, values = torch.cat([near_keys, key], 2), torch.cat([near_values, value], 2)
    options = {"attn_mask": visible[:, :, None], "dropout_p": dropout_prob}
    mixed = F.scaled_dot_product_attention(query, keys, values, **options).masked_fill(~real[..., None], 0)
    new_keys, new_values = (
        tensor.scatter(2, at, torch.where(real[..., None], grown[:, :, 1:], grown[:, :, :-1])[:, :, None])
        for tensor, grown in ((last.keys, keys), (last.values, values))
    )
    counts = last.counts.scatter(2, cluster, (counts + real).clamp(max=near_keys.shape[2]))
    return mixed, LastOfClusters(new_keys, new_values, counts)
