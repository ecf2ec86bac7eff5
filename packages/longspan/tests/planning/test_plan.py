"""The planner: numbers worked by hand, what steps really hold, and what it says where a model does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from longspan.attention import attention_config
from longspan.errors import InputError
from longspan.hardware import DEVICES
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanForSequenceClassification
from longspan.models.work import Choice, block_work
from longspan.planning.memory import largest_batch, memory_of, other_choices, weights_of
from longspan.planning.plan import Forecast, Stopwatch, make_plan
from longspan.planning.source import Planned, open_planned

SIZES = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 256, "position_embedding": "sinusoidal", "normalization": "pre", "dropout": 0.0}


def planned(mechanism: str = "longformer", **changes: Any) -> Planned:
    config = LongspanConfig(**{**SIZES, "attention": mechanism, "max_position_embeddings": 65536, **changes})
    return Planned(name=mechanism, config=config, model_class=LongspanForSequenceClassification)


def test_by_hand() -> None:
    model = planned(num_hidden_layers=1, embedding_norm=False)
    # A table, four projections, two feed-forward layers, two norms and one behind, and the head of two layers.
    linear = 4 * 64 * 64 + 2 * 64 * 256 + 64 * 64 + 2 * 64
    biases = 4 * 64 + 256 + 64 + 64 + 2
    weights = weights_of(model)
    globals_ = weights.total - (100 * 64 + linear + biases + 3 * 2 * 64)
    assert globals_ in (0, 3 * (64 * 64 + 64))  # projections of global tokens' own
    assert weights.linear == linear + (3 * 64 * 64 if globals_ else 0)
    memory = memory_of(model, Choice(tokens=1000, batch=3, train=True))
    assert memory.weights == memory.gradients == 4 * weights.total
    assert memory.optimizer == 8 * weights.total
    # Two states and two inputs of linear layers, q, k, v and what they gather, the widest; then the input of
    # the last norm.
    attention = model.config.layer_attention(0).costs(length=1000, width=64, heads=2).saved_activations // 1000
    assert memory.activations == 3000 * 4 * (4 * 64 + attention + 256 + 64)
    assert memory.peak == memory.weights + memory.optimizer + memory.activations + memory.working


def test_each_optimizer_has_its_own_states() -> None:
    """Two moments of AdamW, one sum of squares of Adagrad: what torch's own hold is counted by hand."""
    choice, model = Choice(tokens=7, train=True), planned(hidden_size=8, intermediate_size=16, vocab_size=11)
    made = model.model_class(model.config)
    made(input_ids=torch.tensor([[3, 4, 5]]), labels=torch.tensor([0])).loss.backward()
    for name, kind in {"adamw": torch.optim.AdamW, "adagrad": torch.optim.Adagrad}.items():
        parameters = [each for each in made.parameters() if each.grad is not None]
        optimizer = kind(parameters, lr=1e-9)
        optimizer.step()
        states = [value for state in optimizer.state.values() for value in state.values() if value.dim()]
        numbers = sum(each.numel() for each in states) / sum(each.numel() for each in parameters)
        found = memory_of(replace(model, optimizer=name), choice)
        assert found.optimizer == numbers * found.gradients == numbers * 4 * weights_of(model).total
    assert open_planned("adaptive-span-enwik8").optimizer == "adagrad"


def test_a_memory_is_counted_with_the_text(memory) -> None:
    """Blocks read memory and text, or from `compress_after` on the memory alone; a step holds what was counted."""
    choice, few = Choice(tokens=1536, train=True), Choice(tokens=64, train=True)
    plain, ours = planned(num_hidden_layers=4), planned(num_hidden_layers=4, num_memory_tokens=64)
    shorter = planned(num_hidden_layers=4, num_memory_tokens=64, compress_after=2)
    longer = memory_of(plain, Choice(tokens=1600, train=True))
    assert memory_of(ours, choice).activations == longer.activations
    assert weights_of(ours).total == weights_of(plain).total + 64 * 64
    blocks = longer.activations - memory_of(planned(num_hidden_layers=2), Choice(tokens=1600, train=True)).activations
    alone = memory_of(plain, few).activations - memory_of(planned(num_hidden_layers=2), few).activations
    assert memory_of(ours, choice).activations - memory_of(shorter, choice).activations == blocks - alone
    for model in (ours, shorter):
        made, ids = model.model_class(model.config), torch.randint(5, 100, (1, 1536))
        with memory() as measured:
            made(input_ids=ids, labels=torch.zeros(1, dtype=torch.int64)).loss.backward()
        says = memory_of(model, choice)
        assert says.activations + says.working == pytest.approx(measured.peak, rel=0.25)


