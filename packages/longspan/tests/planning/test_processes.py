"""Plans of several processes: numbers worked by hand, and what processes cannot share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from longspan.errors import InputError
from longspan.hardware import DEVICES
from longspan.models import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForConditionalGeneration,
    LongspanForMaskedLM,
    LongspanForSentenceScoring,
)
from longspan.models.work import Choice
from longspan.planning.memory import memory_of, weights_of
from longspan.planning.plan import Forecast, make_plan
from longspan.planning.processes import sent
from longspan.planning.source import Planned

WINDOW = {"mechanism": "longformer", "left_tokens": 32, "right_tokens": 16}
CHOICE = Choice(tokens=1000, train=True)


def planned(**changes: Any) -> Planned:
    sizes: dict[str, Any] = {"vocab_size": 101, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 256, "position_embedding": "sinusoidal", "dropout": 0.0, "attention": WINDOW}
    kind = changes.pop("kind", LongspanForMaskedLM)
    return Planned(name="tiny", config=LongspanConfig(**{**sizes, **changes}), model_class=kind)


def test_weights_that_are_divided() -> None:
    """A fourth of all, and whole for a moment: the largest block and what is outside of blocks, with gradients."""
    model = planned()
    with torch.device("meta"):
        made = model.model_class(model.config)
    total = sum(weight.numel() for weight in made.parameters())
    block = sum(weight.numel() for weight in made.model.encoder.layers[0].parameters())
    weights = weights_of(model)
    assert (weights.total, weights.unit, weights.outside) == (total, block, total - 3 * block)
    alone, shared = memory_of(model, CHOICE), memory_of(model, replace(CHOICE, processes=4, shard=True))
    fourth = 4 * -(-total // 4)
    assert (shared.weights, shared.gradients, shared.optimizer, shared.buckets) == (fourth, fourth, 2 * fourth, 0)
    assert shared.activations == alone.activations
    assert shared.working - alone.working == 8 * (total - 2 * block)
    forward = replace(CHOICE, train=False, precision="bfloat16")
    whole, part = memory_of(model, forward), memory_of(model, replace(forward, processes=4, shard=True))
    assert part.weights == 2 * -(-total // 4)
    assert part.working - whole.working == 2 * (total - 2 * block)


def test_gradients_are_exchanged_in_buckets() -> None:
    model = planned()
    alone, two = memory_of(model, CHOICE), memory_of(model, replace(CHOICE, processes=2))
    assert two.buckets == two.gradients == alone.gradients
    assert two.peak - alone.peak == two.buckets


def test_rows_that_are_read_together() -> None:
    """334 tokens of 1,000, and 32 and 16 of the neighbours."""
    model = planned()
    together = memory_of(model, replace(CHOICE, processes=3, sequence=3))
    assert together.activations == memory_of(model, replace(CHOICE, tokens=334 + 48)).activations
    both = memory_of(model, replace(CHOICE, processes=500, sequence=500))
    assert both.activations == memory_of(model, replace(CHOICE, tokens=2 + 48)).activations
    linear = planned(attention="linear")
    sums = memory_of(linear, replace(CHOICE, processes=3, sequence=3))
    assert sums.activations == memory_of(linear, replace(CHOICE, tokens=334)).activations
    forecast, weights = Forecast(DEVICES["h100"]), weights_of(model)
    whole = forecast.seconds(model, replace(CHOICE, tokens=1 << 18), weights)
    part = forecast.seconds(model, replace(CHOICE, tokens=1 << 18, processes=4, sequence=4), weights)
    assert whole is not None
    assert part is not None
    assert 3 < whole / part < 4.2


def test_what_is_sent() -> None:
    model, linear = planned(), planned(attention="linear")
    weights = weights_of(model)
    four = replace(CHOICE, processes=4)
    assert sent(model, four, weights) == int(1.5 * 4 * weights.total)
    assert sent(model, replace(four, train=False), weights) == 0
    assert sent(model, replace(four, shard=True), weights) == int(2.25 * 4 * weights.total)
    assert sent(model, replace(four, shard=True, train=False), weights) == int(0.75 * 4 * weights.total)
    rows = replace(four, train=False, sequence=4, batch=5)
    assert sent(model, rows, weights) == 5 * 3 * 48 * 64 * 4
    assert sent(model, replace(rows, precision="bfloat16"), weights) == 5 * 3 * 48 * 64 * 2
    twice = replace(rows, train=True)
    assert sent(model, twice, weights) - sent(model, four, weights) == 2 * 5 * 3 * 48 * 64 * 4
    again = replace(twice, checkpointing=True)
    assert sent(model, again, weights) - sent(model, four, weights) == 3 * 5 * 3 * 48 * 64 * 4
    # Targets of 7 tokens: in float32 what 2 heads of 32 numbers gather, the sums of weights, and forward the greatest.
    writer = planned(kind=LongspanForConditionalGeneration, decoder_layers=3, is_encoder_decoder=True)
    short, own = replace(rows, output_tokens=7), weights_of(writer)
    assert sent(writer, short, own) == 5 * 3 * 48 * 64 * 4 + 3 * (1.5 * 4 * 35 * 66 + 1.5 * 4 * 35 * 2)
    steps = [sent(writer, replace(short, train=True, checkpointing=again), own) for again in (False, True)]
    assert steps[1] - steps[0] == 5 * 3 * 48 * 64 * 4 + 3 * (1.5 * 4 * 35 * 66 + 1.5 * 4 * 35 * 2)
    assert steps[0] - int(1.5 * 4 * own.total) == 2 * 5 * 3 * 48 * 64 * 4 + 3 * (
        2 * 1.5 * 4 * 35 * 66 + 1.5 * 4 * 35 * 2
    )
    # Text looks left alone; a memory of 20 states goes to all once, and a first global token to and fro.
    text = {"kind": LongspanForCausalLM, "position_embedding": "none"}
    assert sent(planned(**text), rows, weights) == 5 * 3 * 32 * 64 * 4
    stream = planned(**text, stack={"stack": "recurrent", "memory_tokens": 20})
    assert sent(stream, rows, weights) == 5 * 3 * (32 * 64 * 4 + 1.5 * 20 * 64 * 4)
    first = planned(global_tokens="first")
    assert sent(first, rows, weights) == 5 * 3 * (48 * 64 * 4 + 1.5 * 64 * 4 + 1.5 * 4 * 66 + 1.5 * 4 * 2)
    # Of each of 2 heads, 32 features of keys times 32 values and their own sums, to three others, in 3 layers.
    assert sent(linear, replace(rows, batch=1), weights_of(linear)) == 3 * 4 * 3 * 2 * 32 * 33


@pytest.mark.parametrize(
    ("changes", "choice", "words"),
    [
        (
            {},
            {"processes": 6, "sequence": 4},
            r"--sequence is 4, and 6 processes are no multiple of it; .*--processes 4",
        ),
        ({}, {"shard": True}, "--processes is 1; give more"),
        ({}, {"processes": 2000, "sequence": 2000}, "more processes than the 1000 tokens of a row"),
        ({"attention": "reformer"}, {"processes": 2, "sequence": 2}, "nothing bounds how far a token sees"),
        (
            {"attention": "full"},
            {"processes": 2, "sequence": 2},
            "the exchange of attention 'full' between all parts of a row are not counted; plan a model with a window",
        ),
        (
            {"attention": "full", "kind": LongspanForCausalLM},
            {"processes": 2, "sequence": 2},
            "the exchange of attention 'full' between all parts of a row are not counted; plan a model with a window",
        ),
        (
            {"kind": LongspanForSentenceScoring},
            {"processes": 2, "sequence": 2},
            "derives its output from a whole row, which no process has",
        ),
    ],
)
def test_what_processes_cannot_share(changes: dict[str, Any], choice: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_plan(planned(**changes), replace(CHOICE, **choice), timed=False)


def test_what_is_said() -> None:
    plan = make_plan(planned(), replace(CHOICE, processes=4, shard=True, sequence=2), timed=False)
    (said,) = plan.advice
    assert said.startswith("4 processes divide the weights, 2 of them each row; each sends ")
    assert {row["sequence"] for row in plan.to_dict()["choices"]} == {2}
