"""Attention among the tokens of one cluster: each sees so many before it, and so many after it, of its own cluster.

`rank` numbers the tokens of a cluster in the order of the text. The dense reference is a mask over all pairs; the fast
path lays every cluster out in chunks of its own and lets each chunk see its neighbours of the same cluster. A token's
place in its chunk follows from its rank alone, so that what comes later moves nothing.

Decoding step by step, `continue_clusters` holds the last tokens of every cluster, `LastOfClusters`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.attend.reference import full_precision
from longspan.ops.sorted.hashed import ranks_in_buckets

COPY = 64
"""Copying a key and its value costs as much as so many scores."""
DENSE = 2.0
"""Up to so many times the scores of the chunks, scores of all pairs are cheaper."""


def nearest(vectors: Tensor, centroids: Tensor) -> Tensor:
    """The centroid with the largest product for each vector, the first of equals: `(…, T, D)` and `(…, C, D)` →
    `(…, T)` int64, without gradients and in float32 at least."""
    wide = torch.promote_types(vectors.dtype, torch.float32)
    with torch.no_grad(), full_precision(vectors):
        return (vectors.to(wide) @ centroids.to(wide).mT).argmax(-1)


def sorted_by_cluster(clusters: Tensor, count: int) -> Tensor:
    """The tokens of each cluster one behind the other, in the order of the text: an order `(…, T)` of `(…, T)` clusters
    below `count`; tokens of none, −1, come last."""
    places = torch.arange(clusters.shape[-1], device=clusters.device)
    return (torch.where(clusters < 0, count, clusters) * max(clusters.shape[-1], 1) + places).argsort(-1)


def ranks(clusters: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """How many tokens of its cluster stand before each token, `(…, T)`, and how many there are in each, `(…, C)`.

    Args:
        clusters: `(…, T)` int64, the cluster of each token, −1 for those that belong to none.
        count: number of clusters C.
    """
    rank, sizes = ranks_in_buckets(clusters, count)
    return rank, sizes[..., :count]


def cluster_mask(clusters: Tensor, count: int, *, left: int, right: int) -> Tensor:
    """The dense reference: what each token sees, `(B, H, T, T)` bool, for clusters `(B, H, T)`, −1 where padded.

    A token sees up to `left` tokens before it and `right` after it of its own cluster, and itself only where it sees no
    other, because with one projection for queries and keys nothing resembles a token as it does itself.
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
    """Softmax attention of each query over what `cluster_mask` shows, in time and memory linear in T.

    Args:
        query: `(B, H, T, D)`, as the keys and values.
        clusters: `(B, H, T)` int64, −1 for tokens that see nothing, give zeros and are seen by none.
        count: number of clusters C.
        left: how many tokens of its cluster a query sees before itself; at least 1.
        right: how many after itself; 0 keeps the future out, bit for bit.
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
    query, key, value, clusters = (each.flatten(0, 1) for each in (query, key, value, clusters))
    place = _places(clusters, count, size, chunks)
    query, key, value = (_laid_out(each, place, chunks, size) for each in (query, key, value))
    key, value = (_with_neighbours(each, *around) for each in (key, value))
    mask = _chunk_mask(_laid_out((clusters + 1)[..., None], place, chunks, size)[..., 0], left, right, *around)
    # Chunks stand where the kernel expects heads.
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout_prob)
    mixed = mixed.contiguous().view(batch * heads, chunks * size, mixed.shape[-1])
    hidden = (clusters < 0)[..., None]
    index = place[..., None].masked_fill(hidden, 0).expand(*place.shape, mixed.shape[-1])
    return mixed.gather(1, index).masked_fill(hidden, 0).unflatten(0, (batch, heads))


def _chunk_size(length: int, count: int, left: int, right: int) -> int:
    """Tokens of a chunk: small ones leave fewer places empty, large ones copy fewer neighbours."""
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
    """As `attend_clusters`, with a mask of all pairs: for short texts."""
    rank, sizes = ranks(clusters, count)
    most = min(left, right) if right else left
    # Where no window ends inside of a cluster there is less to do; on a GPU the question would cost more.
    if not sizes.numel() or (not sizes.is_cuda and int(sizes.max()) - 1 <= most):
        visible = _whole_clusters(rank, sizes, clusters, causal=not right)
    else:
        visible = _windows_of_clusters(rank, clusters, count, left, right)
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=dropout_prob)
    return mixed.masked_fill((clusters < 0)[..., None], 0)


def _whole_clusters(rank: Tensor, sizes: Tensor, clusters: Tensor, *, causal: bool) -> Tensor:
    """What each token sees, `(B, H, T, T)` bool, of all others of its cluster; padding sees what nobody reads."""
    own = clusters.to(torch.int32)
    visible = own[..., :, None] == own[..., None, :]
    alone = rank == 0 if causal else sizes.gather(-1, clusters.clamp(min=0)) == 1
    visible = visible.tril_(-1) if causal else visible
    visible.diagonal(dim1=-2, dim2=-1).copy_(alone | (clusters < 0))
    return visible


def _windows_of_clusters(rank: Tensor, clusters: Tensor, count: int, left: int, right: int) -> Tensor:
    """The same where a token sees only so many others of its cluster."""
    length = clusters.shape[-1]
    # One number for cluster and rank, so far apart that no window spans two clusters; padding is in reach of nothing.
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
    """Where each token stands, `(N, T)`: every cluster begins a chunk; tokens of none stand behind all chunks."""
    rank, sizes = ranks(clusters, count)
    needed = (sizes + size - 1) // size
    first = needed.cumsum(-1) - needed
    place = first.gather(-1, clusters.clamp(min=0)) * size + rank
    return torch.where(clusters < 0, chunks * size, place)


def _laid_out(tensor: Tensor, place: Tensor, chunks: int, size: int) -> Tensor:
    """`(N, T, D)` → `(N, chunks, size, D)`, zeros where no token stands."""
    room = tensor.new_zeros(tensor.shape[0], chunks * size + 1, tensor.shape[2])
    room = room.scatter(1, place[..., None].expand(tensor.shape), tensor)
    # A view would hold an exported program to lengths of one kind.
    return room[:, : chunks * size].unfold(1, size, size).mT


def _with_neighbours(tensor: Tensor, before: int, after: int) -> Tensor:
    """Each chunk `(N, chunks, size, …)` between those before and after it: `(N, chunks, (before + 1 + after)·size, …)`,
    zeros beyond the ends."""
    count = tensor.shape[1]
    padded = F.pad(tensor, (0, 0) * (tensor.ndim - 2) + (before, after))
    return torch.cat([padded.narrow(1, start, count) for start in range(before + 1 + after)], 2)


def _chunk_mask(own: Tensor, left: int, right: int, before: int, after: int) -> Tensor:
    """What each place of a chunk sees, `(N, chunks, size, (before + 1 + after)·size)`, from the cluster of each place
    `(N, chunks, size)`, counted from 1, so that 0 is a place without a token."""
    size = own.shape[2]
    key = torch.arange(-before * size, (1 + after) * size, device=own.device)
    offset = torch.arange(size, device=own.device)[:, None] - key
    near = (offset <= left) & (offset >= -right) & (offset != 0)
    around = _with_neighbours(own, before, after)
    # A chunk's first place is taken if any is; where it is not, no query asks.
    others = near & ((around == own[..., :1]) & (around > 0))[..., None, :]
    return others | ((offset == 0) & ~others.any(-1, keepdim=True))


class LastOfClusters(NamedTuple):
    """The last w tokens of each of C clusters, the newest in the last place.

    Attributes:
        keys, values: `(B, H, C, w, D)`, zeros in places that are still empty.
        counts: `(B, H, C)` int64, how many places are taken.
    """

    keys: Tensor
    values: Tensor
    counts: Tensor

    @property
    def taken(self) -> Tensor:
        """`(B, H, C, w)` bool, True where a token stands."""
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
    """T tokens `(B, H, T, D)` that follow those of `last`, each seeing up to w tokens of its cluster before itself.

    Args:
        clusters: `(B, H, T)` int64, −1 where a token is padded.
        count: number of clusters C.
        last: what an earlier call returned; `None` at the start of a text.
        size: how many tokens of its cluster a query sees, w.
        dropout_prob: probability of dropping an attention weight.

    Returns:
        What the new tokens gather, `(B, H, T, D)`, and the last tokens of each cluster, these included.
    """
    options = {"left": size, "right": 0, "dropout_prob": dropout_prob}
    if last is None:
        mixed = attend_clusters(query, key, value, clusters, count, **options)
        return mixed, _last_of(key, value, clusters, count, size)
    if query.shape[2] == 1:
        return _one_token(query, key, value, clusters, last, dropout_prob)
    places = torch.arange(count, device=clusters.device)[:, None]
    clusters = torch.cat([torch.where(last.taken, places, -1).flatten(2), clusters], 2)
    old_keys, old_values = (each.flatten(2, 3) for each in (last.keys, last.values))
    keys, values = torch.cat([old_keys, key], 2), torch.cat([old_values, value], 2)
    # The held tokens are computed as queries again, and their outputs dropped.
    mixed = attend_clusters(torch.cat([old_keys, query], 2), keys, values, clusters, count, **options)
    return mixed[:, :, old_keys.shape[2] :], _last_of(keys, values, clusters, count, size)


def _last_of(keys: Tensor, values: Tensor, clusters: Tensor, count: int, size: int) -> LastOfClusters:
    """The last tokens of each cluster of a text `(B, H, T, D)`."""
    rank, sizes = ranks(clusters, count)
    own = clusters.clamp(min=0)
    place = size - (sizes.gather(-1, own) - rank)
    index = torch.where((clusters < 0) | (place < 0), count * size, own * size + place)[..., None]
    last_keys, last_values = (_scattered(each, index, count, size) for each in (keys, values))
    return LastOfClusters(last_keys, last_values, sizes.clamp(max=size))


def _scattered(tensor: Tensor, index: Tensor, count: int, size: int) -> Tensor:
    """`(B, H, T, D)` at the places `(B, H, T, 1)` of C · w, the last of which is left out: `(B, H, C, w, D)`."""
    room = tensor.new_zeros(*tensor.shape[:2], count * size + 1, tensor.shape[3])
    room = room.scatter(2, index.expand(tensor.shape), tensor)
    return room[:, :, : count * size].unflatten(2, (count, size))


def _one_token(
    query: Tensor, key: Tensor, value: Tensor, clusters: Tensor, last: LastOfClusters, dropout_prob: float
) -> tuple[Tensor, LastOfClusters]:
    """As `continue_clusters` of one token, which reads its own cluster alone."""
    real, own = clusters >= 0, clusters.clamp(min=0)
    at = own[..., None, None].expand(-1, -1, -1, *last.keys.shape[3:])
    near_keys, near_values = (each.gather(2, at)[:, :, 0] for each in (last.keys, last.values))
    counts = last.counts.gather(2, own)
    places = torch.arange(near_keys.shape[2] + 1, device=counts.device)
    # The token's own key comes last, and is visible only where there is no other.
    visible = torch.where(places < near_keys.shape[2], places >= near_keys.shape[2] - counts, counts == 0)
    keys, values = torch.cat([near_keys, key], 2), torch.cat([near_values, value], 2)
    options = {"attn_mask": visible[:, :, None], "dropout_p": dropout_prob}
    mixed = F.scaled_dot_product_attention(query, keys, values, **options).masked_fill(~real[..., None], 0)
    new_keys, new_values = (
        each.scatter(2, at, torch.where(real[..., None], grown[:, :, 1:], grown[:, :, :-1])[:, :, None])
        for each, grown in ((last.keys, keys), (last.values, values))
    )
    counts = last.counts.scatter(2, own, (counts + real).clamp(max=near_keys.shape[2]))
    return mixed, LastOfClusters(new_keys, new_values, counts)
