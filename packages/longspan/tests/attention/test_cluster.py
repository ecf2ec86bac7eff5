"""Chunks of tokens sorted by cluster: an order worked out by hand, full attention, blocks, and counts of weights."""

from __future__ import annotations

import pytest
import torch

from longspan.attention import ClusterConfig, FullConfig, Tokens
from longspan.checkpoints import lengthen
from longspan.models import LongspanConfig, LongspanModel
from longspan.ops import attend
from longspan.patterns import Blocks

WIDTH, HEADS = 6, 2


def build(**options):
    torch.manual_seed(1)
    return ClusterConfig(**options).build(width=WIDTH, heads=HEADS).double()


def test_chunks_by_hand():
    """States along two directions, of tokens 0, 2, 3, 6 and of 1, 4, 5; token 3 is padded. Sorted: 0 2 6 1 4 5, so that
    chunks of two are 0 2, 6 1 and 4 5."""
    module = build(clusters=2, chunk_tokens=2)
    ways = torch.tensor([[5.0, -1, -1, -1, -1, -1], [-1, 5, -1, -1, -1, -1]], dtype=torch.float64)
    module.centroids.centres.copy_(ways / ways.norm(dim=-1, keepdim=True))
    hidden = ways[[0, 1, 0, 0, 1, 1, 0]][None] * torch.arange(1, 8)[None, :, None]
    mask = torch.arange(7)[None] != 3
    seen = module.weights(hidden, Tokens(mask=mask))[0, 1] > 0
    by_hand = {0: [0, 2], 2: [0, 2], 6: [1, 6], 1: [1, 6], 4: [4, 5], 5: [4, 5]}
    assert {token: seen[token].nonzero().flatten().tolist() for token in by_hand} == by_hand


def test_a_text_of_one_chunk_has_full_attention():
    module, full = build(clusters=3, chunk_tokens=11, side_chunks=1), FullConfig().build(width=WIDTH, heads=HEADS)
    full.double().load_state_dict({name: each for name, each in module.state_dict().items() if "centroids" not in name})
    for length, equal in ((22, True), (23, False)):
        hidden = torch.randn(2, length, WIDTH, dtype=torch.float64)
        assert torch.allclose(module(hidden), full(hidden)) == equal == module.config.lengthening(length).covers


def test_one_cluster_leaves_blocks_of_the_text():
    module, hidden = build(clusters=1, chunk_tokens=5, side_chunks=1), torch.randn(2, 33, WIDTH, dtype=torch.float64)
    blocks = attend(*module.project(hidden), pattern=Blocks(5, 1, 1), backend="reference")
    torch.testing.assert_close(module(hidden), module.output(module.merge_heads(blocks)))


def test_centroids_decide_what_is_seen_and_the_order_of_the_text_what_is_not():
    """Shuffling a text shuffles the answers where every cluster is within one chunk; other centroids change them."""
    module, hidden = build(clusters=3, chunk_tokens=40), torch.randn(1, 31, WIDTH, dtype=torch.float64)
    order = torch.randperm(31)
    torch.testing.assert_close(module(hidden)[:, order], module(hidden[:, order]))
    module = build(clusters=3, chunk_tokens=7)
    before = module(hidden)
    torch.nn.init.normal_(module.centroids.centres)
    assert not torch.allclose(module(hidden), before)


@pytest.mark.parametrize("sides", [0, 1, 3])
@pytest.mark.parametrize("length", [0, 1, 4, 5, 6, 10, 33])
def test_scores_are_the_weights_that_there_are(length, sides):
    module = build(clusters=4, chunk_tokens=5, side_chunks=sides)
    counted = int((module.weights(torch.randn(1, length, WIDTH, dtype=torch.float64)) > 0).sum()) / HEADS
    assert module.config.scores_per_token(length) * length == pytest.approx(counted)


def test_products_with_centroids_are_counted():
    cost = ClusterConfig(clusters=5, chunk_tokens=3).costs(length=7, width=WIDTH, heads=HEADS)
    assert cost.mixing - 2 * WIDTH * cost.scores == WIDTH * 5 * 7


def test_global_tokens_are_seen_wherever_they_are_sorted():
    module, hidden = build(clusters=4, chunk_tokens=3), torch.randn(2, 29, WIDTH, dtype=torch.float64)
    mask, is_global = torch.arange(29) < torch.tensor([[29], [17]]), torch.arange(29) == torch.tensor([[20], [4]])
    weights = module.weights(hidden, Tokens(mask=mask, is_global=is_global))
    for row, token in ((0, 20), (1, 4)):
        assert (weights[row, :, mask[row], token] > 0).all()
        assert (weights[row, :, token, mask[row]] > 0).all()


def test_layers_between_windows_start_from_published_weights():
    sizes = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 3, "intermediate_size": 40, "init_std": 0.4}
    source = LongspanModel(LongspanConfig(num_attention_heads=2, max_position_embeddings=32, attention="full", **sizes))
    layers = [
        {"layers": "0,2", "mechanism": "longformer", "left_tokens": 32, "right_tokens": 32},
        {"layers": 1, "mechanism": "cluster", "clusters": 4, "chunk_tokens": 16},
    ]
    longer = lengthen(source, layers, max_tokens=128)
    assert longer.report.parity_hidden <= 1e-5
    assert longer(torch.randint(61, (1, 128)))[0].shape == (1, 128, 24)
