"""Blocks drawn for a text of known length: against a loop over the definition, and against chance."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from longspan.errors import InputError
from longspan.ops import attend
from longspan.ops.attend.terms import Bias
from longspan.ops.tiles.layout import best_layout
from longspan.patterns import Blocks, Causal, DrawnBlocks, PerHead, PlannedBlocks, Window, parse


def mix(value, seed):
    value = (value + 40503 * (seed + 1)) % 2**31
    for factor in (0x45D9F3B, 0x119DE1F3):
        value = (value ^ (value >> 16)) * factor % 2**31
    return value ^ (value >> 15)


def sampled(pool, count, key, done=0):
    """Floyd's algorithm; `key` makes a random number of the number of a draw."""
    found = []
    for draw in range(count):
        top = len(pool) - count + draw
        if top >= 0:
            guess = pool[key(done + draw) % (top + 1)]
            found.append(pool[top] if guess in found else guess)
    return found


def drawn(pattern, row, blocks):
    """The blocks that block `row` of so many sees."""
    last, count, front = blocks - pattern.ends, pattern.count, pattern.start // pattern.block
    if not 0 <= row < last:
        return set()

    def key(draw):
        return mix(mix(row * 256 + draw, pattern.seed) ^ blocks * 40503, pattern.seed)

    def pool(first, end):
        return [block for block in range(first, min(last, end)) if abs(block - row) > pattern.gap]

    if not isinstance(pattern, PlannedBlocks):
        return set(sampled(pool(0, pattern.within or last), count, key))
    whole = blocks + front
    if whole > 2 * count + 5:
        return set(sampled(pool(0, 2 * count + 5 - front), count, key))
    if whole > count + 5:
        border, half = count + 5 - front, count // 2
        early = sampled(pool(0, border), half, key)
        return set(early) | set(sampled(pool(border, last), count - half, key, half))
    return set(sampled(pool(0, last), count, key))