def test_choices_differ_as_they_should() -> None:
    model, choice = planned(num_hidden_layers=8), Choice(tokens=8192, batch=2, train=True)
    full, half, checked, both = (memory_of(model, one) for one in other_choices(choice))
    assert both.activations < checked.activations < half.activations < full.activations
    assert half.weights == full.weights + 2 * weights_of(model).linear
    assert [one.words for one in other_choices(Choice(tokens=5))] == ["float32", "bfloat16"]
    forward = memory_of(model, Choice(tokens=8192, batch=2))
    assert forward.peak < full.peak / 4
    assert (forward.gradients, forward.optimizer, forward.activations) == (0, 0, 0)


@pytest.mark.variant
@pytest.mark.parametrize(
    ("mechanism", "batch", "stack"),
    [
        ("longformer", 2, {"stack": "sequential"}),
        ("full", 1, {"stack": "sequential"}),
        ("longformer", 1, {"stack": "top_down"}),
        ("longformer", 1, {"stack": "top_down", "top_down": "concatenate", "kernel": 128, "stride": 16}),
    ],
)
def test_a_step_holds_what_was_counted(mechanism: str, batch: int, stack: dict, memory) -> None:
    model = planned(mechanism, stack=stack)
    made = model.model_class(model.config)
    ids = torch.randint(5, 100, (batch, 4096))
    with memory() as measured:
        made(input_ids=ids, labels=torch.zeros(batch, dtype=torch.int64)).loss.backward()
    says = memory_of(model, Choice(tokens=4096, batch=batch, train=True))
    assert says.activations + says.working == pytest.approx(measured.peak, rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["full", {"mechanism": "full", "positions": "relative", "bias": False}])
