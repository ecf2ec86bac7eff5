"""The universal stack: shared weights, signals at every step, tokens that stop by themselves, and what is skipped."""

from __future__ import annotations

import copy
import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from longspan.attention import Tokens
from longspan.errors import InputError
from longspan.models import (
    LongspanConfig,
    LongspanForConditionalGeneration,
    LongspanModel,
)
from longspan.models.inputs import EncoderInputs
from longspan.stacks import Sizes, StackTokens, UniversalConfig
from longspan.stacks.halting import Pondering, places_of

SIZES = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 5, "intermediate_size": 40, "init_std": 0.2}
SIZES |= {"num_attention_heads": 2, "max_position_embeddings": 97, "attention": "full"}
ACT = {"stack": "universal", "halting": "adaptive"}


def build(kind=LongspanModel, *, dtype=torch.float64, **changes):
    """A model whose positions stop at different steps."""
    stack = (
        ACT
        | {"signal_scale": 0.2}
        | {name: changes.pop(name) for name in list(changes) if name in UniversalConfig.__dataclass_fields__}
    )
    if kind is LongspanForConditionalGeneration:
        changes["decoder_layers"] = 5
    model = kind(LongspanConfig(stack=stack, **SIZES | changes)).to(dtype).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("halting.linear.weight"):
            nn.init.normal_(parameter, std=1.0)
        if name.endswith("halting.linear.bias"):
            nn.init.constant_(parameter, -1.0)
    return model


def stacks_of(model):
    return [module for module in model.modules() if hasattr(module, "skips")]


def batch(*lengths, left=False):
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    mask = mask.flip(1) if left else mask
    return torch.randint(3, 61, mask.shape).masked_fill(~mask, 1), mask.long()


def weighed(stops, **options):
    """The weights `(steps, 1, T)` of a list of probabilities of one row, and what was pondered."""
    force = options.pop("force_remainder", True)
    rows = torch.tensor(stops)[:, None]
    real = options.pop("real", torch.ones(rows.shape[1:], dtype=torch.bool))
    options = {"threshold": 0.99, "accumulation": "paper"} | options
    ponder = Pondering(torch.zeros(*rows.shape[1:], 1), real, **options)
    found, running = [], [ponder.running]
    for step, row in enumerate(rows):
        weight = ponder.weigh(row, all_stop=force and step == len(rows) - 1)
        ponder.add(torch.full((*row.shape, 1), step + 1.0), weight)
        found.append(weight)
        running.append(ponder.running)
    return torch.stack(found), ponder, running


def test_numbers_worked_out_by_hand():
    """Position 0 has 0.6, 0.3, 0.5: 0.9 after two steps, stops at the third with 0.1: R = 0.1, N = 3. Position 1 stops
    at once, position 2 is padding, position 3 would never stop and gives its last step what is left, 0.4. States are 1,
    2, 3 of each step: o = 0.6, then 0.3 · 2 + 0.7 · 0.6 = 1.02, then 0.1 · 3 + 0.9 · 1.02 = 1.218; as a sum 1.5. The
    published code would give 0.6, 0.6 + 0.6 − 0.3 = 0.9, 0.3 + 0.9 − 0.1 = 1.1."""
    stops = [[0.6, 0.995, 0.5, 0.2], [0.3, 0.5, 0.5, 0.4], [0.5, 0.5, 0.5, 0.1]]
    real = torch.tensor([[True, True, False, True]])
    weights, ponder, _ = weighed(stops, real=real)
    wanted = torch.tensor([[0.6, 1, 0, 0.2], [0.3, 0, 0, 0.4], [0.1, 0, 0, 0.4]])
    torch.testing.assert_close(weights[:, 0], wanted)
    torch.testing.assert_close(ponder.updates, torch.tensor([[3.0, 1, 0, 3]]))
    torch.testing.assert_close(ponder.remainder, torch.tensor([[0.1, 1, 0, 0.4]]))
    torch.testing.assert_close(ponder.output[0, :, 0], torch.tensor([1.218, 1, 0, 0.4 * 3 + 0.6 * (0.8 + 0.6 * 0.2)]))
    torch.testing.assert_close(ponder.cost(), torch.tensor((3.1 + 2 + 3.4) / 3))
    assert abs(float(ponder.output[0, 0, 0]) - 1.1) > 0.1
    weights, ponder, _ = weighed(stops, real=real, accumulation="sum")
    torch.testing.assert_close(ponder.output[0, :, 0], torch.tensor([1.5, 1, 0, 0.2 + 0.8 + 1.2]))
    weights, ponder, running = weighed(stops, real=real, force_remainder=False)
    torch.testing.assert_close(weights.sum(0), torch.tensor([[1, 1, 0, 0.7]]))
    assert running[-1].tolist() == [[False, False, False, True]]