@pytest.mark.parametrize(
    "pattern",
    [
        DrawnBlocks(4, 3, 7),
        DrawnBlocks(3, 2, 1, 5, 1, 1),
        DrawnBlocks(2, 12, 0, 2, 2, 1),  # more than are compared one by one
        DrawnBlocks(2, 0),
        DrawnBlocks(1, 3, 5, 1, 1, 1, 6),
        PlannedBlocks(2, 3, 4, 2, 1, 1),
        PlannedBlocks(3, 2, 0),
        PlannedBlocks(2, 4, 9, 4, 1, 2),
    ],
    ids=str,
)
def test_every_block_sees_what_the_definition_draws(pattern):
    for tokens in range(1, 61):
        blocks = max(1, -(-(tokens - pattern.start) // pattern.block))
        wanted = torch.zeros(tokens, tokens, dtype=torch.bool)
        for query in range(pattern.start, tokens):
            for block in drawn(pattern, (query - pattern.start) // pattern.block, blocks):
                first = pattern.start + block * pattern.block
                wanted[query, first : first + pattern.block] = True
        assert torch.equal(pattern.dense(tokens), wanted)
        assert torch.equal(pattern.of_length(tokens).dense(tokens), wanted)
        whole = pattern.of_length(tokens)
        pairs = [(0, 0), (tokens - 1, 0), (tokens // 2, tokens - 1), (tokens - 1, tokens // 3)]
        for query, key in pairs:  # drawn by itself, whatever table many are looked up in
            assert bool(whole.visible(torch.tensor(query), torch.tensor(key))) == bool(wanted[query, key])


@pytest.mark.parametrize("count", [1, 3, 7])
def test_as_many_are_drawn_as_asked_for_or_as_there_are(count):
    for blocks in (1, 2, 3, 5, 9, 17, 64, 257):
        seen = DrawnBlocks(1, count, 3, gap=1, ends=1).dense(blocks)
        draws = torch.arange(blocks) < blocks - 1
        room = torch.tensor([sum(abs(row - other) > 1 for other in range(blocks - 1)) for row in range(blocks)])
        assert torch.equal(seen.sum(1), room.clamp(max=count) * draws)


def test_all_parts_of_a_text_are_drawn_alike():
    """64 blocks of which 62 are drawn, r = 3, 200 seeds: each is drawn by 59 to 61 others."""
    rows, times = torch.zeros(64, 64), 200
    for seed in range(times):
        rows += DrawnBlocks(1, 3, seed, 1, 1, 1).dense(64)
    rows = rows[1:63, 1:63]
    room = torch.tensor([sum(abs(row - other) > 1 for other in range(62)) for row in range(62)])
    apart = (torch.arange(62)[:, None] - torch.arange(62)).abs() > 1
    expected = times * (3 / room[:, None] * apart).sum(0)
    # At 62 − 1 degrees of freedom 1 in 1,000 exceeds 61·(1 − 2/549 + 3.09·√(2/549))³ = 101; draws without replacement
    # vary less than that.
    assert float(((rows.sum(0) - expected) ** 2 / expected).sum()) < 101
    quarters = torch.stack([part.sum() for part in rows.sum(0)[1:61].split(15)]) / times / 62
    assert torch.allclose(quarters, torch.full((4,), 3 * 15 / 62), rtol=0, atol=0.02)


@pytest.mark.slow
def test_every_set_is_drawn_as_often():
    """Two of the five blocks that the first of six does not hide: ten sets, 3,000 times."""
    found = dict.fromkeys(combinations(range(1, 6), 2), 0)
    for seed in range(3000):
        found[tuple(DrawnBlocks(1, 2, seed).dense(6)[0].nonzero()[:, 0].tolist())] += 1
    # At 9 degrees of freedom 1 in 1,000 exceeds 9·(1 − 2/81 + 3.09·√(2/81))³ = 27.9.
    assert sum((times - 300) ** 2 / 300 for times in found.values()) < 27.9


def test_draws_depend_on_the_number_of_blocks_and_on_nothing_else():
    pattern = DrawnBlocks(4, 2, 7, 4, 1, 1)
    assert pattern.of_length(61) == pattern.of_length(64) == DrawnBlocks(4, 2, 7, 4, 1, 1, 0, 15)
    assert torch.equal(pattern.dense(61), pattern.dense(64)[:61, :61])
    assert not torch.equal(pattern.dense(65)[:61, :61], pattern.dense(61))
    lengths = torch.tensor([1, 4, 5, 61, 64])
    place = torch.arange(64)
    together = pattern.of_length(lengths[:, None, None]).visible(place[:, None], place)
    for seen, length in zip(together, lengths.tolist(), strict=True):
        assert torch.equal(seen, pattern.of_length(length).dense(64))


def test_published_scopes_by_hand():
    """The released code: the first 11 of many blocks with r = 3; of 10, one of the first 8 and the others behind."""
    long = PlannedBlocks(1, 3, 0, 1, 1, 1).dense(64)[1:63]
    assert not long[:, 11:].any()
    assert bool((long.sum(1) == 3).all())
    middle = PlannedBlocks(1, 3, 0, 1, 1, 1).dense(10)[1:6]  # blocks 8 and 9 stand behind, and 9 is global
    assert middle[:, :8].sum(1).tolist() == [1] * 5
    assert middle[:, 8:].sum(1).tolist() == [1] * 5
    first = DrawnBlocks(64, 3, 0, 64, 1, 1, within=15).dense(4096)[::64, ::64]
    assert not first[:, 16:].any()
    assert bool((first[1:63].sum(1) == 3).all())


def test_a_pattern_that_knows_no_length_says_so():
    with pytest.raises(InputError, match=r"drawn_blocks\(4, 2\) depends on the length of the text; call of_length"):
        (Blocks(4) | DrawnBlocks(4, 2)).visible(torch.tensor(1), torch.tensor(2))
    assert str(parse("drawn_blocks(4, 2) & causal").of_length(33)) == "drawn_blocks(4, 2, 0, 0, 0, 0, 0, 9) & causal()"


def test_the_layout_is_as_small_as_the_draws():
    """Of 256 tiles 255 draw three: the operator computes so many tiles and no more."""
    pattern = DrawnBlocks(64, 3, 0, 64).of_length(16384)
    assert best_layout.__wrapped__(pattern, 16384, 16384, 0, torch.device("cpu")).scores == 255 * 3 * 64**2


LENGTHS = [83, 83, 41, 0, 7, 82]
ROWS = {
    "plain": DrawnBlocks(4, 2, 1, 4, 1, 1),
    "beside others": PerHead([Window(2, 2), Blocks(5, 1) | DrawnBlocks(5, 3, 2), DrawnBlocks(3, 1) & Causal()]),
    "planned": PlannedBlocks(4, 3, 1),
}


@pytest.mark.parametrize("pattern", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("backend", ["auto", "blocked", "reference"])
@pytest.mark.parametrize("biased", [False, True])
def test_rows_of_any_length_attend_as_each_alone(pattern, backend, biased):
    """Outputs and gradients of a batch against those of its rows without padding, and against the dense mask."""
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(6, 3, 83, 5, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]
    bias = torch.randn(6, 1, 83, 83, generator=generator, dtype=torch.float64).requires_grad_()
    mask = torch.arange(83) < torch.tensor(LENGTHS)[:, None]
    slots = torch.tensor([[0, 2, -1]] * 6)
    learnt = [*inputs, bias] if biased else inputs
    upstream = torch.randn(6, 3, 83, 5, generator=generator, dtype=torch.float64) * mask[:, None, :, None]
    together = attend(
        *inputs, pattern=pattern, key_mask=mask, globals=slots, backend=backend, terms=[Bias(bias)] if biased else []
    )
    found = together * mask[:, None, :, None], *torch.autograd.grad(together, learnt, upstream)
    alone = torch.zeros_like(together)
    for row, length in enumerate(LENGTHS):
        if not length:
            continue
        is_global = torch.zeros(length, dtype=torch.bool).index_fill(0, torch.tensor([0, 2]), True)
        seen = pattern.dense(length) | is_global | is_global[:, None]
        query, key, value = (each[row, :, :length] for each in inputs)
        scores = query @ key.mT / 5**0.5 + (bias[row, :, :length, :length] if biased else 0)
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        alone[row, :, :length] = weights @ value
    torch.testing.assert_close(found, (alone, *torch.autograd.grad(alone, learnt, upstream)))


@pytest.mark.slow
def test_dropout_of_rows_in_turns_has_the_gradient_of_what_it_kept():
    inputs = [torch.randn(3, 1, 23, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    mask = torch.arange(23) < torch.tensor([[23], [11], [17]])

    def dropped(*inputs):
        torch.manual_seed(3)
        options = {"key_mask": mask, "dropout_prob": 0.4, "backend": "blocked"}
        return attend(*inputs, pattern=Blocks(3) | DrawnBlocks(3, 2), **options)

    assert torch.autograd.gradcheck(dropped, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("padded", [False, True])
def test_one_compiled_program_serves_rows_of_every_length(padded):
    def layer(*inputs, mask):
        pattern = PerHead([Blocks(4, 1, 1) | DrawnBlocks(4, 2, seed) for seed in (0, 1)])
        query, key, value = (each.unflatten(2, (2, 5)).transpose(1, 2) for each in inputs)
        return attend(query, key, value, pattern=pattern, key_mask=mask)

    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (61, 90, 37):
        inputs = [torch.randn(3, length, 10, dtype=torch.float64, requires_grad=True) for _ in range(3)]
        mask = torch.arange(length) < torch.tensor([[length], [length - 20], [9]]) if padded else None
        results = []
        for function in (layer, compiled):
            output = function(*inputs, mask=mask)
            results.append((output, *torch.autograd.grad(output.square().sum(), inputs)))
        torch.testing.assert_close(*results)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # PyTorch's own, in its forward mode
def test_derivatives_forward_come_from_the_dense_way():
    query, key, value = (torch.randn(2, 2, 29, 4, dtype=torch.float64) for _ in range(3))
    mask = torch.arange(29) < torch.tensor([[29], [13]])
    pattern = PerHead([DrawnBlocks(3, 2), Blocks(4)])

    def output(query):
        return attend(query, key, value, pattern=pattern, key_mask=mask)

    found, slope = torch.func.jvp(output, (query,), (torch.ones_like(query),))
    near = 1e-6 * torch.ones_like(query)
    torch.testing.assert_close(found, output(query))
    torch.testing.assert_close(slope, (output(query + near) - output(query - near)) / 2e-6, rtol=1e-5, atol=1e-7)


def test_memory_is_linear_whatever_the_lengths(memory):
    inputs = [torch.randn(3, 1, 4096, 8) for _ in range(3)]
    mask = torch.arange(4096) < torch.tensor([[4096], [3000], [1001]])
    with torch.no_grad(), memory() as made:
        attend(*inputs, pattern=Blocks(64, 1, 1) | DrawnBlocks(64, 3, 0), key_mask=mask)
    assert made.largest < 4096**2 / 8
