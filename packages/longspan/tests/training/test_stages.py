"""Training in stages: what each begins with, interruptions at any place, and recipes that cannot be trained so."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from longspan.cli import main
from longspan.errors import InputError
from longspan.tasks import task_of_folder
from longspan.training.callbacks import StopOnSignal, Stopped, has_stalled
from longspan.training.checkpoints import complete_checkpoints
from longspan.training.evaluate import evaluate
from longspan.training.recipe_file import load_recipe
from longspan.training.train import train

STAGED: dict[str, Any] = {
    "name": "tiny-stages",
    "task": {"name": "language_model", "max_tokens": 24},
    "data": {},
    "model": {
        "new": {
            "hidden_size": 8,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 8,
            "position_embedding": "none",
            "dropout": 0.1,
        },
        "attention": {
            "mechanism": "longformer",
            "positions": "relative",
            "left_tokens": {"per_layer": [3, 6]},
            "dilation": {"per_layer": [1, [1, 2]]},
        },
    },
    "tokenizer": {"train": 261},
    "optimisation": {
        "steps": 3,
        "batch_size": 2,
        "learning_rate": 1e-2,
        "schedule": "constant_with_warmup",
        "warmup_fraction": 0.5,
        "warmup_limit": 1,
        "log_every": 1,
        "evaluate_every": 1,
        "keep_checkpoints": 10,
        "report_to": "none",
    },
    "stages": [
        {},
        {"task.max_tokens": "x2", "model.attention.left_tokens": "x2", "optimisation.learning_rate": "/2"},
    ],
}


EPOCHS = {"optimisation.steps": None, "optimisation.epochs": 1, "optimisation.warmup_limit": None}


@pytest.fixture(scope="module", autouse=True)
def texts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A few hundred characters, in files that every run reads."""
    folder = tmp_path_factory.mktemp("texts")
    for name, times in (("train", 9), ("validation", 1)):
        (folder / f"{name}.txt").write_text("A short story of a long afternoon by the sea. " * times)
        STAGED["data"][name] = str(folder / f"{name}.txt")


