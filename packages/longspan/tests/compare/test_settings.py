"""What a comparison is told, and how its time is divided: numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from longspan.attention import MECHANISMS
from longspan.compare.budget import Clock, expected_seconds, steps_within, training_seconds, work_of
from longspan.compare.settings import Cell, Comparison, Result, lengths_of, names_of, options_of, seconds_of
from longspan.compare.skeleton import Skeleton
from longspan.compare.summary import lines_of
from longspan.errors import InputError
from longspan.settings import from_plain, to_plain


@pytest.mark.parametrize(
    ("text", "seconds"), [("5m", 300), ("90s", 90), ("90", 90), ("1h30m", 5400), ("1.5m", 90), ("1h1m1s", 3661)]
)
def test_budgets(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5m", "0s", "5 minutes", "m", "1e9", "nan", "5m3h"])
def test_budgets_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="give a time such as 90s, 5m or 1h30m"):
        seconds_of(text)


def test_lengths() -> None:
    assert lengths_of("64, 100") == (64, 100)
    assert lengths_of("512-4096") == (512, 1024, 2048, 4096)
    assert lengths_of("20000-100000,7-7") == (20_000, 40_000, 80_000, 100_000, 7)  # the last one too
    for text in ("1024-99999999", "99999999"):
        with pytest.raises(InputError, match="99999999 is more than 16,777,216 tokens"):
            lengths_of(text)
    for text in ("", "a", "0", "10-5", "-5", "5-", "1.5"):
        with pytest.raises(InputError):
            lengths_of(text)


def test_names_and_options() -> None:
    assert names_of("a, b,,", "mechanisms") == ("a", "b")
    assert options_of(["longformer.left_tokens=4", "longformer.dilation=[1, 2]"]) == {
        "longformer": {"left_tokens": 4, "dilation": [1, 2]}
    }
    for change in ("longformer=4", "left_tokens", "longformer.=4"):
        with pytest.raises(InputError, match=r"not of the form MECHANISM.OPTION=VALUE"):
            options_of([change])


def test_what_is_not_said_is_filled_in() -> None:
    comparison = Comparison(tokens=2048, lengths=(512, 2048, 16))
    assert comparison.mechanisms == (*MECHANISMS, "binary_partition")  # a stack that brings its attention
    assert comparison.budget == 300
    assert comparison.curve_lengths() == [512, 2048]  # 16 tokens are too few for the task
    assert Comparison(steps=3).budget is None


def test_one_mechanism_with_several_sets_of_options() -> None:
    deep = [{"left_tokens": 9, "right_tokens": 9}, {"left_tokens": 16, "right_tokens": 16}]
    comparison = Comparison(
        mechanisms=names_of("poolingformer,deep:poolingformer,linear", "mechanisms"),
        options={"deep": {"levels": deep}, "poolingformer": {"left_tokens": 20}},
        steps=1,
    )
    assert comparison.labels == {"poolingformer": "poolingformer", "deep": "poolingformer", "linear": "linear"}
    plain, deeper = (comparison.quality(label, 2, 1) for label in ("poolingformer", "deep"))
    assert (plain.name, deeper.name) == ("poolingformer-quality-seed2", "deep-quality-seed2")
    assert (plain.options, deeper.options) == ({"left_tokens": 20}, {"levels": deep})
    assert plain.mechanism == deeper.mechanism == "poolingformer"
    measured = [
        Result(cell=cell, status="done", numbers={"score": 0.1 + cell.steps, "answers": 3}) for cell in (plain, deeper)
    ]
    lines = lines_of(comparison, measured)
    assert [(line.label, line.scores) for line in lines] == [("poolingformer", [1.1]), ("deep", [1.1]), ("linear", [])]
    # A result that was written before there were labels is that of its mechanism.
    old = to_plain(plain)
    del old["label"]
    assert from_plain(Cell, old) == plain


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mechanisms": ("longfromer",)}, "did you mean 'longformer'"),
        ({"mechanisms": ("near:longfromer",)}, "did you mean 'longformer'"),
        ({"mechanisms": ("a/b:full",)}, "label 'a/b' of 'a/b:full' must be of letters"),
        ({"mechanisms": (":full",)}, "label '' of ':full' must be of letters"),
        ({"mechanisms": ("linear:full",)}, "is the name of another mechanism"),
        ({"mechanisms": ("a:full", "a:linear")}, "'a' is compared twice"),
        ({"mechanisms": ("a:full",), "options": {"full": {}}}, "options are given for 'full', which is not compared"),
        ({"task": "recal"}, "did you mean 'recall'"),
        ({"tokens": 0}, "tokens is 0; it must be at least 1"),
        ({"tokens": 20}, "too short for 'recall'"),
        ({"steps": 5, "budget": 60.0}, "give one of them"),
        ({"options": {"linear": {}}, "mechanisms": ("full",)}, "which is not compared"),
        ({"options": {"longformer": {"left": 3}}}, "unknown key"),
        ({"options": {"full": {"mechanism": "linear"}}}, "another mechanism in mechanisms, as LABEL:NAME"),
        ({"options": {"full": {"mechanism": -1}}}, "options of 'full' are {'mechanism': -1}"),
        ({"options": {"full": 3}}, "options of 'full' are 3; give a mapping"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"skeleton": Skeleton(stack="heap")}, "stack"),
        ({"seeds": 0}, "seeds is 0"),
        ({"learning_rate": float("nan")}, "finite"),
    ],
)
def test_mistakes(options: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Comparison(**options)


def test_heads_divide_the_width() -> None:
    with pytest.raises(InputError, match="heads=4 does not divide width=62"):
        Skeleton(width=62)


def measured(mechanism: str, train: float, inference: float, tokens: int = 1024) -> Result:
    cell = Cell(kind="speed", task="recall", mechanism=mechanism, tokens=tokens, rows=4)
    return Result(cell=cell, status="done", numbers={"train_wall": train, "inference_wall": inference})


def test_steps_are_those_that_fit_for_all() -> None:
    clock = Clock(1000.0, starts=[10.0, 6.0])
    both = [measured("full", 0.494, 0.25), measured("linear", 0.194, 0.125)]
    # Of 996 s, the report's four left aside, 846.6 are planned with; of them go 60 to two seeds of two trainings with a
    # start of 8 s, 1 s of setting up and 32 batches of scoring each. A step of both mechanisms and both seeds takes
    # 2 × (0.5 + 0.2) s. The clock has run for a moment.
    assert steps_within(both, 2, 128, clock) in (560, 561)
    assert steps_within(both, 2, 128, Clock(1.0)) == 10
    assert steps_within([], 2, 128, clock) == 10
    assert training_seconds(both[0], 100, 128, 8.0) == pytest.approx(8 + 1 + 100 * 0.5 + 32 * 0.25)


def test_quadratic_costs_are_expected_to_grow_so() -> None:
    def growth(name: str) -> float:
        cells = [Cell(kind="speed", task="recall", mechanism=name, tokens=tokens, rows=1) for tokens in (1024, 65_536)]
        return work_of(cells[1]) / work_of(cells[0])

    assert growth("linear") == pytest.approx(64)
    assert 1500 < growth("full") < 4096
    long = Cell(kind="speed", task="recall", mechanism="full", tokens=65_536, rows=4)
    assert expected_seconds(long, measured("full", 0.5, 0.25), 8.0) == pytest.approx(8 + 2 + growth("full") * 0.75 + 8)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="device is 'cuda', but torch sees no CUDA device here; leave it out"):
        Comparison(device="cuda")
