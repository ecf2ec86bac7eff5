"""`longspan compare`: a run from the command line, and mistakes in one sentence."""

from __future__ import annotations

import json
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
