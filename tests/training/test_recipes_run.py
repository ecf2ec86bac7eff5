"""Every recipe of this repository runs with `--smoke`, from a random checkpoint to a trained, saved model."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan.cli import main

RECIPES = sorted(Path(__file__).parents[2].glob("recipes/*.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_smoke(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(path), "--smoke", "--output", str(tmp_path / "run")]) == 0
    assert "best checkpoint: step" in capsys.readouterr().out
    assert (tmp_path / "run" / "model.safetensors").is_file()
