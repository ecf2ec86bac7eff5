"""From a recipe to Hugging Face's Trainer: its arguments and the callbacks that every run has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from transformers import (
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.integrations import TensorBoardCallback, get_reporting_integration_callbacks

from longspan.errors import InputError
from longspan.training.checkpoints import CompleteCheckpoints
from longspan.training.recipe import Optimisation, Recipe
from longspan.training.runs import on_main_process_first


class RecipeTrainer(Trainer):
    """Hugging Face's Trainer, whose evaluation adds the task's scores to the validation loss."""

    def __init__(self, task: Any, validation_rows: Any, **options: Any) -> None:
        super().__init__(**options)
        self.task = task
        self.validation_rows = validation_rows
        self.weighed: list[tuple[float, float]] = []

    def prediction_step(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        """One batch of validation, as Trainer does it; how much its loss weighs is noted."""
        output = super().prediction_step(model, inputs, *arguments, **options)
        if output[0] is not None:
            self.weighed.append((float(output[0]), self.task.loss_weight(inputs)))
        return output

    def evaluation_loop(self, *arguments: Any, metric_key_prefix: str = "eval", **options: Any) -> Any:
        """The validation loss as a mean over all that it counts, and the scores that pick the best checkpoint.

        With several processes, rows that fill up their last batches count twice in the loss; in scores nothing does.
        """
        self.weighed = []
        output = super().evaluation_loop(*arguments, metric_key_prefix=metric_key_prefix, **options)
        assert output.metrics is not None
        sums = torch.tensor([[loss * weight, weight] for loss, weight in self.weighed], dtype=torch.float64).sum(0)
        reduced: Any = self.accelerator.reduce(sums.to(self.args.device), reduction="sum")
        total, weight = reduced.tolist()
        loss = total / weight if weight else float("nan")
        scores = {"loss": loss, **self.task.loss_scores(loss)}
        if self.args.metric_for_best_model not in scores:
            tokenizer, size = self.processing_class, self.args.per_device_eval_batch_size
            scores |= self.task.evaluate(self.model, tokenizer, self.validation_rows, batch_size=size).scores
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in scores.items()})
        return output


def make_trainer(recipe: Recipe, task: Any, model: Any, tokenizer: Any, rows: Any, folder: Path) -> Any:
    """The Trainer of a recipe; `rows` are the training and the validation rows, `folder` is the output folder."""
    use_cache = model.config.use_cache
    with on_main_process_first():  # the first process writes what the data sets keep in the folder
        datasets = [
            task.dataset(some, tokenizer, training=training, seed=recipe.optimisation.seed, folder=folder)
            for some, training in zip(rows, (True, False), strict=True)
        ]
    trainer = RecipeTrainer(
        task,
        rows[1],
        model=model,
        args=_arguments(recipe.optimisation, task, folder / "checkpoints"),
        data_collator=task.collator(tokenizer),
        train_dataset=datasets[0],
        eval_dataset=datasets[1],
        processing_class=tokenizer,
        callbacks=[
            EvaluateLast(),
            TellEpoch(datasets[0]),
            CompleteCheckpoints(folder / "checkpoints", recipe.optimisation.keep_checkpoints),
            *_reports(recipe.optimisation.report_to, folder),
        ],
    )
    for plain in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(plain)
    trainer.add_callback(Progress())
    # Trainer turns the cache off in the configuration; it is saved there, and decoding wants it.
    model.config.use_cache = use_cache
    return trainer


def _arguments(settings: Optimisation, task: Any, folder: Path) -> TrainingArguments:
    try:
        arguments = TrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=settings.micro_batch_size,
            per_device_eval_batch_size=settings.micro_batch_size,
            num_train_epochs=settings.epochs or 1.0,
            max_steps=-1 if settings.steps is None else settings.steps,
            learning_rate=settings.learning_rate,
            lr_scheduler_type=settings.schedule,
            lr_scheduler_kwargs=settings.schedule_options or None,
            # A number below 1 is a share of all steps to transformers.
            warmup_steps=settings.warmup_fraction or settings.warmup_steps,
            weight_decay=settings.weight_decay,
            adam_beta1=settings.betas[0],
            adam_beta2=settings.betas[1],
            adam_epsilon=settings.epsilon,
            max_grad_norm=settings.gradient_clip,
            bf16=settings.bf16,
            # Without this, transformers refuses bfloat16 where it sees no accelerator, though CPUs have it too; and
            # several processes would train apart.
            use_cpu=not torch.accelerator.is_available(),
            logging_steps=settings.log_every,
            eval_strategy="steps",
            eval_steps=settings.evaluate_every,
            save_strategy="steps",
            save_steps=settings.evaluate_every,
            metric_for_best_model=settings.best_by,
            greater_is_better=settings.best_by not in ("loss", *task.lower_is_better),
            prediction_loss_only=True,
            seed=settings.seed,
            data_seed=settings.seed,
            dataloader_num_workers=settings.workers,
            dataloader_pin_memory=torch.cuda.is_available(),
            remove_unused_columns=False,
            label_names=list(task.label_names),
            report_to="none",
            logging_nan_inf_filter=False,
            log_level="error",
        )
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


def _reports(names: tuple[str, ...], folder: Path) -> list[Any]:
    """The callbacks of `optimisation.report_to`; TensorBoard's writes into the folder of the run."""
    found: list[Any] = []
    for name in names:
        if name == "tensorboard":
            found.append(TensorBoardCallback(_tensorboard(folder / "tensorboard")))
        elif name != "none":
            (callback,) = get_reporting_integration_callbacks([name])
            try:
                found.append(callback())
            except (RuntimeError, ImportError, ValueError) as error:
                reason = " ".join(str(error).split())
                raise InputError(f"optimisation.report_to is {name!r}, which cannot be used here: {reason}") from error
    return found


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("training needs the 'train' extra; install it with: pip install 'longspan[train]'") from None
    return SummaryWriter(str(folder))


class Progress(ProgressCallback):
    """Trainer's progress bar, with the latest losses beside it instead of a line for each."""

    def __init__(self) -> None:
        super().__init__()
        self.latest: dict[str, str] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Called by Trainer with every set of logged numbers."""
        name = args.metric_for_best_model
        shown = {f"eval_{name}": name, "loss": "loss", "eval_loss": "validation"}
        self.latest |= {shown[key]: f"{value:.4g}" for key, value in (logs or {}).items() if key in shown}
        if self.training_bar is not None:
            self.training_bar.set_postfix(self.latest)


class TellEpoch(TrainerCallback):
    """Tell the training data which epoch begins: accelerate does so in some cases only, never after resuming."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer before the batches of an epoch, or of what is left of it, are made."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(int((state.epoch or 0.0) + 1e-9))


class EvaluateLast(TrainerCallback):
    """The last step is evaluated too, whatever the interval, so that it can be the best one."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after every update of the weights."""
        if state.global_step >= state.max_steps:
            control.should_log = control.should_evaluate = True
