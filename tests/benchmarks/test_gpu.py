"""The quarter of an hour with a GPU, on one that is not there: it runs, goes on where it ended, and says what was left
out."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import gpu
from fake_cuda import FakeCuda
from flex_programs import recorded_calls
from gpu import (
    DRY,
    METHOD,
    NEEDS,
    SECTIONS,
    Section,
    every_mechanism,
    missing,
    page,
    predict,
    predicted_page,
    read_predictions,
    run_cells,
    run_sections,
    tiles_timed,
)
from gpu_cells import Cell, Setting
from gpu_measures import PASSES, compile_once, kernels_of, spills_of_programs
from gpu_sides import CORES, WINDOWS, build, layer_of, passes
from gpu_tiles import (
    BACKWARD,
    FORWARD,
    PATTERNS,
    candidates,
    fastest,
    measured_table,
    parsed,
    pattern_cell,
    source_of,
    with_options,
)
from longspan.attention import MECHANISMS
from longspan.ops.attend import flex, flex_options
from longspan.ops.attend.flex_options import PROGRAMS
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


FULL = Setting()
NOT_WITHOUT_A_DEVICE = {
    *(("banded-cudnn", "", work) for work in PASSES),  # cuDNN
    *(("flash-window", "", work) for work in PASSES),  # the package flash_attn
    *(("flex-window", options, "training") for options in ("", "BACKEND=FLASH")),  # FlexAttention's gradient
}
"""What fails in a dry run, and the row says why: side, options and work."""
HAS_NO_STATIC_CACHE = {
    (side, "", work) for side in ("poolingformer", "linear") for work in ("decode-static", "decode-graph")
}
ON_THE_SIMULATED_DEVICE = ("window-flex", "varlen-window")
"""Sides that the processor would have to compile, or does not have."""


def dry_rows(name: str) -> list[Cell]:
    return list(dict.fromkeys(SECTIONS[name].cells(DRY)))


def test_every_mechanism_has_every_row() -> None:
    rows = every_mechanism(FULL)
    assert len(set(rows)) == len(rows)
    for name, kind in MECHANISMS.items():
        own = {
            row for row in rows if row.side == name and row.work in ("forward", "training") and not row.global_tokens
        }
        # Two lengths of padding, compiled or not; forward, training with dropout and without.
        assert len(own) == len(FULL.lengths) * 2 * 2 * 3 * (kind.bidirectional + kind.causal)
    plain = [row for row in rows if not (row.padded or row.dropout or row.compiled)]
    assert rows.index(Cell(side="longformer", work="training", tokens=65_536)) < rows.index(
        Cell(side="longformer", work="forward", tokens=4096, compiled=True)
    )
    assert {row.side for row in plain} > {*MECHANISMS, *CORES, "model-led", "hf-model-led"}


def test_the_sections_take_a_quarter_of_an_hour() -> None:
    *quarter, rest = SECTIONS.values()
    assert sum(section.seconds for section in quarter) <= 900
    assert rest.cells is every_mechanism
    rows = {name: section.cells(FULL) for name, section in SECTIONS.items()}
    assert {(row.side, row.padded, row.global_tokens) for row in rows["traces"]} == {
        ("bigbird", False, 0), ("reformer", False, 0), ("longformer", False, 0), ("longformer", True, 0),
        ("longformer", False, 16),
    }  # fmt: skip
    assert all(row.traced for row in rows["traces"])
    assert {row.window for row in rows["windows"]} == {128, 256}
    assert {(row.side, row.form, row.options) for row in rows["windows"]} == {
        *((side, "", "") for side in WINDOWS), ("longformer", "", ""), ("longformer", "bare", ""),
        ("flex-window", "", "BACKEND=FLASH"),
    }  # fmt: skip
    assert {(row.side, row.form, row.compiled) for row in rows["products"]} == set(
        product(("poolingformer", "linear"), ("", "joined"), (False, True))
    )
    assert {(row.tokens, row.compiled) for row in rows["steps"]} == {(16_384, False), (16_384, True)}
    assert {row.side for row in rows["steps"]} > {"hf-model-led", "hf-model-longformer", "model-led"}
    assert {row.work for row in rows["decoding"]} == {"decode", "decode-static", "decode-graph"}
    ours = [row for row in rows["tiles"] if not row.options]
    assert len(ours) == len(PATTERNS) * len(PASSES)
    assert set(rows["tiles"][: len(ours)]) == set(ours)  # what they are compared with comes first


@pytest.mark.parametrize("name", ["device", "traces", "tiles"])
def test_a_dry_run_of_a_section(name: str, tmp_path: Path) -> None:
    setting, file, said = replace(DRY, keep=tmp_path), tmp_path / "rows.jsonl", []
    rows = [(SECTIONS[name], dry_rows(name)[:40])]
    assert run_sections(rows, file, setting, budget=600, predictions={}, say=said.append) == 0
    assert run_sections(rows, file, setting, budget=600, predictions={}, say=said.append) == 0  # nothing is left
    done = finished(file)
    assert len(done) == len(rows[0][1]) == len(said) - 1
    assert {row["cell"]["side"] for row in done if row["status"] != "done"} <= {"sdpa-cudnn"}
    done = [row for row in done if row["status"] == "done"]
    timed = [row for row in done if row["cell"]["work"] in PASSES]
    assert all(row["milliseconds"] > 0 and row["runs"] >= 1 and row["projections"] in (True, False) for row in timed)
    assert {row["backend"] for row in timed if row["cell"]["side"] in ("sdpa", "full")} <= {"PyTorch's flash_attention"}
    for row in done:
        assert ("kernels" in row) == row["cell"]["traced"]
        if row["cell"]["traced"]:
            assert (tmp_path / "traces" / row["trace"]).stat().st_size > 0
            assert row["kernels"][0]["milliseconds"] >= row["kernels"][-1]["milliseconds"] > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of PyTorch's compiler, about models of transformers
@pytest.mark.parametrize("name", ["windows", "products", "steps", "decoding"])
def test_a_dry_run_of_what_takes_longer(name: str, tmp_path: Path) -> None:
    file, setting = tmp_path / "rows.jsonl", replace(DRY, keep=tmp_path, layers=1)
    rows = [row for row in dry_rows(name) if row.side not in ON_THE_SIMULATED_DEVICE]
    torch.compiler.reset()
    sections = [(SECTIONS[name], rows)]
    assert run_sections(sections, file, setting, budget=600, predictions={}, say=lambda _: None) == 0
    done = finished(file)
    reasons = {
        (row["cell"]["side"], row["cell"]["options"], row["cell"]["work"]): row["reason"]
        for row in done
        if row["status"] != "done"
    }
    assert set(reasons) == {"windows": NOT_WITHOUT_A_DEVICE, "decoding": HAS_NO_STATIC_CACHE}.get(name, set()), reasons
    for row in done:
        if row["status"] != "done":
            continue
        assert row["milliseconds"] > 0
        if name == "windows" and (row["cell"]["side"] != "longformer" or row["cell"]["form"]):
            assert row["projections"] is False
            assert row["cell"]["side"] == "window" or row["differs"] < 1e-5
        if row["cell"]["work"] in ("decode-static", "decode-graph"):
            assert row["same_tokens"] == 1


def test_a_dry_run_on_a_device_that_is_not_there(tmp_path: Path) -> None:
    """Every mechanism with all that training brings, attention of others, and the layers that are profiled."""
    file, said = tmp_path / "rows.jsonl", []
    rows = [row for row in dry_rows("mechanisms") if not row.compiled]
    others = ("sdpa", "window", "window-blocked", "banded", *ON_THE_SIMULATED_DEVICE)
    only_causal = [name for name, kind in MECHANISMS.items() if not kind.bidirectional]
    rows = [
        row
        for row in rows
        if (row.padded and row.dropout and row.causal == (row.side in only_causal))
        or row.side in others
        or row.global_tokens
    ]
    rows += [row for row in dry_rows("windows") if row.side in ON_THE_SIMULATED_DEVICE or row.form == "bare"]
    rows += [row for row in dry_rows("products") if not row.compiled] + dry_rows("traces")
    rows = list(dict.fromkeys(rows))
    with FakeCuda() as device:
        setting = replace(DRY, device=device, keep=tmp_path)
        for _ in range(2):
            assert run_cells(rows, file, setting, budget=600, predictions={}, say=said.append) == 0
    done = finished(file)
    assert len(done) == len(rows) == len(said)  # none of them twice
    assert [row["reason"] for row in done if row["status"] != "done"] == []
    assert all(row["milliseconds"] > 0 for row in done)
    backends = {row["cell"]["side"]: row["backend"] for row in done if row["cell"]["work"] == "forward"}
    assert (backends["window-flex"], backends["varlen-window"]) == ("flex", "varlen-window")


def test_a_processor_runs_checks_models_and_what_must_agree(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [row for row in dry_rows("mechanisms") if row.work == "check" and row.side in ("longformer", "linear")]
    rows += [Cell(side="hf-longformer", work="forward", tokens=64), Cell(side="model-led", work="step", tokens=64)]
    rows += [Cell(side="linear", work=work, tokens=64) for work in ("prefill", "decode")]
    rows += [Cell(side="banded", work=work, tokens=61) for work in PASSES]
    rows += [Cell(side="flash-window", work="forward", tokens=64), Cell(side="linear", work="forward", tokens=10**9)]
    rows += [Cell(side="fusion", work="forward", tokens=64, causal=True)]
    predictions = {rows[-2].key: 1e7, rows[-3].key: 3.0}
    assert run_cells(rows, file, DRY, budget=600, predictions=predictions, say=lambda _: None) == 0
    *done, flash, long, refused = finished(file)
    assert [row["status"] for row in done] == ["done"] * len(done)
    assert all(row[work]["largest"] == 0 for row in done[:4] for work in PASSES)
    assert max(done[number]["differs"] for number in (4, -1, -2)) < 1e-5
    assert (flash["status"], "flash_attn" in flash["reason"], flash["predicted"]) == ("failed", True, 3.0)
    assert (long["status"], long["reason"]) == ("left out", "predicted to take 10,000 s")
    assert (refused["status"], "no causal form" in refused["reason"]) == ("refused", True)
    text = "\n".join(page(finished(file)))
    assert re.search(r"\| linear \|.*left out: predicted to take 10,000 s", text)
    assert "## decode" in text


def test_the_gradient_of_training_is_no_loss_of_our_own() -> None:
    hidden = torch.randn(1, 5, 3)
    drawn = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(2))
    assert torch.equal(passes(lambda given: 3 * given, hidden, backward=True)(), 3 * drawn)


@pytest.mark.parametrize("side", ["poolingformer", "linear"])
def test_joined_products_are_the_separate_ones(side: str) -> None:
    cell = Cell(side=side, work="training", tokens=61)
    separate, joined = (build(replace(cell, form=form), DRY)() for form in ("", "joined"))
    torch.testing.assert_close(joined, separate, rtol=1e-5, atol=1e-6)
    layer = layer_of(replace(cell, form="joined"), DRY)
    called = []
    for name in ("query", "key", "value"):
        getattr(layer, name).register_forward_hook(lambda *_: called.append(1))
    layer(torch.randn(1, 61, DRY.width))
    assert called == []


def test_rows_of_another_way_of_measuring_are_measured_again(tmp_path: Path) -> None:
    cell = Cell(side="linear", work="forward", tokens=64)
    old = {name: value for name, value in cell.__dict__.items() if value or name == "causal"}
    add_run(tmp_path / "rows.jsonl", {"cell": old, "status": "done", "milliseconds": 1.0})
    assert missing([cell, cell], tmp_path / "rows.jsonl") == [cell]


def ticking() -> Callable[[], float]:
    """A clock that is read every ten seconds."""
    ticks = iter(range(0, 10_000, 10))
    return lambda: float(next(ticks))


def test_a_call_ends_when_its_budget_is_spent(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [row for row in dry_rows("mechanisms") if row.side == "linear" and row.work == "forward"]
    rows = [row for row in rows if not row.compiled]
    options = {"budget": 15, "predictions": {}, "say": lambda _: None}
    assert run_cells(rows, file, DRY, clock=ticking(), **options) == len(rows) - 1
    assert len(finished(file)) == 1


def test_a_section_leaves_time_to_the_next(tmp_path: Path) -> None:
    """The clock is read when a section begins, before its rows, and before each row: the first section has time for
    three of four rows, the second for one of two, and the third is not begun."""
    file, said = tmp_path / "rows.jsonl", []
    rows = [Cell(side="linear", work="forward", tokens=tokens) for tokens in range(60, 68)]
    first, second, third = (Section(title=title, seconds=45, cells=lambda _: rows) for title in ("one", "two", "three"))
    sections = [(first, rows[:4]), (second, rows[4:6]), (third, rows[6:])]
    left = run_sections(sections, file, DRY, budget=100, predictions={}, say=said.append, clock=ticking())
    assert [line for line in said if " rows in " in line] == ["one: 4 rows in 45 s", "two: 2 rows in 20 s"]
    assert {row["cell"]["tokens"] for row in finished(file)} == {60, 61, 62, 64}
    assert left == 4


def test_a_device_that_is_lost_ends_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "AcceleratorError: CUDA error: an illegal access"
    monkeypatch.setattr(gpu, "measured", lambda *_: {"status": "failed", "reason": reason})
    rows, said = [Cell(side="linear", work="forward", tokens=tokens) for tokens in (64, 65, 66)], []
    sections = [(SECTIONS["traces"], rows[:2]), (SECTIONS["tiles"], rows[2:])]
    left = run_sections(sections, tmp_path / "rows.jsonl", DRY, budget=600, predictions={}, say=said.append)
    assert (left, len(finished(tmp_path / "rows.jsonl"))) == (2, 1)
    assert "call again" in said[-1]


@pytest.mark.slow
def test_processes_compile_ahead() -> None:
    cells = [Cell(side=side, work="forward", tokens=16) for side in ("linear", "flash-window", "linear")]
    tasks = [(cell, DRY, deadline) for cell, deadline in zip(cells, (math.inf, math.inf, 0.0), strict=True)]
    with multiprocessing.get_context("spawn").Pool(1) as compilers:
        answers = compilers.map(compile_once, tasks, chunksize=1)
    assert answers == [None, "ModuleNotFoundError: No module named 'flash_attn'", "too late"]


# Options of FlexAttention's programs, and profiles.


def test_what_programs_read() -> None:
    """The table's row for each pattern, by a row that says its name."""
    for name, (reads, fields) in PATTERNS.items():
        kinds = ("positions", "tables", "buckets", "products")
        rows = {("half", 9, 64, each): {"fwd_num_warps": each} for each in kinds}
        with mock.patch.dict(PROGRAMS, rows):
            calls = recorded_calls(MECHANISMS[name.partition(",")[0]](), 4096, (9, 0), **fields)
        found = {call.options["kernel_options"]["fwd_num_warps"] for call in calls}
        assert found == ({"positions", "products"} if name == "fusion" else {reads}), name  # fusion has two levels


