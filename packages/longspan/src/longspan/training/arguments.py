"""The arguments of Hugging Face's Trainer, from the sections `optimisation` and `trainer` of a recipe.

They are made before anything is read or written, so that all that Trainer, its optimizer or PyTorch refuses is known
by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from longspan.characters import counted
from longspan.errors import InputError
from longspan.settings import show
from longspan.training.optimisation import Optimisation, Parallel

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from longspan.training.recipe import Recipe

NO_VALUE = "no-value"
"""A value that no option of an optimizer has."""


EXPECTED = (ValueError, TypeError, NotImplementedError, ImportError)
"""What Trainer, PyTorch and optimizers raise for values that they refuse."""


def trainer_arguments(
    settings: Optimisation, task: Any, folder: Path, options: Mapping[str, Any] = MappingProxyType({})
) -> TrainingArguments:
    """Returns Trainer's arguments, with checkpoints in `folder` and each batch split between the processes.

    Args:
        settings: the section `optimisation`.
        task: names the labels, and the score that selects a checkpoint.
        folder: folder of the checkpoints; it need not exist.
        options: the section `trainer`, after `check_options`.

    Raises:
        InputError: a missing dependency; values that Trainer refuses; the processes cannot share the work, or a batch.
    """
    import torch
    from transformers import TrainingArguments

    from longspan.training.processes import process_count

    # bfloat16 that a GPU emulates is slower than float32.
    if settings.bf16 and torch.cuda.is_available() and not torch.cuda.is_bf16_supported(including_emulation=False):
        name = torch.cuda.get_device_name()
        raise InputError(f"optimisation.bf16 is true, but {name} has no bfloat16; set it to false")
    if options.get("fp16") and not torch.accelerator.is_available():
        raise InputError("trainer.fp16 is true, but there is no GPU here; leave it out, or set optimisation.bf16=true")
    lower_is_better, labels = task.metrics.lower_is_better, list(task.losses().labels)
    optimizer: dict[str, Any] = {} if settings.optimizer == "adamw" else {"optim": settings.optimizer}
    try:
        arguments = TrainingArguments(
            output_dir=str(folder),
            # Updates: Trainer's default optimizer is an AdamW.
            **optimizer,
            per_device_train_batch_size=settings.micro_batch_size,
            num_train_epochs=settings.epochs or 1.0,
            max_steps=-1 if settings.steps is None else settings.steps,
            learning_rate=settings.learning_rate,
            lr_scheduler_type=settings.schedule,
            lr_scheduler_kwargs=settings.schedule_options or None,
            warmup_steps=settings.warmup(),
            weight_decay=settings.weight_decay,
            adam_beta1=settings.betas[0],
            adam_beta2=settings.betas[1],
            adam_epsilon=settings.epsilon,
            max_grad_norm=settings.gradient_clip,
            bf16=settings.bf16,
            seed=settings.seed,
            data_seed=settings.seed,
            # Logging, validation and saving.
            logging_steps=settings.log_every,
            eval_strategy="steps",
            eval_steps=settings.evaluate_every,
            save_strategy="steps",
            save_steps=settings.evaluate_every,
            per_device_eval_batch_size=settings.micro_batch_size,
            metric_for_best_model=settings.best_by,
            greater_is_better=settings.best_by not in ("loss", *lower_is_better),
            prediction_loss_only=True,
            label_names=labels,
            report_to="none",
            logging_nan_inf_filter=False,
            # Without this, transformers refuses bfloat16 where it sees no accelerator, though CPUs have it too; and
            # several processes would train apart.
            use_cpu=not torch.accelerator.is_available(),
            dataloader_num_workers=settings.workers,
            remove_unused_columns=False,
            **{
                "log_level": "error",
                "dataloader_pin_memory": torch.cuda.is_available(),
                # Projections of global tokens have no gradient in a batch without any; Trainer also detects such
                # weights, but not with gradient checkpointing.
                "ddp_find_unused_parameters": True,
                **options,
            },
        )
    except ImportError as error:
        raise InputError("training needs the 'train' extra; install it with: pip install 'longspan[train]'") from error
    except EXPECTED as error:
        raise refusal(options, error) from error
    started = process_count()
    if arguments.world_size != started:
        raise InputError(
            f"{started} processes were started but they train apart, as there is no GPU for each; start as many as "
            "there are GPUs, or set ACCELERATE_USE_CPU=true to share the work on CPUs"
        )
    groups = _groups(settings.parallel, started)
    together = settings.micro_batch_size * groups
    if settings.batch_size % together:
        raise InputError(
            f"optimisation.batch_size is {settings.batch_size}; with {groups} "
            f"{'processes' if settings.parallel.sequence == 1 else 'groups of processes'} of "
            f"{settings.micro_batch_size} documents it must be a multiple of {together}"
        )
    arguments.gradient_accumulation_steps = settings.batch_size // together
    return arguments


def check_arguments(recipe: Recipe, folder: Path) -> None:
    """Checks what can be used on this machine before anything is read or written: the arguments of Trainer, the
    package of the optimizer and its options, and those of compilation and data loading.

    Raises:
        InputError: the first that cannot be used, with the reason.
    """
    import torch

    settings, options = recipe.optimisation, recipe.trainer
    arguments = trainer_arguments(settings, recipe.task, folder, options)
    check_made_optimizer(arguments, settings)
    names = {"prefetch_factor", "multiprocessing_context"}
    loading = {name: options[f"dataloader_{name}"] for name in names if f"dataloader_{name}" in options}
    try:
        if loading:
            torch.utils.data.DataLoader([0], num_workers=settings.workers, **loading)  # pyright: ignore[reportArgumentType]
        if arguments.torch_compile:
            backend: Any = arguments.torch_compile_backend
            torch.compile(torch.nn.Identity(), backend=backend, mode=arguments.torch_compile_mode)
    except (*EXPECTED, RuntimeError) as error:
        raise refusal(options, error) from error


def check_made_optimizer(arguments: TrainingArguments, settings: Optimisation) -> None:
    """Creates the optimizer of a run for a weight of its own, and checks that it takes every option.

    Raises:
        InputError: its package is not installed; it refuses an option, or does not take it.
    """
    import torch
    from transformers import Trainer

    named = f"optimisation.optimizer is {settings.optimizer!r}"
    try:
        kind, taken = Trainer.get_optimizer_cls_and_kwargs(arguments)
        ignored = _ignored_options(arguments)
        kind([torch.nn.Parameter(torch.zeros(1))], **taken)
    except EXPECTED as error:
        given = f" with trainer.optim_args={arguments.optim_args!r}" if arguments.optim_args else ""
        raise InputError(f"{named}{given}, which cannot be used here: {_words_of(error)}") from error
    for name, argument in (("betas", "betas"), ("epsilon", "eps")):
        if getattr(settings, name) != getattr(Optimisation, name) and argument not in taken:
            ignored.append(f"optimisation.{name}={show(getattr(settings, name))}")
    if ignored:
        raise InputError(f"{named}, which does not take {ignored[0]}; leave it out")


def _ignored_options(arguments: TrainingArguments) -> list[str]:
    """Returns the `optim_args` that the optimizer does not read: for them, a value that means nothing does not change
    its arguments.
    """
    from transformers import Trainer

    def taken(options: list[str]) -> Any:
        changed = copy(arguments)
        changed.optim_args = ",".join(options)
        try:
            return Trainer.get_optimizer_cls_and_kwargs(changed)
        except EXPECTED:  # it reads the value
            return None

    given = arguments.optim_args.split(",") if arguments.optim_args else []
    ignored: list[str] = []
    for number, option in enumerate(given):
        others, without_value = [*given[:number], *given[number + 1 :]], f"{option.partition('=')[0]}={NO_VALUE}"
        if (rest := taken(others)) is not None and taken([*others, without_value]) == rest:
            ignored.append(f"trainer.optim_args={option!r}")
    return ignored


def refusal(options: Mapping[str, Any], error: Exception) -> InputError:
    """Returns what Trainer raised for values of the recipe as one sentence."""
    sections = f"trainer is {show(dict(options))}, which" if options else "the optimisation section"
    return InputError(f"{sections} cannot be used here: {_words_of(error)}")


def _words_of(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


def _groups(parallel: Parallel, started: int) -> int:
    """Returns the number of groups of processes with batches of their own."""
    if parallel.replicate > 1 and (started % parallel.replicate or started == parallel.replicate):
        raise InputError(
            f"optimisation.parallel.replicate is {parallel.replicate} and {counted(started, 'process', 'processes')} "
            f"{'was' if started == 1 else 'were'} started; start a multiple of it (torchrun --nproc-per-node "
            f"{2 * parallel.replicate}), or leave it out"
        )
    groups = parallel.data or started // parallel.sequence
    if groups * parallel.sequence == started:
        return groups
    told = f"optimisation.parallel.sequence is {parallel.sequence}"
    if parallel.data is not None:
        told = f"optimisation.parallel.data is {parallel.data}" + (f" and {told}" if parallel.sequence > 1 else "")
    raise InputError(
        f"{told} and {counted(started, 'process', 'processes')} {'was' if started == 1 else 'were'} started; start "
        f"{'as many' if parallel.sequence == 1 else 'their product' if parallel.data else 'a multiple of it'} "
        f"(torchrun --nproc-per-node {(parallel.data or 1) * parallel.sequence}), or leave it out"
    )