@pytest.mark.parametrize("memory_tokens", [0, 1024, 3000])
def test_a_step_behind_a_full_memory_holds_what_was_counted(attention: object, memory_tokens: int, memory) -> None:
    stack = {"stack": "recurrent", "memory_tokens": memory_tokens}
    model = planned(attention=attention, stack=stack, position_embedding="none", num_hidden_layers=4)
    model = Planned(name="recurrent", config=model.config, model_class=LongspanForCausalLM)
    model.config.architectures = ["LongspanForCausalLM"]
    made, ids, past = LongspanForCausalLM(model.config), torch.randint(5, 100, (1, 2048)), None
    for _ in range(-(-memory_tokens // 2048)):
        past = made(input_ids=ids, cache=past, use_cache=True).cache
    with memory() as measured:
        made(input_ids=ids, labels=ids, cache=past, use_cache=past is not None).loss.backward()
    says = memory_of(model, Choice(tokens=2048, train=True))
    assert says.activations + says.working == pytest.approx(measured.peak, rel=0.25)


@pytest.mark.variant
@pytest.mark.parametrize("halting", ["none", "adaptive"])
def test_steps_of_one_block_hold_what_was_counted(halting: str, memory) -> None:
    """Positions that stop by themselves are counted as if none stopped early, as here."""
    model = planned(stack={"stack": "universal", "halting": halting}, num_hidden_layers=5, position_embedding="none")
    made = model.model_class(model.config)
    for name, parameter in made.named_parameters():
        if name.endswith("halting.linear.bias"):
            torch.nn.init.constant_(parameter, -9.0)
    ids = torch.randint(5, 100, (1, 4096))
    with memory() as measured:
        made(input_ids=ids, labels=torch.zeros(1, dtype=torch.int64)).loss.backward()
    says = memory_of(model, Choice(tokens=4096, train=True))
    assert says.activations + says.working == pytest.approx(measured.peak, rel=0.2)


def test_what_a_stack_needs_besides_its_blocks() -> None:
    """Of 96 tokens 4 segments, ⌈(96 − 32) / 24⌉ + 1, in two layers of their own; one of two layers reads them."""
    choice = Choice(tokens=96, train=True)
    plain, ours, apart = (
        memory_of(planned(stack=stack), choice).activations
        for stack in ("sequential", {"stack": "top_down"}, {"stack": "top_down", "top_down": "none"})
    )
    above = attention_config("full").costs(length=4, width=64, heads=2).saved_activations + 4 * (4 * 64 + 256)
    assert ours - plain == 4 * (2 * above + 5 * 96 * 64 + 2 * 4 * 64)
    assert apart == plain
    # Of one memory of 32 positions in each of two layers: its states, itself and the 96 as one tensor, keys and values.
    recurrent = planned(stack={"stack": "recurrent", "memory_tokens": 32}, attention="full", position_embedding="none")
    bare = planned(attention="full", position_embedding="none")
    more = memory_of(recurrent, choice, weights_of(bare)).activations - memory_of(bare, choice).activations
    assert more == 2 * 4 * ((96 + 32) + 2 * 32 + 32) * 64
    # Of each of two steps its state and the output so far.
    ponders = memory_of(planned(stack={"stack": "universal", "halting": "adaptive"}), choice).activations
    assert ponders - memory_of(planned(stack="universal"), choice).activations == 2 * 4 * 2 * 96 * 64
    assert memory_of(planned(stack="universal"), choice).activations == plain


def test_seconds_of_layers_over_segments_and_of_what_reads_them_are_counted() -> None:
    watch, model = Stopwatch(lambda ticks=iter(range(10_000)): float(next(ticks))), planned(stack="top_down")  # noqa: B008
    seconds = watch.seconds(model, Choice(tokens=512), weights_of(model))
    read = 2 * 64 * ((512 + 21) * 64 + 512 * 21)
    rate = 4 / sum(
        layers * block_work(model.config, attention_config(name), length)
        for layers, name, length in ((2, "longformer", 512), (2, "full", 21))
    )
    assert seconds == pytest.approx(4 + read * rate)


def test_seconds_grow_with_the_work() -> None:
    ticks = iter(range(10_000))
    watch, model = Stopwatch(lambda: float(next(ticks))), planned()
    choice = Choice(tokens=512)
    once = watch.seconds(model, choice, weights_of(model))
    assert once == pytest.approx(2.0)  # a second for each of two blocks, by this clock
    twice = watch.seconds(model, Choice(tokens=512, batch=2), weights_of(model))
    assert twice == pytest.approx(4.0)
    spec = model.config.layer_attention(0)
    assert block_work(model.config, spec, 512) > 512 * (4 * 64**2 + 2 * 64 * 256)


def test_the_largest_batch_is_the_last_that_fits() -> None:
    model, choice = planned(), Choice(tokens=4096, train=True)
    weights, room = weights_of(model), 1 << 30
    most = largest_batch(model, choice, room, weights)
    peaks = [memory_of(model, Choice(tokens=4096, train=True, batch=most + more), weights).peak for more in (0, 1)]
    assert peaks[0] <= room < peaks[1]
    assert largest_batch(model, choice, 1000, weights) == 0


def test_advice(tmp_path: Path) -> None:
    planned(num_hidden_layers=6).config.save_pretrained(tmp_path)
    choice = Choice(tokens=8192, batch=4, train=True)
    peaks = {row.name: row.memory.peak for row in make_plan(str(tmp_path), choice, timed=False).rows}
    assert list(peaks) == ["float32", "bfloat16", "float32, checkpointing", "bfloat16, checkpointing"]

    def advice(room: int) -> str:
        return " ".join(make_plan(str(tmp_path), choice, room=room, timed=False).advice)

    assert "float32 fits into" in advice(peaks["float32"])
    assert "What fits: bfloat16; " in advice(peaks["float32"] - 1)
    assert "a batch of 1 fits, and accumulate" in advice(min(peaks.values()) // 3)
    assert "rows of at most" in advice(min(peaks.values()) // 8)
    assert "Not even one token fits" in advice(1000)
    forward = make_plan(str(tmp_path), Choice(tokens=8192), room=1000, timed=False).advice
    assert forward[-1].endswith("the weights alone are too much; take a smaller model."), "there is nothing to adapt"


def test_other_stacks_are_refused() -> None:
    reversible = planned(stack="reversible", normalization="pre")
    with pytest.raises(InputError, match="'reversible' is not counted block by block"):
        memory_of(reversible, Choice(tokens=64))


def test_seconds_of_a_device_are_its_blocks_what_is_beside_them_and_the_update() -> None:
    device = DEVICES["h100"]
    model, forecast = planned("full", num_hidden_layers=3), Forecast(device)
    weights, choice = weights_of(model), Choice(tokens=8192, train=True)
    update = 28 * weights.total / (0.8 * device.bandwidth)  # AdamW reads four numbers and writes three
    spec = model.config.layer_attention(0)
    block = forecast.block(model.config, spec, choice, True)
    forward = forecast.block(model.config, spec, choice, False)
    assert block is not None
    assert forward is not None
    assert forecast.seconds(model, choice, weights) == pytest.approx(3 * block + update)
    again = Choice(tokens=8192, train=True, checkpointing=True)
    assert forecast.seconds(model, again, weights) == pytest.approx(3 * (block + forward) + update)
    # Where products of matrices are what takes time, half precision takes less; and an L4 takes longer.
    half = Choice(tokens=65536, precision="bfloat16")
    seconds = forecast.seconds(model, half, weights)
    assert seconds is not None
    assert seconds < (forecast.seconds(model, Choice(tokens=65536), weights) or 0) / 5
    assert 3 * seconds < (Forecast(DEVICES["l4"]).seconds(model, half, weights) or 0)
    plan = make_plan(model, Choice(tokens=65536), device=DEVICES["l4"])
    assert (plan.room, plan.rows[1].seconds) == (
        24 * 10**9,
        pytest.approx(Forecast(DEVICES["l4"]).seconds(model, half, weights)),
    )
    assert "NVIDIA L4" in plan.advice[-1]