@pytest.mark.parametrize("name", PATTERNS)
def test_candidates_reach_the_programs_and_leave_the_other_direction(name: str) -> None:
    def options_of_calls() -> list[dict[str, Any]]:
        config = MECHANISMS[name.partition(",")[0]]()
        calls = recorded_calls(config, 4096, (9, 0), dtype=torch.float32, **PATTERNS[name][1])
        return [call.options["kernel_options"] for call in calls]

    ours = options_of_calls()
    with with_options(pattern_cell(name, work="forward", tokens=4096, options="fwd_BLOCK_M=32 fwd_num_stages=4")):
        theirs = options_of_calls()
    changed = {"fwd_BLOCK_M": 32, "fwd_num_stages": 4, "bwd_num_warps": 2}
    assert changed in theirs
    assert all(options in (changed, *ours) for options in theirs)
    assert options_of_calls() == ours


def test_a_program_that_does_not_fit_has_no_time() -> None:
    cell = pattern_cell("bigbird", work="forward", tokens=64, options="fwd_BLOCK_M=128")
    with pytest.raises(ArithmeticError, match="does not fit"), with_options(cell):
        flex._unstaged.add("a kind of call")
    assert "a kind of call" not in flex._unstaged


def test_candidates_that_spill_are_not_tried(tmp_path: Path) -> None:
    file = tmp_path / "needs.jsonl"
    assert candidates("bigbird", file) == (["", *FORWARD[:8]], ["", *BACKWARD[:8]])
    for pattern, options, fits in (("bigbird", FORWARD[0], False), ("bigbird", FORWARD[1], True)):
        add_run(file, {"pattern": pattern, "options": options, "fits": fits})
    assert candidates("bigbird", file) == (["", *FORWARD[1:9]], ["", *BACKWARD[:8]])
    assert candidates("fusion", file)[0] == ["", *FORWARD[:8]]