def test_weights_add_up_to_1_and_whoever_stops_stays_stopped():
    stops = torch.rand(7, 501).mul(0.5).tolist()
    weights, ponder, running = weighed(stops, threshold=0.9)
    torch.testing.assert_close(weights.sum(0), torch.ones(1, 501))
    torch.testing.assert_close(ponder.probability, torch.ones(1, 501))
    for before, after in pairwise(running):
        assert not (after & ~before).any()
    torch.testing.assert_close(ponder.updates, torch.stack(running[:-1]).sum(0).float())


@pytest.mark.parametrize("normalization", ["pre", "post"])
def test_one_step_is_one_layer(normalization):
    changes = {"num_hidden_layers": 1, "normalization": normalization}
    plain = build(halting="none", position_signal="none", step_signal="none", **changes)
    layer = LongspanModel(LongspanConfig(**SIZES | changes)).double().eval()
    layer.load_state_dict(plain.state_dict())
    ids, mask = batch(23, 11)
    torch.testing.assert_close(plain(ids, mask)[0], layer(ids, mask)[0])


@pytest.mark.parametrize("accumulation", ["paper", "sum"])
def test_stopping_at_once_is_one_step(accumulation):
    model, once = build(accumulation=accumulation), build(halting="none", num_hidden_layers=1)
    nn.init.constant_(stacks_of(model)[0].halting.linear.bias, 1e4)
    once.load_state_dict(model.state_dict(), strict=False)
    ids, mask = batch(23, 11)
    found = model(ids, mask)
    torch.testing.assert_close(found[0][mask.bool()], once(ids, mask)[0][mask.bool()])
    assert torch.equal(found.ponder_times, mask.float())


def test_blocks_that_take_turns_and_the_number_of_weights():
    one, two = build(halting="none"), build(halting="none", shared_blocks=2)
    count = [sum(each.numel() for each in model.encoder.layers.parameters()) for model in (one, two)]
    assert count[1] == 2 * count[0]
    stack = two.encoder.layers
    assert [list(stack).index(block) for block in stack.applied] == [0, 1, 0, 1, 0]
    learned = build(halting="none", step_signal="learned")
    assert learned.encoder.layers.signals.table.weight.shape == (5, 24)


@pytest.mark.parametrize("changes", [{}, {"freeze_halted": False}, {"force_remainder": False}, {"accumulation": "sum"}])
@torch.no_grad()
def test_a_document_alone_padded_or_batched_gives_the_same(changes):
    model, (ids, mask) = build(**changes), batch(31, 1, 17, 8)
    together = model(ids, mask, output_hidden_states=True)
    assert len(together.hidden_states) == 6
    assert len(together.ponder_times[mask.bool()].unique()) > 2
    assert not together.ponder_times[~mask.bool()].any()
    for row, length in enumerate(mask.sum(1).tolist()):
        alone = model(ids[row : row + 1, :length])
        torch.testing.assert_close(together[0][row, :length], alone[0][0])
        assert torch.equal(together.ponder_times[row, :length], alone.ponder_times[0])


@pytest.mark.parametrize("mechanism", ["full", "longformer", "linear", "sinkhorn", "bigbird"])
@pytest.mark.parametrize("normalization", ["pre", "post"])
@torch.no_grad()
def test_skipping_changes_nothing(mechanism, normalization, monkeypatch):
    model, (ids, mask) = build(attention=mechanism, normalization=normalization), batch(41, 17, 29)
    gathered = []
    monkeypatch.setattr("longspan.stacks.universal.GATHERED", 1.0)
    monkeypatch.setattr("longspan.stacks.universal.places_of", lambda running: gathered.append(1) or places_of(running))
    found = model(ids, mask, output_hidden_states=True)
    assert gathered
    for stack in stacks_of(model):
        stack.skips = False
    count = len(gathered)
    dense = model(ids, mask, output_hidden_states=True)
    assert len(gathered) == count
    assert torch.equal(found.ponder_times, dense.ponder_times)
    assert len(found.ponder_times[mask.bool()].unique()) > 2
    for ours, theirs in zip(found.hidden_states, dense.hidden_states, strict=True):
        torch.testing.assert_close(ours[mask.bool()], theirs[mask.bool()])


