"""From a recipe to Hugging Face's Trainer: its arguments and the callbacks that every run has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from transformers import (
    PrinterCallback,
    ProgressCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerCallback,
)
from transformers.integrations import TensorBoardCallback

from longspan.data.rows import SummaryRow
from longspan.errors import InputError
from longspan.training.checkpoints import CompleteCheckpoints
from longspan.training.data import FeatureRows
from longspan.training.recipe import Optimisation, Recipe


def make_trainer(recipe: Recipe, task: Any, model: Any, tokenizer: Any, rows: Any, folder: Path) -> Any:
    """The Trainer of a recipe; `rows` are the training and the validation rows, `folder` is the output folder."""
    train_rows, validation_rows = rows
    use_cache = model.config.use_cache
    by_loss = recipe.optimisation.best_by == "loss"

    def scores(prediction: Any) -> dict[str, float]:
        predictions = prediction.predictions
        first = predictions[0] if isinstance(predictions, tuple) else predictions
        return task.scores(task.texts(first, validation_rows, tokenizer), validation_rows)

    def features(row: SummaryRow) -> dict[str, Any]:
        return task.features(row, tokenizer)

    trainer = (Seq2SeqTrainer if task.generates else Trainer)(
        model=model,
        args=_arguments(recipe.optimisation, task, folder / "checkpoints"),
        data_collator=task.collator(tokenizer),
        train_dataset=FeatureRows(train_rows, features),
        eval_dataset=FeatureRows(validation_rows, features),
        processing_class=tokenizer,
        compute_metrics=None if by_loss else scores,
        callbacks=[
            EvaluateLast(),
            CompleteCheckpoints(folder / "checkpoints", recipe.optimisation.keep_checkpoints),
            TensorBoardCallback(_tensorboard(folder / "tensorboard")),
        ],
    )
    for plain in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(plain)
    trainer.add_callback(Progress())
    # Trainer turns the cache off in the configuration; it is saved there, and decoding wants it.
    model.config.use_cache = use_cache
    return trainer


def _arguments(settings: Optimisation, task: Any, folder: Path) -> Seq2SeqTrainingArguments:
    by_loss = settings.best_by == "loss"
    try:
        arguments = Seq2SeqTrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=settings.micro_batch_size,
            per_device_eval_batch_size=settings.micro_batch_size,
            num_train_epochs=settings.epochs or 1.0,
            max_steps=-1 if settings.steps is None else settings.steps,
            learning_rate=settings.learning_rate,
            lr_scheduler_type=settings.schedule,
            lr_scheduler_kwargs=settings.schedule_options or None,
            warmup_steps=settings.warmup_steps,
            weight_decay=settings.weight_decay,
            adam_beta1=settings.betas[0],
            adam_beta2=settings.betas[1],
            adam_epsilon=settings.epsilon,
            max_grad_norm=settings.gradient_clip,
            bf16=settings.bf16,
            # Without this, transformers refuses bfloat16 where it sees no accelerator, though CPUs have it too.
            use_cpu=settings.bf16 and not torch.accelerator.is_available(),
            logging_steps=settings.log_every,
            eval_strategy="steps",
            eval_steps=settings.evaluate_every,
            save_strategy="steps",
            save_steps=settings.evaluate_every,
            metric_for_best_model=settings.best_by,
            greater_is_better=not by_loss,
            prediction_loss_only=by_loss,
            predict_with_generate=task.generates and not by_loss,
            seed=settings.seed,
            data_seed=settings.seed,
            dataloader_num_workers=settings.workers,
            dataloader_pin_memory=torch.cuda.is_available(),
            remove_unused_columns=False,
            label_names=["labels"],
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
            f"{started} processes were started but they train apart, as there is no GPU for each; start one process, "
            "or set ACCELERATE_USE_CPU=true to share the work on CPUs"
        )
    together = settings.micro_batch_size * arguments.world_size
    if settings.batch_size % together:
        raise InputError(
            f"optimisation.batch_size is {settings.batch_size}; with {arguments.world_size} processes of "
            f"{settings.micro_batch_size} documents it must be a multiple of {together}"
        )
    arguments.gradient_accumulation_steps = settings.batch_size // together
    return arguments


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


class EvaluateLast(TrainerCallback):
    """The last step is evaluated too, whatever the interval, so that it can be the best one."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after every update of the weights."""
        if state.global_step >= state.max_steps:
            control.should_log = control.should_evaluate = True
