"""`longspan train`: run a recipe."""

import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from longspan.cli.terminal import ReportedExit, say
from longspan.errors import InputError, is_out_of_memory, memory_sentence

PANEL = "Models"


if TYPE_CHECKING:
    from longspan.training.recipe import Recipe


def train(
    recipe: Annotated[
        str, typer.Argument(help="A YAML file, or the name of a recipe of the package; `longspan recipes` lists them.")
    ],
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Changes, such as optimisation.seed=3.")
    ] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Run the same code in about a minute: tiny random model, made-up rows.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run from its newest complete checkpoint.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the model and its checkpoints.", show_default="runs/<recipe name>")
    ] = None,
) -> None:
    """Train a model by a recipe: one YAML file is one experiment.

    The best checkpoint on the validation rows is saved in the output folder, with its tokenizer, the resolved recipe,
    TensorBoard logs and all scores. Ctrl-C and SIGTERM finish and save the current step; a second one stops
    immediately. A run that was stopped or killed at any time continues with `--resume`, with the same losses as an
    uninterrupted one.
    """
    from longspan.training.recipe_file import load_recipe

    settings = load_recipe(recipe, changes or (), smoke=smoke)
    folder = output or Path("runs") / (f"{settings.name}-smoke" if smoke else settings.name)

    from longspan.progress import logs_beside_bars
    from longspan.training.callbacks import Stopped
    from longspan.training.processes import is_main_process
    from longspan.training.train import train as run

    command = ["longspan", "train", str(recipe), *(changes or []), *(["--smoke"] if smoke else [])]
    command = shlex.join([*command, *(["--output", str(output)] if output else []), "--resume"])
    if settings.stages and is_main_process():
        _announce(settings)
    try:
        with logs_beside_bars():
            result = run(settings, folder, resume=resume)
    except Stopped as stopped:
        _end(f"saved step {stopped.step}; go on with: {command}", stopped.number, tell=is_main_process())
    except KeyboardInterrupt:
        _end(f"stopped at once; go on from the last checkpoint with: {command}", signal.SIGINT, tell=is_main_process())
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise InputError("; ".join([memory_sentence(error), *_what_fits(settings)])) from error
    if not is_main_process():  # only one process prints it
        return
    scores = ", ".join(f"{name.removeprefix('eval_')} {value:.4g}" for name, value in result.best.items())
    say(f"best checkpoint: step {result.best_step} ({scores})")
    if settings.published is not None and not smoke:
        aim = ", ".join(f"{name} {value}" for name, value in settings.published.scores.items())
        say(f"published row this recipe aims at: {aim} ({settings.published.source})")
    say(f"model: {result.folder}")


def _what_fits(recipe: "Recipe") -> list[str]:
    """Returns the plan's advice for the recipe, if there is enough memory to compute it."""
    try:
        from longspan.planning.plan import what_fits
        from longspan.planning.source import planned_recipe

        advice = what_fits(planned_recipe(recipe), recipe.optimisation.micro_batch_size, train=True)
        return [advice] if advice else []
    except InputError:  # a model that is not in a local folder has no plan
        return []
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return []


def _announce(recipe: "Recipe") -> None:
    """Print a line for each stage: its steps and its changes."""
    done = 0
    for number, (stage, changes) in enumerate(zip(recipe.runs, recipe.stages, strict=True), 1):
        steps = stage.optimisation.steps or 0
        what = ", ".join(f"{key} {value}" for key, value in changes.items()) or "as in the recipe"
        say(f"stage {number}: steps {done + 1:,} to {done + steps:,}, {what}")
        done += steps


def _end(sentence: str, number: int, *, tell: bool) -> NoReturn:
    """Exit with the code that a shell expects after a signal."""
    if tell:
        say(sentence, error=True)
    raise typer.Exit(ReportedExit(128 + number)) from None
