"""Sparse Sinkhorn attention: matrices worked out by hand, sorted blocks against plain attention, noise, nets."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from longspan.attention import SinkhornConfig, Tokens
from longspan.attention.sinkhorn import _first_best
from longspan.checkpoints import lengthen
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanModel
from longspan.ops.sorted.block_attention import attend_blocks
from longspan.ops.sorted.sinkhorn import block_means, earlier, means_so_far, plain_blocks, sinkhorn, sorted_blocks

from .conftest import check_drawn_in_training_alone

WIDTH, HEADS = 12, 3
SMALL = SinkhornConfig(block_tokens=4, noise=0.0)


def build(config=SMALL, causal=False, **changes):
    torch.manual_seed(1)
    module = replace(config, **changes).build(width=WIDTH, heads=HEADS, causal=causal).double().eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def real(*rows):
    return torch.tensor(rows, dtype=torch.bool)


def test_one_turn_worked_out_by_hand():
    """Rows of [[1, 3], [1, 1]] sum to 4 and 2: [[¼, ¾], [½, ½]]; then columns to 3/4 and 5/4."""
    logits = torch.tensor([[1.0, 3], [1, 1]], dtype=torch.float64).log()[None, None]
    once = torch.tensor([[1 / 3, 3 / 5], [2 / 3, 2 / 5]], dtype=torch.float64)
    torch.testing.assert_close(sinkhorn(logits, real([1, 1]), 1)[0, 0], once)
    padded = torch.nn.functional.pad(logits, (0, 1, 0, 1), value=9.0)
    expected = torch.nn.functional.pad(once, (0, 1, 0, 1))
    torch.testing.assert_close(sinkhorn(padded, real([1, 1, 0]), 1)[0, 0], expected)


def published(query, key, value, iterations, temperature):
    """A layer as released with DialogLM, without its noise: blocks `(N, b, D)` of one head, in loops."""
    count, scale = len(query), query.shape[-1] ** -0.5
    matrix = torch.stack([torch.stack([(q.mean(0) @ k.mean(0) * scale).relu() for k in key]) for q in query])
    matrix = (matrix + 1e-6) ** (1 / temperature)
    for _ in range(iterations):
        for row in range(count):
            matrix[row] /= matrix[row].sum()
        for column in range(count):
            matrix[:, column] /= matrix[:, column].sum()
    found = []
    for block in range(count):
        sorted_key, sorted_value = (sum(matrix[block, j] * each[j] for j in range(count)) for each in (key, value))
        keys, values = torch.cat([key[block], sorted_key]), torch.cat([value[block], sorted_value])
        found.append((query[block] @ keys.T * scale).softmax(-1) @ values)
    return torch.stack(found)


@torch.no_grad()
@pytest.mark.parametrize("iterations", [1, 2, 7])
def test_a_layer_is_the_published_one_before_its_matrix_is_doubly_stochastic(iterations):
    """Rows come first, and what a block gets is not divided by what they still miss."""
    module, hidden = build(iterations=iterations), torch.randn(1, 32, WIDTH, dtype=torch.float64)
    parts = [each[0].unflatten(1, (8, 4)) for each in module.project(hidden)]
    expected = torch.stack([published(*(part[head] for part in parts), iterations, 0.75) for head in range(HEADS)])
    expected = module.output(expected.flatten(1, 2).transpose(0, 1).flatten(1))
    torch.testing.assert_close(module(hidden)[0], expected)
    weights = module.weights(hidden) @ module.split_heads(module.value(hidden))
    torch.testing.assert_close(module.output(module.merge_heads(weights)), module(hidden))


def test_gradients_are_those_of_the_plain_steps_where_rows_do_not_sum_to_one():
    query, key, value = (torch.randn(2, HEADS, 5, 4, 7, dtype=torch.float64, requires_grad=True) for _ in range(3))
    order = torch.rand(2, HEADS, 5, 5, dtype=torch.float64, requires_grad=True)
    flags = torch.ones(2, 5, 4, dtype=torch.bool)
    flags[1, 3, 1:] = flags[1, 4] = False
    upstream = torch.randn(2, HEADS, 5, 4, 7, dtype=torch.float64)
    kernel = attend_blocks(query, key, value, flags, order, scale=0.3, causal=False)
    plain = plain_blocks(query, key, value, flags, order, 0.3, False, 0.0)
    torch.testing.assert_close(kernel, plain)
    inputs = query, key, value, order
    ours, theirs = (torch.autograd.grad((each * upstream).sum(), inputs) for each in (kernel, plain))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("first", [0, 2])
def test_the_kernel_of_pytorch_has_the_gradients_of_the_plain_steps(causal, first):
    """In float32 without padding, also for the last blocks alone. The first block of a causal layer has no sorted
    keys, so its row of the order is 0."""
    torch.manual_seed(0)
    exact = [torch.randn(2, 3, 5, 7, 4, dtype=torch.float64) for _ in range(3)]
    order = torch.rand(2, 3, 5, 5, dtype=torch.float64)
    order = (order.tril(-1) if causal else order)[:, :, first:]
    order = order / order.sum(-1, keepdim=True).clamp(min=1e-9)
    results = []
    for dtype in (torch.float64, torch.float32):
        query, key, value, matrix = (each.to(dtype).requires_grad_() for each in (*exact, order))
        options = {"scale": 0.3, "causal": causal}
        if dtype == torch.float64:
            real = torch.ones(2, 5, 7, dtype=torch.bool)
            context = plain_blocks(query[:, :, first:], key, value, real, matrix, 0.3, causal, 0.0)
        else:
            context = attend_blocks(query[:, :, first:], key, value, None, matrix, **options)
        slopes = torch.randn(context.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
        grads = list(torch.autograd.grad(context, (query, key, value, matrix), slopes))
        if causal:  # a row without earlier blocks stays 0, whatever its gradient
            grads[3] = grads[3].tril(-1 + first)
        results.append((context, *grads))
    for found, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-4)


def test_many_turns_make_it_doubly_stochastic_and_keep_a_permutation():
    order = sinkhorn(torch.randn(2, 3, 9, 9, dtype=torch.float64), real([1] * 9, [1] * 6 + [0] * 3), 50)
    for dim in (-1, -2):
        expected = torch.tensor([[1.0] * 9, [1.0] * 6 + [0.0] * 3], dtype=torch.float64)
        torch.testing.assert_close(order.sum(dim), expected[:, None].expand(2, 3, 9), atol=1e-6, rtol=0)
    moved = torch.eye(5, dtype=torch.float64)[[3, 1, 4, 0, 2]]
    found = sinkhorn((moved * 40)[None, None], real([1] * 5), 7)
    torch.testing.assert_close(found[0, 0], moved, atol=1e-12, rtol=0)


def test_earlier_blocks_worked_out_by_hand():
    logits = torch.tensor([[9.0, 9, 9], [1, 9, 9], [1, 3, 9]], dtype=torch.float64).log()[None, None]
    expected = torch.tensor([[0, 0, 0], [1, 0, 0], [0.25, 0.75, 0]], dtype=torch.float64)
    torch.testing.assert_close(earlier(logits, real([1, 1, 1]))[0, 0], expected)


def test_means_worked_out_by_hand():
    blocks = torch.tensor([[1.0, 3], [5, 7], [10, 99]])[None, None, :, :, None]
    flags = real([[1, 1], [1, 1], [1, 0]])
    assert block_means(blocks, flags).flatten().tolist() == [2, 6, 10]
    assert means_so_far(blocks, flags).flatten().tolist() == [1, 3, 5.199999809265137]  # 26 / 5 in float32


def test_a_place_is_the_mean_of_what_is_real_there():
    """Block 2 has one token: the second place holds three quarters of block 0 and one quarter of nothing."""
    blocks = torch.tensor([[2.0, 4], [6, 99]])[None, None, :, :, None]
    order = torch.tensor([[0.75, 0.25], [0.0, 1.0]])[None, None]
    sorted_, share = sorted_blocks(blocks, real([[1, 1], [1, 0]]), order)
    assert sorted_.flatten().tolist() == [3, 4, 6, 0]
    assert share.flatten().tolist() == [1, 0.75, 1, 0]
    # A row that sums to a half gives half of everything, and the same shares.
    sorted_, share = sorted_blocks(blocks, real([[1, 1], [1, 0]]), order / 2)
    assert sorted_.flatten().tolist() == [1.5, 2, 3, 0]
    assert share.flatten().tolist() == [1, 0.75, 1, 0]


def test_the_identity_is_attention_within_blocks_and_a_permutation_takes_whole_blocks():
    query, key, value = (torch.randn(2, HEADS, 5, 4, 7, dtype=torch.float64) for _ in range(3))
    everything, flags = {"scale": 0.3, "causal": False}, torch.ones(2, 5, 4, dtype=torch.bool)
    same = torch.eye(5, dtype=torch.float64).expand(2, HEADS, 5, 5)
    within = (query @ key.mT * 0.3).softmax(-1) @ value
    torch.testing.assert_close(attend_blocks(query, key, value, flags, same, **everything), within)
    places = [3, 1, 4, 0, 2]
    keys, values = (torch.cat([each, each[:, :, places]], 3) for each in (key, value))
    expected = (query @ keys.mT * 0.3).softmax(-1) @ values
    order = torch.eye(5, dtype=torch.float64)[places].expand(2, HEADS, 5, 5)
    torch.testing.assert_close(attend_blocks(query, key, value, flags, order, **everything), expected)


def test_a_hard_sort_takes_whole_blocks_and_learns_as_the_mixture():
    module, hidden = build(hard_sort=True), torch.randn(2, 19, WIDTH, dtype=torch.float64, requires_grad=True)
    query, key, _, flags, _ = module._blocks(*module.project(hidden), None)
    order = module.order(query, key, flags)
    assert set(order.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(order.sum(-1), torch.ones(2, HEADS, 5).double())
    mixture = build()
    ours, theirs = (
        torch.autograd.grad((each.order(query, key, flags) * torch.arange(5.0)).sum(), hidden, retain_graph=True)[0]
        for each in (module, mixture)
    )
    torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(module(hidden), mixture(hidden))
    weights = module.weights(hidden) @ module.split_heads(module.value(hidden))
    torch.testing.assert_close(module(hidden), module.output(module.merge_heads(weights)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("hard", [False, True])
def test_padding_changes_nothing_with_either_sort(hard, causal):
    module, hidden = build(causal=causal, hard_sort=hard), torch.randn(1, 40, WIDTH, dtype=torch.float64)
    mask = torch.rand(1, 40) < 0.6
    torch.testing.assert_close(module(hidden, Tokens(mask=mask))[mask], module(hidden[mask][None])[0])


def test_noise_is_for_training_only_and_the_same_when_recomputed():
    module, hidden = build(noise=1.0), torch.randn(2, 19, WIDTH, dtype=torch.float64, requires_grad=True)
    check_drawn_in_training_alone(module, hidden)


def test_the_first_block_of_a_causal_layer_sees_nothing_but_itself():
    module, hidden = build(causal=True), torch.randn(1, 19, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(module(hidden)[:, :4], module(hidden[:, :4]))
    weights = module.weights(hidden)[0]
    assert not weights[:, :4, 4:].any()
    assert (weights[:, 4:, :4] > 0).all()


@pytest.mark.parametrize("net", ["linear", "mlp"])
def test_a_sort_net_learns_and_refuses_longer_texts(net):
    module, hidden = build(sort_net=net, most_blocks=5), torch.randn(1, 20, WIDTH, dtype=torch.float64)
    module(hidden).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for name, parameter in module.named_parameters() if "sort" in name)
    with pytest.raises(InputError, match=r"the text has 6 blocks of block_tokens=4, but most_blocks=5; raise one"):
        module(torch.randn(1, 21, WIDTH, dtype=torch.float64))


@pytest.mark.parametrize("net", ["bilinear", "linear", "mlp"])
def test_multiply_adds_are_those_that_pytorch_counts(net):
    config = SinkhornConfig(block_tokens=16, sort_net=net, most_blocks=10)
    module, hidden = config.build(width=WIDTH, heads=HEADS).eval(), torch.zeros(1, 131, WIDTH)
    with FlopCounterMode(display=False) as counter, torch.no_grad():  # an operator that may learn is opaque
        module(hidden)
    cost = config.costs(length=131, width=WIDTH, heads=HEADS)
    assert counter.get_total_flops() == 2 * (cost.projections + cost.mixing)


def test_a_published_encoder_whose_texts_are_one_block_keeps_its_outputs():
    sizes = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 40, "init_std": 0.4}
    source = LongspanModel(LongspanConfig(attention="full", num_attention_heads=2, max_position_embeddings=32, **sizes))
    longer = lengthen(source, {"mechanism": "sinkhorn", "block_tokens": 32}, max_tokens=128)
    assert longer.report.parity_hidden <= 1e-5
    assert longer(torch.randint(61, (1, 128)))[0].shape == (1, 128, 24)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_of_blocks_that_suit_equally_well_the_first_is_taken_behind_padding_too(causal, dtype):
    """Documents of three words, in which blocks repeat each other, so that rounding decided."""
    for width, length in ((24, 41), (48, 150), (64, 90)):
        for _ in range(15):
            module = SinkhornConfig(block_tokens=4, hard_sort=True).build(width=width, heads=2, causal=causal).eval()
            module = module.to(dtype)
            for weight in module.parameters():
                torch.nn.init.normal_(weight)
            hidden = torch.randn(3, width, dtype=dtype)[torch.randint(3, (1, length))]
            padded = torch.cat([torch.randn(1, 7, width, dtype=dtype), hidden], 1)
            mask, alone = torch.arange(length + 7)[None] >= 7, module(hidden)
            found = module(padded, Tokens(mask=mask))[:, 7:]
            torch.testing.assert_close(found / alone.abs().max(), alone / alone.abs().max(), rtol=0, atol=1e-4)


def test_the_first_of_equal_blocks_is_taken():
    order = torch.tensor(
        [[0.2, 0.4, 0.4 + 1e-16, 0.0], [0.1, 0.3, 0.4, 0.2], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64
    )
    assert _first_best(order).flatten().tolist() == [1, 2, 0]
