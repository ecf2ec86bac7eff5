"""Buckets by FlexAttention: against the comparison of all pairs on a CUDA device that is not there, its blocks against
its predicate, and the compiled program on a processor."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from closeness import check_outputs
from counted import Work
from fake_cuda import FakeCuda
from longspan.attention import ReformerConfig
from longspan.ops.attend import flex
from longspan.ops.attend.flex import FlexFailedError, run_compiled
from longspan.ops.attend.flex_tables import BLOCK
from longspan.ops.sorted import hashed_flex
from longspan.ops.sorted.hashed import attend_hashed, hashed_weights, unit, visible_rounds
from longspan.ops.sorted.hashed_flex import (
    attend_flex_hashed,
    band,
    count_slots,
    flex_serves,
    inverse_norms,
    mask_of,
    shared_by,
    slots_of,
)
from longspan.ops.sorted.hashed_units import Chunks
from longspan.ops.sorted.hashing import NOWHERE

BATCH, HEADS, LENGTH, WIDTH, BUCKETS = 2, 2, 211, 16, 3
FORMS = {
    "around": Chunks(size=20, before=1, after=1, causal=False, scale=1.0, once=True),
    "back": Chunks(size=64, before=1, after=0, causal=True, scale=1.0, once=True),
    "every time": Chunks(size=7, before=0, after=2, causal=False, scale=0.3, once=False),
    "back, every time": Chunks(size=9, before=3, after=0, causal=True, scale=1.0, once=False),
    "local": Chunks(size=32, before=1, after=1, causal=False, scale=0.25, once=False, shared=False),
    "local, back": Chunks(size=32, before=1, after=0, causal=True, scale=0.25, once=False, shared=False),
    "all of it": Chunks(size=30, before=50, after=40, causal=False, scale=1.0, once=True),
    "wide": Chunks(size=200, before=1, after=1, causal=False, scale=1.0, once=True),
}


def problem(chunks: Chunks, rounds: int) -> tuple[list[Tensor], Tensor, int]:
    """Vectors in float64, buckets of unlike size, and how many; the second row is padded, and one token of the first
    stands in its bucket alone."""
    vectors = [torch.randn(BATCH, HEADS, LENGTH, WIDTH, dtype=torch.float64) for _ in range(4 - chunks.shared)]
    most = BUCKETS if chunks.shared else 1
    ids = torch.randint(most * most, (BATCH, HEADS, rounds, LENGTH)).sqrt().long()
    if most > 1:
        ids[:, :, :, 40], ids[:, :, :, 41] = 0, most
    ids[1, :, :, 170:] = ids[1, :, :, 3] = NOWHERE
    return vectors, ids, most + 1


def learned(context: Tensor, inputs: list[Tensor], upstream: Tensor) -> list[Tensor]:
    """The outputs and all gradients."""
    return [each.detach().cpu() for each in (context, *torch.autograd.grad((context * upstream).sum(), inputs))]


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_outputs_and_gradients_are_those_of_all_pairs(form: str, rounds: int) -> None:
    chunks = FORMS[form]
    (upstream, *inputs), ids, most = problem(chunks, rounds if chunks.shared else 1)
    inputs = [each.requires_grad_() for each in inputs]
    query, value, *keys = inputs
    expected = hashed_weights(query, ids, chunks, key=keys[0] if keys else None) @ value
    expected = learned(expected, inputs, upstream)
    with FakeCuda() as device:
        there = [each.detach().to(device).requires_grad_() for each in inputs]
        query, value, *keys = there
        context = attend_flex_hashed(
            query, keys[0] if keys else None, value, ids.to(device), chunks, most=most, dropout_prob=0.0
        )
        found = learned(context, there, upstream.to(device))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("form", FORMS)
def test_the_band_of_blocks_holds_all_that_is_visible(form: str) -> None:
    """The predicate over all slots shows as many keys to each token as there are, and none outside of the blocks, which
    are the same by queries and by keys."""
    chunks = FORMS[form]
    _, ids, most = problem(chunks, 2 if chunks.shared else 1)
    rounds, size = ids.shape[2], count_slots(LENGTH, most, chunks)
    slots = slots_of(ids, chunks, most)
    back, ahead = ((each + 1) * chunks.size - 1 for each in (chunks.before, chunks.after))
    tables = band(size, back, 0 if chunks.causal else ahead, torch.device("cpu"))
    shown = torch.zeros(2, -(-size // BLOCK), -(-size // BLOCK), dtype=torch.bool)
    for side, table in enumerate((tables.partial, tables.partial_of_keys)):
        for row, count in enumerate(table.count[0, 0].tolist()):
            shown[side, row, table.index[0, 0, row, :count].long()] = True
    assert torch.equal(shown[0], shown[1].T)
    inside = shown[0].repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:size, :size]
    query, key = torch.arange(size)[:, None], torch.arange(size)
    places = slots.places.view(BATCH, LENGTH, HEADS, rounds) % size
    times = visible_rounds(ids, chunks)
    for b in range(BATCH):
        for head in range(HEADS):
            total = torch.zeros(LENGTH, LENGTH, dtype=torch.int64)
            for number in range(rounds):
                row = torch.tensor(head * rounds + number)
                visible = mask_of(slots.codes, chunks, rounds)(torch.tensor(b), row, query, key)
                own = places[b, :, head, number]
                total += visible[own[:, None], own]
                real = own[ids[b, head, 0] != NOWHERE]
                assert not (visible & ~inside)[real].any()
                assert visible[real].sum() == visible[real[:, None], real].sum()  # of real tokens, nothing but these
            total = total[ids[b, head, 0] != NOWHERE]
            expected = times[b, head][ids[b, head, 0] != NOWHERE]
            assert torch.equal(total, expected.clamp(max=1) if chunks.once else expected)


def test_a_later_token_moves_no_earlier_one_inside_of_its_block() -> None:
    """The bucket in front of its own becomes more than a block long."""
    chunks, first = FORMS["back"], 150
    ids = torch.arange(LENGTH)[None, None, None] % 2
    other = ids.clone()
    other[..., first:] = 0
    one, two = (slots_of(each, chunks, 2).places[:first] for each in (ids, other))
    assert not torch.equal(one, two)
    assert torch.equal(one % BLOCK, two % BLOCK)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["around", "back"])
def test_the_compiled_program_of_a_processor_computes_every_round(form: str) -> None:
    """Its blocks and its predicate; a processor gives no logarithms of sums."""
    chunks, rounds = FORMS[form], 2
    (query, value, _), ids, most = problem(chunks, rounds)
    query, value, size = query.float(), value.float(), count_slots(LENGTH, most, chunks)
    slots = slots_of(ids, chunks, most)
    rows = [each.transpose(1, 2).reshape(-1, WIDTH)[slots.rows] for each in (query, query, value)]
    rows = [each.view(BATCH, HEADS * rounds, size, WIDTH) for each in rows]
    ahead = 0 if chunks.causal else 2 * chunks.size - 1
    tables = band(size, 2 * chunks.size - 1, ahead, query.device)
    block_mask = tables.block_mask(size, size, mask_of(slots.codes, chunks, rounds))
    options = {"block_mask": block_mask, "scale": chunks.scale, "score_mod": shared_by(inverse_norms(rows[1]))}
    with torch.no_grad():
        found = run_compiled(("hashed", form), "buckets", *rows, **options)
    found = found.reshape(-1, WIDTH)[slots.places].view(BATCH, LENGTH, HEADS, rounds, WIDTH).permute(3, 0, 2, 1, 4)
    first, both = (visible_rounds(each, chunks) > 0 for each in (ids[:, :, :1], ids))
    scores = query @ unit(query).mT * chunks.scale
    real = (ids[:, :, 0] != NOWHERE)[..., None]
    for context, visible in zip(found, (first, both & ~first), strict=True):
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(0.0)
        torch.testing.assert_close(context * real, weights @ value * real, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rounds", [1, 2])
def test_dropout_leaves_out_weights(rounds: int) -> None:
    """Values that name their places show the weights: some are 0, the others those of the reference by 1/(1 − p)."""
    chunks, prob = FORMS["around"], 0.3
    (query, *_), ids, most = problem(chunks, rounds)
    query, value = query.float(), torch.eye(LENGTH, 512).expand(BATCH, HEADS, -1, -1)
    whole = hashed_weights(query, ids, chunks)
    with FakeCuda() as device:
        found = attend_flex_hashed(
            query.to(device), None, value.to(device), ids.to(device), chunks, most=most, dropout_prob=prob
        ).cpu()
    factors = torch.where(whole > 0, found[..., :LENGTH] / whole, 0.0)
    left = factors[whole > 0]
    assert ((left < 1e-6) | ((left - 1 / (1 - prob)).abs() < 1e-3)).all()
    assert abs((left < 1e-6).float().mean() - prob) < 0.05
    assert not found[..., LENGTH:].any()


def test_bfloat16_errs_no_more_than_twice_the_processor() -> None:
    """In the same buckets."""
    chunks = FORMS["around"]
    (query, value, _), ids, most = problem(chunks, 2)
    narrow = [each.bfloat16() for each in (query, value)]
    exact = hashed_weights(narrow[0].double(), ids, chunks) @ narrow[1].double()
    host = attend_hashed(*narrow, ids, chunks, most=most)
    with FakeCuda() as device:
        found = attend_hashed(*(each.to(device) for each in narrow), ids.to(device), chunks, most=most).cpu()
    assert (found - exact).norm() <= 2 * (host - exact).norm()


def test_a_layer_takes_it_and_waits_for_nothing() -> None:
    config = ReformerConfig(rounds=3)
    for causal in (False, True):
        module = config.build(width=64, heads=2, causal=causal)
        with FakeCuda(values=False) as device, torch.no_grad():
            module, hidden = module.to(device), torch.empty(2, 4096, 64, device=device)
            module(hidden)  # which copies the table of blocks
            with Work("cuda") as work:
                module(hidden)
        assert work.kernels["longspan_fake::flex_forward"] == 1
        assert work.waits == 0


def test_what_cannot_be_compiled_is_told_and_computed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "_failed", set())

    def fails(kind, what, *tensors, **options):  # type: ignore[no-untyped-def]
        flex._failed.add(kind)
        raise FlexFailedError("backend='flex' cannot be compiled for buckets")

    monkeypatch.setattr(hashed_flex, "run_compiled", fails)
    chunks = FORMS["around"]
    (query, value, _), ids, most = problem(chunks, 2)
    query, value = query.float(), value.float()
    expected = attend_hashed(query, value, ids, chunks, most=most)
    with FakeCuda() as device:
        query, value, ids = (each.to(device) for each in (query, value, ids))
        assert flex_serves(query, value, ids, chunks, most)
        with pytest.warns(UserWarning, match="cannot be compiled for buckets"):
            found = attend_hashed(query, value, ids, chunks, most=most)
        assert not flex_serves(query, value, ids, chunks, most)
    check_outputs(found.cpu(), expected, ulps=64)


def test_what_it_does_not_serve() -> None:
    chunks = FORMS["back"]
    with FakeCuda() as device:
        query = torch.randn(1, 1, 256, 16, device=device)
        ids = torch.zeros(1, 1, 2, 256, dtype=torch.int64, device=device)
        assert flex_serves(query, query, ids, chunks, 2)
        assert not flex_serves(query.double(), query.double(), ids, chunks, 2)
        assert not flex_serves(query[..., :12], query[..., :12], ids, chunks, 2)
        assert not flex_serves(query, query, torch.cat([ids] * 5, 2), chunks, 2)
        assert not flex_serves(query, query, ids, chunks, 200)  # more empty ends than tokens
        assert flex_serves(query, query, ids, FORMS["around"], 200)
        ids = ids.cpu()
    assert not flex_serves(torch.randn(1, 1, 256, 16), torch.randn(1, 1, 256, 16), ids, chunks, 2)
