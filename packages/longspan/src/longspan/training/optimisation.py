"""The section `optimisation` of a recipe: steps, batches and learning rates.

transformers is imported only when it is needed: reading a recipe does not import it.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from longspan.errors import InputError
from longspan.settings import BatchSize, Count, Dropout, Form, Range, Seed, check, near, show

Steps = Annotated[int, Range(1, 1_000_000_000)]
FileSize = Annotated[str, Form(r"[1-9]\d{0,8} ?[KMGT]B", "a number of KB, MB, GB or TB, such as 5GB")]
ModuleName = Annotated[str, Form(r"\w+(\.\w+)*", "the name of a module, such as query or classifier.dense", 200)]
STATES = {"adamw": 2, "adagrad": 1}

UNUSABLE = {
    **dict.fromkeys(
        ("galore", "apollo"), "stores objects of its package in checkpoints, and these are loaded as plain tensors only"
    ),
    "grokadamw": "does not continue from its checkpoints with the losses of an uninterrupted run",
    **dict.fromkeys(
        ("lomo", "layerwise"),
        "updates weights in the backward pass, before gradients are clipped and checked, and saves no states",
    ),
}
"""Part of an optimizer's name → why a run cannot have it; a later entry counts."""
SHARDED = ("adamw", "adamw_torch", "adamw_torch_fused", "adagrad", "rmsprop", "sgd")
"""Optimizers whose states have the shape of the weights, so that FSDP2 can divide them."""


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adapters with PEFT: `W + alpha / rank · B A`; A and B are trained (Hu et al. 2021, 2106.09685)."""

    rank: Annotated[int, Range(1, 4096)] = 8
    """Rank of the adapters."""
    alpha: Annotated[float, Range(above=0, maximum=1e6)] = 16.0
    """Their scale, divided by the rank."""
    dropout: Dropout = 0.0
    """Dropout of the adapters' inputs."""
    targets: tuple[ModuleName, ...] = ("query", "value")
    """Linear layers with adapters, by the last parts of their names."""
    train_whole: tuple[ModuleName, ...] = ()
    """Modules that are trained fully, without adapters, by the last parts of their names, such as a new head."""

    def __post_init__(self) -> None:
        """Raises `InputError` for values out of range, and without targets."""
        check(self)
        if not self.targets:
            raise InputError("optimisation.lora.targets names nothing; give linear layers, such as query and value")


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """How the processes that torchrun started share the work."""

    data: Count | None = None
    """Number of groups of `sequence` processes, each with its part of every batch; None uses all started processes."""
    sequence: Count = 1
    """Number of processes that share each document, with a part each (`longspan.models.sequence_parallel`)."""
    shard: bool = False
    """Shard weights, gradients and the optimizer's states (FSDP2); False keeps all of them in each process."""
    offload: bool = False
    """With `shard`: store the shards in CPU memory instead of the GPU's, and update them there."""
    replicate: Count = 1
    """With `shard`: number of groups of processes that have all weights, each in shards (hybrid sharding), such as the
    number of machines, so that weights are gathered within a machine; 1 shards over all processes.
    """
    reshard_after_forward: bool = True
    """With `shard`: free the gathered weights of a layer after its forward pass and gather them again for the backward
    pass; False keeps them: more memory, a third less communication.
    """
    gather_dtype: Literal["float32", "bfloat16"] | None = None
    """With `shard`: dtype to which weights are cast before they are gathered; gradients are always reduced in float32.
    None is bfloat16 with `optimisation.bf16`, else float32.
    """
    save_in_background: bool = False
    """With `shard`: copy the shards to CPU memory at a checkpoint, and write them while training goes on."""

    def __post_init__(self) -> None:
        """Raises `InputError` for values out of range, and for settings of shards without sharding."""
        check(self)
        reasons = {
            "offload": "moves sharded weights",
            "replicate": "is the number of copies of sharded weights",
            "reshard_after_forward": "is about gathered weights",
            "gather_dtype": "is about gathered weights",
            "save_in_background": "writes shards",
        }
        for name, reason in reasons.items():
            value = getattr(self, name)
            if not self.shard and value != getattr(Parallel, name):
                shown = str(value).lower() if isinstance(value, bool) else show(value)
                raise InputError(
                    f"optimisation.parallel.{name} is {shown}, which {reason}; set optimisation.parallel.shard too, or "
                    "leave it out"
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
    """Documents in one forward pass on one device; gradients are accumulated up to `batch_size`."""
    optimizer: str = "adamw"
    """Any name of transformers' `optim`: adafactor, adagrad, sgd, lion_32bit, adamw_8bit, …; `adamw` is
    its default, PyTorch's fused AdamW. `trainer.optim_args` has its options.
    """
    learning_rate: Annotated[float, Range(above=0, maximum=10)] = 1e-4
    """Peak learning rate."""
    head_learning_rate: Annotated[float, Range(above=0, maximum=10)] | None = None
    """Learning rate of the layers above the encoder, on the same schedule; None means `learning_rate`."""
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
    """Weight decay, except for biases and norms."""
    betas: tuple[Annotated[float, Range(0, below=1)], ...] = (0.9, 0.999)
    """The two decay rates of AdamW, Lion and similar optimizers."""
    epsilon: Annotated[float, Range(above=0, maximum=1)] = 1e-8
    """ε in the denominator of AdamW and similar optimizers."""
    gradient_clip: Annotated[float, Range(0, 1e9)] = 1.0
    """Maximal norm of the gradient over all weights; 0 disables clipping."""
    weight_gradient_clip: Annotated[float, Range(0, 1e9)] = 0.0
    """Maximal norm of the gradient of each weight tensor, clipped after `gradient_clip`; 0 disables it."""
    label_smoothing: Dropout = 0.0
    """Label smoothing of sequence-to-sequence losses."""
    bf16: bool = False
    """Mixed precision in bfloat16; the weights stay float32."""
    float32_attention: bool = False
    """With `bf16`, compute attention in float32 from its projections on; scores and their softmax always are."""
    padding_free: bool = False
    """Pack the documents of a forward pass into one row instead of padding them; they do not attend to each other. For
    tasks whose labels are those of single tokens.
    """
    gradient_checkpointing: bool = False
    """Recompute activations instead of saving them: less memory, a third more time."""
    train: Literal["all", "new_positions"] = "all"
    """What is trained: all weights, or only the position rows that `model.max_tokens` added, so that outputs for inputs
    of the old length do not change by a bit ("frozen", Longformer).
    """
    lora: Lora | None = None
    """Train low-rank adapters instead of all weights; None trains all."""
    parallel: Parallel = field(default_factory=Parallel)
    """How the processes that torchrun started share the work."""
    log_every: Steps = 10
    """Steps between logged losses."""
    evaluate_every: Steps = 500
    """Steps between evaluations; a checkpoint is saved after each. A multiple of `log_every`."""
    patience: Steps | None = None
    """Stop after this number of consecutive evaluations without improvement; None never stops early."""
    keep_checkpoints: Annotated[int, Range(1, 1_000_000)] = 2
    """Number of newest checkpoints to keep, besides the best one."""
    max_shard_size: FileSize = "50GB"
    """Largest file of weights: a larger model is written as several files with an index."""
    best_by: str = "loss"
    """Score that selects the best checkpoint: `loss` (lower is better), or a score of the task such as `rouge1`."""
    report_to: tuple[str, ...] = ("tensorboard",)
    """Programs that losses and speed are reported to: `tensorboard`, `wandb`, `trackio`, `mlflow` and others that
    transformers' Trainer supports, or `none`.
    """
    workers: Annotated[int, Range(0, 256)] = 0
    """Number of processes that tokenise ahead of the training loop."""
    seed: Seed = 1
    """Random seed of weights, order, masks and dropout."""

    def __post_init__(self) -> None:
        """Raises `InputError` for settings that cannot run, or with which a resumed run would differ from
        an uninterrupted one.
        """
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
        if self.parallel.gather_dtype == "bfloat16" and not self.bf16:
            raise InputError(
                "optimisation.parallel.gather_dtype is 'bfloat16', but without optimisation.bf16 layers compute in "
                "float32; set that too, or leave it out"
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
        if len(self.betas) != 2:
            raise InputError(f"optimisation.betas is {show(list(self.betas))}; it must be two numbers")

    def warmup(self) -> float:
        """Steps of the warm-up, or a share of all steps if below 1, as in transformers."""
        if self.warmup_limit is not None and self.steps is not None:
            return min(self.warmup_limit, math.ceil(self.warmup_fraction * self.steps))
        return self.warmup_fraction or self.warmup_steps


def check_optimizer(settings: Optimisation) -> None:
    """Raises `InputError` for an optimizer that Trainer does not have, or with which a run cannot be what it promises.

    Whether its package is installed depends on the machine and is checked by `longspan.training.arguments`.
    """
    from transformers.training_args import OptimizerNames

    name, known = settings.optimizer, ["adamw", *(member.value for member in OptimizerNames)]
    reasons = {each: reason for each in known for part, reason in UNUSABLE.items() if part in each}
    if name not in known:
        known = [each for each in known if each not in reasons]
        raise InputError(f"optimisation.optimizer is {show(name)}, which Trainer does not have; {near(name, known)}")
    if name in reasons:
        raise InputError(f"optimisation.optimizer is {name!r}, which {reasons[name]}; choose another")
    if settings.parallel.shard and name not in SHARDED:
        raise InputError(
            f"optimisation.optimizer is {name!r}, whose states are not as large as the weights and cannot be divided "
            f"by optimisation.parallel.shard; choose one of {', '.join(SHARDED)}, or leave that out"
        )


def check_schedule(settings: Optimisation) -> None:
    """Raises `InputError` for a schedule that transformers does not have, and for options that it does not accept.

    The schedule is created and evaluated at some steps, so that values are checked too.
    """
    import torch
    from transformers import SchedulerType, get_scheduler

    names = [member.value for member in SchedulerType]
    if settings.schedule not in names:
        raise InputError(f"optimisation.schedule is {show(settings.schedule)}; {near(settings.schedule, names)}")
    options = f"optimisation.schedule_options is {show(settings.schedule_options)}"
    if settings.schedule == SchedulerType.GREEDY:
        return  # depends on the losses, so it cannot be evaluated here
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
        # Schedules by step have functions of the step; the one by loss has none.
        rates = [function(step) for function in getattr(made, "lr_lambdas", ()) for step in (0, 1, steps // 2, steps)]
    except ZeroDivisionError:
        raise InputError(
            f"optimisation.schedule is {settings.schedule!r}, which needs a step after its warm-up, and "
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
    """Raises `InputError` for reporting programs that Trainer does not support, or that are not installed."""
    from transformers.integrations import get_available_reporting_integrations, get_reporting_integration_callbacks

    for name in names:
        if name == "none":
            if len(names) > 1:
                raise InputError(f"optimisation.report_to is {show(list(names))}; 'none' excludes others")
            continue
        try:
            (callback,) = get_reporting_integration_callbacks([name])
        except ValueError as error:
            known = str(error).split("supported:")[-1].strip(" .")
            raise InputError(f"optimisation.report_to is {show(name)}; choose 'none', or of {known}") from None
        if name in get_available_reporting_integrations() or name == "tensorboard":
            continue
        try:
            callback()  # of a missing program: with installation instructions
        except (RuntimeError, ImportError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"optimisation.report_to is {name!r}, which is not installed: {reason}") from None


def _taken(settings: Optimisation) -> str:
    """Lists the options of a schedule, as a remedy."""
    import transformers

    name = f"get_{settings.schedule.removesuffix('_with_warmup')}_schedule"
    made = getattr(transformers, f"{name}_with_warmup", getattr(transformers, name, None))
    ours = {"optimizer", "num_warmup_steps", "num_training_steps", "last_epoch", "kwargs"}
    taken = [] if made is None else [one for one in inspect.signature(made).parameters if one not in ours]
    return f"it takes {', '.join(taken)}" if taken else "leave them out"
