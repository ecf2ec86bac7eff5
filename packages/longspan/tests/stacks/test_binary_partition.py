"""The binary partition: edges against a walk over the tree, states that grow, spans that no token reads before they are
full, sources read with their spans, cost."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import nn

from longspan import lengthen
from longspan.attention import Tokens
from longspan.attention.parts.state import TreeLayer
from longspan.errors import InputError
from longspan.models import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForConditionalGeneration,
    LongspanForSequenceClassification,
    LongspanModel,
)
from longspan.models.heads.sentence_network import reach_of
from longspan.models.work import Choice
from longspan.ops.tiles.partition import Partition, left_neighbours, level_count
from longspan.ops.tiles.partition_operator import attend_partition, attend_partition_reference
from longspan.planning.memory import memory_of
from longspan.planning.source import Planned
from longspan.stacks import BinaryPartitionConfig, Sizes
from longspan.stacks.block import BlockState
from walked_tree import nodes_around

CPU, WIDTH, HEADS = torch.device("cpu"), 6, 2
trees = some.tuples(some.integers(0, 37), some.sampled_from([1, 2, 3, 5, 40]), some.integers(0, 3), some.booleans())


def tree_of(tokens, neighbours, clip, causal):
    return Partition(tokens, level_count(tokens), neighbours, clip, causal)


def node_of(tree, number):
    level = max(level for level in range(tree.levels) if tree.offsets[level] <= number)
    return level, number - tree.offsets[level]


@settings(max_examples=50)
@given(trees, some.integers(1, 9))
def test_tokens_read_what_the_authors_walk_over(options, size):
    tree, read = tree_of(*options), {}
    rows = tree.label_rows(CPU).tolist()
    for first in range(0, tree.tokens, size):
        each = min(size, tree.tokens - first)
        numbers, labels, begins = tree.windows(first, 1, each, CPU)
        for token in range(each):
            edges = [
                (node_of(tree, number), rows[label])
                for number, label in zip(numbers[0].tolist(), labels[0, token].tolist(), strict=True)
                if label < tree.unread
            ]
            read[first + token] = dict(edges)
            assert len(edges) == len(read[first + token])
        for number, begin in zip(numbers[0].tolist(), begins[0].tolist(), strict=True):
            level, index = node_of(tree, number)
            assert begin == index << level or not 0 <= begin < tree.tokens
    tokens, neighbours, clip, causal = options
    for token in range(tokens):
        counts, edges = nodes_around(tokens, token, neighbours, clip, causal)
        assert tree.counts == counts
        assert read[token] == edges
    assert tree.edges() == sum(len(edges) for edges in read.values())


@given(trees)
def test_what_a_token_reads_covers_the_text_once(options):
    tokens, neighbours, clip, causal = options
    for token in range(tokens):
        _, edges = nodes_around(tokens, token, neighbours, clip, causal)
        covered = [each for level, m in edges for each in range(m << level, min((m + 1) << level, tokens))]
        assert sorted(covered) == list(range(token + 1 if causal else tokens))
        if neighbours >= tokens:
            assert {level for level, _ in edges} == {0}


@settings(max_examples=25)
@given(trees)
def test_no_token_of_the_causal_form_reads_a_span_that_is_not_full_before_it(options):
    tokens, neighbours, clip, _ = options
    tree = tree_of(tokens, neighbours, clip, True)
    for token in range(tokens):
        numbers, labels, _ = tree.windows(token, 1, 1, CPU)
        read = {node_of(tree, number) for number in numbers[0][labels[0, 0] < tree.unread].tolist()}
        assert all((index + 1) << level <= token for level, index in read - {(0, token)})
        behind_a_state = {(0, token)}
        for level in range(max(1, tree.levels)):
            levels, indices = left_neighbours(torch.tensor(token), level, neighbours)
            behind_a_state |= {each for each in zip(levels.tolist(), indices.tolist(), strict=True) if each[1] >= 0}
        assert read == behind_a_state


def problem(tree, batch=2, dtype=torch.float64):
    query, key, value = torch.randn(3, batch, HEADS, tree.nodes, 3, dtype=dtype)
    table = torch.randn(tree.labels, 3, dtype=dtype)
    return [each.requires_grad_() for each in (query, key, value, table)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@settings(max_examples=40)
@given(options=trees, short=some.integers(0, 37))
def test_chunks_equal_the_matrix_of_all_nodes_in_outputs_and_gradients(options, short, dtype):
    tree = tree_of(*options)
    inputs, counts = problem(tree, dtype=dtype), torch.tensor([tree.tokens, min(short, tree.tokens)])
    there = tree.present(counts)[:, None, :, None]
    found = []
    for attend in (attend_partition, attend_partition_reference):
        output = attend(*inputs, tree, counts=counts)
        assert output.isfinite().all()
        output = output.masked_fill(~there, 0)
        upstream = torch.linspace(-1, 1, output.numel(), dtype=dtype).view(output.shape)
        found.append([output, *torch.autograd.grad((output * upstream).sum(), inputs)])
    torch.testing.assert_close(*found, **({"atol": 1e-4, "rtol": 1e-4} if dtype == torch.float32 else {}))


@pytest.mark.parametrize("causal", [False, True])
def test_gradcheck_with_dropout(causal):
    tree = tree_of(7, 2, 1, causal)

    def attend(*inputs):
        torch.manual_seed(3)  # the same weights are dropped every time
        return attend_partition(*inputs, tree, counts=torch.tensor([7, 4]), dropout_prob=0.3)

    assert torch.autograd.gradcheck(attend, problem(tree), fast_mode=True)
    dropped = attend(*problem(tree))
    assert not torch.equal(dropped, attend_partition(*problem(tree), tree, counts=torch.tensor([7, 4])))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # of PyTorch's own
def test_forward_mode_goes_by_the_matrix_of_all_nodes():
    tree = tree_of(5, 1, 1, False)
    inputs = [each.detach() for each in problem(tree)]
    tangent = torch.randn_like(inputs[0])
    _, ours = torch.func.jvp(lambda query: attend_partition(query, *inputs[1:], tree), (inputs[0],), (tangent,))
    step = 1e-6
    beside = [attend_partition(inputs[0] + side * step * tangent, *inputs[1:], tree) for side in (1, -1)]
    torch.testing.assert_close(ours, (beside[0] - beside[1]) / (2 * step), atol=1e-6, rtol=1e-6)


def build(layers=2, *, causal=False, source=False, dtype=torch.float64, **options):
    options = {"neighbours": 2, "clip_levels": 1, **options}
    sizes = Sizes(width=WIDTH, heads=HEADS, causal=causal, source=source)
    stack = BinaryPartitionConfig(**options).build(lambda _: None, layers, sizes)  # pyright: ignore[reportArgumentType]
    for parameter in stack.parameters():
        nn.init.normal_(parameter, std=0.5)
    return stack.to(dtype)


def test_with_as_many_neighbours_as_tokens_it_is_full_attention():
    stack, hidden = build(1, neighbours=11, clip_levels=0), torch.randn(1, 11, WIDTH, dtype=torch.float64)
    layer, heads = stack[0], []
    own = layer.attention
    for head in torch.arange(WIDTH).chunk(HEADS):
        query, key, value = (part(hidden[0])[:, head] for part in (own.query, own.key, own.value))
        distance = torch.arange(11) - torch.arange(11)[:, None]
        label = torch.where(distance > 0, 2 * distance, -2 * distance - 1).clamp(min=0)
        scores = query @ key.T + (query[:, None] * own.labels.weight[label]).sum(-1)
        heads.append((scores / (WIDTH / HEADS) ** 0.5).softmax(-1) @ value)
    states = layer.attention_norm(hidden + own.output(torch.cat(heads, -1)))
    states = layer.feed_forward_norm(states + layer.feed_forward(states))
    torch.testing.assert_close(stack(hidden, Tokens()).states, states)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 17])
def test_a_text_alone_is_the_same_padded_on_any_side_and_with_holes(causal, length):
    stack, hidden = build(3, causal=causal), torch.randn(1, length, WIDTH, dtype=torch.float64)
    alone = stack(hidden, Tokens())
    for left, right, hole in ((0, 4, 0), (4, 0, 0), (2, 3, 0), (1, 1, 3)):
        real = [True] * length
        real[length // 2 : length // 2] = [False] * hole
        mask = torch.tensor([[False] * left + real + [False] * right, [False] * (left + len(real) + right)])
        padded = torch.randn(2, mask.shape[1], WIDTH, dtype=torch.float64)
        padded[0, mask[0]] = hidden
        output = stack(padded, Tokens(mask=mask))
        torch.testing.assert_close(output.states[0, mask[0]], alone.states[0])
        assert not output.states[~mask].any()
        if not causal:
            torch.testing.assert_close(output.summary[0], alone.summary[0])
            torch.testing.assert_close(output.source.states[0, output.source.mask[0]], alone.source.states[0])
            assert not output.source.mask[1].any()


def decode(stack, hidden, mask, steps, poisoned=False):
    """The states of a batch that is read in pieces of so many positions."""
    states, outputs, past = [BlockState(stack.new_state(step)) for step in range(len(stack))], [], 0
    for count in steps:
        seen = None if mask is None else mask[:, : past + count]
        with torch.no_grad():
            output = stack(hidden[:, past : past + count], Tokens(mask=seen), block_states=states)
        outputs.append(output.states)
        past += count
        if poisoned:
            for state in states:
                full = {(2 * m + 1) * (1 << level) - 1 for level in range(9) for m in range(past >> level)}
                others = [place for place in range(state.own.keys.shape[2]) if place not in full]
                state.own.keys[:, :, others] = state.own.values[:, :, others] = torch.nan
    return torch.cat(outputs, 1), states


@settings(max_examples=15)
@given(steps=some.lists(some.integers(1, 9), min_size=1, max_size=6), neighbours=some.sampled_from([1, 2, 3, 40]))
def test_pieces_behind_a_state_equal_the_whole_text(steps, neighbours):
    torch.manual_seed(1)
    stack, length = build(2, causal=True, neighbours=neighbours), sum(steps)
    hidden = torch.randn(3, length, WIDTH, dtype=torch.float64)
    for mask in (None, torch.arange(length) >= torch.tensor([[0], [min(2, length)], [length]])):
        whole = stack(hidden, Tokens(mask=mask)).states
        torch.testing.assert_close(decode(stack, hidden, mask, steps)[0], whole)


def test_nothing_in_a_state_but_tokens_and_full_spans_is_ever_read():
    """Every other place is not a number after each step."""
    stack, hidden = build(2, causal=True, neighbours=1), torch.randn(1, 37, WIDTH, dtype=torch.float64)
    for steps in ([1] * 37, [16, *[1] * 21], [5, 11, 21]):
        torch.testing.assert_close(decode(stack, hidden, None, steps, poisoned=True)[0], stack(hidden, Tokens()).states)


def test_a_state_goes_back_and_learns():
    stack, hidden = build(1, causal=True), torch.randn(2, 23, WIDTH, dtype=torch.float64, requires_grad=True)
    whole = stack(hidden, Tokens()).states
    _, states = decode(stack, hidden.detach(), None, [9, 8])
    own = states[0].own
    assert isinstance(own, TreeLayer)
    own.crop(-6)
    assert own.get_seq_length() == 11
    with torch.no_grad():
        again = stack(hidden[:, 11:], Tokens(), block_states=states).states
    torch.testing.assert_close(again, whole[:, 11:])
    for wrong in (1, -24):
        with pytest.raises(InputError, match=f"tokens_to_remove={wrong} is not among -23 to 0"):
            own.crop(wrong)
    with pytest.raises(InputError, match="state is a TreeLayer"):
        own.update(whole, whole)
    states, outputs = [BlockState(stack.new_state(0))], []
    for piece in hidden.split([7, 16], dim=1):
        outputs.append(stack(piece, Tokens(), block_states=states).states)
    ours, theirs = (torch.autograd.grad(each.square().sum(), hidden)[0] for each in (torch.cat(outputs, 1), whole))
    torch.testing.assert_close(ours, theirs)


def config(**changes):
    sizes = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "init_std": 0.2}
    stack = {"stack": "binary_partition", "neighbours": 2, "clip_levels": 2}
    return LongspanConfig(
        **(sizes | {"intermediate_size": 40, "max_position_embeddings": 97, "stack": stack} | changes)
    )


def test_target_tokens_read_all_nodes_of_their_source_and_spans_read_none():
    model = LongspanForConditionalGeneration(config(decoder_layers=1, position_embedding="none")).double().eval()
    assert model.decoder.embeddings.position is None
    ids, mask = torch.randint(3, 61, (2, 9)), torch.arange(9) < torch.tensor([[9], [5]])
    encoded = model.encoder(ids, mask)
    assert encoded.source_states.shape == (2, 9 + 5 + 3 + 2 + 1, 24)
    assert encoded.source_mask.sum(1).tolist() == [20, 5 + 3 + 2 + 1]
    target, layer = torch.randint(3, 61, (2, 6)), model.decoder.layers[0]
    read = []
    layer.cross_attention.register_forward_hook(lambda _, given, out: read.append((given, out)))
    states = model.decoder(
        target, source=encoded.source_states, source_mask=encoded.source_mask, use_cache=False
    ).last_hidden_state
    ((tokens, source, present, _), crossed), part = read[0], layer.cross_attention
    assert tokens.shape == (2, 6, 24)
    heads = []
    for head in torch.arange(24).chunk(2):
        query, key, value = (
            each(hidden)[..., head] for each, hidden in ((part.query, tokens), (part.key, source), (part.value, source))
        )
        scores = (query @ key.mT / 12**0.5).masked_fill(~present[:, None], -torch.inf)
        heads.append(scores.softmax(-1) @ value)
    torch.testing.assert_close(crossed, torch.cat(heads, -1) @ part.output.weight.T)
    expected = layer.cross_attention_norm(tokens + crossed)
    torch.testing.assert_close(states, layer.feed_forward_norm(expected + layer.feed_forward(expected)))
    logits = model(ids, mask, decoder_input_ids=target).logits
    torch.testing.assert_close(logits, model.lm_head(states))
    with pytest.raises(InputError, match="encoder_outputs contains only states of tokens, and a decoder in the stack"):
        model(attention_mask=mask, decoder_input_ids=target, encoder_outputs=(encoded[0],))


@torch.no_grad()
def test_the_root_stands_for_a_document(tmp_path):
    model, ids = LongspanForSequenceClassification(config(num_labels=3)).eval(), torch.randint(3, 61, (2, 13))
    mask = torch.arange(13) < torch.tensor([[13], [6]])
    output = model.model(ids, mask)
    for row, length in ((0, 13), (1, 6)):
        alone = model.model(ids[row : row + 1, :length]).pooler_output
        torch.testing.assert_close(output.pooler_output[row], alone[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(ids, mask).logits, model.classifier(output.pooler_output))
    model.save_pretrained(tmp_path)
    assert "attention `binary_partition` (layer 0 to 1)" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "full"}, "attention=.* means nothing in stack 'binary_partition', which brings its own"),
        ({"decoder_layers": 1, "decoder_attention": "linear"}, "decoder_attention=.* means nothing in stack 'binary_p"),
        ({"normalization": "pre"}, "normalization='pre' means nothing in stack 'binary_partition', which normalises"),
        ({"global_tokens": "first"}, "global_tokens='first' means nothing in stack 'binary_partition', whose spans"),
        ({"stack": {"stack": "binary_partition", "neighbours": 0}}, "neighbours"),
        ({"stack": {"stack": "binary_partition", "clip_levels": -1}}, "clip_levels"),
    ],
)
def test_what_means_nothing_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        config(**changes)


def test_it_takes_no_global_tokens_nor_another_attention_and_is_never_read_in_pieces():
    ids = torch.randint(3, 61, (1, 7))
    with pytest.raises(InputError, match="stack 'binary_partition' takes no global tokens: it is one whose spans"):
        LongspanModel(config())(ids, global_attention_mask=ids > 30)
    with pytest.raises(InputError, match="the source has the stack 'binary_partition', which brings its own attention"):
        lengthen(LongspanModel(config()), attention="full", max_tokens=200)
    assert reach_of(config(position_embedding="sinusoidal")) is None


def test_a_plan_counts_what_a_step_holds(memory):
    made = config(hidden_size=64, intermediate_size=256, max_position_embeddings=2048, head="sequence_classification")
    model, ids = LongspanForSequenceClassification(made), torch.randint(3, 61, (1, 2048))
    with memory() as measured:
        model(ids, labels=torch.zeros(1, dtype=torch.int64)).loss.backward()
    planned = Planned(name="tree", config=model.config, model_class=LongspanForSequenceClassification)
    says = memory_of(planned, Choice(tokens=2048, train=True))
    assert says.activations + says.working == pytest.approx(measured.peak, rel=0.25)


def test_memory_is_linear_forward_and_backward(memory):
    stack, peaks = build(2, dtype=torch.float32, neighbours=8, clip_levels=6), []
    for length in (1024, 4096):
        with memory() as made:
            stack(torch.randn(1, length, WIDTH), Tokens()).states.sum().backward()
        assert made.largest < length**2
        peaks.append(made.peak)
    assert peaks[1] <= 4**1.1 * peaks[0]


@torch.no_grad()
def test_a_model_that_writes_needs_no_positions():
    model = LongspanForCausalLM(config(position_embedding="none")).eval()
    assert model.decoder.embeddings.position is None
    ids = torch.randint(3, 61, (1, 31))
    assert not torch.allclose(model(ids).logits[0, -1], model(ids.flip(1).roll(-1, 1)).logits[0, -1])
