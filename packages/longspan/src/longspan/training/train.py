"""Training by recipe, with Hugging Face's Trainer: it can be killed at any time and resumed with the same result.

A recipe is one run, or stages in order, each a run of its own. The output folder of a run::

    config.json model.safetensors tokenizer.json …   the best checkpoint, once training has ended
    README.md                                        the model card: data, steps, scores, versions
    metrics.json                                     written last: which step was best, its scores, the whole history
    adapter/                                         with optimisation.lora: the adapter alone, as PEFT reads it
    recipe.yaml environment.json                     the resolved recipe and where it ran
    tokenizer/                                       the tokenizer of the experiment
    checkpoints/checkpoint-<step>/                   model, optimizer, schedule, random states, Trainer's state
    tensorboard/                                     `tensorboard --logdir DIR`

That of a recipe with stages::

    config.json model.safetensors tokenizer.json …   the best checkpoint of the last stage, once that has ended
    metrics.json                                     written last; its history has all steps, with their stage
    recipe.yaml environment.json                     the resolved recipe and where it ran
    tokenizer/ tokens-…/                             what all stages read
    stages/1/ stages/2/ …                            each a whole run, with its recipe, checkpoints and best model
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from transformers import set_seed
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME

from longspan.checkpoints.folder import weight_files
from longspan.checkpoints.loading import check_tokenizer, load_tokenizer
from longspan.checkpoints.sources import check_finite
from longspan.checkpoints.tuning import train_new_positions_only
from longspan.errors import InputError, last_line, one_sentence, write_errors
from longspan.files import output_folder, remove_empty, whole_file, whole_folder, write_whole
from longspan.model_files import read_json
from longspan.models.card import NAME as CARD
from longspan.models.card import may_write_card
from longspan.models.transformers_names import enable_checkpointing
from longspan.progress import without_file_bars
from longspan.stacks.block import Block
from longspan.tasks.tokenizers import end_id
from longspan.tasks.writing import WritingTask
from longspan.training import checkpoints, run_folder
from longspan.training.adapters import ADAPTER_FILES, add_adapters, write_merged
from longspan.training.arguments import check_arguments
from longspan.training.callbacks import StopOnSignal, Stopped, has_stalled
from longspan.training.card import training_card
from longspan.training.distributed_checkpoints import GROUPS, write_joined
from longspan.training.lifelines import ended_together
from longspan.training.models import (
    RANDOM,
    check_start,
    go_on,
    go_on_in_parts,
    make_room,
    new_model,
    published_model,
    unchanged_model,
    write_random,
)
from longspan.training.processes import check_sharding, is_main_process, on_main_process_first, process_count, processes
from longspan.training.recipe import Recipe, check_memory
from longspan.training.sections import Data
from longspan.training.tokenizers import tokenizer_of
from longspan.training.trainer import RecipeTrainer, make_trainer

logger = logging.getLogger(__name__)

STAGE_FOLDER = "stages"
OF_RANDOM = 1000
"""Rows of a stream for the tokenizer of a random model."""
OWN = (run_folder.RECIPE, run_folder.METRICS, run_folder.ENVIRONMENT)
"""Files of a stage that are not copied to the whole run."""


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The result of a finished training."""

    folder: Path
    best_step: int
    best: dict[str, float]
    """The scores of the best checkpoint on the validation rows."""
    history: list[dict[str, Any]]
    """Trainer's log, in order: `loss`, `grad_norm`, `learning_rate`, the numbers of
    `longspan.training.meter.Meter.report`, `num_input_tokens_seen`, and `eval_…` entries, each with its `step`; at step
    0, the packing statistics of a corpus (`longspan.tasks.packing.Packing.numbers`).
    """


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The position of one run among the stages of a recipe.

    Attributes:
        shared: folder of files that all stages use: the tokenizer, and the tokens of a corpus.
        before: folder of the previous stage, whose weights this one continues with; None for the first.
        is_last: whether it is the last stage.
    """

    shared: Path
    before: Path | None
    is_last: bool


def train(recipe: Recipe, output: str | Path, *, resume: bool = False) -> TrainResult:
    """Trains the recipe's model into the folder `output`.

    With `resume`, continues from the newest complete checkpoint in it (or from the start if there is none): the data
    order, the random states and so every logged loss are those of an uninterrupted run.

    After Ctrl-C or SIGTERM the current step is completed and saved; a second signal stops at once.

    Raises:
        InputError: an error in the recipe or its data; a folder that already has a run, without `resume`; a folder
            whose recipe differs, with it (the number of steps may be increased under a schedule that does not depend on
            it, unless there are stages); every checkpoint is damaged; another process trains there. No files remain
            unless training has begun. Later: a loss that is not finite; a full disk. The last good checkpoint is kept.
        Stopped: a signal was received, and the current step is saved.
    """
    check_sharding()
    stages = recipe.runs  # checked, if `load_recipe` has not done so
    check_memory(recipe)
    folder = output_folder(output)
    parallel = [stage.optimisation.parallel for stage in stages]
    with ended_together(offloads=any(each.offload or each.save_in_background for each in parallel)):
        for stage in stages:
            check_arguments(stage, folder)
        if not recipe.stages:
            return _run(recipe, folder, Stage(shared=folder, before=None, is_last=True), resume=resume)
        return _run_all(stages, recipe, folder, resume=resume)


def _run_all(stages: Sequence[Recipe], recipe: Recipe, folder: Path, *, resume: bool) -> TrainResult:
    """Trains the stages of a recipe, and copies the last one's model into the folder."""
    with run_folder.opened(folder, recipe, resume=resume) as (begun, remove):
        if begun == "finished":
            return _result(folder, run_folder.read_metrics(folder))
        try:
            finished = _run_stages(stages, folder)
        except (InputError, OSError):
            first = _stage_folder(folder, 0) / "checkpoints"
            if remove is not None and begun == "new" and not checkpoints.complete_checkpoints(first):
                remove(*run_folder.PREPARED, STAGE_FOLDER)
            raise
        return _result(folder, _finish_stages(folder, recipe, finished))


