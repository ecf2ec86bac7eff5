"""The command line as a whole: help, version, and one kind of error for every mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import longspan
from installed import needs_papers
from longspan.cli import COMMANDS, main
from longspan.errors import InputError


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"longspan {longspan.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_lists_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert f"longspan {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trane"], "No such command 'trane'"),
        (["train"], "Missing argument"),
        (["train", "--frobnicate"], "--frobnicate"),
        (["train", "none.yaml"], "recipe 'none.yaml' is not a file"),
        (["evaluate", "none", "--data", "pubmed"], "model 'none' is not a folder"),
        (["evaluate", "none", "--data", "pubmed", "--beams", "0"], "--beams"),
        pytest.param(
            ["noise", "a.txt", "--setting", "script2"], "'script2' is not one of 'paper', 'script'", marks=needs_papers
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err
    assert "Value error" not in captured.err  # how a library says it


@pytest.mark.parametrize(
    ("raised", "code", "words"),
    [
        (InputError("no good"), 2, "error: no good"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (PermissionError(13, "Permission denied", "/secret"), 2, "error: /secret: permission denied"),
    ],
)
def test_exceptions_become_exit_codes(
    raised: BaseException,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails() -> None:
        raise raised

    monkeypatch.setitem(COMMANDS, "train", fails)
    assert main(["train"]) == code
    assert words in capsys.readouterr().err


def test_a_programming_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(COMMANDS, "train", fails)
    with pytest.raises(ZeroDivisionError):
        main(["train"])


def test_help_is_quick_because_it_imports_no_torch() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "longspan.cli", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    imported = {line.rsplit("|", 1)[-1].strip() for line in result.stderr.splitlines()}
    assert "longspan.cli" in imported
    assert not imported & {"torch", "transformers", "matplotlib", "numpy"}


@pytest.mark.parametrize("module", ["longspan", "longspan.cli"])
def test_the_module_runs_too(module: str, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (result.returncode, result.stdout.split()[0]) == (0, "longspan")


def test_a_process_ends_with_code_2_and_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "longspan.cli", "summarize", "missing.txt"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("error: ")
