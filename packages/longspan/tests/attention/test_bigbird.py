"""BigBird against loops over its definition, and its published form against transformers' own layer."""

from __future__ import annotations

import pytest
import torch
from transformers import BigBirdConfig, BigBirdModel
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

from longspan.attention import MECHANISMS, Tokens
from longspan.errors import InputError
from longspan.ops.attend.reference import dense_weights
from longspan.patterns import DrawnBlocks, PlannedBlocks


def definition(config, heads, length, flagged=()):
    """`(H, T, T)` bool: who sees whom in a document of `length` tokens, pair by pair."""
    size, extra, sides, ends = config.block_tokens, config.extra_tokens, config.side_blocks, config.global_blocks
    last = (length - extra - 1) // size

    def block(token):
        return (token - extra) // size

    def is_global(token):
        at_an_end = token >= extra and (block(token) < ends or block(token) > last - ends)
        return token < extra or at_an_end or token in flagged

    seen = torch.zeros(heads, length, length, dtype=torch.bool)
    for head in range(heads):
        kind = PlannedBlocks if config.random_scope == "plan" else DrawnBlocks
        more = {"ends": ends, "within": 1024 // size - ends if config.random_scope == "prefix1024" else 0}
        drawn = kind(size, config.random_blocks, config.seed * 1024 + head, extra + ends * size, sides, **more)
        drawn = drawn.dense(length)
        for i in range(length):
            for j in range(length):
                near = i >= extra and j >= extra and abs(block(i) - block(j)) <= sides
                seen[head, i, j] = is_global(i) or is_global(j) or near or drawn[i, j]
    return seen


@pytest.mark.parametrize(
    "options",
    [
        {"block_tokens": 3, "random_blocks": 2},
        {"block_tokens": 4, "random_blocks": 1, "seed": 5, "side_blocks": 0, "global_blocks": 2},
        {"block_tokens": 3, "random_blocks": 0, "extra_tokens": 5, "global_blocks": 0},
        {"block_tokens": 2, "random_blocks": 3, "extra_tokens": 3, "side_blocks": 2},
        {"block_tokens": 3, "random_blocks": 2, "random_scope": "plan"},
        {"block_tokens": 2, "random_blocks": 3, "random_scope": "prefix1024"},
    ],
)
@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_every_pair_is_seen_as_the_definition_says(options, side):
    config = MECHANISMS["bigbird"](**options)
    module = config.build(width=6, heads=2).double()
    for length in (1, 2, 7, 41, 60):
        padding = 0 if side == "none" else 9
        first = padding if side == "left" else 0
        hidden = torch.randn(1, length + padding, 6, dtype=torch.float64)
        place = torch.arange(length + padding)[None]
        flagged = {4, 20} if length > 20 else set()
        is_global = torch.tensor([[int(p) - first in flagged for p in place[0]]])
        mask = None if side == "none" else (place >= first) & (place < first + length)
        own = hidden[:, first : first + length]
        query, key, value = module.project(own)
        weights = dense_weights(query, key, definition(config, 2, length, flagged)[None], scale=3**-0.5)
        expected = module.output(module.merge_heads(weights @ value))
        got = module(hidden, Tokens(mask=mask, is_global=is_global))[:, first : first + length]
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("tokens", [4096, 4033, 4032, 700, 256, 193, 64, 1])
def test_every_block_sees_so_many_random_blocks(tokens):
    """With the published sizes, on weights: window, global and as many random blocks as there are, at most 3."""
    module = MECHANISMS["bigbird"]().build(width=4, heads=2)
    blocks, pattern = -(-tokens // 64), module.pattern.of_length(tokens)
    assert pattern == module.pattern.of_length(blocks * 64)
    place = torch.arange(0, tokens, 64)
    seen = pattern.visible(place[:, None], place)
    for row in range(1, blocks - 1):
        near = {other for other in range(blocks) if abs(other - row) <= 1}
        room = len(set(range(1, blocks - 1)) - near)
        for head in range(2):
            found = set(seen[head, row].nonzero()[:, 0].tolist())
            assert near <= found
            assert not (found - near) & {0, blocks - 1}
            assert len(found - near) == min(3, room)


def test_a_batch_of_mixed_lengths_is_each_of_its_documents_alone():
    module = MECHANISMS["bigbird"](block_tokens=3, random_blocks=2).build(width=6, heads=2).double()
    lengths = [61, 40, 61, 3, 0, 23]
    hidden = torch.randn(6, 61, 6, dtype=torch.float64)
    place = torch.arange(61)
    right = place < torch.tensor(lengths)[:, None]
    for mask in (right, right.flip(1)):
        source = hidden.clone().requires_grad_()
        together = module(source, Tokens(mask=mask))
        grad = torch.autograd.grad((together * mask[..., None]).square().sum(), source)[0]
        for row, length in enumerate(lengths):
            if not length:
                continue
            own = hidden[row][mask[row]][None].requires_grad_()
            alone = module(own)
            torch.testing.assert_close(together[row][mask[row]], alone[0])
            torch.testing.assert_close(grad[row][mask[row]], torch.autograd.grad(alone.square().sum(), own)[0][0])


def test_random_blocks_differ_between_heads_and_seeds():
    configs = [MECHANISMS["bigbird"](block_tokens=2, seed=seed) for seed in (0, 1)]
    patterns = [config.build(width=8, heads=2).pattern for config in configs]
    masks = [pattern.head(head).dense(128) for pattern in patterns for head in (0, 1)]
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == 4


CASES = [
    # block, random blocks, heads, longest input, length, layer
    (64, 3, 2, 4096, 1024, 2),  # a plan of its own, in which the last block is drawn as well as global
    (64, 2, 2, 1024, 1024, 1),  # the same, in which neighbours of the last rows are drawn
    (64, 3, 1, 4096, 3072, 5),
    (64, 3, 1, 4096, 1920, 7),  # draws from the first 2r + 5 blocks
    (8, 2, 3, 512, 100, 4),  # padded to blocks
    (4, 3, 2, 64, 61, 0),
]


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("size", "count", "heads", "longest", "length", "layer"), CASES)
def test_the_published_form_is_what_transformers_computes(size, count, heads, longest, length, layer, training):
    width = 8 * heads
    sizes = {"hidden_size": width, "num_attention_heads": heads, "max_position_embeddings": longest}
    theirs = BigBirdBlockSparseAttention(
        BigBirdConfig(**sizes, block_size=size, num_random_blocks=count), seed=layer
    ).double()
    config = MECHANISMS["bigbird"](
        block_tokens=size, random_blocks=count, random="transformers", seed=layer, drawn_tokens=longest
    )
    ours = config.build(width=width, heads=heads).double()
    for name in ("query", "key", "value"):
        getattr(ours, name).load_state_dict(getattr(theirs, name).state_dict())
    hidden = 3 * torch.randn(2, length, width, dtype=torch.float64)
    mask = torch.arange(length) < torch.tensor([[length], [length - length // 3]])
    padded = torch.nn.functional.pad(mask, (0, -length % size)).double()
    blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(padded, size)
    whole = torch.nn.functional.pad(hidden, (0, 0, 0, -length % size))
    want, _ = theirs.train(training)(whole, band, rows, columns, blocked, blocked)
    tokens = Tokens(mask=mask)
    torch.testing.assert_close(ours.train(training)(hidden, tokens), ours.output(want[:, :length]))
    value = ours.split_heads(ours.value(hidden))
    torch.testing.assert_close(ours.merge_heads(ours.weights(hidden, tokens) @ value), want[:, :length])


def test_gradients_of_the_published_form_are_those_of_its_dense_weights():
    config = MECHANISMS["bigbird"](block_tokens=3, random_blocks=2, random="transformers", drawn_tokens=64)
    module, hidden = config.build(width=6, heads=2).double(), torch.randn(2, 41, 6, dtype=torch.float64)
    tokens = Tokens(mask=torch.arange(41) < torch.tensor([[41], [30]]))
    results = []
    for dense in (False, True):
        source = hidden.clone().requires_grad_()
        output = module(source, tokens)
        if dense:
            values = module.split_heads(module.value(source))
            output = module.output(module.merge_heads(module.weights(source, tokens) @ values))
        grads = torch.autograd.grad(output.square().sum(), [source, *module.parameters()])
        results.append((output, *grads))
    torch.testing.assert_close(*results)


def test_short_inputs_of_the_published_form_have_full_attention():
    config = MECHANISMS["bigbird"](block_tokens=4, random_blocks=2, random="transformers")
    module, hidden = config.build(width=6, heads=2), torch.randn(1, 36, 6)
    full = MECHANISMS["full"]().build(width=6, heads=2)
    full.load_state_dict(module.state_dict())
    for length in (0, 1, 36):
        torch.testing.assert_close(module(hidden[:, :length]), full(hidden[:, :length]))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"random": "transformers", "side_blocks": 2}, "side_blocks=2 is not what transformers"),
        ({"random": "transformers", "extra_tokens": 4}, "extra_tokens=4 is not what transformers"),
        ({"random": "never"}, "random is 'never'"),
        ({"random": "transformers", "random_scope": "plan"}, "random_scope='plan' belongs to random='paper'"),
        ({"extra_tokens": 4, "random_scope": "prefix1024"}, "extra_tokens=4 come before"),
        ({"block_tokens": 1024, "random_scope": "prefix1024"}, "no block to draw with block_tokens=1024"),
        ({"block_tokens": 0}, "block_tokens is 0"),
        ({"random_blocks": 300}, "random_blocks is 300"),
    ],
)
def test_options_that_do_not_fit_are_named(options, says):
    with pytest.raises(InputError, match=says):
        MECHANISMS["bigbird"](**options)


def test_what_the_published_form_cannot_do_is_refused():
    module = MECHANISMS["bigbird"](random="transformers").build(width=6, heads=2)
    with pytest.raises(InputError, match="random='paper'"):
        module(torch.zeros(1, 5, 6), Tokens(is_global=torch.ones(1, 5, dtype=torch.bool)))
    large = MECHANISMS["bigbird"](random="transformers", block_tokens=256).build(width=6, heads=2)
    with pytest.raises(InputError, match="random_blocks=3 are more than transformers can draw at 3072 tokens"):
        large(torch.zeros(1, 3072, 6))
