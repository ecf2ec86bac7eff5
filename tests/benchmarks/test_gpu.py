"""The first hour with a GPU, on one that is not there: it runs, goes on where it ended, and says what was left out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import gpu
from fake_cuda import FakeCuda
from gpu import DRY, LENGTHS, cells, page, predict, predicted_page, read_predictions, run_cells
from gpu_sides import CORES, Cell
from longspan.attention import MECHANISMS
from measure import add_run, finished

ROOT = Path(__file__).parents[2]
ABSENT = (
    *("bm25s", "datasets", "docx", "jsonschema", "langdetect", "latex2mathml", "linformer", "mkdocs", "pypdfium2"),
    *("rouge_score", "selenium", "sentencex", "simplemma", "Stemmer", "sumy", "trafilatura", "x_transformers"),
)
"""Packages that an image for GPUs does not bring."""
HIDING = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Hidden())
"""


def test_every_mechanism_has_every_row() -> None:
    rows = cells(LENGTHS)
    assert len({row.key for row in rows}) == len(rows)
    for name, kind in MECHANISMS.items():
        own = {
            row for row in rows if row.side == name and row.work in ("forward", "training") and not row.global_tokens
        }
        # Two lengths of padding, compiled or not; forward, training with dropout and without.
        assert len(own) == len(LENGTHS) * 2 * 2 * 3 * (kind.bidirectional + kind.causal)
    plain = [row for row in rows if not (row.padded or row.dropout or row.compiled)]
    assert rows.index(Cell(side="longformer", work="training", tokens=65_536)) < rows.index(
        Cell(side="longformer", work="forward", tokens=4096, compiled=True)
    )
    assert {row.side for row in plain} > {*MECHANISMS, *CORES, "model-led", "hf-model-led"}


def test_what_has_changed_is_timed_first() -> None:
    rows = cells(LENGTHS)
    first = rows[: next(number for number, row in enumerate(rows) if row.work == "check")]
    assert {row.tokens for row in first} == {65_536}
    assert {row.side for row in first} == set(gpu.URGENT)
    longformer = {(row.work, row.padded, row.global_tokens) for row in first if row.side == "longformer"}
    assert longformer == {(work, *of) for work in gpu.WORKS for of in ((False, 0), (True, 0), (False, 16))}


def test_a_dry_run_on_a_device_that_is_not_there(tmp_path: Path) -> None:
    """Every mechanism with all that training brings, and attention of others."""
    file, said = tmp_path / "rows.jsonl", []
    rows = [row for row in cells((64,)) if not row.compiled]
    others = ("sdpa", "window", "window-blocked")
    only_causal = [name for name, kind in MECHANISMS.items() if not kind.bidirectional]
    rows = [
        row
        for row in rows
        if (row.padded and row.dropout and row.causal == (row.side in only_causal))
        or row.side in others
        or row.global_tokens
    ]
    with FakeCuda() as device:
        setting = replace(DRY, device=device)
        assert run_cells(rows, file, setting, budget=600, predictions={}, say=said.append) == 0
        assert run_cells(rows, file, setting, budget=600, predictions={}, say=said.append) == 0
    done = finished(file)
    assert len(done) == len(rows) == len(said)  # none of them twice
    assert [row["reason"] for row in done if row["status"] != "done"] == []
    assert all(row["milliseconds"] > 0 for row in done)


