"""The star: numbers worked out by hand, ends and rings, the library's variant, the relay for documents, linear cost."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from closeness import check_outputs
from longspan import lengthen
from longspan.attention import Tokens
from longspan.errors import InputError
from longspan.models import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForSentenceScoring,
    LongspanForSequenceClassification,
    LongspanModel,
)
from longspan.models.heads.sentence_network import reach_of
from longspan.stacks import Sizes, StarConfig
from longspan.stacks.star import Neighbours, attend_few

WIDTH, HEADS = 6, 2


def build(layers=2, *, width=WIDTH, heads=HEADS, dtype=torch.float64, dropout=0.0, **options):
    sizes = Sizes(width=width, heads=heads, attention_dropout=dropout)
    stack = StarConfig(**options).build(lambda _: None, layers, sizes)  # pyright: ignore[reportArgumentType]
    for parameter in stack.parameters():
        nn.init.normal_(parameter, std=0.5)
    return stack.to(dtype)


def run(stack, hidden, mask=None):
    output = stack(hidden, Tokens(mask=mask))
    return output.states, output.summary


def plain(stack):
    """One step in which every query is zero, so that all weights are equal, and nothing is projected or scaled."""
    for part in (stack[0].ring, stack[0].relay):
        for projection in (part.query, part.key, part.value, part.output):
            nn.init.eye_(projection.weight) if projection is not part.query else nn.init.zeros_(projection.weight)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)
    for norm in (stack[0].ring_norm, stack[0].relay_norm):
        if norm is not None:
            norm.eps = 0.0
            norm.reset_parameters()
    return stack


def test_numbers_of_the_paper_worked_out_by_hand():
    """Tokens [2, 0] and [0, 4], relay [1, 2]. The first sees both, its embedding and the relay: [5, 6] / 4, whose
    LayerNorm is [−1, 1]; the second [3, 10] / 4, the same. The relay sees itself and both: [−1, 4] / 3, after ReLU
    [0, 4/3], normed [−1, 1]. Greatest plus relay: [−2, 2]."""
    hidden = torch.tensor([[[2.0, 0.0], [0.0, 4.0]]], dtype=torch.float64)
    output, summary = run(plain(build(1, width=2, heads=1)), hidden)
    torch.testing.assert_close(output, torch.tensor([[[-1.0, 1.0], [-1.0, 1.0]]], dtype=torch.float64))
    torch.testing.assert_close(summary, torch.tensor([[-2.0, 2.0]], dtype=torch.float64))


def test_numbers_of_the_library_worked_out_by_hand():
    """The tokens are normed to [1, −1] and [−1, 1] first, and a neighbour of zeros stands at either end: [3, 2] / 5 and
    [1, 6] / 5. The relay sees [1, 2] and both: [1.8, 3.6] / 3. Half of greatest plus relay: [0.6, 1.2]. With a ring
    there is no end: both neighbours of a token are the other one, so [2, 3] / 5 and [2, 5] / 5."""
    hidden = torch.tensor([[[2.0, 0.0], [0.0, 4.0]]], dtype=torch.float64)
    output, summary = run(plain(build(1, width=2, heads=1, variant="fastnlp")), hidden)
    torch.testing.assert_close(output, torch.tensor([[[0.6, 0.4], [0.2, 1.2]]], dtype=torch.float64))
    torch.testing.assert_close(summary, torch.tensor([[0.6, 1.2]], dtype=torch.float64))
    output, _ = run(plain(build(1, width=2, heads=1, variant="fastnlp", cyclic=True)), hidden)
    torch.testing.assert_close(output, torch.tensor([[[0.4, 0.6], [0.4, 1.0]]], dtype=torch.float64))


def looked_up(weights, query, context, zeros=0):
    """Multi-head attention of one vector over some, beside keys and values of zeros."""
    found = []
    own, keys, values = weights.query(query), weights.key(context), weights.value(context)
    for head in torch.arange(WIDTH).chunk(HEADS):
        scores = functional.pad(keys[:, head] @ own[head], (0, zeros)) / (WIDTH / HEADS) ** 0.5
        found.append(scores.softmax(0)[: len(context)] @ values[:, head])
    return weights.output(torch.cat(found))


def token_by_token(stack, embedded):
    """The states of one text `(T, E)` and its relay `(E)`, from the published equations or the published code."""
    config, hidden, relay, count = stack.config, embedded, embedded.mean(0), len(embedded)
    published = config.variant == "fastnlp"
    for step in stack:
        read = step.ring_norm(hidden) if published else hidden
        new = []
        for place in range(count):
            near = [place - 1, place, place + 1]
            near = [each % count for each in near] if config.cyclic else [each for each in near if 0 <= each < count]
            context = torch.stack([*read[near], embedded[place], relay])
            mixed = looked_up(step.ring, read[place], context, zeros=3 - len(near) if published else 0)
            new.append(functional.leaky_relu(mixed) if published else step.ring_norm(mixed.relu()))
        hidden = torch.stack(new)
        mixed = looked_up(step.relay, relay, torch.stack([relay, *hidden]))
        relay = functional.leaky_relu(mixed) if published else step.relay_norm(mixed.relu())
    return hidden, relay


@pytest.mark.parametrize("variant", ["paper", "fastnlp"])
@pytest.mark.parametrize("cyclic", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 11])
def test_outputs_and_gradients_equal_a_plain_loop_over_tokens(variant, cyclic, length):
    stack = build(3, variant=variant, cyclic=cyclic)
    hidden = torch.randn(1, length, WIDTH, dtype=torch.float64, requires_grad=True)
    output, summary = run(stack, hidden)
    states, relay = token_by_token(stack, hidden[0])
    wanted = (states.amax(0) + relay) / (2 if variant == "fastnlp" else 1)
    torch.testing.assert_close([output[0], summary[0]], [states, wanted])
    inputs, upstream = [hidden, *stack.parameters()], torch.randn_like(output)
    ours = torch.autograd.grad((output * upstream).sum() + summary.square().sum(), inputs)
    theirs = torch.autograd.grad((states * upstream[0]).sum() + wanted.square().sum(), inputs)
    torch.testing.assert_close(ours, theirs)


def neighbours_by_hand(real, cyclic):
    """For each row and place, where the tokens before and after stand, or None."""
    found = []
    for row in real.tolist():
        there = [place for place, is_real in enumerate(row) if is_real]
        pairs = []
        for place in range(len(row)):
            pair = [each if 0 <= each < len(row) and row[each] else None for each in (place - 1, place + 1)]
            if cyclic and there and place == there[0]:
                pair[0] = there[-1]
            if cyclic and there and place == there[-1]:
                pair[1] = there[0]
            pairs.append(pair)
        found.append(pairs)
    return found


@pytest.mark.parametrize("cyclic", [False, True])
@pytest.mark.parametrize("missing", ["masked", "zero"])
def test_few_keys_are_weighed_as_a_softmax_over_them(cyclic, missing):
    real = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 0, 1], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)
    query, key, value = torch.randn(3, 4, HEADS, 5, 3, dtype=torch.float64)
    around = Neighbours(real, cyclic=cyclic)
    ((before, after), (value_before, value_after)) = around.of(key), around.of(value)
    seen = (around.present[0], None, around.present[1])
    found = attend_few(query, (before, key, after), (value_before, value, value_after), seen, missing=missing)
    for row, pairs in enumerate(neighbours_by_hand(real, cyclic)):
        for place, (left, right) in enumerate(pairs):
            if not real[row, place]:
                continue
            places = [each for each in (left, place, right) if each is not None]
            keys, values = key[row, :, places], value[row, :, places]
            if missing == "zero":
                keys, values = (functional.pad(each, (0, 0, 0, 3 - len(places))) for each in (keys, values))
            weights = torch.einsum("hd,hcd->hc", query[row, :, place], keys).div(3**0.5).softmax(-1)
            torch.testing.assert_close(found[row, :, place], torch.einsum("hc,hcd->hd", weights, values))


@pytest.mark.parametrize("options", [{}, {"cyclic": True}, {"variant": "fastnlp"}], ids=str)
@pytest.mark.parametrize("length", [0, 1, 2, 3, 17])
def test_a_text_alone_is_the_same_padded_on_any_side(options, length):
    stack, hidden = build(3, **options), torch.randn(1, length, WIDTH, dtype=torch.float64)
    alone, summary = run(stack, hidden)
    assert summary.isfinite().all()
    for left, right in ((0, 4), (4, 0), (2, 3)):
        mask = functional.pad(torch.ones(1, length, dtype=torch.bool), (left, right))
        padded = torch.randn(1, length + left + right, WIDTH, dtype=torch.float64)
        padded[:, left : left + length] = hidden
        output, again = run(stack, padded, mask)
        torch.testing.assert_close(output[:, left : left + length], alone)
        torch.testing.assert_close(again, summary)
        assert not output[~mask].any()


def test_gradcheck():
    stack = build(2, width=4)
    hidden = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1, 1, 1], [0, 1, 0]], dtype=torch.bool)
    names, weights = zip(*stack.named_parameters(), strict=True)

    def both(hidden, *weights):
        given = dict(zip(names, weights, strict=True))
        output = torch.func.functional_call(stack, given, (hidden, Tokens(mask=mask)))
        return output.states, output.summary

    assert torch.autograd.gradcheck(both, (hidden, *weights), fast_mode=True)


def test_the_relay_hands_on_what_is_far_away():
    """After one step a token has seen its neighbours; a far one only by the mean, and in the second by the relay."""
    stack, hidden = build(2, variant="fastnlp"), torch.randn(1, 31, WIDTH, dtype=torch.float64)
    far = hidden.clone()
    far[0, 29] += torch.tensor([5.0, -5, 0, 0, 0, 0])  # the mean of the tokens moves, so hold the relay's start
    far[0, 20] -= torch.tensor([5.0, -5, 0, 0, 0, 0])
    changed = (stack(hidden, Tokens()).states - stack(far, Tokens()).states).abs().amax(-1)[0]
    assert (changed > 0).all()
    changed = (build_one(stack)(hidden, Tokens()).states - build_one(stack)(far, Tokens()).states).abs().amax(-1)[0]
    assert (changed > 1e-9).nonzero()[:, 0].tolist() == [19, 20, 21, 28, 29, 30]


def build_one(stack):
    one = build(1, variant=stack.config.variant)
    one.load_state_dict({name: tensor for name, tensor in stack.state_dict().items() if name.startswith("0.")})
    return one


def test_memory_is_linear_forward_and_backward(memory):
    stack, peaks = build(2, width=16, dtype=torch.float32), []
    for length in (1024, 4096):
        with memory() as made:
            stack(torch.randn(1, length, 16), Tokens()).states.sum().backward()
        assert made.largest <= 20 * length * 16
        peaks.append(made.peak)
    assert peaks[1] <= 4.4 * peaks[0]


def config(**changes):
    sizes = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "init_std": 0.2}
    return LongspanConfig(**(sizes | {"max_position_embeddings": 97, "stack": "star"} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"attention": "full"},
            r"attention=.*full.* means nothing in stack 'star', which brings its own; leave it out",
        ),
        ({"intermediate_size": 40}, "intermediate_size=40 means nothing in stack 'star', which has no feed-forward"),
        ({"normalization": "pre"}, "normalization='pre' means nothing in stack 'star', whose variant determines"),
        ({"global_tokens": "first"}, "global_tokens='first' means nothing in stack 'star', whose relay"),
        ({"decoder_layers": 1}, "decoder_layers=1 means nothing in stack 'star', which has no causal form, since"),
    ],
)
def test_fields_that_mean_nothing_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        config(**changes)


def test_it_neither_writes_nor_takes_global_tokens_nor_another_attention():
    with pytest.raises(InputError, match="stack 'star' cannot write text: it is one which has no causal form, since"):
        LongspanForCausalLM(config())
    ids = torch.randint(3, 61, (1, 7))
    with pytest.raises(InputError, match="stack 'star' takes no global tokens: it is one whose relay already sees"):
        LongspanModel(config())(ids, global_attention_mask=ids > 30)
    with pytest.raises(InputError, match="the source has the stack 'star', which brings its own attention"):
        lengthen(LongspanModel(config()), attention="full", max_tokens=200)


@torch.no_grad()
def test_a_document_is_known_by_its_greatest_states_and_its_relay(tmp_path):
    ids = torch.randint(3, 61, (2, 23))
    model = LongspanModel(config()).eval()
    output = model(ids)
    _, summary = run(model.encoder.layers, model.encoder.embeddings(ids))
    assert torch.equal(output.pooler_output, summary)
    pooled = LongspanModel(config(pooler=True)).eval()
    assert torch.equal(pooled(ids).pooler_output, pooled.pooler.dense(pooled.encoder(ids).pooler_output).tanh())
    labelled = LongspanForSequenceClassification(config(num_labels=3)).eval()
    expected = labelled.classifier(labelled.model(ids).pooler_output)
    assert torch.equal(labelled(ids).logits, expected)
    labelled.save_pretrained(tmp_path)
    check_outputs(LongspanForSequenceClassification.from_pretrained(tmp_path).eval()(ids).logits, expected)
    assert "attention `star` (layer 0 to 1)" in (tmp_path / "README.md").read_text()


def test_a_document_is_never_encoded_in_pieces():
    local = {"position_embedding": "sinusoidal"}
    assert reach_of(config(**local)) is None
    assert reach_of(config(**local, stack="sequential")) is not None


def test_a_head_with_layers_of_its_own_keeps_them():
    head = {"head": "sentence_scoring", "layers": 1, "attention": "full"}
    model = LongspanForSentenceScoring(config(head=head))
    assert model.sentence_layers.layers[0].attention.config.mechanism == "full"


def test_what_processes_send_that_read_rows_together():
    """Four of them, E = 6 and H = 2 in float32: keys and values of a token for each of two neighbours, 2·12·4 bytes; 6
    of 4 parts of what the relay gathers, 8 numbers, and of 2 greatest scores; and of a ring's two ends, 24 numbers."""
    sizes = {"width": 6, "heads": 2, "processes": 4, "number": 4}
    assert StarConfig().sent(**sizes) == 96 + 6 * 8 + 6 * 2
    assert StarConfig(cyclic=True).sent(**sizes) == 96 + 6 * 8 + 6 * 2 + 6 * 24
    assert StarConfig().sent(**{**sizes, "processes": 2}) == 48 + 8 * 4 + 2 * 4
