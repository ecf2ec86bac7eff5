"""Every way to put blocks together: read and refused alike, and equal to its blocks applied by hand."""

from __future__ import annotations

import json

import pytest
import torch

from longspan.attention import Tokens, attention_config
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForConditionalGeneration
from longspan.stacks import STACKS, stack_config
from longspan.stacks.block import Block

WIDTH = 6


def block(layer: int) -> Block:
    """A block whose window depends on its layer, with weights of its own."""
    attention = attention_config({"mechanism": "longformer", "left_tokens": layer, "right_tokens": 1})
    options = {"activation_function": "gelu", "eps": 1e-5, "dropout": 0.0, "activation_dropout": 0.0, "pre": layer > 0}
    return Block(attention.build(width=WIDTH, heads=2), inner=10, **options).double()


def one_after_the_other(blocks, hidden, tokens):
    states = [hidden]
    for each in blocks:
        states.append(each(states[-1], tokens))
    return states


BY_HAND = {"sequential": one_after_the_other}
"""Stack → the states before each block and after the last, from its definition."""


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("layers", [0, 1, 3])
def test_a_stack_equals_its_blocks_applied_by_hand(name, layers):
    stack, blocks, seen = STACKS[name]().build(block, layers), [block(layer) for layer in range(layers)], []
    assert len(stack) == layers
    for ours, theirs in zip(blocks, stack, strict=True):
        ours.load_state_dict(theirs.state_dict())
    hidden = torch.randn(2, 13, WIDTH, dtype=torch.float64, requires_grad=True)
    tokens = Tokens(mask=torch.arange(13) < torch.tensor([[13], [7]]))
    states = BY_HAND[name](blocks, hidden, tokens)
    output = stack(hidden, tokens, seen=seen)
    torch.testing.assert_close([output, *seen], [states[-1], *states])
    (ours,), (theirs,) = (torch.autograd.grad(each.square().sum(), hidden) for each in (output, states[-1]))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_is_read_from_its_name_plain_data_or_itself(name):
    made = STACKS[name]()
    assert made.stack == name
    for spec in (name, {"stack": name}, json.loads(json.dumps(made.to_dict())), made):
        assert stack_config(spec) == made
    assert LongspanConfig(stack=name).stack == made.to_dict()
    with pytest.raises(InputError, match=r"unknown key 'stack\.blocks'"):
        stack_config({"stack": name, "blocks": 3})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sequentail", "stack is 'sequentail', which is unknown; did you mean 'sequential'"),
        ({"blocks": 3}, "stack is {'blocks': 3}; give a name of sequential"),
        (3, "stack is 3; give a name of sequential"),
    ],
)
def test_a_wrong_stack_is_named(spec, message):
    for read in (stack_config, lambda spec: LongspanConfig(stack=spec)):
        with pytest.raises(InputError, match=message):
            read(spec)


def test_layers_of_a_decoder_are_written_by_ranges():
    windows = {"layers": "0-1", "mechanism": "longformer", "left_tokens": {"per_layer": [2, 4]}}
    sizes = {"vocab_size": 31, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "decoder_layers": 3}
    config = LongspanConfig(decoder_attention=[windows, {"layers": "2-", "mechanism": "full"}], **sizes)
    model = LongspanForConditionalGeneration(config)
    built = [each.attention.config for each in model.decoder.layers]
    assert [each.mechanism for each in built] == ["longformer", "longformer", "full"]
    assert [each.left_tokens for each in built[:2]] == [2, 4]
    assert [config.decoder_layer_attention(layer) for layer in range(3)] == built
    with pytest.raises(InputError, match="layers names layer 3, but there are layers 0 to 2"):
        LongspanConfig(decoder_attention=[{"layers": "0-3", "mechanism": "full"}], **sizes)