def write(folder: Path, **changes: Any) -> Path:
    (folder / "staged.yaml").write_text(yaml.safe_dump({**STAGED, **changes}), encoding="utf-8")
    return folder / "staged.yaml"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of both stages that nothing has interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    train(load_recipe(write(folder)), folder / "run")
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "left"), [(1, 1), (1, 3), (2, 0), (2, 2)], ids=["first", "border", "begin", "last"])
def test_interrupted_anywhere_the_losses_are_the_same(
    whole: Path, stage: int, left: int, tmp_path: Path, same: Callable[[Path, Path], None]
) -> None:
    """As if killed in a stage after so many of its checkpoints; whatever came later is lost."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "evaluation", ignore_errors=True)
    for name in ("metrics.json", "model.safetensors", f"stages/{stage}/metrics.json"):
        (folder / name).unlink()
    for checkpoint in complete_checkpoints(folder / "stages" / str(stage) / "checkpoints")[left:]:
        shutil.rmtree(checkpoint)
    if stage == 1:
        shutil.rmtree(folder / "stages" / "2")
    train(load_recipe(write(tmp_path)), folder, resume=True)
    same(folder, whole)


def test_a_stage_goes_on_with_weights_and_moments(whole: Path) -> None:
    history = json.loads((whole / "metrics.json").read_text())["history"]
    steps = [(entry["stage"], entry["step"]) for entry in history if "loss" in entry]
    assert steps == [(1, 1), (1, 2), (1, 3), (2, 4), (2, 5), (2, 6)]
    rates = [entry["learning_rate"] for entry in history if "loss" in entry]
    assert rates == [0.0, 1e-2, 1e-2, 0.0, 5e-3, 5e-3]  # one step of warm-up in each
    best = json.loads((whole / "stages/1/metrics.json").read_text())["best_step"]
    # The rate of the first step of a stage is 0, so that it leaves the weights as they were.
    before, after = (
        load_file(whole / file / "model.safetensors") for file in ("stages/1", "stages/2/checkpoints/checkpoint-1")
    )
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    moments = torch.load(whole / "stages/2/checkpoints/checkpoint-1/optimizer.pt", weights_only=True)["state"]
    assert {int(each["step"]) for each in moments.values()} == {best + 1}


def test_the_card_is_that_of_all_stages(whole: Path) -> None:
    card = (whole / "README.md").read_text()
    assert "- Steps: 6 in 2 stages\n" in card
    assert "- Steps: 3\n" in (whole / "stages/2/README.md").read_text()
    assert card.count("## How it was trained") == 1


def test_the_model_is_that_of_the_last_stage(whole: Path) -> None:
    config = json.loads((whole / "config.json").read_text())
    assert [layer["left_tokens"] for layer in config["attention"]] == [6, 12]
    task: Any = task_of_folder(whole)
    assert task.max_tokens == 48
    assert evaluate(whole, STAGED["data"]["validation"]).report["mode"] == "sliding, 48 tokens, step 24"
    side_by_side = {"evaluation.mode": "disjoint", "evaluation.tokens": 12}
    found = evaluate(whole, STAGED["data"]["validation"], options=side_by_side)
    assert found.report["mode"] == "disjoint, 12 tokens"
    with pytest.raises(InputError, match=r"task.name is 'masked_lm', but the model is for language_model; leave"):
        evaluate(whole, "synthetic", options={"name": "masked_lm"})


def test_evaluation_says_its_mode_beside_each_number(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--data", STAGED["data"]["validation"], "evaluation.step=5"]
    assert main(["evaluate", str(whole), *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.endswith("(sliding, 48 tokens, step 5)") for line in lines if line.startswith("bits_per_"))


@pytest.mark.variant
def test_a_signal_in_the_last_step_of_a_stage_stops_before_the_next(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, same: Callable[[Path, Path], None]
) -> None:
    recipe, folder = load_recipe(write(tmp_path)), tmp_path / "run"
    on_step_end = StopOnSignal.on_step_end

    def asked(self: StopOnSignal, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.asked = 2 if state.global_step == 3 else 0
        on_step_end(self, args, state, control, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(StopOnSignal, "on_step_end", asked)
        with pytest.raises(Stopped, match="after step 3"):
            train(recipe, folder)
    assert not (folder / "stages" / "2").exists()
    with pytest.raises(InputError, match="already holds a run; add --resume"):
        train(recipe, folder)
    train(recipe, folder, resume=True)
    same(folder, whole)


@pytest.mark.slow
def test_a_stage_ends_where_nothing_becomes_better(tmp_path: Path, curve: Callable[[Path], list[Any]]) -> None:
    """At a rate of almost nothing the first evaluation after the warm-up is as good as any."""
    changes = ["optimisation.learning_rate=1e-30", "optimisation.patience=2", "optimisation.steps=9"]
    recipe, folder = load_recipe(write(tmp_path), changes), tmp_path / "run"
    result = train(recipe, folder)
    assert [entry["step"] for entry in result.history if "eval_loss" in entry] == [1, 2, 3, 4, 5, 6]
    assert [entry["stage"] for entry in result.history if "eval_loss" in entry] == [1, 1, 1, 2, 2, 2]
    assert result.best_step == 4
    before = curve(folder)
    (folder / "metrics.json").unlink()
    (folder / "stages/2/metrics.json").unlink()
    assert train(recipe, folder, resume=True) == result  # a run that has stalled is over
    assert curve(folder) == before


def test_patience_by_hand() -> None:
    class Arguments:
        metric_for_best_model, greater_is_better = "loss", False

    def stalled(losses: list[float], patience: int | None) -> bool:
        return has_stalled([{"step": n, "eval_loss": loss} for n, loss in enumerate(losses)], Arguments, patience)

    assert not stalled([3, 2], 2)
    assert not stalled([3, 2, 2.5, 1.9], 2)
    assert stalled([3, 2, 2.5, 2], 2)
    assert not stalled([3, 3, 3], None)


def test_a_mistake_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text(" ")
    recipe = load_recipe(write(tmp_path, data={**STAGED["data"], "train": str(tmp_path / "empty.txt")}))
    with pytest.raises(InputError, match="there is no text to train a tokenizer on"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_smoke_keeps_factors_and_no_sizes(tmp_path: Path) -> None:
    given = [{}, {"task.max_tokens": "x2", "optimisation.steps": 50000}, {"task.max_tokens": 5000}]
    staged = load_recipe(write(tmp_path, stages=given, smoke={"task.max_tokens": 16}), smoke=True)
    assert [stage.task.max_tokens for stage in staged.stage_recipes] == [16, 32, 32]
    assert [stage.optimisation.steps for stage in staged.stage_recipes] == [4, 4, 4]
    assert [stage.optimisation.seed for stage in staged.stage_recipes] == [1, 2, 3]


def test_shorter_texts_and_narrower_windows_are_allowed(tmp_path: Path) -> None:
    stages = [{}, {"task.max_tokens": 12, "model.attention.left_tokens": 2}, {"model.new.dropout": 0.3}]
    found = load_recipe(write(tmp_path, stages=stages)).stage_recipes
    assert [stage.task.max_tokens for stage in found] == [24, 12, 12]
    wide = {**STAGED["model"], "attention": {**STAGED["model"]["attention"], "left_tokens": 500}}
    assert load_recipe(write(tmp_path, model=wide, stages=[{}, {"task.max_tokens": "x2"}]))  # attention to all of it


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"task.max_tokns": 5}, r"stages\[1\] cannot be trained: unknown key 'task.max_tokns'; did you mean 'max_tok"),
        ({"optimisation.step": 5}, r"unknown key stages\[1\].'optimisation.step'; did you mean 'steps'\?"),
        ({"optimisatio.steps": 5}, r"unknown key stages\[1\].'optimisatio.steps'; did you mean 'optimisation'\?"),
        ({"model.attention.left_token": 5}, r"stages\[1\] cannot be trained: unknown key 'attention.left_token'; did"),
        ({"optimisation.steps": 0}, r"stages\[1\] cannot be trained: optimisation.steps is 0; it must be at least 1"),
        (EPOCHS, r"stages\[1\] has optimisation.epochs, but its length"),
        (
            {"optimisation": {"steps": 5}},
            r"stages\[1\] gives optimisation as a whole; name what changes by dotted path, such as optimisation.steps",
        ),
        (
            {"optimisation.head_learning_rate": 1e-3},
            r"stages\[1\] differs from the recipe in whether it has optimisation.head_learning_rate; give",
        ),
        ({"data.train": "x"}, r"stages\[1\] changes data.train, which is the same in all stages"),
        ({"task.name": "masked_lm"}, r"stages\[1\] changes task.name, which is the same in all stages"),
        ({"model.attention.positions": "none"}, r"stages\[1\] changes the weights, such as"),
        ({"model.new.hidden_size": 16}, r"stages\[1\] changes the weights, such as"),
        (
            {"model.attention.left_tokens": 30, "task.max_tokens": 4},
            r"stages\[1\] widens the window of layer 0 from 3 to 30 tokens, but a text of task.max_tokens=4 has",
        ),
        (
            {"model.attention.dilation": 24},
            r"stages\[1\] has dilation=24 in layer 0, so that some heads see no token but their own in task.max_tokens",
        ),
    ],
)
def test_stages_that_cannot_be_trained(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        load_recipe(write(tmp_path, stages=[{}, change]))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("optimisation.lora={rank: 2}", "optimisation.lora"),
        ("stages=[3]", r"stages\[0\] is 3; it must be a mapping"),
        ("optimisation.warmup_fraction=0", "warmup_limit is 1, which bounds a share of 'steps'"),
        ("model.attention.dilation=24", r"stages\[0\] has dilation=24"),
        ("stages=[]; model.attention.dilation=24", "the recipe has dilation=24 in layer 0, so that some heads"),
        ("optimisation.float32_attention=true", "float32_attention is true, but without optimisation.bf16"),
    ],
)
def test_recipes_that_cannot_be_trained_in_stages(tmp_path: Path, change: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        load_recipe(write(tmp_path), change.split("; "))


def test_the_number_of_steps_cannot_be_raised_where_a_stage_follows(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"was begun with optimisation.steps=3, not 5"):
        train(load_recipe(write(tmp_path), ["optimisation.steps=5"]), whole, resume=True)


@pytest.mark.variant
def test_a_recipe_is_read_and_checked_once(tmp_path: Path) -> None:
    """One reading, one `Recipe` and one task for the whole and for each stage, one check of each."""
    file, calls = write(tmp_path), Counter[str]()
    watched = {"read_recipe", "read_yaml_file", "_check_run", "_check_models", "build_task", "Recipe.__post_init__"}

    def count(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_qualname in watched:
            calls[frame.f_code.co_qualname] += 1

    sys.setprofile(count)
    try:
        assert main(["train", str(file), "--output", str(tmp_path / "run")]) == 0
    finally:
        sys.setprofile(None)
    runs = 1 + len(STAGED["stages"])
    once = dict.fromkeys(("read_recipe", "read_yaml_file", "_check_models"), 1)
    assert calls == once | dict.fromkeys(("_check_run", "build_task", "Recipe.__post_init__"), runs)