def test_what_is_tried_was_compiled_before() -> None:
    """By `--programs`: each direction of a pattern has some options that spill nothing. In training, fusion's terms
    learn, so that tiles compute them, and no backward program reads products."""
    rows = finished(NEEDS)
    assert {(row["pattern"], row["options"]) for row in rows} == set(product(PATTERNS, (*FORWARD, *BACKWARD)))
    for row in rows:
        assert row["fits"] == (row["registers"] > 0 and row["spilled"] == 0 and row["shared"] <= 232_448)
    numbers = {name: [len(options) - 1 for options in candidates(name, NEEDS)] for name in PATTERNS}
    assert numbers.pop("fusion")[1] == 0
    assert all(number >= 5 for pair in numbers.values() for number in pair), numbers


def test_the_fastest_options_of_patterns_that_share_a_row() -> None:
    """By hand: `a` takes √(0.5 · 1.2) = 0.775 of the time of ours, `b` √(0.9 · 0.9) = 0.9; only one has run `c`."""
    times = {"one": {"": 10.0, "a": 5.0, "b": 9.0, "c": 0.1}, "two": {"": 20.0, "a": 24.0, "b": 18.0}}
    assert fastest(times) == "a"
    assert fastest({"one": {"": 10.0, "a": 9.8}}) == ""  # within the noise
    assert fastest({"one": {"a": 9.8}}) == fastest({"one": {}, "two": {"": 1.0, "a": 0.5}}) == fastest({}) == ""


