"""The layers that mechanisms keep between steps, against plain lists of everything that was put in."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from longspan.attention.parts.state import ROOM, SLACK, GrowingLayer, RecurrentLayer, SourceLayer, WindowLayer
from longspan.errors import InputError


def pieces(*lengths, rows=2):
    return [torch.randn(rows, 3, length, 5) for length in lengths]


def bytes_of(layer):
    return layer.keys.untyped_storage().nbytes() + layer.values.untyped_storage().nbytes()


CHANGES = {
    "crop": lambda layer: layer.crop(-1),
    "reorder": lambda layer: layer.reorder_cache(torch.tensor([1, 1])),
    "select": lambda layer: layer.batch_select_indices(torch.tensor([1, 0])),
    "repeat": lambda layer: (layer.batch_repeat_interleave(2), layer.batch_select_indices(torch.tensor([0, 3]))),
    "reset": lambda layer: layer.reset(),
    "nothing": lambda layer: None,
}


@given(
    st.lists(st.tuples(st.integers(1, 2 * ROOM), st.sampled_from(list(CHANGES)), st.integers(0, 2)), max_size=7),
)
def test_a_growing_layer_holds_what_the_one_of_transformers_holds(steps):
    """In steps with gradients, without, and in inference mode, whatever is done to the tensors in between."""
    own, theirs = GrowingLayer(), DynamicLayer()
    for size, change, mode in steps:
        states = torch.randn(2, 2, size, 3), torch.randn(2, 2, size, 5)
        with (torch.enable_grad, torch.no_grad, torch.inference_mode)[mode]():
            for found, expected in zip(own.update(*states), theirs.update(*states), strict=True):
                assert torch.equal(found, expected)
        CHANGES[change](own)
        with torch.inference_mode(theirs.is_initialized and theirs.keys.is_inference()):
            CHANGES[change](theirs)  # which writes in place in transformers 5.17
        assert own.get_seq_length() == theirs.get_seq_length()


def test_steps_of_a_growing_layer_copy_nothing_until_it_is_full():
    layer, addresses = GrowingLayer(), set()
    with torch.no_grad():
        layer.update(torch.randn(1, 2, 1000, 3), torch.randn(1, 2, 1000, 3))
        for _ in range(ROOM + 1):
            before = layer.update(torch.ones(1, 2, 1, 3), torch.ones(1, 2, 1, 3))
            addresses.add((before[0].data_ptr(), before[1].data_ptr()))
        assert len(addresses) == 1
        # Room for 256 tokens behind the first 1,001, an eighth of which is less.
        assert bytes_of(layer) == 2 * 2 * (1001 + ROOM) * 3 * 4
        layer.update(torch.zeros(1, 2, 1, 3), torch.zeros(1, 2, 1, 3))
        assert layer.keys.data_ptr() not in addresses
    assert before[0].shape[2] == 1000 + ROOM + 1
    assert bool((before[0][:, :, 1000:] == 1).all())


def test_copies_of_a_growing_layer_grow_apart():
    layer = GrowingLayer()
    with torch.no_grad():
        for size in (5, 1):
            layer.update(torch.zeros(1, 1, size, 2), torch.zeros(1, 1, size, 2))
        other = copy.deepcopy(layer)
        layer.update(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2))
        other.update(torch.full((1, 1, 1, 2), 2.0), torch.full((1, 1, 1, 2), 2.0))
    assert layer.keys[0, 0, :, 0].tolist() == [0, 0, 0, 0, 0, 0, 1]
    assert other.keys[0, 0, :, 0].tolist() == [0, 0, 0, 0, 0, 0, 2]


def test_a_batch_of_another_size_is_refused_as_by_transformers():
    layer = GrowingLayer()
    with torch.no_grad():
        layer.update(torch.zeros(2, 1, 3, 2), torch.zeros(2, 1, 3, 2))
        with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
            layer.update(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2))


@given(
    st.integers(0, 23),
    st.lists(st.tuples(st.sampled_from([0, 1, 1, 1, 2, 17, 200]), st.integers(0, 9)), max_size=30),
    st.booleans(),
)
def test_a_window_gives_what_is_in_reach_whatever_the_pieces_and_the_way_back(reach, steps, gradients):
    layer, everything = WindowLayer(reach), torch.zeros(2, 3, 0, 5)
    with torch.set_grad_enabled(gradients):
        for length, back in steps:
            new = torch.randn(2, 3, length, 5)
            past = everything.shape[2]
            everything = torch.cat([everything, new], 2)
            expected = everything[:, :, max(0, past - reach) :]
            assert layer.get_mask_sizes(length) == (expected.shape[2], max(0, past - reach))
            keys, values = layer.update(new, -new)
            assert torch.equal(keys, expected)
            assert torch.equal(values, -expected)
            back = min(back, everything.shape[2])
            layer.crop(-back)
            everything = everything[:, :, : everything.shape[2] - back]
            assert layer.get_seq_length() == everything.shape[2]


@torch.no_grad()
def test_a_window_is_the_sliding_layer_of_transformers_in_constant_memory():
    ours, theirs = WindowLayer(12), DynamicSlidingWindowLayer(13)
    sizes = set()
    for piece in pieces(40, *[1] * 500):
        mine, his = ours.update(piece, piece + 1), theirs.update(piece, piece + 1)
        assert torch.equal(mine[0], his[0][:, :, -mine[0].shape[2] :])
        assert torch.equal(mine[1], his[1][:, :, -mine[1].shape[2] :])
        assert ours.get_mask_sizes(1) == theirs.get_mask_sizes(1)
        sizes.add(bytes_of(ours))
    assert sizes == {2 * 2 * 3 * 2 * (12 + SLACK) * 5 * 4}


@torch.no_grad()
def test_rows_of_a_window_move_together():
    layer = WindowLayer(4)
    cache = DynamicCache()
    cache.layers.append(layer)
    cache.reorder_cache(torch.tensor([0]))  # nothing seen yet, nothing to do
    first, second, third = pieces(6, 3, 2)
    layer.update(first, -first)
    cache.reorder_cache(torch.tensor([1, 1]))
    layer.update(second, -second)
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0, 3]))
    keys, values = layer.update(third, -third)
    expected = torch.cat([first[[1, 1]], second, third], 2)[:, :, 5:]
    assert torch.equal(keys, expected)
    assert torch.equal(values, -expected)
    assert cache.is_croppable
    cache.reset()
    assert layer.get_seq_length() == 0
    assert torch.equal(layer.update(third, third)[0], third)


def test_gradients_flow_back_through_a_window():
    layer, new = WindowLayer(3), [piece.requires_grad_() for piece in pieces(4, 1, 1)]
    outputs = [layer.update(piece, piece)[0] for piece in new]
    sum(output.square().sum() for output in outputs).backward()
    seen = torch.tensor([1.0, 2.0, 3.0, 3.0])  # how often each of the first four came back
    torch.testing.assert_close(new[0].grad, 2 * new[0].detach() * seen[:, None])


def test_a_window_cannot_go_back_further_than_it_holds():
    layer = WindowLayer(3)
    layer.update(*pieces(500, 500))
    copy.deepcopy(layer).crop(-SLACK)
    with pytest.raises(InputError, match=r"tokens_to_remove=-65 .* for -64 to 0"):
        layer.crop(-SLACK - 1)
    with pytest.raises(InputError, match="tokens_to_remove=2 "):
        layer.crop(2)


def test_a_sum_moves_its_rows_and_refuses_to_go_back():
    layer = RecurrentLayer()
    cache = DynamicCache()
    cache.layers.append(layer)
    assert cache.get_seq_length() == 0
    total, norm = torch.randn(2, 3, 5, 5), torch.randn(2, 3, 5)
    layer.advance(7, total=total, norm=norm)
    cache.reorder_cache(torch.tensor([1, 0, 1]))
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0, 2]))
    assert torch.equal(layer.tensors["total"], total[[1, 0]])
    assert torch.equal(layer.tensors["norm"], norm[[1, 0]])
    assert (cache.get_seq_length(), layer.get_mask_sizes(2), cache.get_max_length()) == (7, (9, 0), -1)
    assert not cache.is_croppable
    cache.crop(0)
    with pytest.raises(InputError, match="tokens_to_remove=-1 cannot be taken back"):
        cache.crop(-1)
    with pytest.raises(InputError, match="keeps no keys and values"):
        layer.update(*pieces(1, 1))
    cache.reset()
    assert (cache.get_seq_length(), layer.tensors) == (0, {})


def test_a_source_stays_with_its_document():
    layer = SourceLayer()
    (source,) = pieces(6)
    layer.update(source, source)
    layer.reorder_cache(torch.tensor([1, 0]))
    layer.batch_repeat_interleave(3)
    layer.batch_select_indices(torch.tensor([0, 4]))
    assert torch.equal(layer.keys, source)
