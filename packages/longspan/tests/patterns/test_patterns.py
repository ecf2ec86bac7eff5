"""Patterns against loops over pairs, written from the definitions of the papers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counted import lines_run
from longspan.errors import InputError
from longspan.ops.tiles.layout import best_layout
from longspan.patterns import (
    Blocks,
    Causal,
    DrawnBlocks,
    First,
    Fixed,
    Full,
    Pattern,
    PerHead,
    PlannedBlocks,
    PooledWindow,
    Prefix,
    RandomBlocks,
    Span,
    Strided,
    Window,
    parse,
)
from longspan.patterns.base import LARGEST_TILE
from longspan.patterns.kinds import Columns, Without

ORACLES = [
    (Full(), lambda i, j: True),
    (Causal(), lambda i, j: j <= i),
    (Window(3, 5), lambda i, j: -3 <= j - i <= 5),
    (Window(2, 3, 4), lambda i, j: j - i in (-8, -4, 0, 4, 8, 12)),
    (Window(0, 0), lambda i, j: i == j),
    (First(2), lambda i, j: i < 2 or j < 2),
    (Blocks(7), lambda i, j: i // 7 == j // 7),
    (Blocks(4, 1, 2), lambda i, j: i // 4 - 1 <= j // 4 <= i // 4 + 2),
    (Blocks(5, 1, 0, 7), lambda i, j: (i + 3) // 5 - 1 <= (j + 3) // 5 <= (i + 3) // 5),
    (Strided(5), lambda i, j: (i - j) % 5 == 0),
    (Fixed(6, 2), lambda i, j: i // 6 == j // 6 or j % 6 in (4, 5)),
    (Fixed(7, 2, 1), lambda i, j: i // 7 == j // 7 or j % 7 in (3, 4)),
    (Columns(6, 1, 3), lambda i, j: j % 6 in (1, 2)),
    (Without(Strided(4), Window(5, 3)), lambda i, j: (i - j) % 4 == 0 and not -5 <= j - i <= 3),
    (Prefix(0), lambda i, j: j <= i),
    (Prefix(5), lambda i, j: j < 5 or j <= i),
    (Prefix(9, 7), lambda i, j: j < 9 or (j <= i if i < 16 else j < min(i - 7, 16) or j == i)),
    (Fixed(4, 0), lambda i, j: i // 4 == j // 4),
    (PooledWindow(9, 8, 5, 4), lambda i, j: i - 9 <= 4 * j - 2 and 4 * j + 2 <= i + 8),
    (PooledWindow(6, 6, 4, 3), lambda i, j: i - 6 <= 3 * j - 2 and 3 * j + 1 <= i + 6),
    ((Window(2, 2) | First(1)) & Causal(), lambda i, j: j <= i and (abs(i - j) <= 2 or i < 1 or j < 1)),
]


@pytest.mark.parametrize(
    ("pattern", "oracle"), ORACLES, ids=lambda value: str(value) if isinstance(value, Pattern) else ""
)
def test_a_pattern_shows_what_its_definition_says(pattern, oracle):
    dense = pattern.dense(31, 29)
    expected = torch.tensor([[bool(oracle(i, j)) for j in range(29)] for i in range(31)])
    assert torch.equal(dense, expected)
    assert pattern.count_visible(31, 29) == int(expected.sum())
    later = pattern.dense(3, 29, query_offset=28)
    assert torch.equal(later, torch.tensor([[bool(oracle(i, j)) for j in range(29)] for i in range(28, 31)]))


PARTS = st.one_of(
    st.builds(Window, st.integers(0, 5), st.integers(0, 5), st.integers(1, 4)),
    st.builds(Blocks, st.integers(1, 5), st.integers(0, 2), st.integers(0, 2), st.integers(0, 7)),
    st.builds(First, st.integers(0, 4)),
    st.builds(Strided, st.integers(1, 5)),
    st.builds(lambda stride, summary: Fixed(stride, min(stride, summary)), st.integers(1, 6), st.integers(0, 4)),
    st.sampled_from([Full(), Causal(), Columns(5, 1, 3)]),
)
COMBINED = st.recursive(
    PARTS,
    lambda inner: st.one_of(
        *(st.builds(lambda a, b, join=join: join(a, b), inner, inner) for join in (Pattern.__or__, Pattern.__and__)),
        st.builds(Without, inner, inner),
    ),
    max_leaves=3,
)


@given(COMBINED, st.integers(0, 300))
def test_counts_of_long_texts_are_those_of_the_whole_mask(pattern, length):
    assert pattern.repeats() is not None
    assert pattern.count_visible(length) == int(pattern.dense(length).sum())
    heads = PerHead([pattern, Window(2, 1)])
    assert heads.count_visible(length) == int(heads.dense(length).sum())


def test_counting_pairs_of_a_long_text_takes_no_long_text():
    pattern = Window(127, 127) | Strided(128)
    steps = lines_run(lambda: pattern.count_visible(1 << 20))
    assert lines_run(lambda: pattern.count_visible(1 << 30)) <= steps
    # By hand: 255 offsets near, and of the multiples of 128 all but 0 are further than 127.
    length = 1 << 20
    near = 255 * length - 2 * sum(range(1, 128))
    far = 2 * sum(length - offset for offset in range(128, length, 128))
    assert pattern.count_visible(length) == near + far


def test_per_head_patterns_stand_beside_each_other_and_combine():
    pattern = PerHead([Window(1, 1), Window(2, 2, 3)]) | First(1)
    dense = pattern.dense(17)
    assert dense.shape == (2, 17, 17)
    assert torch.equal(dense[0], (Window(1, 1) | First(1)).dense(17))
    assert torch.equal(dense[1], (Window(2, 2, 3) | First(1)).dense(17))
    assert pattern.heads == 2
    assert pattern.head(1) == Window(2, 2, 3) | First(1)


def simple_patterns() -> st.SearchStrategy[Pattern]:
    small = st.integers(0, 9)
    size = st.integers(1, 9)
    return st.one_of(
        st.just(Full()),
        st.just(Causal()),
        st.builds(Window, small, small, st.integers(1, 4)),
        st.builds(First, small),
        st.builds(Blocks, size, st.integers(0, 2), st.integers(0, 2), small),
        st.builds(Strided, size),
        st.builds(Prefix, small, small),
        st.tuples(size, size).map(lambda pair: Fixed(max(pair), min(pair))),
        st.builds(RandomBlocks, size, st.integers(0, 3), small, small, st.integers(0, 2)),
        st.builds(DrawnBlocks, size, st.integers(0, 3), *[st.integers(0, 4)] * 4, blocks=st.integers(1, 40)),
        st.builds(PlannedBlocks, size, st.integers(0, 3), *[st.integers(0, 2)] * 4, blocks=st.integers(1, 40)),
        st.tuples(size, size, size).map(lambda three: Fixed(sum(three), min(three), 1)),
        st.builds(PooledWindow, small, small, st.integers(1, 5), st.integers(1, 4)),
    )


def any_patterns() -> st.SearchStrategy[Pattern]:
    return st.recursive(
        simple_patterns(),
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
            st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
        ),
        max_leaves=4,
    )


def sets_apart() -> st.SearchStrategy[Pattern]:
    """Patterns with parts that have no text, as operators make them."""
    ends = st.tuples(st.integers(1, 9), st.integers(0, 8), st.integers(0, 9))
    columns = ends.map(lambda three: Columns(three[0], min(*three), min(three[0], max(three[1:]))))
    return st.builds(Without, any_patterns(), any_patterns()) | columns


@pytest.mark.variant
@given(
    pattern=any_patterns() | sets_apart(), queries=st.integers(1, 37), keys=st.integers(1, 37), size=st.integers(1, 9)
)
def test_bounds_over_rectangles_never_contradict_the_predicate(pattern, queries, keys, size):
    dense = pattern.dense(queries, keys)
    for q0 in range(0, queries, size):
        for k0 in range(0, keys, size):
            q1, k1 = min(q0 + size, queries) - 1, min(k0 + size, keys) - 1
            span = Span(*(torch.tensor([[value]]) for value in (q0, q1, k0, k1)))
            tile = dense[q0 : q1 + 1, k0 : k1 + 1]
            assert bool(pattern.some(span)) or not tile.any()
            assert not bool(pattern.every(span)) or tile.all()


@pytest.mark.slow
@given(pattern=any_patterns() | sets_apart(), size=st.integers(1, 9))
def test_tiles_of_equal_phase_have_equal_masks(pattern, size):
    starts = torch.arange(0, 60, size)
    phases = torch.stack(
        [p.expand(len(starts), len(starts)) for p in pattern.phase(starts[:, None], starts[None, :])], -1
    )
    dense = pattern.dense(60 + size)
    seen: dict[tuple[int, ...], torch.Tensor] = {}
    for row, query in enumerate(starts.tolist()):
        for column, key in enumerate(starts.tolist()):
            tile = dense[query : query + size, key : key + size]
            first = seen.setdefault(tuple(phases[row, column].tolist()), tile)
            assert torch.equal(first, tile)


@pytest.mark.parametrize(
    "text",
    [
        "window(131, 7)",
        "window(40, 9, 3)",
        "causal",
        "(window(300) | first(2)) & causal",
        "blocks(1099, 1)",
        "window(30, 40) & blocks(1801)",
        "blocks(853, 0, 0, 700) & causal",
        "prefix(301)",
        "prefix(301, 700)",
    ],
)
def test_tiles_beyond_the_reach_of_a_pattern_are_of_one_kind(text):
    """With the largest tiles, whose masks must be equal where phases are, and few of them, however long the text."""
    pattern, kinds = parse(text), {}
    dense = pattern.dense(20 * LARGEST_TILE)
    for query in range(0, len(dense), LARGEST_TILE):
        for key in range(0, len(dense), LARGEST_TILE):
            phases = pattern.phase(torch.tensor(query), torch.tensor(key))
            tile = dense[query : query + LARGEST_TILE, key : key + LARGEST_TILE]
            assert torch.equal(kinds.setdefault(tuple(int(phase) for phase in phases), tile), tile)
    assert len(kinds) <= 40


@given(pattern=any_patterns())
def test_text_and_pattern_are_the_same_thing(pattern):
    assert parse(str(pattern)) == pattern
    pair = PerHead([pattern, Full()])
    assert parse(str(pair)) == pair


def test_a_prefix_is_read_both_ways_and_pseudo_masks_guess_all_at_once():
    """By hand: source s0 s1, targets t0 t1 t2, and a mask for each."""
    rows = ["11000000", "11000000", "11100000", "11110000", "11111000", "11000100", "11100010", "11110001"]
    expected = torch.tensor([[sign == "1" for sign in row] for row in rows])
    assert torch.equal(Prefix(2, 3).dense(8), expected)
    assert torch.equal(Prefix(2).dense(5), expected[:5, :5])
    assert (str(Prefix(2)), str(Prefix(2, 3))) == ("prefix(2)", "prefix(2, 3)")


def test_random_blocks_depend_on_the_seed_alone():
    pattern = RandomBlocks(block=4, count=3, seed=7)
    dense = pattern.dense(4 * 64)
    blocks = dense[::4, ::4]
    assert torch.equal(dense, blocks.repeat_interleave(4, 0).repeat_interleave(4, 1))
    assert not blocks.diagonal().any()
    assert torch.equal(RandomBlocks(4, 3, 7).dense(4 * 40 + 1), dense[: 4 * 40 + 1, : 4 * 40 + 1])
    assert not torch.equal(RandomBlocks(4, 3, 8).dense(4 * 64), dense)
    # Every block draws 3 of those before it, all of them where there are fewer, each in one direction.
    drawn = (blocks | blocks.T).tril(-1).sum(1)
    assert not (blocks & blocks.T).any()
    assert drawn.tolist() == [min(row, 3) for row in range(64)]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [RandomBlocks(4, 3, 7), RandomBlocks(3, 5, 1, 10, 1), RandomBlocks(2, 1, 0, 0, 3)])
def test_random_blocks_looked_up_in_a_table_are_those_drawn_pair_by_pair(pattern):
    """One pair is drawn by itself, many are looked up."""
    whole = pattern.dense(83)
    pairs = [[bool(pattern.visible(torch.tensor(i), torch.tensor(j))) for j in range(83)] for i in range(83)]
    assert torch.equal(whole, torch.tensor(pairs))


def test_random_blocks_leave_out_what_is_near_or_before_their_start():
    blocks = RandomBlocks(4, 3, 7, start=5, gap=1).dense(5 + 4 * 30)[5::4, 5::4]
    assert not RandomBlocks(4, 3, 7, start=5).dense(40)[:5].any()
    assert not RandomBlocks(4, 3, 7, start=5).dense(40)[:, :5].any()
    assert not blocks.diagonal(1).any()
    assert not blocks.diagonal(-1).any()
    assert (blocks | blocks.T).tril(-1).sum(1).tolist() == [min(max(row - 1, 0), 3) for row in range(30)]


def test_the_layout_of_random_blocks_is_no_loop_over_blocks_in_python():
    short, long = (
        lines_run(best_layout.__wrapped__, RandomBlocks(64, 3), length, length, 0, torch.device("cpu"))
        for length in (4096, 16384)
    )
    assert long < 1.5 * short  # four times as many rows of four times as many blocks


@pytest.mark.parametrize("length", [17, 64, 100, 257])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_random_blocks_look_back_as_often_as_ahead(length, count):
    """Shares over 60 seeds; the draws of a block alternate, so that only their rest is left to chance."""
    back = ahead = 0
    reached = torch.zeros(length)
    for seed in range(60):
        dense = RandomBlocks(1, count, seed).dense(length)
        back, ahead = back + int(dense.tril(-1).sum()), ahead + int(dense.triu(1).sum())
        reached += dense.tril(-1)[length // 2 :].sum(0)
    assert back + ahead == 60 * sum(min(row, count) for row in range(length))
    assert abs(back / (back + ahead) - 0.5) < 4 * 0.5 / (back + ahead) ** 0.5
    # Late blocks draw early, middle and late ones alike among the first half, which all of them have before them.
    thirds = torch.tensor([part.sum().item() for part in reached[: length // 2].tensor_split(3)])
    assert thirds.max() / thirds.min() < (2 if length < 64 else 1.4)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("window(-1)", ["left=-1", "at least 0"]),
        ("window(3, 3, 0)", ["dilation=0", "at least 1"]),
        ("window(1, 2, 3, 4)", ["window", "left, right, dilation"]),
        ("window(1.5)", ["1.5", "whole number"]),
        ("windoow(3)", ["windoow", "window"]),
        ("window(3) + first(1)", ["no pattern"]),
        ("window(3", ["cannot be read"]),
        ("", ["cannot be read"]),
        ("__import__('os')", ["__import__"]),
        ("fixed(3, 5)", ["summary=5", "stride=3"]),
        ("per_head()", ["per_head", "empty"]),
        ("blocks(0)", ["size=0"]),
        ("window(9223372036854775808)", ["left=9223372036854775808", "up to 2147483647"]),
        ("window(left=1, left=2)", ["window", "left, right, dilation"]),
        ("per_head(full, heads=2)", ["per_head", "by name"]),
        ("random_blocks(1, 3000000)", ["count=3000000", "up to 256"]),
        (" | ".join(f"window({n})" for n in range(1, 900)), ["inside each other"]),
        ("(" * 3000 + "full" + ")" * 3000, ["pattern"]),
        ("window(3)" + " | full" * 3000, ["characters"]),
        ("window(" + "9" * 5000 + ")", ["cannot be read"]),
        ("window(3)\0", ["cannot be read"]),
        ("\ud83d", ["cannot be read"]),
    ],
)
def test_bad_text_is_one_sentence(text, names):
    with pytest.raises(InputError) as caught:
        parse(text)
    message = str(caught.value)
    assert "\n" not in message
    for name in names:
        assert name in message


def test_a_pattern_made_in_python_is_not_too_deep_either():
    pattern: Pattern = Window(1, 1)
    for size in range(99):
        pattern = pattern | Window(size, 0)
    assert str(parse(str(pattern))) == str(pattern)
    with pytest.raises(InputError, match="too deep"):
        _ = pattern & Full()


def test_heads_must_agree():
    with pytest.raises(InputError, match="2 and 3 heads"):
        _ = PerHead([Full()] * 2) | PerHead([Full()] * 3)
