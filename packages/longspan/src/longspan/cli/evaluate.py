"""`longspan evaluate`: score a model on a data set."""

from pathlib import Path
from typing import Annotated

import typer

from longspan.characters import counted
from longspan.cli.terminal import say, say_json
from longspan.options import Computing

PANEL = "Models"


def evaluate(
    model: Annotated[Path, typer.Argument(help="Folder that `longspan train` wrote, or a published checkpoint.")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Changes of the task's options, such as evaluation.mode=disjoint."),
    ] = None,
    *,
    data: Annotated[str, typer.Option(help="Name of a data set (a folder of LONGSPAN_DATA) or path of a file.")],
    split: Annotated[str, typer.Option(help="Part of the data set.")] = "validation",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first rows.")] = None,
    beams: Annotated[int | None, typer.Option(min=1, help="Beams; default: as trained.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Exponent on the length; default: as trained.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest summary; default: as trained.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Documents decoded together.")] = 1,
    on_error: Annotated[
        str, typer.Option(help="Corrupt rows: raise (stop with the line), or skip (and count).")
    ] = "raise",
    output: Annotated[
        Path | None, typer.Option(help="Folder for metrics and predictions.", show_default="MODEL/evaluation")
    ] = None,
    computing: Computing,
    json: Annotated[bool, typer.Option("--json", help="Print the whole report as JSON.")] = False,
) -> None:
    """Score a model on a data set by its task's metric, such as ROUGE for summaries or bits per masked token.

    Writes the metrics (JSON, with the flavour of the scores, the decoding and the versions), every prediction (JSON
    Lines), and the official prediction file of tasks that have one.
    """
    from longspan.training.evaluate import evaluate as run
    from longspan.training.recipe_file import parse_changes

    result = run(
        model,
        data,
        split=split,
        limit=limit,
        beams=beams,
        length_penalty=length_penalty,
        max_tokens=max_tokens,
        batch_size=batch_size,
        on_error=on_error,  # pyright: ignore[reportArgumentType] (one of the two, or raised there)
        output=output,
        options=parse_changes(changes or (), "evaluation.mode=disjoint"),
        device=computing.device,
        dtype=computing.dtype,
    )
    say(f"predicted and scored in {result.seconds:.1f} s", error=True)
    if json:
        say_json(result.report)
        return
    width, mode = max([12, *map(len, result.scores)]), result.report["mode"]
    for name, value in result.scores.items():
        number = f"{value:8.4g}" if abs(value) < 10 else f"{value:8.2f}"
        say(f"{name:{width}} {number}{f'  ({mode})' if mode else ''}")
    if not result.scores:
        say("no scores: the data has no labels")
    say(f"{counted(result.report['rows'], 'row')} of {data}, split {split}. {result.report['flavour']}".rstrip())
    say(f"metrics: {result.metrics_file}\npredictions: {result.predictions_file}")
    for file in result.files:
        say(f"also: {file}")
