"""Training by recipe, its output folder, and resuming to the very same result after being killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from longspan.checkpoints.loading import load_tokenizer
from longspan.errors import InputError
from longspan.models import LongspanForConditionalGeneration
from longspan.training.checkpoints import complete_checkpoints
from longspan.training.processes import check_sharding
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train


def test_the_output_folder_is_a_usable_model(tiny_recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = train(load_recipe(tiny_recipe, ["optimisation.steps=5"]), folder)
    losses = {entry["step"]: entry["eval_loss"] for entry in result.history if "eval_loss" in entry}
    assert list(losses) == [2, 4, 5]  # the last step is evaluated although 2 does not divide it
    assert result.best_step == min(losses, key=losses.__getitem__)
    assert result.best["eval_loss"] == losses[result.best_step]

    tokenizer = load_tokenizer(folder)
    model = LongspanForConditionalGeneration.from_pretrained(folder)
    assert model.generation_config.num_beams == 2
    assert model.config.use_cache
    ids = torch.tensor([tokenizer("notably bada.")["input_ids"]])
    assert model.generate(ids).shape[1] <= 17
    best = load_file(folder / "checkpoints" / f"checkpoint-{result.best_step}" / "model.safetensors")
    assert all(torch.equal(value, best[name]) for name, value in load_file(folder / "model.safetensors").items())

    assert not [file for file in folder.glob("*") if file.suffix in {".bin", ".pt", ".pth"}]
    assert list((folder / "tensorboard").iterdir())
    assert json.loads((folder / "environment.json").read_text())["torch"] == torch.__version__
    assert load_recipe(folder / "recipe.yaml") == load_recipe(tiny_recipe, ["optimisation.steps=5"])


@pytest.mark.variant
def test_warm_up_may_be_a_share_of_all_steps(tiny_recipe: Path, tmp_path: Path) -> None:
    changes = ["optimisation.steps=8", "optimisation.warmup_steps=0", "optimisation.warmup_fraction=0.25"]
    recipe = load_recipe(tiny_recipe, [*changes, "optimisation.schedule=constant_with_warmup"])
    history = train(recipe, tmp_path / "run").history
    shares = [entry["learning_rate"] / recipe.optimisation.learning_rate for entry in history if "loss" in entry]
    assert shares == pytest.approx([0, 1 / 2, 1, 1, 1, 1, 1, 1])


def test_an_existing_run_is_neither_overwritten_nor_mixed(tiny_recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    recipe = load_recipe(tiny_recipe, ["optimisation.steps=1"])
    first = train(recipe, folder)
    with pytest.raises(InputError, match="already holds a run; add --resume"):
        train(recipe, folder)
    with pytest.raises(InputError, match=r"optimisation.seed=1, not 2"):
        train(load_recipe(tiny_recipe, ["optimisation.steps=1", "optimisation.seed=2"]), folder, resume=True)
    assert train(recipe, folder, resume=True) == first  # finished: nothing is computed again
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match="holds no run of ours"):
        train(recipe, tmp_path / "other", resume=True)


@pytest.mark.variant
def test_the_best_checkpoint_can_be_picked_by_a_score(tiny_recipe: Path, tmp_path: Path) -> None:
    changes = ["optimisation.steps=2", "optimisation.best_by=rouge1", "optimisation.gradient_checkpointing=true"]
    result = train(load_recipe(tiny_recipe, [*changes, "optimisation.label_smoothing=0.1"]), tmp_path / "run")
    assert {"eval_rouge1", "eval_rouge2", "eval_rougeL", "eval_rougeLsum", "eval_loss"} <= set(result.best)


@pytest.mark.slow
def test_resuming_in_one_process_is_exact(tiny_recipe: Path, tmp_path: Path, curve: Callable[..., Any]) -> None:
    """From the checkpoint in the middle of the second epoch, with the later ones lost."""
    recipe = load_recipe(tiny_recipe, ["optimisation.keep_checkpoints=10"])
    whole, folder = train(recipe, tmp_path / "whole").folder, tmp_path / "parts"
    copytree(whole, folder)
    (folder / "metrics.json").unlink()
    for checkpoint in complete_checkpoints(folder / "checkpoints")[3:]:
        (checkpoint / "optimizer.pt").write_bytes(b"")  # cut short: it must not count
    train(recipe, folder, resume=True)
    assert len(curve(folder)) == 12 + 6
    assert curve(folder) == curve(whole)


@pytest.mark.slow
def test_killed_at_any_moment_and_resumed_the_losses_are_the_same(
    tiny_recipe: Path, tmp_path: Path, same: Callable[..., Any], whole_run: Callable[..., Path]
) -> None:
    """SIGKILL within the first checkpoint, within a later one, and then an undisturbed end."""
    folder = tmp_path / "killed"
    script = Path(__file__).with_name("killed_run.py")
    command = [sys.executable, str(script), "2,8", "train", str(tiny_recipe), "--output", str(folder), "--resume"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    assert [line for line in done.stdout.split() if line in ("-9", "0")] == ["-9", "-9"], done.stderr
    train(load_recipe(tiny_recipe), folder, resume=True)
    same(folder, whole_run())


def _environment() -> dict[str, str]:
    """As this process computes: the sum of a matrix product depends on the number of threads."""
    return {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}


@pytest.mark.slow
def test_resumed_before_the_first_checkpoint_it_says_that_it_starts_over(
    tiny_recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe, folder = load_recipe(tiny_recipe, ["optimisation.steps=1"]), tmp_path / "run"
    train(recipe, folder)
    assert "starts over" not in caplog.text
    rmtree(folder / "checkpoints")
    (folder / "metrics.json").unlink()
    train(recipe, folder, resume=True)
    assert "checkpoints holds no checkpoint yet, so training starts over from step 0" in caplog.text
    caplog.clear()
    train(recipe, tmp_path / "other", resume=True)  # nothing was there to go on with
    assert "starts over" not in caplog.text


@pytest.mark.parametrize("name", ["ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"])
def test_weights_that_accelerate_is_to_divide_are_refused(
    name: str, tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "false")
    check_sharding()
    monkeypatch.setenv(name, "true")
    with pytest.raises(InputError, match=rf"{name}=true asks for .*; leave it out of accelerate's configuration"):
        train(load_recipe(tiny_recipe), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_every_source_must_be_there_though_the_first_has_rows_enough(tiny_recipe: Path, tmp_path: Path) -> None:
    for part in ("train", "validation"):
        changes = [f"data.{part}=[synthetic,gone]", f"data.{part}_rows=2", "optimisation.steps=1"]
        with pytest.raises(InputError, match="data='gone' is no file"):
            train(load_recipe(tiny_recipe, changes), tmp_path / "run")
        assert not (tmp_path / "run").exists()
