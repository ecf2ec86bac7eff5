"""How a recipe trains: the section with steps, batches and learning rates, and what Hugging Face's Trainer makes of it.

Nothing of transformers is imported before it is needed: a recipe is read without it."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from longspan.characters import counted
from longspan.errors import InputError
from longspan.settings import BatchSize, Count, Dropout, Form, Range, Seed, check, near, show

if TYPE_CHECKING:
    from transformers import TrainingArguments

Steps = Annotated[int, Range(1, 1_000_000_000)]
FileSize = Annotated[str, Form(r"[1-9]\d{0,8} ?[KMGT]B", "a number of KB, MB, GB or TB, such as 5GB")]
ModuleName = Annotated[str, Form(r"\w+(\.\w+)*", "the name of a module, such as query or classifier.dense", 200)]
STATES = {"adamw": 2, "adagrad": 1}
"""Optimizer → how many states it has for each weight: two moments, or one sum of squares."""


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adapters by PEFT: `W + alpha / rank · B A`, of which A and B train (Hu et al. 2021, 2106.09685)."""

    rank: Annotated[int, Range(1, 4096)] = 8
    """Rank of the adapters."""
    alpha: Annotated[float, Range(above=0, maximum=1e6)] = 16.0
    """Their scale, divided by the rank."""
    dropout: Dropout = 0.0
    """Of what goes into the adapters."""
    targets: tuple[ModuleName, ...] = ("query", "value")
    """Linear layers that get adapters, by the last parts of their names."""
    train_whole: tuple[ModuleName, ...] = ()
    """Modules that train whole, without adapters, by the last parts of their names: a new head, say."""

    def __post_init__(self) -> None:
        """Refuse values out of range, and no targets."""
        check(self)
        if not self.targets:
            raise InputError("optimisation.lora.targets names nothing; give linear layers, such as query and value")


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """How the processes that torchrun started share the work."""

    data: Count | None = None
    """How many groups of `sequence` processes there must be, each with its part of every batch; None takes as many as
    were started."""
    sequence: Count = 1
    """How many processes read each document together, a part of it each (`longspan.models.sequence_parallel`)."""
    shard: bool = False
    """Divide weights, gradients and the optimizer's states between them (FSDP2); False keeps all in each of them."""
    offload: bool = False
    """With `shard`: keep the parts in the processor's memory instead of the GPU's, and update them there."""

    def __post_init__(self) -> None:
        """Refuse values out of range, and an offload of what is not divided."""
        check(self)
        if self.offload and not self.shard:
            raise InputError(
                "optimisation.parallel.offload is true, which moves weights that are divided; set "
                "optimisation.parallel.shard too, or leave it out"
            )


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """How the model is trained. Steps are updates of the weights; `batch_size` is documents per update."""

    epochs: Annotated[float, Range(above=0, maximum=1_000_000)] | None = None
    """Passes over the training rows; either this or `steps`."""
    steps: Steps | None = None
    """Updates of the weights; either this or `epochs`."""
    batch_size: BatchSize = 8
    """Documents in one update, over all devices."""
    micro_batch_size: BatchSize = 1
    """Documents in one forward pass on one device; the rest of `batch_size` is accumulated."""
    optimizer: Literal["adamw", "adagrad"] = "adamw"
    """What updates the weights; `adagrad` has no `betas` and no `epsilon` to set."""
    learning_rate: Annotated[float, Range(above=0, maximum=10)] = 1e-4
    """Of the optimizer, at its highest."""
    head_learning_rate: Annotated[float, Range(above=0, maximum=10)] | None = None
    """Of the layers above the encoder, on the same schedule; None means `learning_rate`."""
    schedule: str = "linear"
    """Any schedule name of transformers: linear, cosine, polynomial, constant_with_warmup, inverse_sqrt, …"""
    schedule_options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the schedule, such as `num_cycles` of cosine or `power` of polynomial."""
    warmup_steps: Annotated[int, Range(0, 1_000_000_000)] = 0
    """Steps over which the learning rate rises from 0."""
    warmup_fraction: Annotated[float, Range(0, below=1)] = 0.0
    """Warm-up as a share of all steps, instead of `warmup_steps`."""
    warmup_limit: Steps | None = None
    """Most steps that `warmup_fraction` may take."""
    weight_decay: Annotated[float, Range(0, 10)] = 0.0
    """Of AdamW; biases and norms have none."""
    betas: tuple[Annotated[float, Range(0, below=1)], ...] = (0.9, 0.999)
    """AdamW's two decay rates."""
    epsilon: Annotated[float, Range(above=0, maximum=1)] = 1e-8
    """AdamW's term beside the square root."""
    gradient_clip: Annotated[float, Range(0, 1e9)] = 1.0
    """Longest gradient, over all weights; 0 cuts none."""
    weight_gradient_clip: Annotated[float, Range(0, 1e9)] = 0.0
    """Longest gradient of each weight tensor by itself, cut after `gradient_clip`; 0 cuts none."""
    label_smoothing: Dropout = 0.0
    """Share of the target's probability that is spread over the vocabulary, in sequence-to-sequence losses."""
    bf16: bool = False
    """Compute in bfloat16 where that is safe; the weights stay float32."""
    float32_attention: bool = False
    """With `bf16`, compute attention in float32 from its projections on; scores and their softmax always are."""
    padding_free: bool = False
    """Lay the documents of a forward pass behind one another in one row, each read as if it stood alone, instead of
    padding them to the longest; for tasks whose labels are those of single tokens."""
    gradient_checkpointing: bool = False
    """Compute activations a second time instead of keeping them: less memory, a third more time."""
    train: Literal["all", "new_positions"] = "all"
    """What trains: all weights, or only the position rows that `model.max_tokens` added, so that inputs as short as
    before come out bit for bit as before ("frozen", Longformer)."""
    lora: Lora | None = None
    """Train low-rank adapters instead of all weights; None trains all."""
    parallel: Parallel = field(default_factory=Parallel)
    """How the processes that torchrun started share the work."""
    log_every: Steps = 10
    """Steps between logged losses."""
    evaluate_every: Steps = 500
    """Steps between evaluations; a checkpoint is saved after each. A multiple of `log_every`."""
    patience: Steps | None = None
    """End where so many evaluations in a row were no better than the best before them; None ends with the steps."""
    keep_checkpoints: Annotated[int, Range(1, 1_000_000)] = 2
    """Newest checkpoints kept, besides the best one."""
    max_shard_size: FileSize = "50GB"
    """Largest file of weights: a model that is larger is written as several, with an index of them."""
    best_by: str = "loss"
    """What picks the best checkpoint: `loss` (lower is better), or a score of the task such as `rouge1`."""
    report_to: tuple[str, ...] = ("tensorboard",)
    """Who gets the losses: `tensorboard`, `wandb`, `mlflow` and what else transformers' Trainer knows, or `none`."""
    workers: Annotated[int, Range(0, 256)] = 0
    """Processes that tokenise ahead of the training loop."""
    seed: Seed = 1
    """Of weights, order, masks and dropout."""

    def __post_init__(self) -> None:
        """Refuse what cannot run, or what would make a resumed run differ from an uninterrupted one."""
        check(self)
        if (self.epochs is None) == (self.steps is None):
            raise InputError("optimisation needs exactly one of 'epochs' and 'steps'; set the other to null")
        if self.evaluate_every % self.log_every:
            raise InputError(
                f"optimisation.evaluate_every is {self.evaluate_every}; it must be a multiple of "
                f"optimisation.log_every ({self.log_every}), so that a resumed run logs the same losses"
            )
        if self.batch_size % self.micro_batch_size:
            raise InputError(
                f"optimisation.batch_size is {self.batch_size}; it must be a multiple of "
                f"optimisation.micro_batch_size ({self.micro_batch_size})"
            )
        if self.parallel.sequence > 1 and self.padding_free:
            raise InputError(
                f"optimisation.parallel.sequence is {self.parallel.sequence}, which divides rows of one document each, "
                "and optimisation.padding_free lays several in one row; leave one of them out"
            )
        if self.parallel.shard and self.train == "new_positions":
            raise InputError(
                "optimisation.parallel.shard divides weights, of which optimisation.train='new_positions' trains some "
                "rows of one; leave one of them out"
            )
        if self.warmup_fraction and self.warmup_steps:
            raise InputError(
                "optimisation needs at most one of 'warmup_steps' and 'warmup_fraction'; set the other to 0"
            )
        if self.float32_attention and not self.bf16:
            raise InputError(
                "optimisation.float32_attention is true, but without optimisation.bf16 all is float32; set that too, "
                "or leave it out"
            )
        if self.warmup_limit is not None and (self.steps is None or not self.warmup_fraction):
            raise InputError(
                f"optimisation.warmup_limit is {self.warmup_limit}, which bounds a share of 'steps'; give "
                "optimisation.steps and optimisation.warmup_fraction, or leave it out"
            )
        if self.optimizer != "adamw":
            for name in ("betas", "epsilon"):
                if getattr(self, name) != getattr(type(self), name):
                    raise InputError(
                        f"optimisation.{name} is {show(getattr(self, name))}, which optimizer {self.optimizer!r} has "
                        "not; leave it out"
                    )
        if len(self.betas) != 2:
            raise InputError(f"optimisation.betas is {show(list(self.betas))}; it must be two numbers")

    def warmup(self) -> float:
        """Steps of the warm-up, or below 1 their share of all, as transformers takes it."""
        if self.warmup_limit is not None and self.steps is not None:
            return min(self.warmup_limit, math.ceil(self.warmup_fraction * self.steps))
        return self.warmup_fraction or self.warmup_steps


