"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from longspan.cli import main
from marmots import TEXT


@pytest.fixture
def refused(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
) -> Callable[..., str]:
    """Run a command that must refuse its input, with one sentence and nothing left behind; returns the sentence.

    It runs in the test's own folder, or else in an empty one: in the folder where pytest was called, a test beside this
    one may write a file in the same moment.
    """
    if Path.cwd() == pytestconfig.invocation_params.dir:
        monkeypatch.chdir(tmp_path_factory.mktemp("empty"))

    def run(*arguments: object) -> str:
        before = sorted(Path.cwd().rglob("*"))
        capfd.readouterr()
        assert main([str(argument) for argument in arguments]) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert err.startswith("error: ")
        assert err.count("\n") == 1, err
        assert "Traceback" not in err
        assert sorted(Path.cwd().rglob("*")) == before, "something was left behind"
        return err

    return run


@pytest.fixture
def document(tmp_path: Path) -> Path:
    """A short text in a file."""
    path = tmp_path / "marmots.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path
