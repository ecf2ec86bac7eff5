"""Attention within clusters against masks worked out by hand, in chunks and piece by piece; and balanced clusters."""

from __future__ import annotations

import math

import pytest
import torch

from longspan.ops.attend.reference import dense_weights
from longspan.ops.sorted import clusters as module
from longspan.ops.sorted.balanced import attend_balanced, balanced_weights, members
from longspan.ops.sorted.clusters import (
    attend_clusters,
    cluster_mask,
    continue_clusters,
    nearest,
    ranks,
    sorted_by_cluster,
)

OWN = torch.tensor([[[0, 1, 0, -1, 0, 1]]])
"""The clusters of six tokens, the fourth padded."""


def test_ranks_and_order_by_hand():
    rank, sizes = ranks(OWN, 2)
    assert rank[OWN >= 0].tolist() == [0, 0, 1, 2, 1]
    assert sizes.tolist() == [[[3, 2]]]
    assert sorted_by_cluster(OWN, 2).tolist() == [[[0, 2, 4, 1, 5, 3]]]


@pytest.mark.parametrize(
    ("left", "right", "seen"),
    [
        (1, 0, [[0], [1], [0], [], [2], [1]]),
        (2, 0, [[0], [1], [0], [], [0, 2], [1]]),
        (1, 1, [[2], [5], [0, 4], [], [2], [1]]),
        (9, 9, [[2, 4], [5], [0, 4], [], [0, 2], [1]]),
    ],
)
def test_what_a_token_sees_by_hand(left, right, seen):
    """Itself only where it sees no other, and nothing where it is padded."""
    found = cluster_mask(OWN, 2, left=left, right=right)[0, 0]
    assert [row.nonzero().flatten().tolist() for row in found] == seen


def test_equal_scores_give_means_worked_out_by_hand():
    zeros, value = torch.zeros(1, 1, 6, 1), torch.tensor([[[[1.0], [10], [3], [99], [5], [30]]]])
    mixed = attend_clusters(zeros, zeros, value, OWN, 2, left=2, right=0)
    assert mixed.flatten().tolist() == [1, 10, 1, 0, 2, 10]


def inputs(length, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(3, 2, 3, length, 5, generator=generator, dtype=torch.float64)
    return *vectors.requires_grad_(), torch.randint(-1, count, (2, 3, length), generator=generator)


@pytest.mark.parametrize(("left", "right"), [(1, 0), (3, 0), (7, 0), (1, 1), (4, 4), (2, 5)])
@pytest.mark.parametrize(("length", "count"), [(1, 2), (2, 1), (13, 3), (97, 7), (97, 1), (61, 61)])
def test_chunks_equal_the_dense_reference(length, count, left, right, monkeypatch):
    """Outputs and gradients, in the tiles that a graph has, however short the text."""
    query, key, value, own = inputs(length, count)
    weights = dense_weights(query, key, cluster_mask(own, count, left=left, right=right), scale=5**-0.5)
    theirs, upstream = weights @ value, torch.randn_like(value)
    with monkeypatch.context() as patch:
        patch.setattr(module.torch.compiler, "is_compiling", lambda: True)
        ours = attend_clusters(query, key, value, own, count, left=left, right=right)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(attend_clusters(query, key, value, own, count, left=left, right=right), theirs)
    grads = (torch.autograd.grad(each, (query, key, value), upstream, retain_graph=True) for each in (ours, theirs))
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("steps", [[1] * 41, [17, 1, 1, 22], [0, 30, 11], [41]], ids=str)
@pytest.mark.parametrize(("count", "size"), [(3, 4), (1, 2), (9, 1)])
def test_pieces_equal_the_whole(steps, count, size):
    query, key, value, own = inputs(41, count)
    whole, last, pieces, start = attend_clusters(query, key, value, own, count, left=size, right=0), None, [], 0
    for step in steps:
        piece = slice(start, start + step)
        parts = (each[:, :, piece] for each in (query, key, value, own))
        mixed, last = continue_clusters(*parts, count, last, size=size)
        pieces.append(mixed)
        start += step
    torch.testing.assert_close(torch.cat(pieces, 2), whole)
    assert last is not None
    assert last.keys.shape == (2, 3, count, size, 5)
    for row, head, cluster in ((0, 0, 0), (1, 2, count - 1)):
        members_ = (own[row, head] == cluster).nonzero().flatten()[-size:]
        assert int(last.counts[row, head, cluster]) == len(members_)
        torch.testing.assert_close(last.keys[row, head, cluster, size - len(members_) :], key[row, head, members_])


def test_the_nearest_centroid_is_the_first_of_equals():
    centroids = torch.eye(2)[None]
    assert nearest(torch.tensor([[[[3.0, 1], [1, 3], [2, 2]]]]), centroids).tolist() == [[[0, 1, 0]]]


QUERY = torch.tensor([[[[3.0, 1], [2, 5], [1, 0]]]], dtype=torch.float64)
KEY = torch.tensor([[[[1.0, 1], [0, 2], [5, 0]]]], dtype=torch.float64)
TWO = torch.eye(2, dtype=torch.float64)[None]
ALL = torch.ones(1, 3, dtype=torch.bool)


def test_balanced_clusters_by_hand():
    """Of three tokens each of two centroids takes two: the first queries 0 and 1, the second 1 and 0; keys 2 and 0,
    and 1 and 0. Query 0 has the products 15 and 4 in the first cluster, 2 and 4 in the second; query 2 is in none."""
    assert [each.tolist() for each in members(QUERY, TWO, ALL)[0][0, 0]] == [[0, 1], [1, 0]]
    assert [each.tolist() for each in members(KEY, TWO, ALL)[0][0, 0]] == [[2, 0], [1, 0]]
    first, second = 1 / (1 + math.exp(-11 / math.sqrt(2))), 1 / (1 + math.exp(2 / math.sqrt(2)))
    row = [(1 - first + 1 - second) / 2, second / 2, first / 2]
    weights = balanced_weights(QUERY, KEY, TWO, ALL)[0, 0]
    torch.testing.assert_close(weights[0], torch.tensor(row, dtype=torch.float64))
    assert not weights[2].any()
    value = torch.eye(3, dtype=torch.float64)[None, None]
    torch.testing.assert_close(attend_balanced(QUERY, KEY, value, TWO, ALL)[0, 0], weights)


def test_a_later_token_takes_the_place_of_an_earlier_one_in_a_balanced_cluster():
    """Why these have no causal form: a fourth token, more like the first centroid than token 1, pushes it out."""
    longer = torch.cat([QUERY, QUERY.new_tensor([[[[9.0, 0]]]])], 2)
    before, after = members(QUERY, TWO, ALL)[0][0, 0, 0], members(longer, TWO, torch.ones(1, 4, dtype=torch.bool))[0]
    assert before.tolist() == [0, 1]
    assert after[0, 0, 0].tolist() == [3, 0]
