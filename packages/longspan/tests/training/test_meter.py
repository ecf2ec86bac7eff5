"""What a run reports of its speed, with a clock of the test and numbers worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from longspan.checkpoints.loading import load_tokenizer
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanForConditionalGeneration
from longspan.models.work import Choice, training_flops
from longspan.tasks.predicting import without_padding
from longspan.training.callbacks import Latest, ProgressLines
from longspan.training.meter import ROWS, Meter, peak_flops, row_flops, tokens_of_rows, with_rows
from longspan.training.processes import STAND_IN, StandIns
from longspan.training.recipe_file import load_recipe
from longspan.training.train import load_rows

ALONE: Any = SimpleNamespace(device=torch.device("cpu"), world_size=1, metric_for_best_model="loss")
SIZES: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 43}


def ticking(*seconds: float) -> Callable[[], float]:
    """A clock that shows these seconds, one after the other."""
    return iter(seconds).__next__


def batches(*rows: tuple[tuple[int, int], ...]) -> Iterator[dict[str, Any]]:
    return iter([{ROWS: row} for row in rows])


def test_speed_by_hand() -> None:
    """Two steps of 4 and 6 seconds with 30 and 20 tokens; 1 + 0.5 and 1 second of them waiting for a batch."""
    first = (100.0, 100.0, 101.0, 101.0, 101.5, 104.0)  # begun, two batches with their waiting, ended
    second = (110.0, 110.0, 111.0, 116.0)  # an evaluation of six seconds before it does not count
    meter = Meter(lambda tokens, targets: 100.0 * tokens + targets, 2000.0, ticking(*first, *second))
    waiting = meter.begin(batches(((7, 1), (13, 1)), ((10, 2),)))
    tokens, flops = meter.counts([next(waiting), next(waiting)])
    assert (tokens, flops) == (30, 3004.0)
    meter.add(tokens, flops)
    meter.on_step_end(ALONE, None, None)
    meter.add(*meter.counts([next(meter.begin(batches(((20, 0),))))]))
    meter.on_step_end(ALONE, None, None)
    report = meter.report(ALONE)
    assert report.pop("memory_gib") > 0
    assert report == {"tokens_per_second": 5.0, "mfu": 5004.0 / (10 * 2000), "data_wait": 0.25}
    assert meter.report(ALONE).keys() == {"memory_gib", "data_wait"}  # no step since


def test_the_peak_is_that_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longspan.training.meter.largest", lambda values, args: list(values))
    meter = Meter(lambda tokens, targets: 0.0, 50.0, ticking(0.0, 0.0, 0.0, 2.0))
    next(meter.begin(batches(())))
    meter.add(8, 100.0)
    meter.on_step_end(ALONE, None, None)
    assert meter.report(SimpleNamespace(device=torch.device("cpu"), world_size=4))["mfu"] == 100 / (2 * 50 * 4)


@pytest.mark.parametrize(("flops", "peak"), [(None, 1e12), (lambda tokens, targets: 1.0, None)])
def test_without_a_peak_or_flops_there_is_no_mfu(flops: Any, peak: float | None) -> None:
    meter = Meter(flops, peak, ticking(0.0, 0.0, 0.0, 1.0))
    meter.add(*meter.counts([next(meter.begin(batches(((5, 0),))))]))
    meter.on_step_end(ALONE, None, None)
    assert meter.report(ALONE).keys() == {"tokens_per_second", "memory_gib", "data_wait"}


def test_waiting_for_an_end_counts() -> None:
    meter = Meter(clock=ticking(0.0, 0.0, 3.0, 4.0))
    assert list(meter.begin(iter(()))) == []
    meter.on_step_end(ALONE, None, None)
    assert meter.report(ALONE)["data_wait"] == 0.75


def test_padding_does_not_count() -> None:
    ids, mask = torch.ones(2, 5, dtype=torch.int64), torch.tensor([[True] * 3 + [False] * 2, [True] * 5])
    labels = torch.tensor([[4, -100, 5], [6, 7, 8]])
    assert tokens_of_rows({"input_ids": ids, "attention_mask": mask}) == ((3, 0), (5, 0))
    assert tokens_of_rows({"input_ids": ids, "attention_mask": mask, "labels": labels}) == ((3, 2), (5, 3))
    assert tokens_of_rows({"input_ids": ids, "labels": torch.tensor([1, 2])}) == ((5, 0), (5, 0))  # of documents
    assert tokens_of_rows({"input_ids": ids.expand(3, 2, 5)}) == ((5, 0),) * 6  # choices
    assert tokens_of_rows({"pixels": ids}) == ()
    documents = torch.tensor([[0, 0, 1, -1, -1], [0, 1, 1, 1, 2]])
    packed = ((2, 0), (1, 0), (1, 0), (3, 0), (1, 0))
    assert tokens_of_rows({"input_ids": ids, "seq_idx": documents}) == packed


def test_packed_rows_have_as_many_tokens() -> None:
    lengths = (3, 5, 1)
    rows = [{"input_ids": torch.ones(length, dtype=torch.int64)} for length in lengths]

    def collate(features: Any) -> dict[str, Any]:
        ids = torch.nn.utils.rnn.pad_sequence([each["input_ids"] for each in features], batch_first=True)
        return {"input_ids": ids, "attention_mask": ids > 0}

    whole = with_rows(collate, rows)[ROWS]
    packed = with_rows(lambda features: without_padding(collate, features), rows)
    assert "seq_idx" in packed
    assert [tokens for tokens, _ in whole] == [tokens for tokens, _ in packed[ROWS]] == list(lengths)


def test_a_stand_in_counts_for_nothing() -> None:
    data: Any = [{"input_ids": torch.ones(1, 4)}]
    collator = StandIns(lambda features: with_rows(lambda rows: rows[0], features), data)
    stand_in = collator([])
    assert stand_in[STAND_IN]
    assert Meter(lambda tokens, targets: 1.0, 1.0).counts([collator(data), stand_in]) == (4, 1.0)


@pytest.mark.parametrize("tokens", [1, 37])
def test_flops_of_a_language_model_by_hand(tokens: int) -> None:
    """Two layers: four projections, scores and mixing of the pairs that are visible, a feed-forward layer; and the
    logits. Each multiply-add is two FLOPs, and the backward pass is twice the forward pass. A causal window of 5 tokens
    sees none to the right, whatever its option says.
    """
    window = {"mechanism": "longformer", "left_tokens": 5, "right_tokens": 5}
    for attention, pairs in (
        ("full", tokens * (tokens + 1) // 2),
        (window, sum(min(place, 5) + 1 for place in range(tokens))),
    ):
        model = LongspanForCausalLM(LongspanConfig(**SIZES, num_hidden_layers=2, attention=attention))
        layer = tokens * (4 * 16 * 16 + 2 * 16 * 24) + 2 * 16 * pairs
        flops = row_flops(model)
        assert flops is not None
        assert flops(tokens, tokens) == pytest.approx(6 * (2 * layer + tokens * 16 * 43), rel=1e-12)
        assert flops(0, 0) == 0


def test_flops_of_an_encoder_decoder_by_hand() -> None:
    """In the decoder, six projections of a target token and two of a source token; it attends to both."""
    sizes = SIZES | {"num_hidden_layers": 1, "decoder_layers": 1, "attention": "full"}
    source, target = 11, 5
    encoder = source * (4 * 16 * 16 + 2 * 16 * 24) + 2 * 16 * source * source
    decoder = target * (6 * 16 * 16 + 2 * 16 * 24) + source * 2 * 16 * 16 + 2 * 16 * target * (source + target)
    flops = row_flops(LongspanForConditionalGeneration(LongspanConfig(**sizes)))
    assert flops is not None
    assert flops(source, target) == 6 * (encoder + decoder + target * 16 * 43)


def test_recomputed_activations_are_no_model_flops() -> None:
    config = LongspanConfig(**SIZES, num_hidden_layers=2)
    plain, again = (Choice(tokens=9, train=True, checkpointing=checkpointing) for checkpointing in (False, True))
    assert training_flops(config, plain) == training_flops(config, again)


def test_a_stack_that_is_not_counted_has_none() -> None:
    config = LongspanConfig(**SIZES, num_hidden_layers=2, stack="reversible", normalization="pre")
    assert row_flops(LongspanForCausalLM(config)) is None


@pytest.mark.parametrize(
    ("name", "options", "peak"),
    [
        ("NVIDIA H200", {"bf16": True}, 989.4e12),
        ("NVIDIA H100 80GB HBM3", {"fp16": True}, 989.4e12),
        ("NVIDIA A100-SXM4-40GB", {}, 19.5e12),
        ("NVIDIA A100-SXM4-40GB", {"tf32": True}, None),  # whose peak the table does not have
        ("NVIDIA A100-SXM4-40GB", {"torch_compile": True}, None),  # turns TF32 on
        ("NVIDIA H100 PCIe", {"bf16": True}, None),  # another peak than the SXM module's
        ("Tesla T4", {"fp16": True}, None),
        (None, {"bf16": True}, None),  # a processor
    ],
)
def test_peaks_come_from_the_table_of_devices(name: str | None, options: dict[str, bool], peak: float | None) -> None:
    plain = {"bf16": False, "fp16": False, "tf32": None, "torch_compile": False}
    assert peak_flops(SimpleNamespace(**plain | options, device=torch.device("cpu")), name) == peak


def test_a_log_gets_a_line_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    lines, state = ProgressLines(lambda: now[0]), SimpleNamespace(global_step=0, max_steps=2000)
    state.is_world_process_zero = True
    logs = {"loss": 2.0, "grad_norm": 0.5, "tokens_per_second": 12345.6, "mfu": 0.4321, "memory_gib": 12.34567}
    for step in range(1, 1001):  # of 0.25 seconds
        now[0], state.global_step = step / 4, step
        lines.on_step_end(ALONE, state, None)
        if step % 10 == 0:
            lines.on_log(ALONE, state, None, {**logs, "loss": 2.0 - step / 1000, "data_wait": 0.031, "epoch": 0.1})
    text = "gradient norm 0.5, tokens/s 12,346, MFU 43.2%, memory 12.3 GiB, waiting for data 3%"
    assert capsys.readouterr().err.splitlines() == [
        f"step {step:,} of 2,000: loss {loss}, {text}"
        for step, loss in ((240, "1.77"), (480, "1.53"), (720, "1.29"), (960, "1.05"))
    ]


def test_an_evaluation_writes_a_line_and_a_minute_begins_again(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    lines = ProgressLines(lambda: now[0])
    state = SimpleNamespace(global_step=7, max_steps=9, is_world_process_zero=True)
    args: Any = SimpleNamespace(metric_for_best_model="rouge1")
    now[0] = 59.0
    lines.on_step_end(args, state, None)
    lines.on_log(args, state, None, {"eval_loss": 1.5, "eval_rouge1": 40.0})
    now[0] = 118.0
    lines.on_step_end(args, state, None)
    assert capsys.readouterr().err == "step 7 of 9: validation loss 1.5, rouge1 40\n"
    now[0] = 119.0
    lines.on_step_end(args, state, None)
    state.is_world_process_zero = False
    now[0] = 300.0
    lines.on_step_end(args, state, None)
    assert capsys.readouterr().err.count("\n") == 1


def test_the_bar_shows_the_latest_of_each_number() -> None:
    latest, args = Latest(), SimpleNamespace(metric_for_best_model="accuracy")
    latest.update(args, {"eval_accuracy": 91.0, "eval_loss": 0.3, "eval_runtime": 5.0})
    shown = latest.update(args, {"loss": 0.25, "tokens_per_second": 999.9})
    assert shown == {"loss": "0.25", "validation loss": "0.3", "accuracy": "91", "tokens/s": "1,000"}


def test_history_and_tensorboard_have_them(whole_run: Callable[..., Path]) -> None:
    """Rows of the tiny recipe are cut at 384 tokens, and shorter ones are padded."""
    run = whole_run("optimisation.steps=5")
    history = [entry for entry in json.loads((run / "metrics.json").read_text())["history"] if "loss" in entry]
    names = {"tokens_per_second", "memory_gib", "data_wait", "grad_norm"}
    assert all(names <= entry.keys() and "mfu" not in entry for entry in history)
    assert all(entry["tokens_per_second"] > 0 and 0 <= entry["data_wait"] <= 1 for entry in history)
    recipe = load_recipe(run / "recipe.yaml")
    tokenizer = load_tokenizer(run)
    task, rows = recipe.task, load_rows(recipe.task, recipe.data, "train")
    dataset = task.dataset(rows, tokenizer, training=True, seed=1, folder=run)
    whole = sum(len(dataset[index]["input_ids"]) for index in range(len(dataset)))
    assert history[4]["num_input_tokens_seen"] == whole  # five steps of two rows: one epoch of ten
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    assert {f"train/{name}" for name in names | {"num_input_tokens_seen"}} <= set(events.Tags()["scalars"])
    logged = [event.value for event in events.Scalars("train/num_input_tokens_seen")]
    assert logged == [entry["num_input_tokens_seen"] for entry in history]
