"""Checkpoints and models whose weights lie in several files: trained, resumed and started from as those in one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from longspan.checkpoints.folder import INDEX, WEIGHTS, weight_files
from longspan.checkpoints.loading import load_model
from longspan.errors import InputError
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train

SMALL = "optimisation.max_shard_size=8KB"


def same_weights(one: Path, other: Path) -> None:
    """Two folders hold the same model."""
    ours, theirs = (load_model(folder).state_dict() for folder in (one, other))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())


@pytest.mark.variant
def test_a_run_in_several_files(
    tiny_recipe: Path, tmp_path: Path, whole_run: Callable[..., Path], curve: Callable[..., Any]
) -> None:
    """Begun in several files, gone on with in one: none of the first lie beside those of the better checkpoint."""
    steady = ["optimisation.schedule=constant", "optimisation.warmup_steps=0"]
    whole, run = whole_run("optimisation.steps=4", *steady), tmp_path / "run"
    train(load_recipe(tiny_recipe, ["optimisation.steps=2", *steady, SMALL]), run)
    for folder in (run, run / "checkpoints/checkpoint-2"):
        assert INDEX in weight_files(folder)
        assert WEIGHTS not in weight_files(folder)
    result = train(load_recipe(tiny_recipe, ["optimisation.steps=4", *steady]), run, resume=True)
    assert curve(run) == curve(whole)
    same_weights(run, whole)
    assert result.best_step == 4
    assert weight_files(run) == {WEIGHTS}


@pytest.mark.variant
def test_what_starts_from_several_files(
    tiny_recipe: Path, tmp_path: Path, whole_run: Callable[..., Path], curve: Callable[..., Any]
) -> None:
    one, several = whole_run("optimisation.steps=2"), tmp_path / "several"
    shutil.copytree(one, several, ignore=shutil.ignore_patterns("checkpoints", WEIGHTS))
    load_model(one).save_pretrained(several, max_shard_size="8KB")
    assert INDEX in weight_files(several)
    changes = ["optimisation.steps=2", "model.new=null", "model.attention=null", "model.max_tokens=null"]
    for source in (one, several):
        start = [f"model.from={source}", f"tokenizer={{from: {source}}}"]
        train(load_recipe(tiny_recipe, [*changes, *start]), tmp_path / f"from {source.name}")
    runs = [tmp_path / f"from {source.name}" for source in (one, several)]
    assert curve(runs[0]) == curve(runs[1])
    same_weights(*runs)


@pytest.mark.variant
def test_a_damaged_file_of_several(tiny_recipe: Path, tmp_path: Path) -> None:
    """As with one file, a checkpoint that lacks one of its files is left alone, and the run refused if all do."""
    train(load_recipe(tiny_recipe, ["optimisation.steps=2", SMALL]), tmp_path / "run")
    (tmp_path / "run/metrics.json").unlink()
    checkpoint = tmp_path / "run/checkpoints/checkpoint-2"
    shard = sorted(weight_files(checkpoint) - {INDEX})[1]
    (checkpoint / shard).unlink()
    with pytest.raises(InputError, match=rf"every checkpoint in .* is damaged \(checkpoint-2: {shard} is missing\)"):
        train(load_recipe(tiny_recipe, ["optimisation.steps=2", SMALL]), tmp_path / "run", resume=True)


@pytest.mark.parametrize("size", ["5 gigabytes", "0GB", "GB", "-1MB"])
def test_sizes_that_are_none(size: str, tiny_recipe: Path) -> None:
    with pytest.raises(InputError, match=r"max_shard_size is .*; it must be a number of KB, MB, GB or TB, such as 5GB"):
        load_recipe(tiny_recipe, [f"optimisation.max_shard_size={size}"])