def _stage_folder(folder: Path, number: int) -> Path:
    return folder / STAGE_FOLDER / str(number + 1)


def _run_stages(stages: Sequence[Recipe], folder: Path) -> list[TrainResult]:
    """Runs all stages in order; finished ones return their results at once."""
    results: list[TrainResult] = []
    for number, recipe in enumerate(stages):
        before = _stage_folder(folder, number - 1) if number else None
        stage = Stage(shared=folder, before=before, is_last=number == len(stages) - 1)
        try:
            results.append(_run(recipe, output_folder(_stage_folder(folder, number)), stage, resume=True))
        except Stopped as stopped:
            raise Stopped(sum(map(_steps, results)) + stopped.step, stopped.number) from None
    return results


def _steps(result: TrainResult) -> int:
    """Returns how many steps a stage took, which can be fewer than configured."""
    return max(entry["step"] for entry in result.history)


def _finish_stages(folder: Path, recipe: Recipe, stages: list[TrainResult]) -> dict[str, Any]:
    """Copies the last stage's model into the folder; `metrics.json` comes last."""
    history: list[dict[str, Any]] = []
    done = 0
    for number, stage in enumerate(stages, 1):
        history += [{**entry, "step": done + entry["step"], "stage": number} for entry in stage.history]
        done += _steps(stage)
    last = stages[-1]
    metrics = {
        "best_step": done - _steps(last) + last.best_step,
        "best": last.best,
        "history": history,
        "environment": run_folder.environment(),
    }
    if is_main_process():
        for file in sorted(last.folder.iterdir()):
            if file.is_file() and file.name not in (*OWN, CARD):
                with whole_file(folder / file.name) as part:
                    shutil.copyfile(file, part)
        _write_result(folder, recipe, metrics, last.folder / CARD)
    return metrics