def test_a_processor_runs_checks_models_and_what_must_agree(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [row for row in cells((64,)) if row.work == "check" and row.side in ("longformer", "linear")]
    rows += [Cell(side="hf-longformer", work="forward", tokens=64), Cell(side="model-led", work="step", tokens=64)]
    rows += [Cell(side="linear", work=work, tokens=64) for work in ("prefill", "decode")]
    rows += [Cell(side="flash-window", work="forward", tokens=64), Cell(side="linear", work="forward", tokens=10**9)]
    rows += [Cell(side="fusion", work="forward", tokens=64, causal=True)]
    predictions = {rows[-2].key: 1e7, rows[-3].key: 3.0}
    assert run_cells(rows, file, DRY, budget=600, predictions=predictions, say=lambda _: None) == 0
    *done, flash, long, refused = finished(file)
    assert [row["status"] for row in done] == ["done"] * len(done)
    assert all(row[work]["largest"] == 0 for row in done[:4] for work in ("forward", "training"))
    assert done[4]["differs"] < 1e-5
    assert (flash["status"], "flash_attn" in flash["reason"], flash["predicted"]) == ("failed", True, 3.0)
    assert (long["status"], long["reason"]) == ("left out", "predicted to take 10,000 s")
    assert (refused["status"], "no causal form" in refused["reason"]) == ("refused", True)
    text = "\n".join(page(finished(file)))
    assert re.search(r"\| linear \|.*left out: predicted to take 10,000 s", text)
    assert "## decode" in text


def test_a_call_ends_when_its_budget_is_spent(tmp_path: Path) -> None:
    file, ticks = tmp_path / "rows.jsonl", iter(range(0, 1000, 10))
    rows = [row for row in cells((64,)) if row.side == "linear" and row.work == "forward" and not row.compiled]

    def clock() -> float:
        return float(next(ticks))

    left = run_cells(rows, file, DRY, budget=15, predictions={}, say=lambda _: None, clock=clock)
    assert (left, len(finished(file))) == (len(rows) - 1, 1)


def test_a_device_that_is_lost_ends_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: Iterator[dict] = iter([{"status": "failed", "reason": "AcceleratorError: CUDA error: an illegal access"}])
    monkeypatch.setattr(gpu, "measured", lambda *_: next(answers))
    rows, said = [Cell(side="linear", work="forward", tokens=tokens) for tokens in (64, 65, 66)], []
    assert run_cells(rows, tmp_path / "rows.jsonl", DRY, budget=600, predictions={}, say=said.append) == 2
    assert "call again" in said[-1]


def test_predictions_are_made_once_and_read_for_one_device(tmp_path: Path) -> None:
    rows = [row for row in cells((64,)) if row.side in ("linear", "sdpa") and not row.causal and not row.padded]
    for _ in range(2):
        predict(rows, tmp_path / "made.jsonl", replace(DRY, dtype=torch.bfloat16), budget=600)
    made = finished(tmp_path / "made.jsonl")
    assert [(row["cell"]["work"], row["cell"]["dropout"]) for row in made] == [
        ("forward", 0.0), ("training", 0.0), ("training", 0.1),
    ]  # fmt: skip
    assert made[0]["milliseconds"]["h100"] == pytest.approx(6e-3 * made[0]["launches"])  # so small that launches count
    assert {row["how"] for row in made} == {"predicted"}
    text = "\n".join(predicted_page(made))
    assert text.startswith("**Nothing on this page was measured.**")
    assert "| linear | 0.1" in text
    cell = Cell(side="linear", work="forward", tokens=64)
    add_run(tmp_path / "rows.jsonl", {"cell": cell.__dict__, "milliseconds": {"h100": 2.5}})
    assert read_predictions(tmp_path / "rows.jsonl", "h100") == {cell.key: 2.5}
    assert read_predictions(tmp_path / "rows.jsonl", "l4") == {}
    assert read_predictions(tmp_path / "none.jsonl", "h100") == {}


def test_without_cuda_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    assert gpu.main([]) == 2
    assert "torch" in capsys.readouterr().out


@pytest.mark.slow
def test_what_make_gpu_collects_needs_no_optional_package(tmp_path: Path) -> None:
    (tmp_path / "hiding.py").write_text(HIDING.format(absent=set(ABSENT)), encoding="utf-8")
    tests = (path for folder in (ROOT / "tests", *ROOT.glob("packages/*/tests")) for path in folder.rglob("test_*.py"))
    files = [path for path in tests if "mark.gpu" in path.read_text(encoding="utf-8")]
    names = [str(path) for path in files if path != Path(__file__)]
    paths = os.pathsep.join(map(str, [tmp_path, *ROOT.glob("packages/*/src")]))
    options = ["-p", "hiding", "--collect-only", "-q", "-m", "gpu", *names]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+/\d+ tests collected", done.stdout), done.stdout
    assert "mark\\.gpu" in (ROOT / "Makefile").read_text(encoding="utf-8")  # the same files
