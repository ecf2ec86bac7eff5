"""Buckets, chunks and weights against numbers worked out by hand, and tiles against the comparison of all pairs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.ops.sorted import hashed
from longspan.ops.sorted.hashed import attend_hashed, attend_rings, filled, hashed_weights, new_rings, visible_rounds
from longspan.ops.sorted.hashed_units import Chunks
from longspan.ops.sorted.hashing import buckets_of, draw_rotations, even_share, most_buckets, split
from longspan.ops.sorted.sorted_chunks import attend_sorted, published_times

BACK = Chunks(size=2, before=1, after=0, causal=True, scale=1.0, once=True)
AROUND = Chunks(size=2, before=1, after=1, causal=False, scale=1.0, once=True)
IDS = torch.tensor([0, 1, 0, 0, 1, 0, 0])[None, None, None]


def seen(times):
    return [row.nonzero().flatten().tolist() for row in times[0, 0]]


def test_buckets_are_the_nearest_of_the_directions_and_their_opposites():
    rotations = torch.zeros(1, 1, 2, 2, 64)
    rotations[0, 0, 0, :, :2] = torch.eye(2)
    vectors = torch.tensor([[2.0, 1], [1, 9], [-3, 2], [1, -4], [0, 0]])[None, None]
    assert buckets_of(vectors, rotations, torch.tensor([4]), 4).flatten().tolist() == [0, 1, 2, 3, 0]
    assert buckets_of(vectors, rotations, torch.tensor([2]), 4).flatten().tolist() == [0, 0, 1, 0, 0]
    assert buckets_of(vectors, rotations, torch.tensor([1]), 4).flatten().tolist() == [0, 0, 0, 0, 0]
    mask = torch.tensor([[True, False, True, True, True]])
    assert buckets_of(vectors, rotations, torch.tensor([4]), 4, mask).flatten().tolist() == [0, -1, 2, 3, 0]


def test_many_buckets_are_two_hashes():
    """130 become 12 · 12; the second hash counts in twelves."""
    rotations = torch.zeros(1, 1, 2, 2, 64)
    rotations[0, 0, 0, 0, 3] = rotations[0, 0, 1, 1, 2] = 1
    vectors = torch.tensor([[1.0, 5], [1, -5], [-1, 5]])[None, None]
    assert buckets_of(vectors, rotations, torch.tensor([130]), 170).flatten().tolist() == [27, 3 + 8 * 12, 9 + 2 * 12]


def test_the_number_of_buckets_follows_the_tokens():
    counts = torch.tensor([0, 1, 64, 65, 128, 129, 256, 257, 1 << 30])
    assert even_share(counts, 64).tolist() == [1, 1, 1, 2, 2, 4, 4, 6, 1 << 14]
    for number in range(2, 1 << 14, 2):
        first, second = (int(each) for each in split(torch.tensor(number)))
        assert number <= first * second <= most_buckets(number, exact=True)
        assert first <= 128 >= second
        assert first % 2 == 0
        assert second == 1 or second % 2 == 0


def test_directions_of_few_buckets_are_the_first_of_those_for_many():
    vectors, rotations = torch.randn(1, 2, 50, 8), draw_rotations(2, 3, 8)
    tight = buckets_of(vectors, rotations, torch.tensor([6]), 6)
    assert torch.equal(buckets_of(vectors, rotations, torch.tensor([6]), 128), tight)
    assert torch.equal(buckets_of(vectors, rotations, torch.tensor([6]), 4000), tight)


def test_chunks_worked_out_by_hand():
    """Bucket 0 holds the tokens 0, 2 | 3, 5 | 6 in chunks of two, bucket 1 the tokens 1, 4."""
    assert seen(visible_rounds(IDS, BACK)) == [[], [], [0], [0, 2], [1], [0, 2, 3], [3, 5]]
    both = [[2, 3, 5], [4], [0, 3, 5], [0, 2, 5, 6], [1], [0, 2, 3, 6], [3, 5]]
    assert seen(visible_rounds(IDS, AROUND)) == both
    assert seen(visible_rounds(IDS, replace(AROUND, after=0)))[:3] == [[2], [4], [0]]
    padded = IDS.clone()
    padded[..., 2] = -1  # now 0, 3 | 5, 6
    assert seen(visible_rounds(padded, BACK)) == [[], [], [], [0], [1], [0, 3], [0, 3, 5]]


def test_weights_worked_out_by_hand():
    """The last query scores log 3 and 0 with the unit keys (1, 0) and (0, 1); the first ones see nothing but
    themselves."""
    query = torch.tensor([[7.0, 0], [0, 2], [math.log(3), 0]], dtype=torch.float64)[None, None]
    value = torch.tensor([[4.0], [8], [100]], dtype=torch.float64)[None, None]
    ids = torch.zeros(1, 1, 1, 3, dtype=torch.int64)
    weights = torch.tensor([[1, 0, 0], [1, 0, 0], [0.75, 0.25, 0]], dtype=torch.float64)[None, None]
    torch.testing.assert_close(hashed_weights(query, ids, BACK), weights, rtol=0, atol=1e-5)
    context = attend_hashed(query, value, ids, BACK, most=1)
    torch.testing.assert_close(context.flatten().tolist(), [4.0, 4.0, 5.0], rtol=0, atol=1e-4)
    ids = torch.tensor([[0, 0, 0], [0, 1, 0]])[None, None]  # the first key is seen twice
    twice = hashed_weights(query, ids, replace(BACK, once=False))[0, 0, 2]
    torch.testing.assert_close(twice.tolist(), [6 / 7, 1 / 7, 0.0], rtol=0, atol=1e-5)
    torch.testing.assert_close(hashed_weights(query, ids, BACK), weights, rtol=0, atol=1e-5)


shapes = st.fixed_dictionaries(
    {
        "size": st.integers(1, 9),
        "before": st.integers(0, 2),
        "after": st.integers(0, 2),
        "causal": st.booleans(),
        "once": st.booleans(),
        "scale": st.sampled_from([1.0, 0.3]),
    }
)


def drawn(length, rounds, buckets, seed):
    torch.manual_seed(seed)
    query, value = (torch.randn(2, 3, length, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    ids = torch.randint(buckets, (2, 3, rounds, length))
    padding = torch.rand(2, 1, 1, length) < 0.2
    return query, value, ids.masked_fill(padding, -1)


@settings(max_examples=80)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 7), shapes, st.integers(0, 99))
def test_tiles_equal_the_comparison_of_all_pairs(length, rounds, buckets, shape, seed):
    chunks = Chunks(**(shape | {"after": 0 if shape["causal"] else shape["after"]}))
    query, value, ids = drawn(length, rounds, buckets, seed)
    dense = hashed_weights(query, ids, chunks) @ value
    upstream, results = torch.randn_like(dense), []
    for cheaper in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hashed, "SHORT", length if cheaper else -1)
            output = attend_hashed(query, value, ids, chunks, most=buckets)
        results.append((output, *torch.autograd.grad(output, (query, value), upstream)))
    expected = (dense, *torch.autograd.grad(dense, (query, value), upstream))
    for result in results:
        torch.testing.assert_close(result, expected)


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 7), shapes, st.booleans(), st.integers(0, 99))
def test_published_tiles_equal_the_comparison_of_all_pairs(length, rounds, buckets, shape, across, seed):
    chunks = Chunks(**shape)
    query, value, ids = drawn(length, rounds, buckets, seed)
    dense = hashed_weights(query, ids, chunks, published_times(ids, chunks, across=across)) @ value
    upstream, output = torch.randn_like(dense), attend_sorted(query, value, ids, chunks, across=across)
    for ours, theirs in zip(
        (output, *torch.autograd.grad(output, (query, value), upstream)),
        (dense, *torch.autograd.grad(dense, (query, value), upstream)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 23), min_size=1, max_size=5), st.integers(1, 3), shapes, st.integers(0, 99))
def test_rings_equal_the_whole(steps, rounds, shape, seed):
    chunks = Chunks(**(shape | {"after": 0, "causal": True}))
    query, value, ids = drawn(sum(steps), rounds, 3, seed)
    whole = attend_hashed(query, value, ids, chunks, most=3)
    rings, outputs, start = new_rings(query, value, rounds, 3, chunks), [], 0
    for step in steps:
        piece = slice(start, start + step)
        part, rings = attend_rings(query[:, :, piece], value[:, :, piece], ids[..., piece], chunks, rings)
        outputs.append(part)
        start += step
    torch.testing.assert_close(torch.cat(outputs, 2), whole)


def test_rings_are_written_in_place_where_nothing_learns():
    query, value, ids = drawn(5, 2, 3, 0)
    with torch.no_grad():
        rings = filled(before := new_rings(query, value, 2, 3, BACK), query, value, ids, BACK)
    assert all(rings[name] is before[name] for name in rings)
    assert filled(rings, query, value, ids, BACK)["keys"] is not rings["keys"]


def test_equal_rounds_count_as_one():
    query, value, ids = drawn(41, 1, 3, 0)
    thrice = attend_hashed(query, value, ids.expand(-1, -1, 3, -1), AROUND, most=3)
    torch.testing.assert_close(thrice, attend_hashed(query, value, ids, AROUND, most=3))


def test_dropout_drops_weights_and_scales_the_rest(monkeypatch):
    monkeypatch.setattr(hashed, "SHORT", -1)
    query, _, ids = drawn(40, 1, 3, 0)
    value = torch.eye(40, dtype=torch.float64).expand(2, 3, 40, 40)  # so that outputs are weights
    weights = attend_hashed(query, value, ids, AROUND, most=3)
    dropped = attend_hashed(query, value, ids, AROUND, most=3, dropout_prob=0.25)
    kept = dropped != 0
    torch.testing.assert_close(dropped, weights * kept / 0.75)
    assert 0.7 < kept.sum() / (weights != 0).sum() < 0.8
