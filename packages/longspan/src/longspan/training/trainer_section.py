"""The section `trainer` of a recipe: arguments of Hugging Face's `TrainingArguments`, by their names there.

Those that a key of the recipe sets are refused with this key, and those that a run cannot have with the reason; any
other one, also of a later version of transformers, is passed to Trainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from longspan.errors import InputError
from longspan.settings import Form, convert, hints_of, near, show, show_key

if TYPE_CHECKING:
    from longspan.training.optimisation import Optimisation

SECTION = "trainer"
SHARD, SEQUENCE = "optimisation.parallel.shard=true", "optimisation.parallel.sequence"
OF_TRACKIO = ("project", "trackio_", "hub_private_repo")
"""Beginnings of the names of options that only trackio reads."""

KEYS: dict[str, str] = {
    "output_dir": "the option --output",
    "do_train": "the command `longspan train`",
    "do_eval": "the command `longspan evaluate`",
    "do_predict": "the command `longspan evaluate`",
    "resume_from_checkpoint": "the option --resume",
    "per_device_train_batch_size": "optimisation.micro_batch_size",
    "per_device_eval_batch_size": "optimisation.micro_batch_size",
    "gradient_accumulation_steps": "optimisation.batch_size",
    "num_train_epochs": "optimisation.epochs",
    "max_steps": "optimisation.steps",
    "learning_rate": "optimisation.learning_rate",
    "lr_scheduler_type": "optimisation.schedule",
    "lr_scheduler_kwargs": "optimisation.schedule_options",
    "warmup_steps": "optimisation.warmup_steps",
    "optim": "optimisation.optimizer",
    "weight_decay": "optimisation.weight_decay",
    "adam_beta1": "optimisation.betas",
    "adam_beta2": "optimisation.betas",
    "adam_epsilon": "optimisation.epsilon",
    "max_grad_norm": "optimisation.gradient_clip",
    "label_smoothing_factor": "optimisation.label_smoothing",
    "bf16": "optimisation.bf16",
    **dict.fromkeys(("activation_checkpointing", "gradient_checkpointing"), "optimisation.gradient_checkpointing"),
    **dict.fromkeys(("logging_strategy", "logging_steps"), "optimisation.log_every"),
    **dict.fromkeys(("eval_strategy", "eval_steps", "save_strategy", "save_steps"), "optimisation.evaluate_every"),
    "save_total_limit": "optimisation.keep_checkpoints",
    "report_to": "optimisation.report_to",
    **dict.fromkeys(("metric_for_best_model", "greater_is_better"), "optimisation.best_by"),
    **dict.fromkeys(("seed", "data_seed"), "optimisation.seed"),
    "dataloader_num_workers": "optimisation.workers",
    **dict.fromkeys(("fsdp", "fsdp_config", "deepspeed"), "optimisation.parallel.shard"),
    "parallelism_config": "optimisation.parallel",
    "use_cpu": "the environment variable CUDA_VISIBLE_DEVICES (empty)",
}
"""Argument of Trainer → what sets it here."""

_HUB = "a run writes into its folder only; upload that with `hf upload`"
_SCORES = "the task computes the scores of an evaluation by itself"
_RESUMED = "a resumed run would differ from an uninterrupted one"
REASONS: dict[str, str] = {
    **dict.fromkeys(
        ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"),
        "checkpointing of blocks, attention and memories is chosen together by optimisation.gradient_checkpointing",
    ),
    "accelerator_config": "the rows of a batch are divided between processes by optimisation.parallel",
    "auto_find_batch_size": "the batch size of an experiment is fixed; `longspan plan` computes what fits",
    "average_tokens_across_devices": "the losses of several processes are always those of one",
    **dict.fromkeys(
        ("bf16_full_eval", "fp16_full_eval"), "Trainer ignores it for the evaluations of a training, which are all here"
    ),
    "dataloader_drop_last": "it would leave rows out of validation too",
    "dataloader_in_order": f"without the order of the rows, {_RESUMED}",
    "dataloader_persistent_workers": "its processes keep the rows and masks of the first epoch for all others",
    **dict.fromkeys(("ddp_backend", "ddp_timeout"), "the processes are connected before Trainer is created"),
    "disable_tqdm": "a terminal gets a bar, and a log gets lines",
    **dict.fromkeys(
        (
            "eval_accumulation_steps",
            "eval_do_concat_batches",
            "eval_use_gather_object",
            "batch_eval_metrics",
            "include_for_metrics",
            "prediction_loss_only",
        ),
        _SCORES,
    ),
    "eval_delay": "every checkpoint needs a score; raise optimisation.evaluate_every",
    "eval_on_start": f"{_RESUMED}, since it would be evaluated again",
    "enable_jit_checkpoint": "Ctrl-C and SIGTERM save a checkpoint already",
    **dict.fromkeys(("ignore_data_skip", "restore_callback_states_from_checkpoint", "save_only_model"), _RESUMED),
    "include_num_input_tokens_seen": "real tokens are always counted and logged",
    "load_best_model_at_end": "the best checkpoint's model is always the one in the output folder",
    **dict.fromkeys(("label_names", "remove_unused_columns"), "the task defines the inputs and labels of its model"),
    "local_rank": "torchrun sets it",
    "logging_nan_inf_filter": "a loss that is not finite ends the run",
    **dict.fromkeys(
        ("push_to_hub", "hub_token", "hub_model_id", "hub_strategy", "hub_always_push", "hub_revision"), _HUB
    ),
    "optim_target_modules": "GaLore and APOLLO read it, whose checkpoints cannot be loaded as plain tensors",
    "save_on_each_node": "several machines share the output folder",
    "skip_memory_metrics": "memory is always logged",
    **dict.fromkeys(
        ("train_sampling_strategy", "length_column_name"),
        f"the order of the rows belongs to the task; by other orders of Trainer, {_RESUMED}",
    ),
    "use_cache": "a training step needs no cache, and decoding always has one",
    **dict.fromkeys(
        ("use_liger_kernel", "liger_kernel_config"), "its kernels are for classes of transformers and would not be used"
    ),
}
"""Argument of Trainer → why a recipe cannot set it."""

LogLevel = Literal["debug", "info", "warning", "error", "critical", "passive"]


class Narrower:
    """Types of options that Trainer checks only in part, or later."""

    debug: str
    log_level: LogLevel
    log_level_replica: LogLevel
    optim_args: Annotated[str, Form(r"\w+ ?= ?[^,= ]+(, ?\w+ ?= ?[^,= ]+)*", "options such as momentum=0.9")] | None


UNIMPORTANT = (*OF_TRACKIO, "run_name", "log_", "dataloader_", "ddp_", "torch_empty_cache_steps")
"""Beginnings of the names that do not change what is computed, so that a resumed run may change them."""


@cache
def option_hints() -> dict[str, Any]:
    """Returns the arguments of the installed Trainer that a recipe can set, with their types."""
    from transformers import TrainingArguments

    hints = hints_of(TrainingArguments) | hints_of(Narrower)
    names = [field.name for field in fields(TrainingArguments) if field.name not in KEYS | REASONS]
    return {name: hints[name] for name in names}


def check_options(options: Mapping[str, Any], settings: Optimisation) -> None:
    """Checks the options of the section by their names and types, and their combination with `settings`.

    Raises:
        InputError: an option that Trainer lacks, a recipe's key sets, or a run cannot have; a value of another type;
            options that cannot be combined with `settings`.
    """
    for name, value in options.items():
        path = f"{SECTION}.{show_key(name)}"
        if name in KEYS:
            raise InputError(f"{path} is {show(value)}, which a recipe sets by another name; use {KEYS[name]}")
        if name in REASONS:
            raise InputError(f"{path} is {show(value)}, which cannot be set: {REASONS[name]}; leave it out")
        if name not in option_hints():
            raise InputError(f"unknown key {path!r}; {near(str(name), [*option_hints(), *KEYS, *REASONS])}")
        convert(option_hints()[name], value, path)
    _check_combinations(options, settings)


def _check_combinations(options: Mapping[str, Any], settings: Optimisation) -> None:
    """Raises `InputError` for options that would be ignored, or wrong, with the other settings."""
    shard, sequence = settings.parallel.shard, settings.parallel.sequence > 1
    noise, programs = "its noise depends on the length of the rows", set(settings.report_to)
    report = f"optimisation.report_to={show(list(settings.report_to))}"
    conflicts = [
        ("fp16", settings.bf16, "optimisation.bf16=true", "a run has one precision"),
        ("fp16", shard, SHARD, "each process would scale its part of the gradients by itself"),
        ("torch_compile", shard, SHARD, "sharded weights are gathered block by block"),
        (
            "torch_compile",
            settings.gradient_checkpointing,
            "optimisation.gradient_checkpointing=true",
            "a compiled model draws other dropout when it computes activations again",
        ),
        ("torch_compile", sequence, SEQUENCE, "processes exchange parts of a row inside of a layer"),
        ("neftune_noise_alpha", sequence, SEQUENCE, f"{noise}, which are divided"),
        ("neftune_noise_alpha", settings.padding_free, "optimisation.padding_free=true", f"{noise}, which are packed"),
        ("ddp_", shard, SHARD, "sharded weights exchange their gradients by themselves"),
        ("dataloader_m", not settings.workers, "optimisation.workers=0", "there are no processes to start"),
        ("torch_compile_", options.get("torch_compile") is False, f"{SECTION}.torch_compile=false", "it turns that on"),
        *((name, "trackio" not in programs, report, "trackio alone reads it") for name in OF_TRACKIO),
        ("run_name", programs <= {"none", "tensorboard"}, report, "no program there reads it"),
    ]
    for beginning, conflicting, key, reason in conflicts:
        for name, value in options.items():
            if conflicting and name.startswith(beginning) and (value or name.startswith("ddp_")):
                raise InputError(
                    f"{SECTION}.{name} is {show(value)}, which cannot be combined with {key}: {reason}; leave one of "
                    "them out"
                )
