"""Run a recipe, or a stage of one, with Hugging Face's Trainer: killed at any moment, it resumes to the same result.

The output folder::

    config.json model.safetensors tokenizer.json …   the best checkpoint, once training has ended
    metrics.json                                     written last: which step was best, its scores, the whole history
    adapter/                                         with optimisation.lora: the adapter alone, as PEFT reads it
    recipe.yaml environment.json                     the resolved recipe and where it ran
    tokenizer/                                       the tokenizer of the experiment
    checkpoints/checkpoint-<step>/                   model, optimizer, schedule, random states, Trainer's state
    tensorboard/                                     `tensorboard --logdir DIR`
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import set_seed

from longspan.checkpoints.loading import check_tokenizer, load_tokenizer
from longspan.checkpoints.tuning import train_new_positions_only
from longspan.errors import InputError, one_sentence, write_errors
from longspan.files import remove_empty, whole_file, whole_folder, write_whole
from longspan.models.card import NAME as CARD
from longspan.models.card import may_write_card
from longspan.progress import without_file_bars
from longspan.stacks.block import Block
from longspan.tasks.tokenizers import end_id
from longspan.tasks.writing import WritingTask
from longspan.training import checkpoints, runs
from longspan.training.adapters import ADAPTER_FILES, add_adapters, write_merged
from longspan.training.going_on import go_on, moments_of
from longspan.training.models import check_start, make_room, new_model, published_model
from longspan.training.random_checkpoints import RANDOM, write_random
from longspan.training.recipe import Data, Recipe
from longspan.training.recipe_checks import check_room
from longspan.training.stopping import StopOnSignal, Stopped, has_stalled
from longspan.training.tokenizers import train_tokenizer, train_words
from longspan.training.trainer import make_trainer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What a finished training leaves behind."""

    folder: Path
    best_step: int
    best: dict[str, float]
    """The scores of the best checkpoint on the validation rows."""
    history: list[dict[str, Any]]
    """Trainer's log, in order: `loss`, `grad_norm`, `learning_rate`, and `eval_…` entries, each with its `step`."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a stage of several stands.

    Attributes:
        shared: folder of what all stages read: the tokenizer, and the tokens of a corpus.
        before: folder of the stage before, whose weights this one goes on with; None for the first.
        is_last: whether no stage comes after it.
    """

    shared: Path
    before: Path | None
    is_last: bool


def run(recipe: Recipe, folder: Path, *, resume: bool, place: Place | None = None) -> TrainResult:
    """Train the model of a recipe without stages, or of one of them, into `folder`; as `longspan.training.train`."""
    place = place or Place(shared=folder, before=None, is_last=True)
    with runs.opened(folder, recipe, resume=resume) as (begun, remove):
        if begun == "finished":
            return result_of(folder, runs.read_metrics(folder))
        damaged = checkpoints.find_damaged(folder / "checkpoints") if remove is not None else {}
        try:
            with write_errors(folder):
                trainer = _prepare(recipe, folder, place)
        except (InputError, OSError):
            # A mistake leaves nothing behind; but a run that is resumed may have tokenised a large corpus.
            if remove is not None and begun == "new":
                remove(*runs.PREPARED)
                remove_empty([folder / "checkpoints"])
            raise
        if remove is not None and begun == "raised":
            runs.record(folder, recipe)
        with runs.on_main_process_first():
            if remove is not None:
                checkpoints.clear(folder / "checkpoints", damaged)
        with without_file_bars():
            state = _train(trainer, recipe, folder, place, begun)
        return result_of(folder, _finish(folder, recipe, trainer, state))


