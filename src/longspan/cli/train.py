"""`longspan train`: run a recipe."""

from pathlib import Path
from typing import Annotated

import typer

from longspan.cli.terminal import say


def train(
    recipe: Annotated[Path, typer.Argument(help="The recipe, a YAML file such as those in recipes/.")],
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes, such as optimisation.seed=3.")
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
    TensorBoard logs and all scores. A run that was killed, at any moment, continues with `--resume` to the very losses
    of an uninterrupted one.
    """
    from longspan.training.recipe_file import load_recipe

    settings = load_recipe(recipe, changes or (), smoke=smoke)
    folder = output or Path("runs") / (f"{settings.name}-smoke" if smoke else settings.name)

    from longspan.training.train import train as run

    try:
        result = run(settings, folder, resume=resume)
    except KeyboardInterrupt:
        say("stopped; the same command with --resume continues from the last checkpoint", error=True)
        raise
    scores = ", ".join(f"{name.removeprefix('eval_')} {value:.4g}" for name, value in result.best.items())
    say(f"best checkpoint: step {result.best_step} ({scores})")
    if settings.published is not None and not smoke:
        aim = ", ".join(f"{name} {value}" for name, value in settings.published.scores.items())
        say(f"published row this recipe aims at: {aim} ({settings.published.source})")
    say(f"model: {result.folder}")
