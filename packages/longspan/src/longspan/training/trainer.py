"""Creates Hugging Face's Trainer from a recipe."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch.distributed import get_world_size
from torch.utils.data import SequentialSampler
from transformers import PrinterCallback, ProgressCallback, Trainer
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME
from transformers.trainer_utils import EvalLoopOutput

from longspan.characters import counted
from longspan.checkpoints.tuning import hold_old_rows
from longspan.errors import InputError
from longspan.models.packed import check_packed
from longspan.models.stream_memory import StreamMemory
from longspan.stacks import stack_config
from longspan.tasks.predicting import without_padding
from longspan.training.arguments import EXPECTED, refusal, trainer_arguments
from longspan.training.callbacks import (
    Borders,
    Composition,
    CutEachGradient,
    Progress,
    ProgressLines,
    StopNotFinite,
    StopStalled,
    reports,
)
from longspan.training.checkpoints import (
    MEMORY,
    PARTS,
    PROCESSES,
    CompleteCheckpoints,
    Saving,
    is_in_parts,
    read_unlogged,
)
from longspan.training.distributed_checkpoints import read_states, read_weights
from longspan.training.meter import ROWS, Meter, peak_flops, row_flops, with_rows
from longspan.training.mixing import Mixed
from longspan.training.processes import (
    STAND_IN,
    StandIns,
    even_batches,
    is_main_process,
    mean_over,
    on_main_process_first,
)
from longspan.training.recipe import Recipe
from longspan.training.run_folder import MIXED, STREAM, check_identity
from longspan.training.streaming import streamed

logger = logging.getLogger(__name__)


class RecipeTrainer(Trainer):
    """Hugging Face's Trainer, whose evaluation adds the task's scores to the validation loss.

    Several processes train together, and logged losses are complete even if training was stopped between two logs.
    """

    merges: bool = True
    """Whether each process has all weights, so that adapters can be merged into them."""

    def __init__(
        self, task: Any, validation_rows: Any, finite: StopNotFinite, teacher: Any = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.task = task
        self.losses = task.losses()
        self.teacher = teacher
        self.validation_rows = validation_rows
        self.finite = finite
        self.head_rate: float | None = None
        """Learning rate of the layers above the encoder; None for that of all."""
        self.moments: Path | None = None
        """The checkpoint of the previous stage, whose moments initialise this one's."""
        self.saving = Saving()
        self.frozen = False
        """Whether only new position rows are trained."""
        self.build: Callable[[], tuple[Any, Any]] | None = None
        """Returns a teacher, if there is one, and the model, unsharded, as they were before training."""
        self.row_group: Any = None
        """The processes that share the same rows (sequence parallelism); None if each has whole rows."""
        self.weighed: list[tuple[float, float, float]] = []
        """For each batch of validation: its loss, the weight of this, and the number of right answers."""
        self.right = 0.0
        """The number of right answers in the latest batch of validation."""
        self.unlogged = torch.zeros((), device=self.args.device)
        self.logged_step = 0
        self.share = 1.0
        self.meter = Meter()
        self.carried = StreamMemory(self.model.config)  # pyright: ignore[reportOptionalMemberAccess]

    def _get_train_sampler(self, *arguments: Any, **options: Any) -> Any:
        """As Trainer's, in random order; data sets with an order of their own keep it."""
        if any(getattr(self.train_dataset, name, False) for name in ("in_order", "is_shuffled")):
            return SequentialSampler(self.train_dataset)  # pyright: ignore[reportArgumentType]
        return super()._get_train_sampler(*arguments, **options)

    def get_train_dataloader(self) -> Any:
        """As Trainer's; no row counts twice."""
        return even_batches(super().get_train_dataloader(), self.args.world_size, self.row_group)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """As Trainer's; no row counts twice."""
        return even_batches(super().get_eval_dataloader(eval_dataset), self.args.world_size, self.row_group)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        """Returns the micro-batches of an update, as Trainer's, counts their tokens, and sets the share of those of
        all processes that count.

        Trainer's own count of tokens waits for the device at every micro-batch, and counts stand-ins and shared rows.
        """
        samples, items = super().get_batch_samples(self.meter.begin(epoch_iterator), num_batches, device)
        tokens, flops = self.meter.counts(samples)
        packed = self.meter.packed(samples)
        if self.args.world_size > 1 and samples:
            real = sum(STAND_IN not in batch for batch in samples)
            sums = torch.tensor([real, tokens, flops, *packed], dtype=torch.float64, device=self.args.device)
            reduced: Any = self.accelerator.reduce(sums, reduction="sum")
            real, tokens, flops, *packed = reduced.tolist()
            self.share = real / (len(samples) * self.args.world_size)
            if self.row_group is not None:  # whose processes have counted the same rows
                tokens, flops = (count / get_world_size(self.row_group) for count in (tokens, flops))
        self.meter.add(tokens, flops, packed)
        self.state.num_input_tokens_seen += int(tokens)
        return samples, items

    def plain_optimizer(self, *arguments: Any, **options: Any) -> Any:
        """As Trainer's `create_optimizer`."""
        return super().create_optimizer(*arguments, **options)

    def create_optimizer(self, *arguments: Any, **options: Any) -> Any:
        """As Trainer's; the layers above the encoder are in separate groups if they have their own learning rate."""
        made = self.optimizer is None
        optimizer = self.plain_optimizer(*arguments, **options)
        if made and self.head_rate is not None:
            with_head_rate(optimizer, self.model, self.head_rate)
        if made and self.moments is not None:
            take_moments(optimizer, self.model, self.moments)
        if made and self.frozen:
            hold_old_rows(optimizer, self.accelerator.unwrap_model(self.model))
        return optimizer

    @property
    def is_adapted(self) -> bool:
        """Whether adapters are trained, which PEFT saves and loads."""
        return hasattr(self.model, "peft_config")

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """As Trainer's, also of a checkpoint in parts, which sharded weights had."""
        checkpoint = Path(resume_from_checkpoint)
        if is_in_parts(checkpoint) and not self.is_adapted:
            read_weights(cast("Any", self.model), checkpoint / PARTS)
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """As Trainer's, also of a checkpoint in parts."""
        if checkpoint is None or not is_in_parts(Path(checkpoint)):
            return super()._load_optimizer_and_scheduler(checkpoint)
        optimizer, scheduler = cast("Any", self.optimizer), cast("Any", self.lr_scheduler)
        read_states(cast("Any", self.model), optimizer.optimizer, Path(checkpoint))
        file = Path(checkpoint) / SCHEDULER_NAME
        scheduler.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
        return None

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        """Corrects for stand-ins: Trainer divides a mean loss by the number of micro-batches and
        processes, including them.
        """
        stands_in = inputs.pop(STAND_IN, False)
        inputs.pop(ROWS, None)
        if not model.training:
            options["num_items_in_batch"] = None  # of all processes; a validation loss is a mean over its own batch
        if (place := inputs.pop("place", None)) is not None:
            return self._stream_loss(model, inputs, place, options.get("num_items_in_batch"))
        if model.training and self.teacher is not None:
            loss: Any = self.teacher.loss(model, inputs)
        else:
            loss = super().compute_loss(model, inputs, *arguments, **options)
            if self.losses.right is not None and not model.training and options.get("return_outputs"):
                self.right = self.losses.right(loss[1], inputs)
        if not model.training or options.get("num_items_in_batch") is not None:
            return loss
        return loss * 0 if stands_in else loss / self.share if self.share != 1 else loss

    def _stream_loss(self, model: Any, inputs: Any, place: tuple[int, int], count: Any) -> Any:
        """Returns the loss of a segment of contiguous streams, with the memory of earlier segments."""
        inputs |= self.carried.before(*place)
        both: Any = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=count)
        loss, outputs = both
        self.carried.after(*place, outputs.cache)
        return loss

    def training_step(self, *arguments: Any, **options: Any) -> torch.Tensor:
        """Runs one step of Trainer; adds its scalar loss to the next log and to the check for finite losses."""
        loss = super().training_step(*arguments, **options)
        self.unlogged += loss
        self.finite.add(loss)
        return loss

    def mean_unlogged(self) -> float:
        """Returns the sum of the losses since the last log, a mean over the processes."""
        reduced: Any = self.accelerator.reduce(self.unlogged, reduction="mean")
        return reduced.item()

    def restore(self, checkpoint: Path) -> None:
        """Restores the unlogged losses and the memories of streams in a checkpoint, which another number of processes
        may have written.
        """
        unlogged, now = read_unlogged(checkpoint), self.args.world_size
        before = unlogged[PROCESSES]
        if before != now:
            logger.warning(
                "%s was trained by %s and %s now: rows and their order stay the same, dropout is drawn otherwise",
                checkpoint.name,
                counted(before, "process", "processes"),
                f"{now} train",
            )
        if memories := sorted(checkpoint.glob(f"{MEMORY}*")):
            # Each is stored with its first column, for any process that has this column.
            self.carried.load({key: each for file in memories for key, each in load_file(file).items()}, self.model)
        self.unlogged.fill_(unlogged["loss"])
        self.logged_step = int(unlogged["logged_step"])

    def log(self, logs: dict[str, float], *arguments: Any, **options: Any) -> None:
        """As Trainer's, whose own mean starts at the resumption; with the numbers of the meter."""
        if "loss" in logs:
            logs["loss"] = self.mean_unlogged() / (self.state.global_step - self.logged_step)
            self.unlogged.zero_()
            self.logged_step = self.state.global_step
            logs |= {**self.meter.report(self.args), "num_input_tokens_seen": self.state.num_input_tokens_seen}
        super().log(logs, *arguments, **options)

    def prediction_step(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        """Runs one batch of validation, as Trainer; also records the weight of its loss."""
        stands_in = inputs.pop(STAND_IN, False)
        inputs.pop(ROWS, None)
        output = super().prediction_step(model, inputs, *arguments, **options)
        if output[0] is not None and not stands_in:
            weight = self.losses.weight(inputs)
            weight, right = (mean_over(count, self.row_group, self.args.device) for count in (weight, self.right))
            self.weighed.append((float(output[0]), weight, right))
        return output

    def evaluation_loop(self, *arguments: Any, metric_key_prefix: str = "eval", **options: Any) -> Any:
        """Returns the validation loss as a mean over all that it counts, and the scores that select
        the best checkpoint.
        """
        if self.losses.validation is None:
            self.weighed = []
            output = super().evaluation_loop(*arguments, metric_key_prefix=metric_key_prefix, **options)
            loss, weight, right = self._mean_validated()
        else:  # of contiguous streams, which are processed in order
            with self.accelerator.autocast(), torch.no_grad():
                if callable(averaged := getattr(self.optimizer, "eval", None)):
                    averaged()  # of a schedule-free optimizer, as in Trainer's own loop
                loss, weight, right = self.losses.validation(self.model, self.eval_dataset), 1.0, 0.0
            rows = len(self.eval_dataset)  # pyright: ignore[reportArgumentType]
            nothing: Any = ()
            output = EvalLoopOutput(predictions=nothing, label_ids=None, metrics={}, num_samples=rows)
        assert output.metrics is not None
        scores = {"loss": loss, **self.losses.scores(loss)}
        best_by = str(self.args.metric_for_best_model)
        if weight and not math.isfinite(loss):
            self.finite.refuse(
                f"the validation loss is {loss}", Path(str(self.args.output_dir)), self.state.global_step
            )
        if best_by not in scores:
            tokenizer, size = self.processing_class, self.args.per_device_eval_batch_size
            scores |= self.task.evaluate(self.model, tokenizer, self.validation_rows, batch_size=size).scores
        elif self.losses.right is not None and weight:
            scores["accuracy"] = 100 * right / weight
        if not math.isfinite(scores.get(best_by, 0.0)):
            raise InputError(
                f"the score {best_by!r} of the validation rows is {scores[best_by]}, so none is the best; give "
                "data.validation rows with labels, or another optimisation.best_by"
            )
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in scores.items()})
        return output

    def _mean_validated(self) -> tuple[float, float, float]:
        """Returns the mean of the recorded validation losses over all processes, its weight, and the number
        of right answers.
        """
        weighed = [(loss * weight, weight, right) for loss, weight, right in self.weighed if weight]
        sums = torch.tensor([*weighed, (0.0, 0.0, 0.0)], dtype=torch.float64).sum(0)
        reduced: Any = self.accelerator.reduce(sums.to(self.args.device), reduction="sum")
        total, weight, right = reduced.tolist()
        return total / weight if weight else float("nan"), weight, right


