"""Training that is stopped by a signal, by numbers that are not finite, or by a full disk, and how it goes on."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from longspan.cli import main
from longspan.errors import InputError
from longspan.training.callbacks import Stopped
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train
from longspan.training.trainer import RecipeTrainer

SLOW_LOG = ["optimisation.log_every=3", "optimisation.evaluate_every=6", "optimisation.workers=0"]


def _before_step(monkeypatch: pytest.MonkeyPatch, step: int, act: Callable[[Any, Any], Any]) -> None:
    """Do something in the middle of a step, once."""
    original, done = RecipeTrainer.compute_loss, []

    def compute_loss(self: RecipeTrainer, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        loss = original(self, model, inputs, *arguments, **options)
        if model.training and self.state.global_step == step - 1 and not done:
            done.append(step)
            return act(self, loss)
        return loss

    monkeypatch.setattr(RecipeTrainer, "compute_loss", compute_loss)


def _send(number: int, times: int = 1) -> Callable[[Any, Any], Any]:
    def act(trainer: Any, loss: Any) -> Any:
        for _ in range(times):
            signal.raise_signal(number)  # to this thread: it is handled before the next one, which else could be lost
        return loss

    return act


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_the_step_and_nothing_is_lost(
    number: int,
    code: int,
    tiny_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Any,
    same: Callable[..., Any],
    whole_run: Callable[..., Path],
) -> None:
    """Between two lines of the log, whose losses are the same afterwards."""
    whole = whole_run(*SLOW_LOG)
    capfd.readouterr()
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "tiny.yaml", *SLOW_LOG, "--output", "a run"]
    handler = signal.getsignal(number)
    with monkeypatch.context() as patch:
        _before_step(patch, 4, _send(number))
        assert main(arguments) == code
    assert signal.getsignal(number) is handler
    errors = capfd.readouterr().err
    assert "stopping after this step" in errors
    assert (
        f"saved step 4; go on with: longspan train tiny.yaml {' '.join(SLOW_LOG)} --output 'a run' --resume" in errors
    )
    assert "interrupted" not in errors  # one clear line is enough
    assert os.listdir("a run/checkpoints") == ["checkpoint-4"]
    with monkeypatch.context() as patch:
        _before_step(patch, 8, _send(number))
        assert main([*arguments, "--resume"]) == code
    assert main([*arguments, "--resume"]) == 0
    same(tmp_path / "a run", whole)


@pytest.mark.slow
def test_a_second_signal_stops_at_once(
    tiny_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    same: Callable[..., Any],
    whole_run: Callable[..., Path],
) -> None:
    recipe = load_recipe(tiny_recipe)
    # What a shell starts in the background ignores this signal from its birth.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with monkeypatch.context() as patch:
        _before_step(patch, 4, _send(signal.SIGINT, times=2))
        with pytest.raises(KeyboardInterrupt) as caught:
            train(recipe, tmp_path / "run")
    assert not isinstance(caught.value, Stopped)
    assert os.listdir(tmp_path / "run" / "checkpoints") == ["checkpoint-2"]
    train(recipe, tmp_path / "run", resume=True)
    same(tmp_path / "run", whole_run())


@pytest.mark.slow
def test_a_killed_process_of_the_data_is_one_sentence_and_training_goes_on(
    tiny_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Any,
    same: Callable[..., Any],
    whole_run: Callable[..., Path],
) -> None:
    whole = whole_run("optimisation.workers=1")

    def kill(trainer: Any, loss: Any) -> Any:
        (worker,) = multiprocessing.active_children()
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        return loss

    arguments = ["train", str(tiny_recipe), "optimisation.workers=1", "--output", str(tmp_path / "run")]
    capfd.readouterr()
    with monkeypatch.context() as patch:
        _before_step(patch, 4, kill)
        assert main(arguments) == 2
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith(("error", "Traceback"))]
    assert len(errors) == 1
    assert "a process that prepares batches was ended from outside" in errors[0]
    assert "go on with --resume, and with a lower optimisation.workers (now 1)" in errors[0]
    assert main([*arguments, "--resume"]) == 0
    same(tmp_path / "run", whole)


def test_without_a_terminal_there_are_lines_instead_of_a_bar(
    tiny_recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    changes = ["optimisation.steps=3", "optimisation.workers=0"]
    assert main(["train", str(tiny_recipe), *changes, "--output", str(tmp_path / "run")]) == 0
    errors = capfd.readouterr().err
    assert "it/s" not in errors
    history = json.loads((tmp_path / "run/metrics.json").read_text())["history"]
    names = ("loss", "eval_loss")
    losses = {(name, entry["step"]): entry[name] for entry in history for name in names if name in entry}
    lines = [line for line in errors.splitlines() if line.startswith("step ")]
    assert [line.partition(", gradient norm")[0] for line in lines] == [
        f"step {step} of 3: loss {losses['loss', step]:.4g}, validation loss {losses['eval_loss', step]:.4g}"
        for step in (2, 3)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("value", "words"), [("nan", "the loss is nan"), ("inf", "the loss is inf")])
def test_a_loss_that_is_not_finite_ends_training(
    value: str, words: str, tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _before_step(monkeypatch, 5, lambda trainer, loss: loss * float(value))
    with pytest.raises(InputError, match=rf"{words} at step 5.*last good checkpoint: checkpoint-4.*learning_rate"):
        train(load_recipe(tiny_recipe), tmp_path / "run")
    assert sorted(os.listdir(tmp_path / "run" / "checkpoints")) == ["checkpoint-2", "checkpoint-4"]
    weights = load_file(tmp_path / "run" / "checkpoints" / "checkpoint-4" / "model.safetensors")
    assert all(value.isfinite().all() for value in weights.values())


def test_a_gradient_that_is_not_finite_ends_training(
    tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root of zero has an infinite slope, at a finite value."""
    _before_step(monkeypatch, 1, lambda trainer, loss: loss + (loss - loss.detach()).abs().sqrt())
    with pytest.raises(InputError, match=r"the gradient is nan at step 1.*last good checkpoint: none yet"):
        train(load_recipe(tiny_recipe), tmp_path / "run")


