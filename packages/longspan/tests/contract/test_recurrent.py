"""Every causal mechanism behind a memory: outputs are the last rows of the mechanism on the memory and the segment."""

from __future__ import annotations

from functools import partial

import torch

from longspan.attention import Tokens
from longspan.stacks import RecurrentConfig, Sizes
from longspan.stacks.block import Block, BlockState

from .forms import HEADS, WIDTH

MEMORY, SEGMENTS = 6, (9, 1, 0, 14, 7)


def test_every_causal_mechanism_goes_on_from_segment_to_segment(causal_form):
    options = {"activation_function": "gelu", "eps": 1e-5, "dropout": 0.0, "activation_dropout": 0.0, "pre": True}

    def block(layer):
        return Block(causal_form.build(), inner=10, **options).double()

    stack = RecurrentConfig(memory_tokens=MEMORY).build(block, 2, Sizes(width=WIDTH, heads=HEADS, causal=True)).eval()
    text, mask = torch.randn(2, sum(SEGMENTS), WIDTH, dtype=torch.float64), torch.ones(2, sum(SEGMENTS)).bool()
    mask[1, :5] = False
    for learns in (True, False):
        with torch.set_grad_enabled(learns):
            block_states = [BlockState(stack.new_state(layer)) for layer in range(2)]
            memories, end = [text[:, :0]] * 2, 0
            for length in SEGMENTS:
                end += length
                segment, tokens = text[:, end - length : end], Tokens(mask=mask[:, :end])
                ours = stack(segment, tokens, block_states=block_states).states
                torch.testing.assert_close(ours, by_definition(stack, memories, segment, mask[:, :end]))
    assert [state.own.get_seq_length() for state in block_states] == [len(text[0])] * 2


def by_definition(stack, memories, hidden, mask):
    """The segment by whole calls of the mechanism; the memories change in place."""
    for layer, each in enumerate(stack):
        both = torch.cat([memories[layer], hidden], 1)
        memories[layer] = both[:, max(0, both.shape[1] - MEMORY) :].detach()
        tokens = Tokens(mask=mask[:, mask.shape[1] - both.shape[1] :])
        attended = partial(each.attention, tokens=tokens)(each.attention_norm(both))
        hidden = hidden + attended[:, both.shape[1] - hidden.shape[1] :]
        hidden = hidden + each.feed_forward(each.feed_forward_norm(hidden))
    return hidden


def test_every_causal_mechanism_goes_on_behind_a_compressed_memory(causal_form):
    """A mean of two states that have left the memory stands for them, one position before those that have not."""
    options = {"activation_function": "gelu", "eps": 1e-5, "dropout": 0.0, "activation_dropout": 0.0, "pre": True}

    def block(layer):
        return Block(causal_form.build(), inner=10, **options).double()

    config = RecurrentConfig(memory_tokens=MEMORY, compressed_tokens=2, rate=2, compression="mean")
    stack = config.build(block, 2, Sizes(width=WIDTH, heads=HEADS, causal=True)).eval()
    text = torch.randn(2, sum(SEGMENTS), WIDTH, dtype=torch.float64)
    for learns in (True, False):
        with torch.set_grad_enabled(learns):
            block_states = [BlockState(stack.new_state(layer)) for layer in range(2)]
            memories = [([], []) for _ in range(2)]
            for segment in text.split(SEGMENTS, 1):
                ours, hidden = stack(segment, Tokens(), block_states=block_states).states, segment
                for each, (old, recent) in zip(stack, memories, strict=True):
                    both = torch.cat([torch.stack([*old, *recent], 1), hidden], 1) if recent else hidden
                    recent += hidden.detach().unbind(1)
                    while len(recent) >= MEMORY + 2:
                        old.append((recent.pop(0) + recent.pop(0)) / 2)
                    del old[:-2]
                    attended = each.attention(each.attention_norm(both), tokens=Tokens())
                    hidden = hidden + attended[:, both.shape[1] - hidden.shape[1] :]
                    hidden = hidden + each.feed_forward(each.feed_forward_norm(hidden))
                torch.testing.assert_close(ours, hidden)