def make_trainer(
    recipe: Recipe,
    task: Any,
    model: Any,
    tokenizer: Any,
    rows: Any,
    folder: Path,
    teacher: Any = None,
    *,
    cache: Path,
    kind: Callable[..., RecipeTrainer] = RecipeTrainer,
) -> Any:
    """Returns the Trainer of a recipe, made by `kind`; `rows` are the training rows, of each weighted source, and the
    validation rows, `folder` is the output folder, `teacher` is that of `Task.teacher`, and data sets store their files
    in `cache`.
    """
    use_cache = model.config.use_cache
    parts, validation_rows = rows
    options = {"tokenizer": tokenizer, "seed": recipe.optimisation.seed}
    with on_main_process_first():  # the first process writes the files of data sets in the folder
        datasets = [
            training_data(recipe, task, parts, cache, **options),
            task.dataset(validation_rows, training=False, folder=cache, **options),
        ]
    if hasattr(datasets[0], "set_batch_size"):
        datasets[0].set_batch_size(recipe.optimisation.batch_size)
        if recipe.optimisation.gradient_checkpointing and StreamMemory(model.config).is_used:
            raise InputError(
                "optimisation.gradient_checkpointing computes layers twice, but a memory goes on after the first time; "
                "leave it out, or give stack.memory_tokens=0"
            )
    collator = task.collator(tokenizer)
    if recipe.optimisation.padding_free:
        check_padding_free(model, datasets[0])
        collator = partial(without_padding, collator)
    finite = StopNotFinite(recipe.optimisation.learning_rate, scaled=bool(recipe.trainer.get("fp16")))
    arguments = trainer_arguments(recipe.optimisation, task, folder / "checkpoints", recipe.trainer)
    try:
        trainer = kind(
            task,
            validation_rows,
            finite,
            teacher,
            model=model,
            args=arguments,
            data_collator=StandIns(partial(with_rows, collator), datasets[0]),
            train_dataset=datasets[0],
            eval_dataset=datasets[1],
            processing_class=tokenizer,
            callbacks=[finite, CutEachGradient(recipe.optimisation.weight_gradient_clip)],
        )
    except EXPECTED as error:
        if not recipe.trainer or isinstance(error, InputError):
            raise
        raise refusal(recipe.trainer, error) from error
    if recipe.optimisation.parallel.sequence > 1:
        from longspan.training.sequence_parallel import divide_rows

        divide_rows(trainer, recipe.optimisation.parallel.sequence)
    trainer.head_rate = recipe.optimisation.head_learning_rate
    trainer.frozen = recipe.optimisation.train == "new_positions"
    # The FLOPs of a backward pass are counted for all weights, and those of a teacher are not.
    trains_all = recipe.optimisation.lora is None and not trainer.frozen and teacher is None
    trainer.meter = Meter(row_flops(model) if trains_all else None, peak_flops(arguments))
    for plain in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(plain)
    for callback in (
        trainer.meter,
        Composition(trainer, recipe.data.sources("train")),
        Borders(trainer),
        CompleteCheckpoints(folder / "checkpoints", recipe.optimisation.keep_checkpoints, trainer.saving),
        *reports(recipe.optimisation.report_to, folder),
        StopStalled(recipe.optimisation.patience),
        Progress() if sys.stderr.isatty() else ProgressLines(),
    ):
        trainer.add_callback(callback)
    # Trainer disables the cache in the configuration, which is saved; decoding needs it.
    model.config.use_cache = use_cache
    return trainer