def _run(recipe: Recipe, folder: Path, stage: Stage, *, resume: bool) -> TrainResult:
    """Trains the model of a recipe without stages, or of one stage, into `folder`."""
    with run_folder.opened(folder, recipe, resume=resume) as (begun, remove):
        if begun == "finished":
            return _result(folder, run_folder.read_metrics(folder))
        damaged = checkpoints.find_damaged(folder / "checkpoints") if remove is not None else {}
        try:
            with write_errors(folder):
                trainer = _prepare(recipe, folder, stage)
        except (InputError, OSError):
            # A failure leaves no files; but a resumed run may have tokenised a large corpus.
            if remove is not None and begun == "new":
                remove(*run_folder.PREPARED)
                remove_empty([folder / "checkpoints"])
            raise
        if remove is not None and begun == "raised":
            run_folder.record(folder, recipe)
        with on_main_process_first():
            if remove is not None:
                checkpoints.clear(folder / "checkpoints", damaged)
        with without_file_bars():
            state = _train(trainer, recipe, folder, stage, begun)
        return _result(folder, _finish(folder, recipe, trainer, state))


def _prepare(recipe: Recipe, folder: Path, stage: Stage) -> Any:
    check_start(recipe.model, recipe.tokenizer)
    task = recipe.task
    parts = load_first(recipe, task, stage.shared) if recipe.data.streaming else load_parts(task, recipe.data)
    rows = parts, load_rows(task, recipe.data, "validation")
    task = task.of_rows(() if recipe.data.streaming else [row for part in parts for row in part])
    with on_main_process_first():
        tokenizer = tokenizer_of(recipe, task, parts, stage.shared)
        source: str | Path | None = recipe.model.source
        if source in RANDOM:
            source = stage.shared / source
            if not source.exists():
                with whole_folder(source) as made:
                    write_random(source.name, made, tokenizer, recipe.optimisation.seed)
    teacher, model = None, _filled(recipe, task, tokenizer, source, stage, folder)
    if model is None:
        teacher, model = _model(recipe, task, tokenizer, source, stage)
    # A corpus is tokenised once for all stages; chunks of rows depend on options that a stage may change.
    cache = folder if task.counts_rows else stage.shared
    trainer = make_trainer(recipe, task, model, tokenizer, rows, folder, teacher, cache=cache, kind=_kind(recipe))
    trainer.build = partial(_model, recipe, task, tokenizer, source, stage)
    if stage.before is not None:
        step = run_folder.read_metrics(stage.before)["best_step"]
        trainer.moments = stage.before / "checkpoints" / f"checkpoint-{step}"
    return trainer


def _kind(recipe: Recipe) -> Callable[..., RecipeTrainer]:
    """Returns what makes the Trainer for the recipe's kind of parallelism."""
    parallel = recipe.optimisation.parallel
    if parallel.offload and is_main_process() and (process_count() == 1 or processes().device.type == "cpu"):
        why = "one process has all weights" if process_count() == 1 else "without a GPU the parts lie there anyway"
        what = "optimisation.parallel.offload keeps parts of weights in the processor's memory"
        logger.warning("%s; it changes nothing, since %s", what, why)
    if not parallel.shard or process_count() == 1:
        return RecipeTrainer
    from longspan.training.sharded_trainer import ShardedTrainer

    return partial(ShardedTrainer, settings=recipe.optimisation)


