"""Training by recipe: one run, or the stages of a recipe one after the other, resumed wherever they were interrupted.

The output folder of one run is described in `one_run`; that of a recipe with stages is::

    config.json model.safetensors tokenizer.json …   the best checkpoint of the last stage, once that has ended
    metrics.json                                     written last; its history has all steps, with their stage
    recipe.yaml environment.json                     the resolved recipe and where it ran
    tokenizer/ tokens-…/                             what all stages read
    stages/1/ stages/2/ …                            each a whole run, with its recipe, checkpoints and best model
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from longspan.errors import InputError
from longspan.files import output_folder, whole_file, write_whole
from longspan.training import runs
from longspan.training.arguments import check_sharding
from longspan.training.checkpoints import complete_checkpoints
from longspan.training.one_run import Place, TrainResult, result_of, run
from longspan.training.recipe import Recipe
from longspan.training.stages import check_whole, stage_recipes
from longspan.training.stopping import Stopped

STAGE_FOLDER = "stages"
OWN = (runs.RECIPE, runs.METRICS, runs.ENVIRONMENT)
"""Files of a stage that are not those of the whole run."""


def train(recipe: Recipe, output: str | Path, *, resume: bool = False) -> TrainResult:
    """Train the recipe's model into the folder `output`.

    With `resume`, continue from the newest complete checkpoint in it (or from the start, where there is none): the data
    order, the random states and so every logged loss are those of a run that was never interrupted.

    Ctrl-C and SIGTERM let the step end and save it; a second one stops at once.

    Raises:
        InputError: anything wrong in the recipe or its data; a folder that already holds a run, without `resume`; a
            folder whose recipe differs, with it (the number of steps may be raised under a schedule that does not
            depend on it, unless there are stages); every checkpoint is damaged; another process trains there. Nothing
            is left behind unless training has begun. Later: a loss that is not finite; a full disk. The last good
            checkpoint stays.
        Stopped: a signal came, and the step that it came in is saved.
    """
    check_sharding()
    check_whole(recipe)
    folder = output_folder(output)
    if not recipe.stages:
        return run(recipe, folder, resume=resume)
    with runs.opened(folder, recipe, resume=resume) as (begun, remove):
        if begun == "finished":
            return result_of(folder, runs.read_metrics(folder))
        try:
            finished = _run_stages(stage_recipes(recipe), folder)
        except (InputError, OSError):
            if remove is not None and begun == "new" and not complete_checkpoints(_place(folder, 0) / "checkpoints"):
                remove(*runs.PREPARED, STAGE_FOLDER)
            raise
        return result_of(folder, _finish(folder, finished))


def _place(folder: Path, number: int) -> Path:
    return folder / STAGE_FOLDER / str(number + 1)


def _run_stages(stages: list[Recipe], folder: Path) -> list[TrainResult]:
    """All stages in turn; those that have ended give their results at once."""
    found: list[TrainResult] = []
    for number, stage in enumerate(stages):
        before = _place(folder, number - 1) if number else None
        place = Place(shared=folder, before=before, is_last=number == len(stages) - 1)
        try:
            found.append(run(stage, output_folder(_place(folder, number)), resume=True, place=place))
        except Stopped as stopped:
            raise Stopped(sum(map(_steps, found)) + stopped.step, stopped.number) from None
    return found


def _steps(result: TrainResult) -> int:
    """How many steps a stage took, which may be fewer than it was given."""
    return max(entry["step"] for entry in result.history)


def _finish(folder: Path, stages: list[TrainResult]) -> dict[str, Any]:
    """Put the last stage's model into the folder; `metrics.json` comes last."""
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
        "environment": runs.environment(),
    }
    if runs.is_main_process():
        for file in sorted(last.folder.iterdir()):
            if file.is_file() and file.name not in OWN:
                with whole_file(folder / file.name) as part:
                    shutil.copyfile(file, part)
        write_whole({folder / runs.METRICS: json.dumps(metrics, indent=2)})
    return metrics
