"""A run that is damaged, taken by another process, or of another recipe: `train --resume` refuses in one line."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longspan.files import claimed
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train

RECIPE = {
    "generation.max_tokens": 16,
    "optimisation.steps": 3,
    "optimisation.evaluate_every": 1,
    "optimisation.keep_checkpoints": 3,
}
PARTS = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "config.json")
NO_JSON = {"empty": "", "cut": '{"version": "1.0", "model"', "a list": "[]", "bytes": b"\xff\xfe"}
RESUME = ["train", "recipe.yaml", "--output", "run", "--resume"]
CHECKPOINTS = "run/checkpoints"

# Files of the finished run to write over before it is resumed, None to remove them; and what is said then.
DAMAGED: dict[str, dict[str, Any]] = {
    **{
        f"metrics.json: {name}": {"files": {"run/metrics.json": text}, "says": ["metrics.json", "remove this file"]}
        for name, text in {
            "empty": "",
            "cut": '{"best_step": 2, "best": {"eval',
            "a list": "[]",
            "a number": "7",
            "null": "null",
            "nothing in it": "{}",
            "other types": '{"best_step": "two", "best": {}, "history": []}',
            "no history": '{"best_step": 2, "best": {}}',
            "bytes": b"\xff\xfe\x00\x01",
            "nested too deep": "[" * 100_000,
        }.items()
    },
    **{
        f"recipe.yaml: {name}": {"files": {"run/recipe.yaml": text}, "says": ["run", "recipe.yaml"]}
        for name, text in {
            "empty": "",
            "cut": "name: tiny\ntask: {name: summ",
            "a list": "- 1\n- 2\n",
            "a text": "hello",
            "unknown key": "name: tiny\nstepz: 3\n",
            "missing keys": "name: tiny\n",
            "other types": "name: [1]\ntask: 7\ndata: x\n",
            "bytes": b"\xff\xfe\x00\x01",
            "tab": "name:\ttiny\n\t- x: [",
        }.items()
    },
    "no recipe.yaml": {"files": {"run/recipe.yaml": None}, "says": "holds no run of ours"},
    **{
        f"{name}: every checkpoint": {
            "files": {"run/metrics.json": None},
            "spoil": {"checkpoint-*/" + name: "flip"},
            "says": ["every checkpoint", name, "step 0"],
        }
        for name in PARTS
    },
    **{
        f"{spoil}: every model": {
            "files": {"run/metrics.json": None},
            "spoil": {"checkpoint-*/model.safetensors": spoil},
            "says": ["every checkpoint", "model.safetensors", "step 0"],
        }
        for spoil in ("cut", "empty", "zeros", "remove", "longer")
    },
    "every list of files": {
        "files": {"run/metrics.json": None},
        "spoil": {"checkpoint-*/files.json": "cut"},
        "says": ["every checkpoint", "files.json", "step 0"],
    },
    **{
        f"tokenizer.json: {name}": {
            "files": {"run/metrics.json": None, "run/tokenizer/tokenizer.json": text},
            "says": "tokenizer",
        }
        for name, text in NO_JSON.items()
    },
    "no tokenizer files": {
        "files": {
            "run/metrics.json": None,
            "run/tokenizer/tokenizer.json": None,
            "run/tokenizer/tokenizer_config.json": None,
        },
        "says": "tokenizer",
    },
}

OTHER: dict[str, dict[str, Any]] = {
    "seed": {"changes": ["optimisation.seed=2"], "says": ["optimisation.seed=1", "not 2"]},
    "fewer steps": {"changes": ["optimisation.steps=2"], "says": ["optimisation.steps=3", "not 2"]},
    "more steps": {"changes": ["optimisation.steps=9"], "says": ["optimisation.steps", "'linear'", "another --output"]},
    "epochs instead": {"changes": ["optimisation.steps=null", "optimisation.epochs=2"], "says": "optimisation."},
    "rate": {"changes": ["optimisation.learning_rate=0.5"], "says": "optimisation.learning_rate"},
    "data": {"changes": ["data.train_rows=3"], "says": "data.train_rows=4"},
    "model": {"changes": ["model.new.hidden_size=64"], "says": "model.new.hidden_size=32"},
    "task": {"changes": ["task.max_source_tokens=64"], "says": "task.max_source_tokens=128"},
    "tokenizer": {"changes": ["tokenizer.train=500"], "says": "tokenizer.train=400"},
    "without --resume": {"changes": [], "resume": False, "says": "add --resume"},
}


@pytest.fixture(scope="session")
def made_run(tmp_path_factory: pytest.TempPathFactory, made_recipe: Callable[..., str]) -> Path:
    """A finished run of three steps, each with its checkpoint, and its recipe beside it."""
    folder = tmp_path_factory.mktemp("made-run")
    (folder / "recipe.yaml").write_text(made_recipe(RECIPE))
    train(load_recipe(folder / "recipe.yaml"), folder / "run")
    return folder


@pytest.fixture
def run_here(made_run: Path, tmp_path: Path) -> Path:
    """A copy of it where the command will run."""
    shutil.copytree(made_run, tmp_path, dirs_exist_ok=True)
    return tmp_path


def _spoil(file: Path, how: str) -> None:
    data = file.read_bytes()
    middle = len(data) // 2
    new = {
        "flip": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "cut": data[:middle],
        "empty": b"",
        "zeros": bytes(len(data)),
        "longer": data + b"x",
    }
    file.unlink()
    if how != "remove":
        file.write_bytes(new[how])


def _apply(folder: Path, case: dict[str, Any]) -> None:
    for name, text in case.get("files", {}).items():
        (folder / name).unlink(missing_ok=True)
        if text is not None:
            (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    for pattern, how in case.get("spoil", {}).items():
        files = sorted((folder / CHECKPOINTS).glob(pattern))
        assert files
        for file in files:
            _spoil(file, how)


@pytest.mark.parametrize("case", DAMAGED.values(), ids=DAMAGED)
def test_damaged_runs(case: dict[str, Any], run_here: Path, check_fault: Callable[..., str]) -> None:
    _apply(run_here, case)
    check_fault(run=RESUME, says=case["says"])


@pytest.mark.parametrize("case", OTHER.values(), ids=OTHER)
def test_other_recipes(case: dict[str, Any], run_here: Path, check_fault: Callable[..., str]) -> None:
    run = [argument for argument in RESUME if argument != "--resume" or case.get("resume", True)]
    check_fault(run=[*run, *case["changes"]], says=case["says"])


@pytest.mark.parametrize("resume", [[], ["--resume"]], ids=["new", "resume"])
def test_a_run_that_another_process_trains(resume: list[str], run_here: Path, check_fault: Callable[..., str]) -> None:
    (run_here / "run" / "metrics.json").unlink()
    half = run_here / "run" / "checkpoints" / "checkpoint-9"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        with claimed(run_here / "run"):
            os.write(ready[1], b"x")
            os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    try:
        check_fault(run=[*RESUME[:4], *resume], says=["another process is writing", "run"])
    finally:
        os.write(done[1], b"x")
        os.waitpid(child, 0)


@pytest.mark.parametrize("how", ["flip", "cut", "empty", "remove"])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_one_damaged_checkpoint_is_passed_over(
    how: str, step: int, run_here: Path, made_run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it is the best, the newest or neither, the run ends, and with the very same losses."""
    assert (run_here / CHECKPOINTS / f"checkpoint-{step}").is_dir(), "the run must keep all three"
    (run_here / "run" / "metrics.json").unlink()
    _spoil(run_here / CHECKPOINTS / f"checkpoint-{step}" / "model.safetensors", how)
    result = train(load_recipe(run_here / "recipe.yaml"), run_here / "run", resume=True)
    assert f"checkpoint-{step} is skipped: model.safetensors" in caplog.text
    assert (run_here / CHECKPOINTS / f"checkpoint-{step}.damaged-1").is_dir()
    whole = json.loads((made_run / "run" / "metrics.json").read_text())
    names = ("step", "loss", "eval_loss")
    curves = [
        [[entry.get(name) for name in names] for entry in history if "train_runtime" not in entry]
        for history in (result.history, whole["history"])
    ]
    assert curves[0] == curves[1]
    losses = {entry["step"]: entry["eval_loss"] for entry in whole["history"] if "eval_loss" in entry}
    there = [int(path.name.rpartition("-")[2]) for path in (run_here / CHECKPOINTS).glob("checkpoint-[0-9]")]
    assert result.best_step == min(there, key=losses.__getitem__)
