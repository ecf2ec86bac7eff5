"""`longspan plan`."""

from typing import TYPE_CHECKING, Annotated

import typer

from longspan.characters import counted, duration
from longspan.cli.terminal import say, say_json
from longspan.errors import InputError

PANEL = "Models"


if TYPE_CHECKING:
    from longspan.planning.plan import Plan


def plan(
    model: Annotated[str, typer.Argument(help="Folder of a model, a recipe's file, or the name of a shipped recipe.")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Changes of a recipe, such as model.max_tokens=8192."),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(help="Tokens of each row.", min=1, show_default="the recipe's; of a model 16384 at most"),
    ] = None,
    batch: Annotated[int, typer.Option(help="Rows at once.", min=1)] = 1,
    train: Annotated[bool, typer.Option("--train", help="A step of training, instead of a forward pass.")] = False,
    device: Annotated[
        str | None,
        typer.Option(help="Predict seconds of h100, h200, a100, l4 or rtx4090.", show_default="this machine"),
    ] = None,
    device_memory: Annotated[
        float | None, typer.Option(help="GiB that the device has.", show_default="the device's, or no limit")
    ] = None,
    processes: Annotated[int, typer.Option(help="Processes that share the work; counted is one.", min=1)] = 1,
    shard: Annotated[bool, typer.Option("--shard", help="They divide the weights (FSDP2).")] = False,
    sequence: Annotated[int, typer.Option(help="So many of them read each row together.", min=1)] = 1,
    mechanism: Annotated[
        list[str] | None, typer.Option(help="Another mechanism to count; may be repeated.", show_default=False)
    ] = None,
    time: Annotated[bool, typer.Option("--time/--no-time", help="Tell seconds too.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Estimate the memory and time of a model, before it is created.

    Peak memory is computed from the configuration: weights, gradients, optimizer states, activations and working
    memory, in float32 and bfloat16, and in training with and without gradient checkpointing. Seconds are for this
    machine, calibrated by one block on at most 2,048 tokens, or predicted for a `--device` that need not exist here. If
    the device has too little memory, suggests changes. For several processes, memory and batch are those of one.

    Examples: `longspan plan small-mlm-window --tokens 2048 --train`, `longspan plan DIR --batch 4 --device h100`,
    `longspan plan DIR --tokens 1000000 --train --device h100 --processes 8 --shard --sequence 4`, `longspan plan
    poolingformer-mlm model.max_tokens=16384 task.max_tokens=16384 --train`.
    """
    from longspan.hardware import device_of
    from longspan.models.work import Choice
    from longspan.planning.plan import make_plan
    from longspan.planning.source import open_planned

    if device_memory is not None and not 0 < device_memory < 1e6:
        raise InputError(f"--device-memory is {device_memory}; give GiB above 0, such as 80")
    chosen = None if device is None else device_of(device)
    planned = open_planned(model, tokens, changes or ())
    counts = make_plan(
        planned,
        Choice(
            tokens=planned.tokens,
            batch=batch,
            train=train,
            processes=sequence if processes == 1 else processes,
            shard=shard,
            sequence=sequence,
        ),
        room=None if device_memory is None else int(device_memory * 2**30),
        mechanisms=mechanism or (),
        timed=time,
        device=chosen,
    )
    if json:
        say_json(counts.to_dict())
    else:
        _print(counts)


def _print(planned: "Plan") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 0, 0, 1), pad_edge=False)
    unit, power = ("GiB", 30) if max(row.memory.peak for row in planned.rows) >= 2**30 else ("MiB", 20)
    for column in (unit, "weights", "training", "kept", "work", "peak", "time", ""):  # all in 80 columns
        table.add_column(column, no_wrap=True, justify="right" if column not in (unit, "") else "left")
    for row in planned.rows:
        sizes = (row.memory.weights, row.memory.gradients + row.memory.optimizer + row.memory.buckets)
        sizes += (row.memory.activations, row.memory.working, row.memory.peak)
        fits = "" if planned.room is None else "fits" if row.memory.peak <= planned.room else "too much"
        seconds = "" if row.seconds is None else duration(row.seconds)
        numbers = [size / 2**power for size in sizes]
        cells = [f"{number:.{2 if power == 30 and number < 100 else 0}f}" for number in numbers]
        table.add_row(row.name, *cells, seconds, fits)
    first = planned.rows[0].choice
    say(f"{counted(first.batch, 'row')} of {counted(first.tokens, 'token')}")
    Console().print(table)
    for line in planned.advice:
        say(line)