def _prepare(recipe: Recipe, folder: Path, place: Place) -> Any:
    check_start(recipe)
    task = recipe.build_task()
    rows = load_rows(task, recipe.data, "train"), load_rows(task, recipe.data, "validation")
    task = task.of_rows(rows[0])
    with runs.on_main_process_first():
        tokenizer = _tokenizer(recipe, task, rows[0], place.shared)
        source = _checkpoint(recipe, tokenizer, place.shared)
    set_seed(recipe.optimisation.seed)
    with runs.forms_of(place.shared):
        if source is None:
            model = new_model(task, recipe.model, tokenizer)
        else:
            model = published_model(task, recipe.model, source)
    if source is not None:
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
    if place.before is not None:
        go_on(model, place.before)
    # A corpus is tokenised once for all stages; chunks of rows depend on options that a stage may change.
    kept = folder if task.counts_rows else place.shared
    trainer = make_trainer(recipe, task, model, tokenizer, rows, folder, teacher, kept=kept)
    if place.before is not None:
        trainer.moments = moments_of(place.before)
    return trainer


def load_rows(task: Any, data: Data, part: str) -> list[Any]:
    """The rows of `part` ("train" or "validation"), all sources in order, cut to the recipe's limit.

    Raises `InputError` where a source is unknown, or where there are no rows that the task can use.
    """
    sources, split, limit = (getattr(data, name) for name in (part, f"{part}_split", f"{part}_rows"))
    rows: list[Any] = []
    for source in sources:
        left = limit if limit is None or not task.counts_rows else limit - len(rows)
        # A source that is not needed any more is asked for no row: it must be there all the same.
        rows += task.read(source, split, left, on_error=data.on_error)
    if not rows:
        raise InputError(f"data.{part} is {list(sources)!r} and gives no rows; name a data set or a file that has some")
    return rows


def _tokenizer(recipe: Recipe, task: Any, rows: list[Any], folder: Path) -> Any:
    """The experiment's tokenizer, kept in the folder so that a resumed run has the very same one."""
    kept = folder / "tokenizer"
    if not kept.exists():
        size = 512 if recipe.model.source in RANDOM else recipe.tokenizer.train
        if size is not None:
            texts = _corpus(task, rows, recipe.tokenizer.rows)
            trained = train_words if recipe.tokenizer.words else train_tokenizer
            tokenizer = trained(texts, size, simplify=recipe.tokenizer.simplify)
        else:
            tokenizer = load_tokenizer(str(recipe.tokenizer.source or recipe.model.source))
        if task.new_tokens():
            tokenizer.add_tokens(list(task.new_tokens()), special_tokens=True)
        with whole_folder(kept) as partial:
            tokenizer.save_pretrained(partial)
    return load_tokenizer(kept)


