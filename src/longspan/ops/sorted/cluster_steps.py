"""Causal attention among the tokens of a cluster, piece by piece: what is kept are the last tokens of every cluster."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.ops.sorted.clusters import attend_clusters, ranks


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
    # What is kept asks again, and is not listened to.
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
    # The token itself stands behind the others, and is seen where there are none.
    seen = torch.where(places < near_keys.shape[2], places >= near_keys.shape[2] - counts, counts == 0)
    keys, values = torch.cat([near_keys, key], 2), torch.cat([near_values, value], 2)
    options = {"attn_mask": seen[:, :, None], "dropout_p": dropout_prob}
    mixed = F.scaled_dot_product_attention(query, keys, values, **options).masked_fill(~real[..., None], 0)
    new_keys, new_values = (
        each.scatter(2, at, torch.where(real[..., None], grown[:, :, 1:], grown[:, :, :-1])[:, :, None])
        for each, grown in ((last.keys, keys), (last.values, values))
    )
    counts = last.counts.scatter(2, own, (counts + real).clamp(max=near_keys.shape[2]))
    return mixed, LastOfClusters(new_keys, new_values, counts)
