"""Every way to put blocks together: read and refused alike, and equal to its blocks applied by hand."""

from __future__ import annotations

import copy
import json
import math
from functools import partial

import pytest
import torch

from counted import Work, exponent
from longspan.attention import Tokens, attention_config
from longspan.errors import InputError
from longspan.models import LongspanConfig, LongspanForConditionalGeneration
from longspan.stacks import STACKS, Sizes, StackTokens, stack_config
from longspan.stacks.block import Block
from walked_tree import nodes_around

WIDTH = 6


def block(layer: int, *, pre: bool = True, causal: bool = False, mechanism=None, **reading) -> Block:
    """A block whose window depends on its layer, with weights of its own."""
    attention = mechanism or attention_config({"mechanism": "longformer", "left_tokens": layer, "right_tokens": 1})
    options = {"activation_function": "gelu", "eps": 1e-5, "dropout": 0.0, "activation_dropout": 0.0, "pre": pre}
    options |= reading
    return Block(attention.build(width=WIDTH, heads=2, causal=causal), inner=10, **options).double()


def one_after_the_other(stack, hidden, tokens):
    states = [hidden]
    for each in stack:
        states.append(each(states[-1], tokens))
    return states


def two_streams(stack, hidden, tokens):
    """arXiv 2001.04451, equation 9, with the LayerNorms of the authors' code."""
    states, first, second = [], hidden, hidden
    for each in stack:
        states.append((first + second) / 2)
        first = first + each.attention(each.attention_norm(second), tokens)
        second = second + each.feed_forward(each.feed_forward_norm(first))
    joined = torch.nn.functional.layer_norm(torch.cat([first, second], -1), (2 * WIDTH,))
    return [*states, joined @ stack.join.weight.T + stack.join.bias]


