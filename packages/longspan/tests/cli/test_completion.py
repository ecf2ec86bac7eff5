"""Shell completion: the scripts that shells read, and the words that they then ask for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from longspan.cli import COMMANDS

NO_DETECTION = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
"""The tests' own shell is not asked for: the shell is named instead."""


def run(*arguments: str, home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.argv[0] = 'longspan'\nfrom longspan.cli import main\nsys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, **variables, "HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, env=environment
    )


def completed(words: str, home: Path, shell: str = "bash") -> list[str]:
    """What a shell is offered after typing `words`, of which the last is incomplete."""
    variables = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    if shell != "bash":
        variables = {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    result = run(home=home, _LONGSPAN_COMPLETE=f"complete_{shell}", **variables)
    assert result.stderr == ""
    return result.stdout.split()


@pytest.mark.variant
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_shown_and_nothing_is_written(shell: str, tmp_path: Path) -> None:
    result = run("--show-completion", shell, home=tmp_path, **NO_DETECTION)
    assert result.returncode == 0
    assert "_LONGSPAN_COMPLETE" in result.stdout
    assert f"complete_{shell}" in result.stdout
    assert not list(tmp_path.rglob("*"))


@pytest.mark.variant
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_installing_writes_to_the_home(shell: str, tmp_path: Path) -> None:
    result = run("--install-completion", shell, home=tmp_path, **NO_DETECTION)
    assert result.returncode == 0, result.stderr
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_LONGSPAN_COMPLETE" in path.read_text(encoding="utf-8") for path in written)


@pytest.mark.slow
def test_commands_and_options_are_completed(tmp_path: Path) -> None:
    assert set(completed("longspan ", tmp_path)) >= set(COMMANDS)
    assert "summarize" in completed("longspan summ", tmp_path)
    assert "train" not in completed("longspan summ", tmp_path)
    assert {"--model", "--sentences"} <= set(completed("longspan summarize --", tmp_path))
    assert "--questions" not in completed("longspan summarize --", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_offered_the_same(shell: str, tmp_path: Path) -> None:
    assert "summarize" in "\n".join(completed("longspan summ", tmp_path, shell))
    assert "--model" in "\n".join(completed("longspan summarize --mo", tmp_path, shell))


@pytest.mark.variant
def test_files_are_left_to_the_shell(tmp_path: Path) -> None:
    # An empty answer makes bash complete files, by `complete -o default`.
    assert completed("longspan summarize no", tmp_path) == []
    script = run("--show-completion", "bash", home=tmp_path, **NO_DETECTION).stdout
    assert "complete -o default" in script