def _filled(recipe: Recipe, task: Any, tokenizer: Any, source: str | Path | None, stage: Stage, folder: Path) -> Any:
    """Returns a model of sharded weights that no process has had as a whole; None if it has to be built whole: without
    sharding, with adapters, a teacher, or published weights that are converted. Arguments are those of `_model`.
    """
    settings = recipe.optimisation
    if not settings.parallel.shard or process_count() == 1 or settings.lora is not None:
        return None
    from longspan.models.fsdp import shard
    from longspan.training.distributed_checkpoints import read_weights
    from longspan.training.filling import fill_new, without_weights
    from longspan.training.sharded_trainer import shard_options

    with without_weights():
        if source is None:
            model = new_model(task, recipe.model, tokenizer)
        else:
            model = unchanged_model(task, recipe.model, source, len(tokenizer))
    if model is None or task.teacher(model) is not None:
        return None
    model.tie_weights()
    if source is not None:
        check_tokenizer(tokenizer, model.config)
    task.check_model(model.config)
    _configure(model, recipe, task, tokenizer)
    shard(model, processes().device, **shard_options(settings))
    if checkpoints.complete_checkpoints(folder / "checkpoints"):
        return model  # Trainer reads the weights from one of them
    if stage.before is not None:
        go_on_in_parts(model, stage.before)
    elif source is not None:
        read_weights(model, Path(os.path.expanduser(source)))
        check_finite(model, str(source))
    else:

        def drawn() -> Any:
            set_seed(settings.seed)
            return new_model(task, recipe.model, tokenizer)

        fill_new(model, drawn, folder)
    return model


def _model(recipe: Recipe, task: Any, tokenizer: Any, source: str | Path | None, stage: Stage) -> tuple[Any, Any]:
    """Returns the teacher, if the task has one, and the model before its first step; `source` is the place of published
    weights, None for a new model.
    """
    set_seed(recipe.optimisation.seed)
    if source is None:
        model = new_model(task, recipe.model, tokenizer)
    else:
        model = published_model(task, recipe.model, source)
        if make_room(model, len(tokenizer), task) and recipe.optimisation.lora is not None:
            raise InputError(
                f"optimisation.lora would leave the embeddings of the tokens that {task.name} adds untrained; leave it "
                "out, or the option that adds them (task.markers)"
            )
        check_tokenizer(tokenizer, model.config)
    task.check_model(model.config)
    _configure(model, recipe, task, tokenizer)
    if recipe.optimisation.train == "new_positions":
        train_new_positions_only(model)
    teacher = task.teacher(model)
    if recipe.optimisation.lora is not None:
        model = add_adapters(model, recipe.optimisation.lora)
    if stage.before is not None:
        go_on(model, stage.before)
    return teacher, model


def load_parts(task: Any, data: Data) -> list[list[Any]]:
    """Returns the training rows of each weighted source; without weights, those of all sources as one part.

    Raises `InputError` if a source is unknown or has no rows.
    """
    if not data.weights:
        return [load_rows(task, data, "train")]
    parts = []
    for index, source in enumerate(data.sources("train")):
        parts.append(list(task.read(source, data.train_split, data.train_rows, on_error=data.on_error)))
        if not parts[-1]:
            raise InputError(f"data.train[{index}] is {source!r} and gives no rows to draw from; leave it out")
    return parts


def load_first(recipe: Recipe, task: Any, folder: Path) -> list[list[Any]]:
    """Returns the first training rows of each source of a stream, to train a tokenizer on, if none is in the folder."""
    data = recipe.data
    if (recipe.tokenizer.train is None and recipe.model.source not in RANDOM) or (folder / "tokenizer").exists():
        return []
    count = recipe.tokenizer.rows or OF_RANDOM
    count = count if data.train_rows is None else min(count, data.train_rows)
    parts = [task.read(source, data.train_split, count, on_error=data.on_error) for source in data.sources("train")]
    return [list(rows) for rows in parts]