def one_again_and_again(stack, hidden, tokens):
    """arXiv 1807.03819, equations 4 and 5: before every step each token is told its place and the step."""
    states = [hidden]
    for step in range(1, stack.steps + 1):
        given = states[-1].clone()
        for row, real in enumerate(tokens.mask.cumsum(1).sub(1).tolist()):
            for token, place in enumerate(real):
                for pair in range(WIDTH // 2):
                    wave = 10_000 ** (-2 * pair / WIDTH)
                    given[row, token, 2 * pair] += math.sin(place * wave) + math.sin(step * wave)
                    given[row, token, 2 * pair + 1] += math.cos(place * wave) + math.cos(step * wave)
        states.append(stack[0](given, tokens))
    return states


def star(stack, hidden, tokens):
    """arXiv 1902.09113, algorithm 1, token by token; padded tokens are zeros."""
    states, embedded = [hidden], hidden
    relays = [row[real].mean(0) for row, real in zip(hidden, tokens.mask, strict=True)]
    for step in stack:
        rows = []
        for row, count in enumerate(tokens.mask.sum(1).tolist()):
            tokens_now, new = states[-1][row], torch.zeros_like(hidden[row])
            for place in range(count):
                near = [tokens_now[i] for i in (place - 1, place, place + 1) if 0 <= i < count]
                context = torch.stack([*near, embedded[row, place], relays[row]])
                new[place] = normalized(looked_up(step.ring, tokens_now[place], context).relu())
            relays[row] = normalized(
                looked_up(step.relay, relays[row], torch.stack([relays[row], *new[:count]])).relu()
            )
            rows.append(new)
        states.append(torch.stack(rows))
    return states


def looked_up(weights, query, context, heads=2, added=None):
    """Multi-head attention of one vector over some, with vectors `added` to the keys of each head."""
    found = []
    for head in torch.arange(WIDTH).chunk(heads):
        own = weights.query.weight[head] @ query
        scores = torch.stack([weights.key.weight[head] @ each @ own for each in context]) / (WIDTH / heads) ** 0.5
        scores = scores if added is None else scores + added @ own / (WIDTH / heads) ** 0.5
        found.append(
            sum(s * (weights.value.weight[head] @ each) for s, each in zip(scores.softmax(0), context, strict=True))
        )
    return weights.output.weight @ torch.cat(found)


def normalized(vector):
    return (vector - vector.mean()) / (vector.var(correction=0) + 1e-5).sqrt()


def parts_apart(stack, hidden, tokens):
    """arXiv 2005.00697, section 3: three quarters of the layers read what stands before and behind the border alone."""
    states = [hidden]
    for layer, each in enumerate(stack):
        rows = []
        for state, real, border in zip(states[-1], tokens.mask, tokens.border.tolist(), strict=True):
            borders = [0, border] if layer < len(stack) * 3 // 4 else [0]
            parts = [slice(start, end) for start, end in zip(borders, [*borders[1:], 13], strict=True)]
            rows.append(torch.cat([each(state[None, part], Tokens(mask=real[None, part]))[0] for part in parts]))
        states.append(torch.stack(rows))
    return states


def top_down(stack, hidden, tokens):
    """arXiv 2203.07586, section 2, segment by segment: the last third of the layers reads means of `kernel` tokens."""
    states, (kernel, stride) = [hidden], (OPTIONS["top_down"][name] for name in ("kernel", "stride"))
    for layer in range(len(stack) * 2 // 3):
        states.append(stack[layer](states[-1], tokens))
    if len(stack) == 0:
        return states
    rows = []
    for row, count in zip(states[-1], tokens.mask.sum(1).tolist(), strict=True):
        starts = [0] + [start for start in range(stride, count, stride) if start + kernel - stride < count]
        means = [row[start : min(start + kernel, count)].mean(0) for start in starts]
        segments = torch.stack(means) + stack.segments.position.weight[: len(starts)]
        for each in stack.segments.layers:
            segments = each(segments[None], Tokens())[0]
        rows.append(stack.segments.norm(segments))
    for layer in range(len(stack) * 2 // 3, len(stack)):
        each, found = stack[layer], states[-1]
        found = found + each.attention(each.attention_norm(found), tokens)
        read = [each.cross_attention(token[None], row[None])[0] for token, row in zip(found, rows, strict=True)]
        found = found + each.cross_attention_norm(torch.stack(read))
        states.append(found + each.feed_forward(each.feed_forward_norm(found)))
    return states


def binary_partition(stack, hidden, tokens):
    """arXiv 1911.04070, section 3, node by node: spans begin as zeros; padded tokens are zeros."""
    states, config = [hidden], stack.config
    rows = []
    for row, count in zip(hidden, tokens.mask.sum(1).tolist(), strict=True):
        counts, _ = nodes_around(count, 0, 1, 0, False)
        nodes = {(0, token): row[token] for token in range(count)}
        nodes |= {(level, m): torch.zeros_like(row[0]) for level in range(1, len(counts)) for m in range(counts[level])}
        rows.append(nodes)
    labels, own_labels = (config.neighbours, config.clip_levels), 2 * config.neighbours + 1
    for layer in stack:
        for row, count in enumerate(tokens.mask.sum(1).tolist()):
            nodes, new = rows[row], {}
            for (level, m), node in nodes.items():
                if level:
                    inside = range(m << level, min((m + 1) << level, count))
                    edges = {(0, token): own_labels * min(level, config.clip_levels) for token in inside}
                else:
                    _, edges = nodes_around(count, m, *labels, stack.causal)
                context = torch.stack([nodes[source] for source in edges])
                added = layer.attention.labels.weight[list(edges.values())]
                node = normalized(node + looked_up(layer.attention, node, context, added=added))
                new[level, m] = normalized(node + layer.feed_forward(node))
            rows[row] = new
        padded = torch.zeros_like(hidden)
        for row, nodes in enumerate(rows):
            for (level, m), node in nodes.items():
                if level == 0:
                    padded[row, m] = node
        states.append(padded)
    return states


BY_HAND = {
    "sequential": one_after_the_other,
    "reversible": two_streams,
    "recurrent": one_after_the_other,  # of one segment; of several, see tests/stacks
    "universal": one_again_and_again,
    "decomposed": parts_apart,
    "star": star,
    "top_down": top_down,
    "binary_partition": binary_partition,
}
"""Stack → the states before each block and after the last, from its definition."""
FIELDS = {"reversible": {"normalization": "pre"}}
"""Stack → fields of a model that it asks for."""
OPTIONS = {"top_down": {"kernel": 5, "stride": 3}, "binary_partition": {"neighbours": 2, "clip_levels": 1}}
"""Stack → options with which short inputs say something of it."""


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("layers", [0, 1, 3])
def test_a_stack_equals_its_blocks_applied_by_hand(name, layers):
    causal = not STACKS[name].bidirectional
    sizes = Sizes(width=WIDTH, heads=2, causal=causal)
    stack = STACKS[name](**OPTIONS.get(name, {})).build(partial(block, causal=causal), layers, sizes).double()
    assert len(stack) == len(list(stack))
    assert len(stack.applied) == layers
    hidden = torch.randn(2, 13, WIDTH, dtype=torch.float64, requires_grad=True)
    tokens = StackTokens(mask=torch.arange(13) < torch.tensor([[13], [7]]), border=torch.tensor([5, 3]))
    states = BY_HAND[name](copy.deepcopy(stack), hidden, tokens)
    output, hidden_states, *_ = stack(hidden, tokens, output_hidden_states=True)
    torch.testing.assert_close([output, *hidden_states], [states[-1], *states])
    (ours,), (theirs,) = (torch.autograd.grad(each.square().sum(), hidden) for each in (output, states[-1]))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", [name for name, kind in STACKS.items() if kind().brings_attention])
@torch.no_grad()
def test_work_and_memory_grow_with_the_length_as_the_stack_says(name, memory):
    """Of those that bring their own attention; log₂ T grows faster here than between the lengths of `work_exponent`."""
    sizes, counted, peaks = Sizes(width=WIDTH, heads=2, causal=not STACKS[name].bidirectional), [], []
    stack = STACKS[name](**OPTIONS.get(name, {})).build(block, 2, sizes)
    for length in (1024, 4096):
        hidden = torch.randn(1, length, WIDTH, dtype=torch.float64)
        with Work() as work, memory() as made:
            stack.double()(hidden, StackTokens(border=torch.tensor([length // 4])))
        counted.append(work)
        peaks.append(made.peak)
    assert exponent(*peaks, times=4) <= 1.1
    for kind in ("flops", "bytes"):
        work = exponent(*(getattr(each, kind) for each in counted), times=4)
        assert work <= STACKS[name].work_exponent, (kind, work)


def test_blocks_that_normalize_sums_are_put_together_as_well():
    stack = STACKS["sequential"]().build(partial(block, pre=False), 2, Sizes(width=WIDTH)).double()
    hidden, tokens = torch.randn(2, 13, WIDTH, dtype=torch.float64), Tokens()
    torch.testing.assert_close(stack(hidden, tokens).states, one_after_the_other(stack, hidden, tokens)[-1])


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_is_read_from_its_name_plain_data_or_itself(name):
    made = STACKS[name]()
    assert made.stack == name
    for spec in (name, {"stack": name}, json.loads(json.dumps(made.to_dict())), made):
        assert stack_config(spec) == made
    assert LongspanConfig(stack=name, **FIELDS.get(name, {})).stack == made.to_dict()
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