def test_the_measured_table_replaces_the_one_in_the_package() -> None:
    text = Path(flex_options.__file__).read_text(encoding="utf-8")
    assert source_of(PROGRAMS) in text
    assert measured_table([], precision="half", generation=9) == PROGRAMS
    cell, length = Cell(side="reformer", work="forward", tokens=FULL.long), "milliseconds"
    rows = [{"cell": asdict(replace(cell, work=work)), length: 9.0} for work in PASSES]
    rows += [{"cell": asdict(replace(cell, options=FORWARD[3])), length: 5.0}]
    rows += [{"cell": asdict(replace(cell, work="training", options=BACKWARD[3])), length: 8.9}]  # 1 % is noise
    rows += [{"cell": asdict(replace(cell, options=FORWARD[2], padded=True)), length: 1.0}]  # another layer
    rows += [{"cell": asdict(replace(cell, options=FORWARD[4])), length: 0.1, "method": 1}]  # measured in another way
    rows = [{"method": METHOD, **row} for row in rows]
    found = measured_table(tiles_timed(rows, FULL.long), precision="half", generation=9)
    assert found == PROGRAMS | {("half", 9, 64, "buckets"): parsed(FORWARD[3])}
    space: dict[str, Any] = {}
    exec(source_of(found), space)
    assert space["PROGRAMS"] == found