def check_schedule(settings: Optimisation) -> None:
    """Raise `InputError` for a schedule that transformers has not, and for options that it does not take.

    The schedule is made and its learning rate taken at some steps, so that values are checked too.
    """
    import torch
    from transformers import SchedulerType, get_scheduler

    names = [member.value for member in SchedulerType]
    if settings.schedule not in names:
        raise InputError(f"optimisation.schedule is {show(settings.schedule)}; {near(settings.schedule, names)}")
    options = f"optimisation.schedule_options is {show(settings.schedule_options)}"
    if settings.schedule == SchedulerType.GREEDY:
        return  # follows the losses, so there is nothing to try
    steps, warmup = settings.steps or 1000, settings.warmup()
    warmup = math.ceil(steps * warmup) if warmup < 1 else int(warmup)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=settings.learning_rate)
    try:
        made = get_scheduler(
            settings.schedule,
            optimizer,
            num_warmup_steps=warmup,
            num_training_steps=steps,
            scheduler_specific_kwargs=dict(settings.schedule_options),
        )
        # Those that step by themselves have functions of the step; the one that follows the loss has none.
        rates = [function(step) for function in getattr(made, "lr_lambdas", ()) for step in (0, 1, steps // 2, steps)]
    except ZeroDivisionError:
        raise InputError(
            f"optimisation.schedule is {settings.schedule!r}, which needs a step behind its warm-up, and "
            f"optimisation.steps={steps} are all warm-up; give fewer warmup_steps, or more steps"
        ) from None
    except (TypeError, ValueError, AttributeError, ArithmeticError, AssertionError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{options}, which {settings.schedule!r} does not take ({reason}); {_taken(settings)}"
        ) from None
    if not all(isinstance(rate, int | float) and math.isfinite(rate) and rate >= 0 for rate in rates):
        raise InputError(f"{options}, which makes learning rates of {show(rates)}; {_taken(settings)}")


def check_reports(names: tuple[str, ...]) -> None:
    """Raise `InputError` for programs to report to that Trainer does not know, or that are not installed."""
    from transformers.integrations import get_available_reporting_integrations, get_reporting_integration_callbacks

    for name in names:
        if name == "none":
            if len(names) > 1:
                raise InputError(f"optimisation.report_to is {show(list(names))}; 'none' stands alone")
            continue
        try:
            (callback,) = get_reporting_integration_callbacks([name])
        except ValueError as error:
            known = str(error).split("supported:")[-1].strip(" .")
            raise InputError(f"optimisation.report_to is {show(name)}; choose 'none', or of {known}") from None
        if name in get_available_reporting_integrations() or name == "tensorboard":
            continue
        try:
            callback()  # of a program that is missing: says how to install it
        except (RuntimeError, ImportError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"optimisation.report_to is {name!r}, which is not installed: {reason}") from None


def _taken(settings: Optimisation) -> str:
    """Which options a schedule takes, as a remedy."""
    import transformers

    name = f"get_{settings.schedule.removesuffix('_with_warmup')}_schedule"
    made = getattr(transformers, f"{name}_with_warmup", getattr(transformers, name, None))
    ours = {"optimizer", "num_warmup_steps", "num_training_steps", "last_epoch", "kwargs"}
    taken = [] if made is None else [one for one in inspect.signature(made).parameters if one not in ours]
    return f"it takes {', '.join(taken)}" if taken else "leave them out"


def trainer_arguments(settings: Optimisation, task: Any, folder: Path) -> TrainingArguments:
    """Trainer's arguments, with checkpoints in `folder` and each batch divided between the processes.

    Raises:
        InputError: what training needs is missing; the processes cannot share the work, or a batch.
    """
    from transformers import TrainingArguments

    from longspan.training.processes import process_count

    if settings.bf16:
        _check_bfloat16()
    options = _updates(settings) | _records(settings, task) | _machine(settings)
    try:
        arguments = TrainingArguments(output_dir=str(folder), **options)
    except ImportError as error:
        raise InputError("training needs the 'train' extra; install it with: pip install 'longspan[train]'") from error
    except ValueError as error:
        raise InputError(f"the optimisation section cannot be used here: {' '.join(str(error).split())}") from error
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


def _groups(parallel: Parallel, started: int) -> int:
    """How many groups of processes have batches of their own, of the processes that were started."""
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


def _check_bfloat16() -> None:
    """Raise `InputError` for a GPU that has no bfloat16 of its own; what imitates it is slower than float32."""
    import torch

    if torch.cuda.is_available() and not torch.cuda.is_bf16_supported(including_emulation=False):
        name = torch.cuda.get_device_name()
        raise InputError(f"optimisation.bf16 is true, but {name} has no bfloat16; set it to false")


def _updates(settings: Optimisation) -> dict[str, Any]:
    """What decides the weights after each step; Trainer's own choice is an AdamW."""
    own: dict[str, Any] = {} if settings.optimizer == "adamw" else {"optim": settings.optimizer}
    return own | {
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
        "greater_is_better": settings.best_by not in ("loss", *task.metrics.lower_is_better),
        "prediction_loss_only": True,
        "label_names": list(task.losses().labels),
        "report_to": "none",
        "logging_nan_inf_filter": False,
        "log_level": "error",
    }


def _machine(settings: Optimisation) -> dict[str, Any]:
    """Where it runs, and how batches come there."""
    import torch

    return {
        # Without this, transformers refuses bfloat16 where it sees no accelerator, though CPUs have it too; and
        # several processes would train apart.
        "use_cpu": not torch.accelerator.is_available(),
        "dataloader_num_workers": settings.workers,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "remove_unused_columns": False,
        # Projections of global tokens have no gradient in a batch without any; Trainer looks for such weights too, but
        # not where activations are computed twice.
        "ddp_find_unused_parameters": True,
    }
