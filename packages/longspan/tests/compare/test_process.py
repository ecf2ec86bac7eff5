"""One cell: measured and trained for real, in this process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from longspan.compare.machine import forget_peak, peak_memory, resident
from longspan.compare.probes import PROBES
from longspan.compare.process import WARM_TOKENS, Work, run, warm_up
from longspan.compare.settings import Cell, Result, read_result, write_result

pytestmark = pytest.mark.slow


def cell(kind: str, mechanism: str, **options: object) -> Cell:
    given = {"task": "recall", "tokens": 67, "rows": 2, **options}
    return Cell(kind=kind, mechanism=mechanism, **given)  # type: ignore[arg-type]


def test_speed_and_memory_are_measured(tmp_path: Path) -> None:
    result = run(cell("speed", "longformer"), tmp_path)
    assert result.status == "done", result.reason
    assert all(result.numbers[f"{name}_tokens_per_second"] > 0 for name in ("train", "inference"))
    assert result.words["form"] == "bidirectional"
    assert result.words["global_tokens"] == "those that ask"
    write_result(result, tmp_path / "result.json")
    assert read_result(tmp_path / "result.json") == result
    batch = {"input_ids": torch.zeros(2, WARM_TOKENS + 3)}
    first = [warm_up(batch, device)["input_ids"].shape[1] for device in ("cpu", "cuda")]
    assert first == [WARM_TOKENS, WARM_TOKENS + 3]  # CUDA compiles for the shapes that are timed


def test_training_is_the_same_each_time_and_learns(tmp_path: Path) -> None:
    trained = cell("quality", "full", steps=60, held_out=8, rows=8, seed=1, task="recall")
    first, again = run(trained, tmp_path), run(trained, tmp_path)
    assert first.status == "done", first.reason
    assert first.numbers == again.numbers
    assert first.numbers["train_loss"] < 5.5  # that of a guess among all 169 tokens is above 5
    assert 0 <= first.numbers["score"] <= 1
    assert sum(asked for _, asked in first.by_distance.values()) == 8 * 16
    assert sum(right for right, _ in first.by_distance.values()) == round(first.numbers["score"] * 8 * 16)
    assert sorted(os.listdir(tmp_path)) == []


@pytest.mark.parametrize("task", [name for name in PROBES if name != "novels"])
def test_every_probe_runs_in_both_forms(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LONGSPAN_DATA", raising=False)
    PROBES[task].prepare(tmp_path)
    for form in PROBES[task].forms:
        monkeypatch.setattr(PROBES[task], "forms", (form,))
        result = run(cell("quality", "linear", task=task, tokens=120, steps=1, held_out=3), tmp_path)
        assert result.status == "done", result.reason
        assert result.words["form"] == form


def test_the_loss_is_of_the_places_that_ask(tmp_path: Path) -> None:
    work = Work(cell("speed", "linear", task="listops", rows=3), tmp_path)
    features = [work.rows(1, 3)[number] for number in range(3)]
    batch = work.collate(features)
    assert batch["attention_mask"].sum(1).tolist() == [len(each["input_ids"]) for each in features]
    assert (batch["input_ids"][~batch["attention_mask"]] == work.probe.padding).all()
    assert batch["global_attention_mask"].nonzero().tolist() == [
        [row, len(each["input_ids"]) - 1] for row, each in enumerate(features)
    ]


def test_what_a_mechanism_refuses_is_a_result_and_so_is_what_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = run(cell("speed", "fusion", task="novels"), tmp_path)
    assert (refused.status, "has no causal form" in refused.reason) == ("refused", True)

    def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("no such number")

    monkeypatch.setattr("longspan.compare.process.build", broken)
    failed = run(cell("speed", "linear"), tmp_path)
    assert (failed.status, failed.reason) == ("failed", "ZeroDivisionError: no such number")
    monkeypatch.setattr("longspan.compare.process.build", lambda *_: torch.empty(2**60))
    assert run(cell("speed", "linear"), tmp_path).reason == "out of memory"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cell": 3}', '{"status": "done"}'])
def test_a_damaged_result_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    assert read_result(tmp_path / "a.json") is None
    assert read_result(tmp_path / "b.json") is None


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux counts the memory")
def test_the_peak_is_what_the_block_added() -> None:
    with peak_memory("cpu") as peak:
        torch.ones(10 * 2**20)  # 40 MiB, gone at once
    assert peak.bytes is not None
    assert 35 * 2**20 < peak.bytes < 60 * 2**20
    forget_peak()
    assert resident("VmHWM") - resident("VmRSS") < 10 * 2**20  # not 40; Linux counts to some pages for every core


def test_a_result_keeps_its_cell() -> None:
    assert cell("quality", "full", seed=3).name == "full-quality-seed3"
    assert cell("speed", "full").name == "full-speed-67x2"
    assert Result(cell=cell("speed", "full"), status="failed", reason="x").numbers == {}
