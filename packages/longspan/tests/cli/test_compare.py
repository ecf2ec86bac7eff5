"""`longspan compare`: a run from the command line, and mistakes in one sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from longspan.cli import main


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LONGSPAN_DATA", raising=False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mechanisms", "longfromer"], "did you mean 'longformer'"),
        (["--mechanisms", ","], "names nothing"),
        (["--task", "recal"], "did you mean 'recall'"),
        (["--tokens", "0"], "tokens is 0; it must be at least 1"),
        (["--tokens", "-4"], "at least 1"),
        (["--tokens", "many"], "is not"),
        (["--budget", "soon"], "give a time such as 90s, 5m or 1h30m"),
        (["--budget", "5m", "--steps", "3"], "give one of them"),
        (["--steps", "0"], "steps is 0"),
        (["--seeds", "0"], "seeds is 0"),
        (["--lengths", "long"], "give tokens such as 512,4096"),
        (["--width", "62"], "does not divide"),
        (["--stack", "heap"], "heap"),
        (["--device", "tpu"], "device is 'tpu'"),
        (["--learning-rate", "0"], "learning_rate is 0"),
        (["--batch-size", "0"], "rows is 0"),
        (["longformer.left=3"], "unknown key"),
        (["longformer"], "not of the form MECHANISM.OPTION=VALUE"),
        (["--task", "novels", "--mechanisms", "linear"], "set LONGSPAN_DATA"),
    ],
)
def test_mistakes(arguments: list[str], words: str, refused: Callable[..., str]) -> None:
    assert words in refused("compare", *arguments)


@pytest.mark.slow
def test_a_run_tells_its_table_and_where_the_report_is(capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", "--mechanisms", "linear", "--task", "recall", "--tokens", "64", "--lengths", "64"]
    arguments += ["--steps", "1", "--batch-size", "1", "--held-out", "2"]
    assert main(arguments) == 0
    out, err = capfd.readouterr()
    assert "tokens/s training" in out
    assert "report: runs/compare-recall-64/report.html" in out
    assert "linear, seed 1: accuracy" in err
    assert Path("runs/compare-recall-64/report.html").is_file()
    assert main([*arguments, "--json"]) == 0
    data = json.loads(capfd.readouterr().out)
    assert [each["status"] for each in data["results"]] == ["done", "done"]


def long_training() -> subprocess.Popen[str]:
    """A comparison that measures two mechanisms and then would train for hours."""
    arguments = ["compare", "--mechanisms", "linear,full", "--tokens", "64", "--lengths", "64", "--steps", "100000"]
    command = [sys.executable, "-m", "longspan.cli", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_stopped_midway_it_leaves_a_report_of_what_was_done(number: signal.Signals, tmp_path: Path) -> None:
    process = long_training()
    assert process.stderr is not None
    lines = [process.stderr.readline() for _ in range(2)]  # both are measured; training would take hours
    process.send_signal(number)
    out, err = process.communicate()
    assert all("tokens/s in training" in line for line in lines)
    assert process.returncode == 128 + number
    assert "the same command continues from there" in err
    assert "Traceback" not in err
    folder = tmp_path / "runs" / "compare-recall-64"
    assert "report: " in out
    assert "linear" in (folder / "report.html").read_text(encoding="utf-8")
    assert "64" in (folder / "cells.csv").read_text(encoding="utf-8")
    assert json.loads((folder / "comparison.json").read_text(encoding="utf-8"))["steps"] == 100_000
    assert not [name for name in os.listdir(folder) if name.startswith(".longspan")]


@pytest.mark.slow
def test_killed_it_leaves_no_process(tmp_path: Path) -> None:
    """Nobody is left to end the training, which would hold the pipe open for hours."""
    process = long_training()
    while len(list(tmp_path.glob("runs/compare-recall-64/logs/*.log"))) < 3:  # two measured, one in training
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