def load_rows(task: Any, data: Data, part: Literal["train", "validation"]) -> list[Any]:
    """Returns the rows of `part` ("train" or "validation"), all sources in order, up to the recipe's limit.

    Raises `InputError` if a source is unknown, or if there are no rows that the task can use.
    """
    sources, split, limit = data.sources(part), getattr(data, f"{part}_split"), getattr(data, f"{part}_rows")
    rows: list[Any] = []
    for source in sources:
        left = limit if limit is None or not task.counts_rows else limit - len(rows)
        # No row is read from a source beyond the limit: it must exist all the same.
        rows += task.read(source, split, left, on_error=data.on_error)
    if not rows:
        raise InputError(f"data.{part} is {list(sources)!r} and gives no rows; name a data set or a file that has some")
    return rows


def _configure(model: Any, recipe: Recipe, task: Any, tokenizer: Any) -> None:
    """Applies settings of the recipe to the model: precision, label smoothing, memory saving, decoding; and the
    tokenizer's mask token, if a model that needs it has none.
    """
    if model.config.pseudo_masks and model.config.mask_token_id is None:
        model.config.mask_token_id = tokenizer.mask_token_id
    if isinstance(task, WritingTask) and model.config.eos_token_id is None:
        model.config.eos_token_id = model.generation_config.eos_token_id = end_id(tokenizer)
    model.config.label_smoothing = recipe.optimisation.label_smoothing
    if recipe.optimisation.label_smoothing and not model.can_generate():
        raise InputError(
            f"optimisation.label_smoothing is {recipe.optimisation.label_smoothing}, but the loss of a "
            f"{type(model).__name__} is not that of generated tokens and has none; leave it out"
        )
    model.max_shard_size = recipe.optimisation.max_shard_size
    if recipe.optimisation.gradient_checkpointing:
        enable_checkpointing(model)
    if recipe.optimisation.float32_attention:
        blocks = [module for module in model.modules() if isinstance(module, Block)]
        if not blocks:
            raise InputError(
                f"optimisation.float32_attention is true, but the layers of stack {model.config.stack['stack']!r} are "
                "its own, which that does not reach; leave it out"
            )
        for block in blocks:
            block.float32_attention = True
    if task.generates:
        recipe.generation.check_room(model.config)
        model.generation_config.update(max_length=None, **recipe.generation.options())
        model.generation_config.no_repeat_ngram_ignored = recipe.generation.ignored_ids(tokenizer) or None
        with one_sentence("the model could not be saved with how it is to generate"):
            model.generation_config.validate(strict=True)


def _train(trainer: Any, recipe: Recipe, folder: Path, stage: Stage, begun: str) -> dict[str, Any]:
    """Trains from the newest intact checkpoint, or from the start; returns Trainer's state after the last step."""
    place = folder / "checkpoints"
    newest = checkpoints.complete_checkpoints(place)[-1:]
    if begun != "new" and not newest and is_main_process():
        logger.warning("%s holds no checkpoint yet, so training starts over from step 0", place)
    if newest:
        state = checkpoints.read_state(newest[0])
        # Killed after the last step: Trainer itself would train one step too many.
        if _is_over(state, recipe, trainer):
            return state
        trainer.restore(newest[0])
    stop = StopOnSignal()
    trainer.add_callback(stop)
    try:
        with write_errors(folder), stop.listening(), _readers_alive(recipe):
            trainer.train(resume_from_checkpoint=str(newest[0]) if newest else None)
    except InputError:
        with suppress(InputError, OSError):  # what is being written in the background can still be completed
            trainer.saving.wait()
        if is_main_process():
            checkpoints.remove_unfinished(place)
        raise
    state = checkpoints.read_state(checkpoints.complete_checkpoints(place)[-1])
    if not _is_over(state, recipe, trainer) or (stop.asked and not stage.is_last):
        raise Stopped(state["global_step"], stop.asked)
    return state