def test_the_table_needs_measurements(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--table", "--output", str(tmp_path / "none.jsonl")]) == 2
    assert "--table needs measurements" in capsys.readouterr().out
    add_run(tmp_path / "rows.jsonl", {"cell": asdict(SECTIONS["device"].cells(FULL)[0]), "versions": {"major": 9}})
    assert gpu.main(["--table", "--output", str(tmp_path / "rows.jsonl")]) == 0
    assert capsys.readouterr().out.strip() == source_of(PROGRAMS)


def test_kernels_of_a_profile() -> None:
    """As PyTorch writes a trace on CUDA: microseconds; registers stand in it, spills come from Inductor's programs."""
    arguments = {"registers per thread": 168, "shared memory": 65_536}
    events = [
        {"ph": "X", "cat": "kernel", "name": "triton_tem_fused_0", "dur": 1500, "args": arguments},
        {"ph": "X", "cat": "kernel", "name": "gemm", "dur": 700, "args": {"registers per thread": 90}},
        {"ph": "X", "cat": "kernel", "name": "gemm", "dur": 1000, "args": {"registers per thread": 90}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "dur": 90_000},
        {"ph": "i", "cat": "kernel", "name": "marker"},
    ]
    found = kernels_of(events, "kernel", {("triton_tem_fused_0", 168): 16})
    assert [tuple(row.values()) for row in found] == [
        ("gemm", 2, pytest.approx(1.7), 90, None, None), ("triton_tem_fused_0", 1, 1.5, 168, 65_536, 16),
    ]  # fmt: skip


def test_spills_are_read_from_inductors_programs() -> None:
    """Programs are looked for among all objects, by the attributes that Inductor gives them."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    program = CachingAutotuner.__new__(CachingAutotuner)
    program.fn = types.SimpleNamespace(__name__="triton_tem_fused_7")
    program.launchers = [types.SimpleNamespace(n_regs=255, n_spills=24)]
    assert spills_of_programs()["triton_tem_fused_7", 255] == 24


def test_predictions_are_made_once_and_read_for_one_device(tmp_path: Path) -> None:
    rows = [row for row in dry_rows("mechanisms") if row.side in ("linear", "sdpa")]
    rows = [row for row in rows if not row.causal and not row.padded]
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