def training_data(recipe: Recipe, task: Any, parts: Sequence[Any], cache: Path, **options: Any) -> Any:
    """Returns the training data set of a task, the mixture of those of weighted sources, or the stream of either.

    Raises:
        InputError: the rows of a task go on from one to the next; errors of the task.
    """
    data, settings = recipe.data, recipe.optimisation
    if data.streaming:
        assert settings.steps is not None
        stream = streamed(task, data, rows=settings.steps * settings.batch_size, **options)
        if is_main_process():
            check_identity(cache / STREAM, stream.identity)
        return stream
    if not data.weights:
        return task.dataset(parts[0], training=True, folder=cache, **options)
    datasets = [
        task.dataset(rows, training=True, folder=cache / MIXED / str(number), **options)
        for number, rows in enumerate(parts, 1)
    ]
    if getattr(datasets[0], "in_order", False):
        raise InputError(
            f"data.train has weights, but the segments of {task.name} go on from row to row and cannot be mixed; leave "
            "the weights out, or train a language_model"
        )
    return Mixed(datasets, data.weights, stopping_strategy=data.stopping_strategy, seed=settings.seed)


def check_padding_free(model: Any, dataset: Any) -> None:
    """Raises `InputError` if a model does not support packed sequences, or the rows of a data set cannot be packed."""
    if getattr(dataset, "in_order", False):
        raise InputError(
            "optimisation.padding_free is true, but the segments of a stream go on from batch to batch and have no "
            "padding; leave it out"
        )
    if not getattr(model, "reads_each_token", False):
        raise InputError(
            f"optimisation.padding_free is true, but {type(model).__name__} has one output for a row; leave it out"
        )
    try:
        check_packed(model.config, stack_config(model.config.stack))
    except InputError as error:
        raise InputError(f"optimisation.padding_free is true, but it cannot be: {error}") from None


