"""The optimisation section of a recipe as the arguments of Hugging Face's Trainer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from longspan.errors import InputError
from longspan.training.optimisation import Optimisation

SHARDING = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "another parallelism",
}
"""What `accelerate launch` sets where weights are to be divided between processes."""


def check_sharding() -> None:
    """Raise `InputError` where `accelerate launch` was told to divide the weights, which recipes do not do: every
    process trains a whole copy."""
    for name, what in SHARDING.items():
        if os.environ.get(name, "").lower() in {"1", "true", "yes", "on"}:
            raise InputError(
                f"{name}={os.environ[name]} asks for {what}, which divides the weights between processes, and training "
                "by recipe keeps a whole copy in each; leave it out of accelerate's configuration, or use torchrun"
            )


def trainer_arguments(settings: Optimisation, task: Any, folder: Path) -> TrainingArguments:
    """Trainer's arguments, with checkpoints in `folder` and each batch divided between the processes.

    Raises:
        InputError: what training needs is missing; the processes cannot share the work, or a batch.
    """
    options = _updates(settings) | _records(settings, task) | _machine(settings)
    try:
        arguments = TrainingArguments(output_dir=str(folder), **options)
    except ImportError as error:
        raise InputError("training needs the 'train' extra; install it with: pip install 'longspan[train]'") from error
    except ValueError as error:
        raise InputError(f"the optimisation section cannot be used here: {' '.join(str(error).split())}") from error
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if arguments.world_size != started:
        raise InputError(
            f"{started} processes were started but they train apart, as there is no GPU for each; start as many as "
            "there are GPUs, or set ACCELERATE_USE_CPU=true to share the work on CPUs"
        )
    together = settings.micro_batch_size * arguments.world_size
    if settings.batch_size % together:
        raise InputError(
            f"optimisation.batch_size is {settings.batch_size}; with {arguments.world_size} processes of "
            f"{settings.micro_batch_size} documents it must be a multiple of {together}"
        )
    arguments.gradient_accumulation_steps = settings.batch_size // together
    return arguments


def _updates(settings: Optimisation) -> dict[str, Any]:
    """What decides the weights after each step."""
    return {
        "per_device_train_batch_size": settings.micro_batch_size,
        "num_train_epochs": settings.epochs or 1.0,
        "max_steps": -1 if settings.steps is None else settings.steps,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": settings.schedule,
        "lr_scheduler_kwargs": settings.schedule_options or None,
        "warmup_steps": settings.warmup(),
        "weight_decay": settings.weight_decay,
        "adam_beta1": settings.betas[0],
        "adam_beta2": settings.betas[1],
        "adam_epsilon": settings.epsilon,
        "max_grad_norm": settings.gradient_clip,
        "bf16": settings.bf16,
        "seed": settings.seed,
        "data_seed": settings.seed,
    }


def _records(settings: Optimisation, task: Any) -> dict[str, Any]:
    """What is logged, validated and saved, and when."""
    return {
        "logging_steps": settings.log_every,
        "eval_strategy": "steps",
        "eval_steps": settings.evaluate_every,
        "save_strategy": "steps",
        "save_steps": settings.evaluate_every,
        "per_device_eval_batch_size": settings.micro_batch_size,
        "metric_for_best_model": settings.best_by,
        "greater_is_better": settings.best_by not in ("loss", *task.lower_is_better),
        "prediction_loss_only": True,
        "label_names": list(task.label_names),
        "report_to": "none",
        "logging_nan_inf_filter": False,
        "log_level": "error",
    }


def _machine(settings: Optimisation) -> dict[str, Any]:
    """Where it runs, and how batches come there."""
    return {
        # Without this, transformers refuses bfloat16 where it sees no accelerator, though CPUs have it too; and
        # several processes would train apart.
        "use_cpu": not torch.accelerator.is_available(),
        "dataloader_num_workers": settings.workers,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "remove_unused_columns": False,
    }
