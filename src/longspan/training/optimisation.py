"""How a recipe trains: steps, batches, learning rates and what is kept in memory meanwhile."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from longspan.errors import InputError
from longspan.settings import BatchSize, Dropout, Form, Range, Seed, check, show

Steps = Annotated[int, Range(1, 1_000_000_000)]
ModuleName = Annotated[str, Form(r"\w+(\.\w+)*", "the name of a module, such as query or classifier.dense", 200)]


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
    learning_rate: Annotated[float, Range(above=0, maximum=10)] = 1e-4
    """Of AdamW, at its highest."""
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
    label_smoothing: Dropout = 0.0
    """Share of the target's probability that is spread over the vocabulary, in sequence-to-sequence losses."""
    bf16: bool = False
    """Compute in bfloat16 where that is safe; the weights stay float32."""
    float32_attention: bool = False
    """With `bf16`, compute attention in float32 from its projections on; scores and their softmax always are."""
    gradient_checkpointing: bool = False
    """Compute activations a second time instead of keeping them: less memory, a third more time."""
    train: Literal["all", "new_positions"] = "all"
    """What trains: all weights, or only the position rows that `model.max_tokens` added, so that inputs as short as
    before come out bit for bit as before ("frozen", Longformer)."""
    lora: Lora | None = None
    """Train low-rank adapters instead of all weights; None trains all."""
    log_every: Steps = 10
    """Steps between logged losses."""
    evaluate_every: Steps = 500
    """Steps between evaluations; a checkpoint is saved after each. A multiple of `log_every`."""
    patience: Steps | None = None
    """End where so many evaluations in a row were no better than the best before them; None ends with the steps."""
    keep_checkpoints: Annotated[int, Range(1, 1_000_000)] = 2
    """Newest checkpoints kept, besides the best one."""
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
        """Steps of the warm-up, or below 1 their share of all, as transformers takes it."""
        if self.warmup_limit is not None and self.steps is not None:
            return min(self.warmup_limit, math.ceil(self.warmup_fraction * self.steps))
        return self.warmup_fraction or self.warmup_steps
