"""Memory-compressed attention against numbers worked out by hand, in whole texts and step by step."""

from __future__ import annotations

import pytest
import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from longspan.attention import CompressedConfig, FullConfig, Tokens
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForCausalLM
from longspan.ops.attend.blocks import attend_blocks, visible_blocks
from longspan.ops.attend.reference import dense_weights

WIDTH, HEADS = 12, 3


def build(causal=False, **options):
    module = CompressedConfig(**options).build(width=WIDTH, heads=HEADS, causal=causal).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def plain(causal, **options):
    """One channel, values are the inputs, and all keys are 0, so that every slot that is seen weighs the same."""
    module = CompressedConfig(**options).build(width=1, heads=1, causal=causal).double()
    for name in ("query", "key", "value", "output"):
        part = getattr(module, name)
        torch.nn.init.constant_(part.weight, 1.0 if name in ("value", "output") else 0.0)
        torch.nn.init.zeros_(part.bias)
    return module


SEVEN = torch.tensor([1.0, 2, 6, 4, 5, 9, 8], dtype=torch.float64)[None, :, None]


def test_blocks_worked_out_by_hand():
    """Means of 1 2 6, 4 5 9 and 8 are 3, 6 and 8; with the null, 0, there are four slots: 17 / 4 = 4.25."""
    both = plain(False, pooling="mean")(SEVEN)
    torch.testing.assert_close(both.flatten(), torch.full((7,), 4.25, dtype=torch.float64))
    largest = plain(False, pooling="max")(SEVEN)
    torch.testing.assert_close(largest.flatten(), torch.full((7,), 23 / 4, dtype=torch.float64))


def test_a_query_sees_a_block_from_its_last_token_on():
    """Two tokens see the null alone, the third to fifth the mean 3 too, the others also 6: 0, 3/2 and 9/3."""
    expected = torch.tensor([0, 0, 1.5, 1.5, 1.5, 3, 3], dtype=torch.float64)
    module = plain(True, pooling="mean")
    torch.testing.assert_close(module(SEVEN).flatten(), expected)
    state = module.new_state()
    steps = torch.cat([module(SEVEN[:, place : place + 1], state=state) for place in range(7)], 1)
    torch.testing.assert_close(steps.flatten(), expected)
    assert state.tensors["keys"].shape == (1, 1, 2, 1)
    assert state.tensors["open_value"].flatten()[0] == 8
    assert visible_blocks(7, 3, 3, torch.device("cpu")).sum(1).tolist() == [1, 1, 2, 2, 2, 3, 3]


def test_padding_on_the_left_moves_no_block():
    mask = torch.ones(1, 9, dtype=torch.bool)
    mask[:, [0, 4]] = False
    padded = torch.full((1, 9, 1), 100.0, dtype=torch.float64)
    padded[mask] = SEVEN[0]
    for causal in (False, True):
        module = plain(causal)
        found = module(padded, Tokens(mask=mask))
        torch.testing.assert_close(found[mask], module(SEVEN)[0])
        assert not found[~mask].any()


def test_the_convolution_is_that_of_pytorch_grouped_by_heads():
    """Kernel and stride 3, the end filled with zeros: what `torch.nn.functional.conv1d` makes of the keys."""
    module, hidden = build(), torch.randn(2, 10, WIDTH, dtype=torch.float64)
    weight = module.pool_key_weight.permute(0, 3, 2, 1).flatten(0, 1)  # (E, D, kernel), output channels first
    padded = torch.nn.functional.pad(module.key(hidden).mT, (0, 2))
    expected = torch.nn.functional.conv1d(padded, weight, module.pool_key_bias.flatten(), stride=3, groups=HEADS)
    found = module._slots("key", module.split_heads(module.key(hidden)), None)[:, :, 1:]
    torch.testing.assert_close(module.merge_heads(found), expected.mT)