@torch.no_grad()
def test_places_are_counted_among_real_tokens_or_as_they_are_given():
    model, (ids, mask) = build(position_embedding="none"), batch(23, 11, left=True)
    torch.testing.assert_close(model(ids, mask)[0][1, 12:], model(ids[1:, 12:])[0][0])
    given = torch.arange(7, 18)[None] + model.config.position_offset
    moved = model(ids[1:, 12:], position_ids=given)[0]
    assert (moved - model(ids[1:, 12:])[0]).abs().max() > 1e-3
    padded = torch.cat([torch.full((1, 7), 5), ids[1:, 12:]], 1)
    stack, embedded = model.encoder.layers, model.encoder.embeddings(padded)
    places = torch.arange(18)[None]
    torch.testing.assert_close(
        stack(embedded[:, 7:], StackTokens(places=places[:, 7:])).states,
        stack(embedded[:, 7:], StackTokens(places=given - 2)).states,
    )
    torch.testing.assert_close(
        model.encoder.encode(EncoderInputs(input_ids=ids[1:, 12:]), first_position=7).states, moved
    )


def test_half_precision_weighs_in_float32():
    stack = build(dtype=torch.bfloat16).encoder.layers
    hidden = torch.randn(2, 9, 24, dtype=torch.bfloat16)
    output = stack(hidden, Tokens())
    assert output.states.dtype == torch.bfloat16
    assert output.aux.ponder_times is not None
    assert output.aux.loss is not None
    assert output.aux.loss.dtype == torch.float32


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-14), (torch.bfloat16, 1e-6)])
def test_halting_is_as_precise_as_the_model_and_float32_at_least(dtype, error):
    """Against Graves' sums in Python's own float64, for one position of a stack whose block changes nothing."""
    model = build(dtype=dtype, position_signal="none", step_signal="none", accumulation="sum")
    unit, block = model.encoder.layers.halting, next(iter(model.encoder.layers))
    torch.nn.init.constant_(unit.linear.bias, -1.7)
    for branch in (block.attention.output, block.feed_forward.down):
        nn.init.zeros_(branch.weight)
        nn.init.zeros_(branch.bias)
    block.pre, hidden = True, torch.randn(1, 1, 24, dtype=dtype)
    logit = unit.linear(hidden).double().item()
    stop, output = 1 / (1 + math.exp(-logit)), model.encoder.layers(hidden, Tokens())
    steps = min(5, math.floor(0.99 / stop) + 1)
    paid = 0.01 * (steps + 1 - (steps - 1) * stop)
    assert unit(hidden).item() == pytest.approx(stop, abs=error)
    assert output.aux.loss is not None
    assert output.aux.loss.item() == pytest.approx(paid, abs=error)
    torch.testing.assert_close(output.states, hidden)


@pytest.mark.parametrize("threshold", [0.0, -0.1, 1.01, float("nan")])
def test_a_threshold_outside_is_refused(threshold):
    with pytest.raises(InputError, match="threshold"):
        UniversalConfig(threshold=threshold)
    assert UniversalConfig(threshold=1.0).threshold == 1.0


def test_layers_that_differ_are_refused():
    mixed = [{"layers": "0-3", "mechanism": "full"}, {"layers": "4", "mechanism": "linear"}]
    with pytest.raises(InputError, match="attention of layer 4 differs from that of layer 0, but stack 'universal'"):
        build(attention=mixed)
    with pytest.raises(InputError, match=r"stack\.shared_blocks=6 is more than num_hidden_layers=5"):
        build(shared_blocks=6)
    turns = [{"layers": "0,2,4", "mechanism": "full"}, {"layers": "1,3", "mechanism": "linear"}]
    built = build(attention=turns, shared_blocks=2)
    assert [block.attention.config.mechanism for block in built.encoder.layers] == ["full", "linear"]


def test_a_stack_without_layers_leaves_states_as_they_are():
    stack = UniversalConfig(halting="adaptive").build(lambda _: None, 0, Sizes(width=6))  # pyright: ignore[reportArgumentType]
    hidden = torch.randn(2, 3, 6)
    assert torch.equal(copy.deepcopy(stack)(hidden, Tokens()).states, hidden)