def with_head_rate(optimizer: Any, model: Any, rate: float) -> None:
    """Moves the weights above the encoder to separate groups with `rate`, which keep the other settings of
    their old group.

    Schedules multiply each group's own rate, so all of them rise and fall together.

    Raises:
        InputError: the model has no encoder below a head, or none of the head's weights is trained.
    """
    from longspan.models import LongspanModel

    encoders = [module for module in model.modules() if isinstance(module, LongspanModel)]
    below = {id(weight) for encoder in encoders for weight in encoder.parameters()}
    has_head = False
    for group in list(optimizer.param_groups):
        above = [weight for weight in group["params"] if id(weight) not in below]
        if not above or not below:
            continue
        has_head = True
        group["params"] = [weight for weight in group["params"] if id(weight) in below]
        options = {name: value for name, value in group.items() if name not in ("params", "lr", "initial_lr")}
        optimizer.add_param_group({**options, "params": above, "lr": rate})
    if not has_head:
        kind = type(model).__name__
        raise InputError(
            f"optimisation.head_learning_rate is {rate}, but in a {kind} no layers above an encoder train; leave it out"
        )


def take_moments(optimizer: Any, model: Any, checkpoint: Path) -> None:
    """Initialises the moments from a checkpoint, with the optimizer's current learning rates and decays."""
    if is_in_parts(checkpoint):
        read_states(model, optimizer, checkpoint, groups=False)
        return
    file = checkpoint / OPTIMIZER_NAME
    if not file.is_file():  # sharded over processes, it has another form
        logger.warning("%s is not there, so the stage begins with moments of zero", file)
        return
    saved = torch.load(file, map_location="cpu", weights_only=True)
    optimizer.load_state_dict({"state": saved["state"], "param_groups": optimizer.state_dict()["param_groups"]})