def _corpus(task: Any, rows: list[Any], count: int | None) -> Iterator[str]:
    """The texts of all rows, or of about `count` of them, taken evenly."""
    if count is None:
        return task.corpus(rows)
    if task.counts_rows:
        return task.corpus(rows[:: max(1, len(rows) // count)])
    # Sources that are streamed: read twice, since only then is it known how many documents there are.
    documents = sum(1 for _ in task.corpus(rows))
    return islice(task.corpus(rows), 0, None, max(1, documents // count))


def _checkpoint(recipe: Recipe, tokenizer: Any, folder: Path) -> str | Path | None:
    """Where the published weights lie; None for a new model."""
    name = recipe.model.source
    if name not in RANDOM:
        return name
    kept = folder / name
    if not kept.exists():
        with whole_folder(kept) as partial:
            write_random(name, partial, tokenizer, recipe.optimisation.seed)
    return kept


def _configure(model: Any, recipe: Recipe, task: Any, tokenizer: Any) -> None:
    """Settings of the recipe that live in the model: precision, label smoothing, memory saving, decoding; and the
    tokenizer's mask, where a model that had none guesses by it."""
    if model.config.pseudo_masks and model.config.mask_token_id is None:
        model.config.mask_token_id = tokenizer.mask_token_id
    if isinstance(task, WritingTask) and model.config.eos_token_id is None:
        model.config.eos_token_id = model.generation_config.eos_token_id = end_id(tokenizer)
    model.config.label_smoothing = recipe.optimisation.label_smoothing
    if recipe.optimisation.gradient_checkpointing:
        # The name changed between the versions of transformers that we support.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable()
    if recipe.optimisation.float32_attention:
        for block in (module for module in model.modules() if isinstance(module, Block)):
            block.float32_attention = True
    if task.generates:
        check_room(recipe.generation, model.config)
        model.generation_config.update(max_length=None, **recipe.generation.options())
        model.generation_config.no_repeat_ngram_ignored = recipe.generation.ignored_ids(tokenizer) or None
        with one_sentence("the model could not be saved with how it is to generate"):
            model.generation_config.validate(strict=True)


def _train(trainer: Any, recipe: Recipe, folder: Path, place: Place, begun: str) -> dict[str, Any]:
    """Train from the newest intact checkpoint, or from the start; return Trainer's state after the last step."""
    kept = folder / "checkpoints"
    newest = checkpoints.complete_checkpoints(kept)[-1:]
    if begun != "new" and not newest and runs.is_main_process():
        logger.warning("%s holds no checkpoint yet, so training starts over from step 0", kept)
    if newest:
        state = checkpoints.read_state(newest[0])
        # Killed after the last step: Trainer itself would train one step too many.
        if _is_over(state, recipe, trainer):
            return state
        trainer.restore(newest[0])
    stop = StopOnSignal()
    trainer.add_callback(stop)
    try:
        with write_errors(folder), stop.listening():
            trainer.train(resume_from_checkpoint=str(newest[0]) if newest else None)
    except InputError:
        if runs.is_main_process():
            checkpoints.remove_unfinished(kept)
        raise
    state = checkpoints.read_state(checkpoints.complete_checkpoints(kept)[-1])
    if not _is_over(state, recipe, trainer) or (stop.asked and not place.is_last):
        raise Stopped(state["global_step"], stop.asked)
    return state


def _is_over(state: dict[str, Any], recipe: Recipe, trainer: Any) -> bool:
    """Whether the last step of the recipe has been done, whose number may have been raised since, or nothing has become
    better for as long as it is patient."""
    done, steps, epochs = state["global_step"], recipe.optimisation.steps, recipe.optimisation.epochs
    if has_stalled(state["log_history"], trainer.args, recipe.optimisation.patience):
        return True
    if steps is not None:
        return done >= steps
    return done >= state["max_steps"] and (epochs is None or state["epoch"] >= epochs)


def _finish(folder: Path, recipe: Recipe, trainer: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Put the best checkpoint's model and tokenizer into the output folder; `metrics.json` comes last."""
    history, place = state["log_history"], folder / "checkpoints"
    best = checkpoints.best_step(history, place, recipe.optimisation.best_by, trainer.args.greater_is_better)
    if best is None:
        raise InputError(f"no checkpoint in {str(place)!r} has a finite {recipe.optimisation.best_by}; train anew")
    chosen = place / f"checkpoint-{best}"
    if recipe.optimisation.lora is not None and runs.is_main_process():
        write_merged(trainer.model, chosen, folder)
    skip = {checkpoints.FILES, checkpoints.STATE, checkpoints.UNLOGGED, *ADAPTER_FILES}
    skip |= {"optimizer.pt", "scheduler.pt", "scaler.pt"}
    skip |= set() if may_write_card(folder) else {CARD}
    for file in sorted(chosen.iterdir()) if runs.is_main_process() else ():
        if file.name not in skip and not file.name.startswith(("rng_state", checkpoints.MEMORY)):
            with whole_file(folder / file.name) as part:
                shutil.copyfile(file, part)
    logged = {key: value for entry in history if entry["step"] == best for key, value in entry.items()}
    names = [key for key in logged if key.startswith("eval_") and not key.endswith(("runtime", "per_second"))]
    metrics = {
        "best_step": best,
        "best": {name: logged[name] for name in names},
        "history": history,
        "environment": runs.environment(),
    }
    if runs.is_main_process():
        write_whole({folder / runs.METRICS: json.dumps(metrics, indent=2)})
    return metrics


def result_of(folder: Path, metrics: dict[str, Any]) -> TrainResult:
    """The result of a finished run, from its `metrics.json`."""
    return TrainResult(folder=folder, best_step=metrics["best_step"], best=metrics["best"], history=metrics["history"])