@contextmanager
def _readers_alive(recipe: Recipe) -> Iterator[None]:
    """Raises `InputError` if a data loading process was killed, which PyTorch can raise anywhere; those that such a
    process raises are raised without its traceback, which PyTorch puts before their sentence.
    """
    try:
        yield
    except InputError as error:
        if not str(error).startswith("Caught InputError in DataLoader worker"):
            raise
        raise InputError(str(error).rpartition("InputError: ")[2].strip()) from error
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker (pid"):
            raise
        raise InputError(
            "a process that prepares batches was ended from outside, as the system does when memory runs out "
            f"({last_line(error).rstrip('. ')}); go on with --resume, and with a lower optimisation.workers (now "
            f"{recipe.optimisation.workers}) if it happens again"
        ) from error


def _is_over(state: dict[str, Any], recipe: Recipe, trainer: Any) -> bool:
    """Whether the last step of the recipe is done, whose number may have been increased since, or training has stalled
    for its patience.
    """
    done, steps, epochs = state["global_step"], recipe.optimisation.steps, recipe.optimisation.epochs
    if has_stalled(state["log_history"], trainer.args, recipe.optimisation.patience):
        return True
    if steps is not None:
        return done >= steps
    return done >= state["max_steps"] and (epochs is None or state["epoch"] >= epochs)


def _finish(folder: Path, recipe: Recipe, trainer: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Writes the best checkpoint's model and tokenizer into the output folder; `metrics.json` comes last."""
    history, place = state["log_history"], folder / "checkpoints"
    best = checkpoints.best_step(history, place, recipe.optimisation.best_by, trainer.args.greater_is_better)
    if best is None:
        raise InputError(f"no checkpoint in {str(place)!r} has a finite {recipe.optimisation.best_by}; train anew")
    chosen = place / f"checkpoint-{best}"
    weights = weight_files(chosen)
    if recipe.optimisation.lora is not None and is_main_process():
        model = trainer.model if trainer.merges else trainer.build()[1]
        weights = write_merged(model, chosen, folder)
    elif checkpoints.is_in_parts(chosen) and is_main_process():
        weights = write_joined(chosen, folder, recipe.optimisation.max_shard_size)
    skip = {checkpoints.FILES, checkpoints.STATE, checkpoints.UNLOGGED, *ADAPTER_FILES}
    skip |= {OPTIMIZER_NAME, SCHEDULER_NAME, GROUPS, "scaler.pt"}
    for file in sorted(chosen.iterdir()) if is_main_process() else ():
        if file.is_file() and file.name not in skip and not file.name.startswith(("rng_state", checkpoints.MEMORY)):
            with whole_file(folder / file.name) as part:
                shutil.copyfile(file, part)
    if is_main_process():
        for name in weight_files(folder) - weights:  # of a shorter run, in files of another size
            (folder / name).unlink()
    logged = {key: value for entry in history if entry["step"] == best for key, value in entry.items()}
    names = [key for key in logged if key.startswith("eval_") and not key.endswith(("runtime", "per_second"))]
    metrics = {
        "best_step": best,
        "best": {name: logged[name] for name in names},
        "history": history,
        "environment": run_folder.environment(),
    }
    if is_main_process():
        # The card of a merged model is in the folder; that of its adapter is PEFT's.
        card = (chosen if recipe.optimisation.lora is None else folder) / CARD
        _write_result(folder, recipe, metrics, card)
    return metrics


def _write_result(folder: Path, recipe: Recipe, metrics: dict[str, Any], card: Path) -> None:
    """Writes the model card, from the one saved with the weights, unless somebody else's exists; and then
    `metrics.json`, which ends the run.
    """
    texts = {folder / run_folder.METRICS: json.dumps(metrics, indent=2)}
    if may_write_card(folder) and card.is_file():
        name = read_json(folder / "config.json")["architectures"][0]
        text = training_card(card.read_text(encoding="utf-8"), recipe, metrics, name, load_tokenizer(folder))
        texts = {folder / CARD: text, **texts}
    write_whole(texts)


def _result(folder: Path, metrics: dict[str, Any]) -> TrainResult:
    return TrainResult(folder=folder, best_step=metrics["best_step"], best=metrics["best"], history=metrics["history"])