@pytest.mark.slow
def test_steps_can_be_raised_under_a_constant_schedule(
    tiny_recipe: Path, tmp_path: Path, same: Callable[..., Any]
) -> None:
    constant = ["optimisation.schedule=constant_with_warmup"]
    train(load_recipe(tiny_recipe, [*constant, "optimisation.steps=8"]), tmp_path / "whole")
    folder = tmp_path / "raised"
    first = train(load_recipe(tiny_recipe, [*constant, "optimisation.steps=4"]), folder)
    longer = load_recipe(tiny_recipe, [*constant, "optimisation.steps=8"])
    assert max(entry["step"] for entry in first.history) == 4
    train(longer, folder, resume=True)
    same(folder, tmp_path / "whole")
    assert load_recipe(folder / "recipe.yaml").optimisation.steps == 8
    with pytest.raises(InputError, match=r"optimisation.steps=8, not 4"):
        train(load_recipe(tiny_recipe, [*constant, "optimisation.steps=4"]), folder, resume=True)


@pytest.mark.slow
def test_epochs_can_be_raised_too(tiny_recipe: Path, tmp_path: Path, same: Callable[..., Any]) -> None:
    """Five steps are an epoch."""
    constant = ["optimisation.schedule=constant", "optimisation.warmup_steps=0", "optimisation.steps=null"]
    constant.append("optimisation.evaluate_every=5")
    train(load_recipe(tiny_recipe, [*constant, "optimisation.epochs=2"]), tmp_path / "whole")
    train(load_recipe(tiny_recipe, [*constant, "optimisation.epochs=1"]), tmp_path / "raised")
    train(load_recipe(tiny_recipe, [*constant, "optimisation.epochs=2"]), tmp_path / "raised", resume=True)
    same(tmp_path / "raised", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([], "optimisation.schedule='linear' the learning rates depend on it"),
        (["optimisation.schedule=cosine"], "optimisation.schedule='cosine'"),
        (
            [
                "optimisation.schedule=constant_with_warmup",
                "optimisation.warmup_steps=0",
                "optimisation.warmup_fraction=0.5",
            ],
            "optimisation.warmup_fraction=0.5",
        ),
    ],
)
def test_steps_are_not_raised_where_the_past_would_differ(
    changes: list[str], words: str, tiny_recipe: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    train(load_recipe(tiny_recipe, [*changes, "optimisation.steps=1"]), folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(InputError, match="cannot be raised from 1 to 3.*" + words):
        train(load_recipe(tiny_recipe, [*changes, "optimisation.steps=3"]), folder, resume=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@pytest.mark.slow
def test_a_full_disk_keeps_the_last_good_checkpoint(
    tiny_recipe: Path, tmp_path: Path, small_disk: Path, same: Callable[..., Any]
) -> None:
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    constant = ["optimisation.schedule=constant_with_warmup"]
    train(load_recipe(tiny_recipe, [*constant, "optimisation.steps=6"]), tmp_path / "whole")
    train(load_recipe(tiny_recipe, [*constant, "optimisation.steps=2"]), small_disk / "run")
    state = os.statvfs(small_disk)
    (small_disk / "filler").write_bytes(b"f" * (state.f_bavail * state.f_frsize - 300_000))
    checkpoints = small_disk / "run" / "checkpoints"
    longer = load_recipe(tiny_recipe, [*constant, "optimisation.steps=6"])
    with pytest.raises(InputError, match=r"the disk is full .* free some space"):
        train(longer, small_disk / "run", resume=True)
    assert os.listdir(checkpoints) == ["checkpoint-2"]
    assert not [path for path in small_disk.rglob("*") if "longspan-" in path.name]
    (small_disk / "filler").unlink()
    train(longer, small_disk / "run", resume=True)
    same(small_disk / "run", tmp_path / "whole")
