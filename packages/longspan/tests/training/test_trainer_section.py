"""Trainer's own options in a recipe: passed on, refused with the key that sets them, or with a reason."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import TrainingArguments
from transformers.training_args import OptimizerNames

from longspan.cli import main
from longspan.errors import InputError
from longspan.settings import to_plain
from longspan.training.arguments import check_made_optimizer, trainer_arguments
from longspan.training.callbacks import StopNotFinite
from longspan.training.optimisation import SHARDED, UNUSABLE, Optimisation, Parallel, check_optimizer
from longspan.training.recipe import Recipe, check_key
from longspan.training.recipe_file import load_recipe
from longspan.training.run_folder import CHANGEABLE
from longspan.training.train import train
from longspan.training.trainer import RecipeTrainer
from longspan.training.trainer_section import KEYS, REASONS, UNIMPORTANT, check_options, option_hints

TASK: Any = SimpleNamespace(
    metrics=SimpleNamespace(lower_is_better=()), losses=lambda: SimpleNamespace(labels=("labels",))
)
NEWER = {"activation_checkpointing", "activation_checkpointing_kwargs"}
"""Arguments that transformers 5.17 does not have."""


def test_every_argument_of_trainer_is_passed_on_or_refused_once() -> None:
    names = {field.name for field in fields(TrainingArguments)}
    assert not set(KEYS) & set(REASONS)
    assert set(KEYS) | set(REASONS) <= names | NEWER
    assert set(option_hints()) == names - set(KEYS) - set(REASONS)
    assert {"fp16", "tf32", "torch_compile", "optim_args", "neftune_noise_alpha", "run_name"} <= set(option_hints())
    assert all(any(name.startswith(beginning) for name in option_hints()) for beginning in UNIMPORTANT)


@pytest.mark.parametrize("key", sorted({key for key in KEYS.values() if key.startswith("optimisation.")}))
def test_the_keys_that_it_names_exist(key: str) -> None:
    assert check_key(key, "") is None


def test_options_reach_trainer_with_their_values(tmp_path: Path) -> None:
    options = {"torch_empty_cache_steps": 3, "logging_first_step": True, "ddp_bucket_cap_mb": 7, "log_level": "info"}
    options |= {"dataloader_pin_memory": False, "ddp_find_unused_parameters": False, "full_determinism": False}
    settings = Optimisation(steps=2, optimizer="adafactor", workers=2)
    check_options(options, settings)
    arguments = trainer_arguments(settings, TASK, tmp_path, options)
    assert {name: getattr(arguments, name) for name in options} == options
    assert arguments.optim == "adafactor"
    plain = trainer_arguments(Optimisation(steps=2), TASK, tmp_path)
    assert (plain.log_level, plain.ddp_find_unused_parameters, plain.optim) == ("error", True, "adamw_torch_fused")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("label_smothing_factor=0.1", "unknown key 'trainer.label_smothing_factor'; did you mean 'label_smoothing_fac"),
        ("torch_compil=true", "unknown key 'trainer.torch_compil'; did you mean 'torch_compile'"),
        ("learning_rate=1", "trainer.learning_rate is 1, .*; use optimisation.learning_rate"),
        ("optim=adafactor", "trainer.optim is 'adafactor', .*; use optimisation.optimizer"),
        ("output_dir=x", "trainer.output_dir is 'x', .*; use the option --output"),
        ("seed=3", "use optimisation.seed"),
        ("per_device_train_batch_size=3", "use optimisation.micro_batch_size"),
        ("label_smoothing_factor=0.1", "use optimisation.label_smoothing"),
        ("gradient_checkpointing=true", "use optimisation.gradient_checkpointing"),
        ("save_only_model=true", "trainer.save_only_model is True, which cannot be set: a resumed run would differ"),
        ("hub_token=abc", "cannot be set: a run writes into its folder only"),
        ("use_liger_kernel=true", "cannot be set: its kernels are for classes of transformers"),
        ("torch_compile=1", "trainer.torch_compile is 1; it must be true or false"),
        ("torch_compile=maybe", "trainer.torch_compile is 'maybe'; it must be true or false"),
        ("neftune_noise_alpha=much", "trainer.neftune_noise_alpha is 'much'; it must be a number"),
        ("torch_empty_cache_steps=1.5", "trainer.torch_empty_cache_steps is 1.5; it must be a whole number"),
        ("log_level=loud", "trainer.log_level is 'loud'; choose 'debug', "),
        ("optim_args='momentum'", "trainer.optim_args is 'momentum'; it must be options such as momentum=0.9"),
        ("run_name=a", "cannot be combined with optimisation.report_to=.*: no program there reads it"),
        ("trackio_space_id=a/b", "trackio alone reads it"),
        ("dataloader_multiprocessing_context=spawn", "optimisation.workers=0: there are no processes to start"),
        ("torch_compile={}", "trainer.torch_compile is {}; it must be true or false"),
    ],
)
def test_a_wrong_option_is_refused_when_the_recipe_is_read(change: str, message: str, tiny_recipe: Path) -> None:
    with pytest.raises(InputError, match=message):
        load_recipe(tiny_recipe, [f"trainer.{change}"])


@pytest.mark.parametrize(
    ("options", "settings", "other"),
    [
        ({"fp16": True}, {"bf16": True}, "optimisation.bf16=true"),
        ({"fp16": True}, {"parallel": {"shard": True}}, "optimisation.parallel.shard=true"),
        ({"ddp_find_unused_parameters": False}, {"parallel": {"shard": True}}, "optimisation.parallel.shard=true"),
        ({"torch_compile": True}, {"parallel": {"shard": True}}, "optimisation.parallel.shard=true"),
        ({"torch_compile": True}, {"parallel": {"sequence": 2}}, "optimisation.parallel.sequence"),
        ({"torch_compile_mode": "default"}, {"gradient_checkpointing": True}, "optimisation.gradient_checkpointing=tr"),
        ({"torch_compile": False, "torch_compile_backend": "eager"}, {}, "trainer.torch_compile=false"),
        ({"neftune_noise_alpha": 5.0}, {"parallel": {"sequence": 2}}, "optimisation.parallel.sequence"),
        ({"neftune_noise_alpha": 5.0}, {"padding_free": True}, "optimisation.padding_free=true"),
    ],
)
def test_options_that_cannot_be_combined(
    options: dict[str, Any], settings: dict[str, Any], other: str, tiny_recipe: Path
) -> None:
    plain = to_plain(load_recipe(tiny_recipe))
    plain["optimisation"] |= settings
    plain["trainer"] = options
    with pytest.raises(InputError, match=f"cannot be combined with {other}"):
        _ = load(plain, tiny_recipe).runs


def load(plain: dict[str, Any], file: Path) -> Recipe:
    """The recipe of plain data, as a file of it is read."""
    file.write_text(json.dumps(plain))
    return load_recipe(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["optimisation.optimizer=lion_32bit"], "You need to install `bitsandbytes` .*pip install -U bitsandbytes"),
        (["optimisation.optimizer=schedule_free_adamw"], "pip install schedulefree"),
        (["optimisation.optimizer=muonn"], "optimizer is 'muonn', which Trainer does not have; choose one of adamw,"),
        (["optimisation.optimizer=adafactr"], "did you mean 'adafactor'"),
        (["optimisation.optimizer=galore_adamw"], "which stores objects of its package in checkpoints"),
        (["optimisation.optimizer=adalomo"], "which updates weights in the backward pass"),
        (["optimisation.optimizer=sgd", "trainer.optim_args='momentun=0.9'"], "does not take trainer.optim_args='mome"),
        (["optimisation.optimizer=sgd", "trainer.optim_args='momentum=-1'"], "Invalid momentum value: -1.0"),
        (["optimisation.optimizer=sgd", "trainer.optim_args='momentum=x'"], "could not convert string to float: 'x'"),
        (["trainer.optim_args='momentum=0.9'"], "'adamw', which does not take trainer.optim_args='momentum=0.9'"),
        (["optimisation.optimizer=adafactor", "optimisation.betas=[0.9,0.98]"], "does not take optimisation.betas="),
        (["trainer.dataloader_prefetch_factor=2"], "can only be set when data is loaded in a different process"),
        (["trainer.dataloader_prefetch_factor=-2", "optimisation.workers=1"], "prefetch_factor .* non-negative"),
        (["trainer.torch_empty_cache_steps=-1"], "must be an integer bigger than 0, got -1"),
        (["trainer.torch_compile_backend=fast"], "Invalid backend: 'fast'"),
        (["trainer.debug=everything"], "everything is not a valid DebugOption"),
    ],
)
def test_what_the_machine_or_trainer_refuses_is_one_sentence_before_anything_is_written(
    changes: list[str], message: str, tiny_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    assert main(["train", str(tiny_recipe), *changes, "--output", str(output)]) == 2
    error = capsys.readouterr().err
    (line,) = error.splitlines()
    assert line.startswith("error: ")
    assert re.search(message, line)
    assert not output.exists()


@pytest.mark.skipif(torch.accelerator.is_available(), reason="float16 has a GPU here")
@pytest.mark.parametrize("option", ["fp16", "tf32"])
def test_what_needs_a_gpu_is_refused_without_one_but_not_in_a_smoke_test(
    option: str, tiny_recipe: Path, tmp_path: Path
) -> None:
    file = tmp_path / "other.yaml"
    file.write_text(tiny_recipe.read_text() + f"trainer: {{{option}: true}}\n")
    with pytest.raises(InputError, match=rf"{option}.*(no GPU here|requires Ampere)"):
        train(load_recipe(file), tmp_path / "run")
    assert not load_recipe(file, smoke=True).trainer[option]


@pytest.mark.parametrize("name", ["adafactor", "lion_8bit", "adamw_torch_8bit"])
def test_states_that_cannot_be_divided_are_not_sharded(name: str) -> None:
    with pytest.raises(InputError, match=f"'{name}', whose states are not as large as the weights"):
        check_optimizer(sharded(name))
    assert all(check_optimizer(sharded(other)) is None for other in SHARDED)


def sharded(optimizer: str) -> Optimisation:
    return Optimisation(steps=1, optimizer=optimizer, parallel=Parallel(shard=True))


def test_options_of_an_optimizer_are_read(tmp_path: Path) -> None:
    """A value equal to the default counts as read, and so does one among several."""
    settings = Optimisation(steps=1, optimizer="sgd")
    for given in ("momentum=0", "momentum=0.9, nesterov=true", "weight_decay=0.0,dampening=0"):
        arguments = trainer_arguments(settings, TASK, tmp_path, {"optim_args": given})
        assert check_made_optimizer(arguments, settings) is None
    arguments = trainer_arguments(settings, TASK, tmp_path, {"optim_args": "momentum=0.9, speed=2"})
    with pytest.raises(InputError, match=r"does not take trainer\.optim_args=' speed=2'"):
        check_made_optimizer(arguments, settings)
    assert arguments.optim_args == "momentum=0.9, speed=2"


def test_stages_share_optimizer_and_options(tiny_recipe: Path) -> None:
    for change in ("optimisation.optimizer: sgd", "trainer.fp16: true"):
        text = tiny_recipe.read_text() + f"stages: [{{}}, {{{change}}}]\n"
        file = tiny_recipe.with_name("staged.yaml")
        file.write_text(text)
        with pytest.raises(InputError, match="which is the same in all stages"):
            load_recipe(file)


def test_names_of_reports_may_change_when_a_run_is_resumed() -> None:
    assert "trainer.run_name".startswith(CHANGEABLE)
    assert "trainer.dataloader_pin_memory".startswith(CHANGEABLE)
    assert not "trainer.torch_compile".startswith(CHANGEABLE)
    assert not "trainer.optim_args".startswith(CHANGEABLE)


def test_label_smoothing_without_generated_tokens_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "classes.yaml"
    file.write_text(
        "name: classes\ntask: {name: classification, labels: [a, b], max_tokens: 30}\n"
        "data: {train: rows.jsonl, validation: rows.jsonl}\ntokenizer: {train: 300}\n"
        "model: {new: {hidden_size: 8, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 8}, "
        "max_tokens: 30}\noptimisation: {steps: 1, batch_size: 1, label_smoothing: 0.1}\n"
    )
    rows = [{"text": f"a text {number}", "label": "ab"[number % 2]} for number in range(4)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = load_recipe(file, [f"data.train={data}", f"data.validation={data}"])
    with pytest.raises(InputError, match=r"label_smoothing is 0\.1, but the loss of a LongspanForSequenceClassif"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_scaler_skips_gradients_that_overflow_but_not_losses(tmp_path: Path) -> None:
    model, args = torch.nn.Linear(2, 1), SimpleNamespace(world_size=1, output_dir=str(tmp_path))
    model.weight.grad = torch.tensor([[float("inf"), 1.0]])
    state = SimpleNamespace(global_step=4)
    scaled = StopNotFinite(0.1, scaled=True)
    scaled.add(torch.tensor(2.0))
    scaled.on_pre_optimizer_step(args, state, None, model=model)
    scaled.add(torch.tensor(float("nan")))
    with pytest.raises(InputError, match="the loss is nan at step 5"):
        scaled.on_pre_optimizer_step(args, state, None, model=model)
    plain = StopNotFinite(0.1)
    plain.add(torch.tensor(2.0))
    with pytest.raises(InputError, match="the gradient is inf at step 5"):
        plain.on_pre_optimizer_step(args, state, None, model=model)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        ["optimisation.optimizer=adafactor", "trainer.neftune_noise_alpha=5", "trainer.logging_first_step=true"],
        ["optimisation.optimizer=sgd", "trainer.optim_args='momentum=0.9'", "optimisation.log_every=2"],
    ],
)
def test_a_resumed_run_is_exact_with_them(
    changes: list[str],
    tiny_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    same: Callable[[Path, Path], None],
) -> None:
    changes = [*changes, "optimisation.steps=6"]
    whole = train(load_recipe(tiny_recipe, changes), tmp_path / "whole").folder
    original = RecipeTrainer.training_step

    def killed(trainer: Any, *arguments: Any, **options: Any) -> Any:
        if trainer.state.global_step == 3:
            raise KeyboardInterrupt
        return original(trainer, *arguments, **options)

    recipe = load_recipe(tiny_recipe, changes)
    with monkeypatch.context() as patch:
        patch.setattr(RecipeTrainer, "training_step", killed)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, tmp_path / "parts")
    train(load_recipe(tiny_recipe, changes), tmp_path / "parts", resume=True)
    same(tmp_path / "parts", whole)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of the compiler's own
def test_compiled_losses_are_those_of_the_model(tiny_recipe: Path, tmp_path: Path) -> None:
    """Dynamo alone, without generated code; dropout is drawn as before."""
    changes = ["model.attention=full", "model.new.num_hidden_layers=1", "optimisation.steps=2"]
    runs = [
        train(load_recipe(tiny_recipe, [*changes, *more]), tmp_path / name).history
        for name, more in {"plain": [], "compiled": ["trainer.torch_compile_backend=eager"]}.items()
    ]
    plain, compiled = ([entry["loss"] for entry in run if "loss" in entry] for run in runs)
    assert compiled == pytest.approx(plain, rel=1e-5)


def test_reasons_concern_optimizers_that_exist() -> None:
    names = [member.value for member in OptimizerNames]
    assert all(any(part in name for name in names) for part in UNUSABLE)