def test_blocks_of_one_token_are_full_attention_with_a_null():
    full = FullConfig().build(width=WIDTH, heads=HEADS, causal=True).double()
    module = CompressedConfig(stride=1, pooling="mean").build(width=WIDTH, heads=HEADS, causal=True).double()
    module.load_state_dict(full.state_dict(), strict=False)
    torch.nn.init.constant_(module.null_key, -1e4)
    module.query.bias.data.fill_(50.0)  # so that the null weighs nothing
    full.load_state_dict({name: tensor for name, tensor in module.state_dict().items() if "null" not in name})
    hidden = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(module(hidden), full(hidden))
    torch.testing.assert_close(module.weights(hidden), full.weights(hidden))


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("length", [1, 6, 23])
@pytest.mark.parametrize("before", [0, 5])
def test_remainders_are_the_dense_reference(size, length, before):
    query = torch.randn(2, 3, length, 4, dtype=torch.float64, requires_grad=True)
    slots = before + 1 + length // size
    key, value = (torch.randn(2, 3, slots, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    mask = torch.ones(2, slots, dtype=torch.bool)
    mask[1, : before // 2] = False
    own = visible_blocks(length, slots - before, size, query.device)
    seen = torch.cat([torch.ones(length, before, dtype=torch.bool), own], 1) & mask[:, None, None]
    theirs = dense_weights(query, key, seen, scale=0.5) @ value
    ours = attend_blocks(query, key, value, size=size, before=before, key_mask=mask if before else None)
    torch.testing.assert_close(ours, theirs)
    upstream, inputs = torch.randn_like(ours), (query, key, value)
    torch.testing.assert_close(*(torch.autograd.grad(each, inputs, upstream) for each in (ours, theirs)))


def test_costs_by_hand():
    """53 tokens have 18 blocks of 3, the last filled up; D = 4. Causal: 1 + ⌊p / 3⌋ for p = 1 to 53."""
    both = CompressedConfig().costs(length=53, width=WIDTH, heads=HEADS)
    assert (both.scores, both.pooling) == (53 * 19, 2 * 54 * 4 * 12)
    causal = CompressedConfig(pooling="max").costs(length=53, width=WIDTH, heads=HEADS, causal=True)
    assert (causal.scores, causal.pooling) == (sum(1 + place // 3 for place in range(1, 54)), 2 * 53 * 12)


def test_a_text_written_after_rows_of_unequal_length_in_uneven_pieces():
    """The rows' unfinished blocks hold different numbers of tokens at every step."""
    module, hidden = build(causal=True), torch.randn(3, 29, WIDTH, dtype=torch.float64)
    mask = torch.arange(29) >= torch.tensor([[0], [4], [11]])
    state, pieces, seen = module.new_state(), [], 0
    for size in (9, 1, 1, 5, 2, 1, 7, 3):
        seen += size
        pieces.append(module(hidden[:, seen - size : seen], Tokens(mask=mask[:, :seen]), state))
    torch.testing.assert_close(torch.cat(pieces, 1), module(hidden, Tokens(mask=mask)))
    assert state.tensors["count"].tolist() == [29, 25, 18]
    assert state.tensors["keys"].shape[2] == 9  # a third of the places


def test_the_state_of_another_mechanism_is_refused():
    with pytest.raises(
        InputError, match=r"state is a DynamicLayer, which keeps no blocks; give attention.new_state\(\)"
    ):
        build(causal=True)(torch.zeros(1, 5, WIDTH).double(), state=DynamicLayer())


def test_windows_and_compressed_layers_take_turns():
    """The published decoder's order: local, compressed, local, compressed, local."""
    layers = [{"layers": [0, 2, 4], "mechanism": "longformer", "left_tokens": 7, "right_tokens": 0}]
    layers.append({"layers": [1, 3], "mechanism": "compressed"})
    sizes = {"vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 2, "init_std": 0.4}
    config = LongspanConfig(num_hidden_layers=5, attention=layers, max_position_embeddings=97, **sizes)
    model, ids = LongspanForCausalLM(config).eval(), torch.randint(3, 61, (2, 13))
    options = {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False}
    with torch.no_grad():
        assert torch.equal(model.generate(ids, **options), model.generate(ids, use_cache=False, **options))
        cache = model(ids, cache=DynamicCache()).cache
    assert [type(layer).__name__ for layer in cache.layers] == ["WindowLayer", "RecurrentLayer"] * 2 + ["WindowLayer"]
